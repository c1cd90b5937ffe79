/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as each message of control.proto and peer.proto: refused, or the same after a round trip.
 */
#include <errno.h>
#include <stdlib.h>

#include "proto/decode.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/types.h"

static uint8_t *pack(const ProtobufCMessage *message, size_t *bytes)
{
    *bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(*bytes > 0 ? *bytes : 1);

    CHECK(packed != NULL);
    CHECK(protobuf_c_message_pack(message, packed) == *bytes);
    return packed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    const ProtobufCMessageDescriptor *type = type_of((unsigned)next(&input, 1));
    ProtobufCMessage *message, *again;
    size_t bytes, bytes_again;

    int rc = rs_decode(type, input.at, input.left, &message);
    if (rc < 0) {
        CHECK(message == NULL && (rc == -RINGSIDE_E_INVALID || rc == -RINGSIDE_E_LIMIT));
        return 0;
    }
    CHECK(protobuf_c_message_check(message));
    uint8_t *packed = pack(message, &bytes);
    rc = rs_decode(type, packed, bytes, &again);
    /* Fewer bytes than came in: what they may take shrinks as well. */
    CHECK(rc == 0 || (rc == -RINGSIDE_E_LIMIT && bytes < input.left));
    if (rc == 0) {
        uint8_t *packed_again = pack(again, &bytes_again);
        CHECK(bytes_again == bytes && memcmp(packed, packed_again, bytes) == 0);
        free(packed_again);
        protobuf_c_message_free_unpacked(again, NULL);
    }
    free(packed);
    protobuf_c_message_free_unpacked(message, NULL);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A message with any header and metadata on its way to a socket client, and from there into JSON.
 */
#include <stdlib.h>

#include "client/cli/to_json.h"
#include "proto/decode.h"
#include "proxy/control.h"
#include "proxy/session.h"
#include "tests/fuzz/ring.h"

static void check_answer(const ProtobufCMessage *message)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(bytes);
    ProtobufCMessage *decoded;

    CHECK(packed != NULL && protobuf_c_message_pack(message, packed) == bytes);
    CHECK(rs_decode(message->descriptor, packed, bytes, &decoded) == 0);
    json_t *json = json_from_message(decoded);
    char *text = json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII);
    CHECK(text != NULL && strstr(text, "\"tensors\"") != NULL);
    free(text);
    json_decref(json);
    protobuf_c_message_free_unpacked(decoded, NULL);
    free(packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzzed fuzzed;
    struct input input = {data, size};
    struct wire_message *wire = malloc(sizeof *wire);
    struct rs_loan loan;

    fuzzed_begin(&fuzzed);
    CHECK(wire != NULL && rs_ring_loan(&fuzzed.ring, 1, next(&input, 1) % 2, &loan) == 0);
    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&fuzzed.ring.slots[loan.slot].header[i], next(&input, 8));
    uint8_t *body = control_body(&fuzzed.ring, loan.slot);
    uint64_t slot_bytes = rs_ring_slot_bytes(&fuzzed.ring, loan.slot);
    memset(body, 0, slot_bytes);
    next_bytes(&input, body, slot_bytes);
    struct session_lease lease = {
        .ring = &fuzzed.ring, .slot = loan.slot, .generation = loan.generation};
    if (wire_message_fill(wire, NULL, &lease, "/body", 3) == 0) {
        const ProtobufCBinaryData *metadata = &wire->message.metadata;
        CHECK(metadata->len == 0 || (metadata->data >= body && metadata->len <= slot_bytes &&
                                     metadata->data + metadata->len <= body + slot_bytes));
        check_answer(&wire->message.base);
    }
    free(wire);
    fuzzed_end(&fuzzed);
    return 0;
}

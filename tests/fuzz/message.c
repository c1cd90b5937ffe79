/* SPDX-License-Identifier: Apache-2.0 */
/* Header words and a body that a stranger wrote: corrupt, or all that is named lies inside the
 * slot. */
#include <stdlib.h>

#include "proto/tensor.h"
#include "tests/fuzz/fuzz.h"

static void check_inside(const struct rs_message *message, uint64_t slot_bytes)
{
    CHECK(message->tensor_count >= 1 && message->tensor_count <= RS_MAX_TENSORS);
    CHECK(message->metadata_offset <= slot_bytes &&
          message->metadata_bytes <= slot_bytes - message->metadata_offset);
    for (unsigned i = 0; i < message->tensor_count; i++) {
        struct rs_tensor tensor = message->tensors[i];

        CHECK(rs_tensor_size(&tensor) == 0 && tensor.bytes == message->tensors[i].bytes);
        CHECK(tensor.offset <= slot_bytes && tensor.bytes <= slot_bytes - tensor.offset);
        CHECK(tensor.offset % RS_DATA_ALIGN == 0);
    }
}

static bool same(const struct rs_message *a, const struct rs_message *b)
{
    bool equal = a->tensor_count == b->tensor_count && a->metadata_kind == b->metadata_kind &&
                 a->metadata_bytes == b->metadata_bytes && a->publish_ns == b->publish_ns &&
                 a->ttl_ns == b->ttl_ns && a->sequence == b->sequence &&
                 a->stream_id == b->stream_id && memcmp(a->trace_id, b->trace_id, 16) == 0 &&
                 a->origin_ticket == b->origin_ticket && a->call_id == b->call_id &&
                 (a->call_id == 0 || (a->call == b->call && a->admission == b->admission &&
                                      a->method_offset == b->method_offset &&
                                      a->method_bytes == b->method_bytes));

    for (unsigned i = 0; equal && i < a->tensor_count; i++) {
        const struct rs_tensor *left = &a->tensors[i], *right = &b->tensors[i];
        equal = left->dtype == right->dtype && left->rank == right->rank &&
                left->offset == right->offset && left->bytes == right->bytes &&
                memcmp(left->shape, right->shape, left->rank * 8u) == 0;
    }
    return equal;
}

/* The same tensors, laid out anew in a slot of stale words, read as they were written. */
static void write_again(struct rs_message *message, struct rs_slot *stale)
{
    struct rs_message copy;
    uint64_t bytes;

    CHECK(rs_message_plan(message, message->metadata_bytes, &bytes) == 0);
    /* The name of a method stays where it was. */
    if (message->call_id != 0 && bytes < message->method_offset + message->method_bytes)
        bytes = message->method_offset + message->method_bytes;
    uint64_t slot_bytes = (bytes + RS_SLOT_ALIGN) / RS_SLOT_ALIGN * RS_SLOT_ALIGN;
    uint64_t table_bytes = message->tensor_count * (uint64_t)RS_DESCRIPTOR_BYTES;
    uint8_t *body = calloc(1, table_bytes);
    CHECK(body != NULL);
    rs_message_store(message, stale, body);
    CHECK(rs_message_load(&copy, stale, body, slot_bytes) == 0);
    check_inside(&copy, slot_bytes);
    CHECK(same(message, &copy));
    free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    uint64_t slot_bytes = (1 + next(&input, 1) % 4) * RS_SLOT_ALIGN;
    uint8_t *body = calloc(1, slot_bytes);
    struct rs_message message, first;
    struct rs_slot slot = {0};

    CHECK(body != NULL);
    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&slot.header[i], next(&input, 8));
    next_bytes(&input, body, slot_bytes);
    if (rs_message_load(&message, &slot, body, slot_bytes) == 0) {
        check_inside(&message, slot_bytes);
        CHECK(rs_message_load(&first, &slot, NULL, slot_bytes) == 0);
        CHECK(memcmp(&first.tensors[0].shape, &message.tensors[0].shape,
                     first.tensors[0].rank * 8u) == 0);
        write_again(&message, &slot);
    }
    free(body);
    return 0;
}

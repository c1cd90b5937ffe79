/* SPDX-License-Identifier: Apache-2.0 */
/* The message header: plan a slot, write the header, copy it once and validate the copy. */
#include "proto/tensor.h"

#include "proto/err.h"

#define METADATA_ALIGN 8
#define METADATA_KIND_LAST 2u

static bool align_up(uint64_t *value, uint64_t alignment)
{
    if (__builtin_add_overflow(*value, alignment - 1, value))
        return false;
    *value &= ~(alignment - 1);
    return true;
}

/* Whether [offset, offset + bytes) lies in [0, limit). In this order nothing can overflow. */
static bool inside(uint64_t offset, uint64_t bytes, uint64_t limit)
{
    return offset <= limit && bytes <= limit - offset;
}

static uint64_t table_bytes(unsigned tensor_count)
{
    return (uint64_t)(tensor_count - 1) * RS_DESCRIPTOR_BYTES;
}

int rs_message_plan(struct rs_message *message, uint32_t metadata_bytes, uint64_t *total_bytes)
{
    uint64_t end;

    if (message->tensor_count < 1 || message->tensor_count > RS_MAX_TENSORS)
        return -RINGSIDE_E_SHAPE;
    end = table_bytes(message->tensor_count);
    for (unsigned i = 0; i < message->tensor_count; i++) {
        struct rs_tensor *tensor = &message->tensors[i];
        int error = rs_tensor_size(tensor);

        if (error < 0)
            return error;
        if (!align_up(&end, RS_DATA_ALIGN))
            return -RINGSIDE_E_SHAPE;
        tensor->offset = end;
        if (__builtin_add_overflow(end, tensor->bytes, &end))
            return -RINGSIDE_E_SHAPE;
    }
    message->metadata_bytes = metadata_bytes;
    message->metadata_offset = 0;
    if (metadata_bytes > 0) {
        if (!align_up(&end, METADATA_ALIGN))
            return -RINGSIDE_E_SHAPE;
        message->metadata_offset = end;
        if (__builtin_add_overflow(end, metadata_bytes, &end))
            return -RINGSIDE_E_SHAPE;
    }
    *total_bytes = end;
    return 0;
}

uint64_t rs_message_metadata_offset(const struct rs_message *message)
{
    const struct rs_tensor *last = &message->tensors[message->tensor_count - 1];

    return (last->offset + last->bytes + METADATA_ALIGN - 1) & ~(uint64_t)(METADATA_ALIGN - 1);
}

/* ---- store ---- */

static void store_descriptor(const struct rs_tensor *tensor, rs_word *words)
{
    rs_store_relaxed(&words[0], (uint64_t)tensor->dtype | (uint64_t)tensor->rank << 8);
    rs_store_relaxed(&words[1], tensor->offset);
    for (unsigned i = 0; i < RS_MAX_RANK; i++)
        rs_store_relaxed(&words[2 + i], i < tensor->rank ? (uint64_t)tensor->shape[i] : 0);
}

static void store_line2(const struct rs_message *message, rs_word *words)
{
    const struct rs_tensor *first = &message->tensors[0];

    for (unsigned i = 2; i < first->rank; i++)
        rs_store_relaxed(&words[RS_HEADER_SHAPE_2 + i - 2], (uint64_t)first->shape[i]);
    rs_store_relaxed(&words[RS_HEADER_SEQUENCE], message->sequence);
    rs_store_relaxed(&words[RS_HEADER_STREAM_ID], message->stream_id);
}

static void store_line3(const struct rs_message *message, rs_word *words)
{
    rs_store_relaxed(&words[RS_HEADER_METADATA_OFFSET], message->metadata_offset);
    rs_store_relaxed(&words[RS_HEADER_TRACE_ID], message->trace_id[0]);
    rs_store_relaxed(&words[RS_HEADER_TRACE_ID + 1], message->trace_id[1]);
    rs_store_relaxed(&words[RS_HEADER_ORIGIN_TICKET], message->origin_ticket);
    rs_store_relaxed(&words[RS_HEADER_CALL_ID], message->call_id);
    if (message->call_id == 0)
        return;
    rs_store_relaxed(&words[RS_HEADER_CALL], message->call);
    rs_store_relaxed(&words[RS_HEADER_METHOD],
                     (uint64_t)message->method_bytes << 56 | message->method_offset);
    rs_store_relaxed(&words[RS_HEADER_ADMISSION], message->admission);
}

void rs_message_store(const struct rs_message *message, struct rs_slot *slot, uint8_t *body)
{
    const struct rs_tensor *first = &message->tensors[0];
    rs_word *words = slot->header;
    unsigned flags = message->metadata_kind;

    if (first->rank > 2 || message->sequence != 0 || message->stream_id != 0) {
        flags |= RS_HEADER_LINE2;
        store_line2(message, words);
    }
    if (message->metadata_bytes != 0 || (message->trace_id[0] | message->trace_id[1]) != 0 ||
        (message->origin_ticket | message->call_id) != 0) {
        flags |= RS_HEADER_LINE3;
        store_line3(message, words);
    }
    rs_store_relaxed(&words[RS_HEADER_SUMMARY],
                     rs_header_summary(message->tensor_count, first->dtype, first->rank, flags,
                                       message->metadata_bytes));
    rs_store_relaxed(&words[RS_HEADER_PUBLISH_NS], message->publish_ns);
    rs_store_relaxed(&words[RS_HEADER_TTL_NS], message->ttl_ns);
    rs_store_relaxed(&words[RS_HEADER_OFFSET], first->offset);
    rs_store_relaxed(&words[RS_HEADER_SHAPE_0], first->rank > 0 ? (uint64_t)first->shape[0] : 0);
    rs_store_relaxed(&words[RS_HEADER_SHAPE_1], first->rank > 1 ? (uint64_t)first->shape[1] : 0);
    for (unsigned i = 1; i < message->tensor_count; i++)
        store_descriptor(&message->tensors[i], (rs_word *)(body + table_bytes(i)));
}

/* ---- load ---- */

static bool tensor_valid(struct rs_tensor *tensor, uint64_t slot_bytes, uint64_t alignment)
{
    return rs_tensor_size(tensor) == 0 && inside(tensor->offset, tensor->bytes, slot_bytes) &&
           tensor->offset % alignment == 0;
}

static bool load_descriptor(struct rs_tensor *tensor, const rs_word *words, uint64_t slot_bytes)
{
    uint64_t kind = rs_load_relaxed(&words[0]);

    tensor->dtype = (uint8_t)kind;
    tensor->rank = (uint8_t)(kind >> 8);
    if (tensor->rank > RS_MAX_RANK)
        return false;
    tensor->offset = rs_load_relaxed(&words[1]);
    for (unsigned i = 0; i < tensor->rank; i++)
        tensor->shape[i] = (int64_t)rs_load_relaxed(&words[2 + i]);
    return tensor_valid(tensor, slot_bytes, RS_DATA_ALIGN);
}

static bool load_first(struct rs_message *message, const rs_word *words, bool line2,
                       uint64_t slot_bytes)
{
    struct rs_tensor *first = &message->tensors[0];

    if (first->rank > RS_MAX_RANK || (first->rank > 2 && !line2))
        return false;
    first->offset = rs_load_relaxed(&words[RS_HEADER_OFFSET]);
    first->shape[0] = (int64_t)rs_load_relaxed(&words[RS_HEADER_SHAPE_0]);
    first->shape[1] = (int64_t)rs_load_relaxed(&words[RS_HEADER_SHAPE_1]);
    for (unsigned i = 2; i < first->rank; i++)
        first->shape[i] = (int64_t)rs_load_relaxed(&words[RS_HEADER_SHAPE_2 + i - 2]);
    return tensor_valid(first, slot_bytes, message->tensor_count == 1 ? RS_SLOT_ALIGN : RS_DATA_ALIGN);
}

static bool load_rest(struct rs_message *message, const uint8_t *body, uint64_t slot_bytes)
{
    if (!inside(0, table_bytes(message->tensor_count), slot_bytes))
        return false;
    if (body == NULL)
        return true;
    for (unsigned i = 1; i < message->tensor_count; i++) {
        if (!load_descriptor(&message->tensors[i], (const rs_word *)(body + table_bytes(i)),
                             slot_bytes))
            return false;
    }
    return true;
}

static void load_line2(struct rs_message *message, const rs_word *words, bool used)
{
    message->sequence = 0;
    message->stream_id = 0;
    if (!used)
        return;
    message->sequence = rs_load_relaxed(&words[RS_HEADER_SEQUENCE]);
    message->stream_id = rs_load_relaxed(&words[RS_HEADER_STREAM_ID]);
}

/* False when it makes no sense. */
static bool load_call(struct rs_message *message, const rs_word *words, uint64_t slot_bytes)
{
    uint64_t method = rs_load_relaxed(&words[RS_HEADER_METHOD]);

    message->call = rs_load_relaxed(&words[RS_HEADER_CALL]);
    message->admission = rs_load_relaxed(&words[RS_HEADER_ADMISSION]);
    message->method_bytes = (uint8_t)(method >> 56);
    message->method_offset = method & ((UINT64_C(1) << 56) - 1);
    if (rs_call_kind(message->call) == RS_CALL_REPLY)
        return method == 0;
    unsigned first = rs_call_first_cell(message->call), credits = rs_call_credits(message->call);
    return rs_call_kind(message->call) == RS_CALL_REQUEST && message->method_bytes >= 1 &&
           message->method_bytes <= RS_METHOD_MAX && credits >= 1 &&
           first + credits <= RS_BOX_CELLS &&
           inside(message->method_offset, message->method_bytes, slot_bytes);
}

static bool load_line3(struct rs_message *message, const rs_word *words, bool used,
                       uint64_t slot_bytes)
{
    message->metadata_offset = 0;
    message->trace_id[0] = message->trace_id[1] = 0;
    message->origin_ticket = 0;
    message->call_id = 0;
    if (!used)
        return true;
    message->metadata_offset = rs_load_relaxed(&words[RS_HEADER_METADATA_OFFSET]);
    message->trace_id[0] = rs_load_relaxed(&words[RS_HEADER_TRACE_ID]);
    message->trace_id[1] = rs_load_relaxed(&words[RS_HEADER_TRACE_ID + 1]);
    message->origin_ticket = rs_load_relaxed(&words[RS_HEADER_ORIGIN_TICKET]);
    message->call_id = rs_load_relaxed(&words[RS_HEADER_CALL_ID]);
    return message->call_id == 0 || load_call(message, words, slot_bytes);
}

int rs_message_load(struct rs_message *message, const struct rs_slot *slot, const uint8_t *body,
                    uint64_t slot_bytes)
{
    const rs_word *words = slot->header;
    uint64_t summary = rs_load_relaxed(&words[RS_HEADER_SUMMARY]);
    unsigned flags = (unsigned)(summary >> 32) & 0xff;

    message->tensor_count = (uint8_t)(summary >> 56);
    message->tensors[0].dtype = (uint8_t)(summary >> 48);
    message->tensors[0].rank = (uint8_t)(summary >> 40);
    message->metadata_kind = flags & RS_HEADER_KIND_MASK;
    message->metadata_bytes = (uint32_t)summary;
    message->publish_ns = rs_load_relaxed(&words[RS_HEADER_PUBLISH_NS]);
    message->ttl_ns = rs_load_relaxed(&words[RS_HEADER_TTL_NS]);
    if (message->tensor_count < 1 || message->tensor_count > RS_MAX_TENSORS ||
        message->metadata_kind > METADATA_KIND_LAST ||
        (flags & ~(RS_HEADER_KIND_MASK | RS_HEADER_LINE2 | RS_HEADER_LINE3)) != 0)
        return -RINGSIDE_E_CORRUPT;
    load_line2(message, words, (flags & RS_HEADER_LINE2) != 0);
    if (!load_line3(message, words, (flags & RS_HEADER_LINE3) != 0, slot_bytes))
        return -RINGSIDE_E_CORRUPT;
    if (message->metadata_bytes != 0 && (flags & RS_HEADER_LINE3) == 0)
        return -RINGSIDE_E_CORRUPT;
    if (!inside(message->metadata_offset, message->metadata_bytes, slot_bytes) ||
        !load_first(message, words, (flags & RS_HEADER_LINE2) != 0, slot_bytes))
        return -RINGSIDE_E_CORRUPT;
    if (message->tensor_count > 1 && !load_rest(message, body, slot_bytes))
        return -RINGSIDE_E_CORRUPT;
    return 0;
}

bool rs_message_is_request(const struct rs_slot *slot)
{
    uint64_t summary = rs_load_relaxed(&slot->header[RS_HEADER_SUMMARY]);

    return (summary >> 32 & RS_HEADER_LINE3) != 0 &&
           rs_load_relaxed(&slot->header[RS_HEADER_CALL_ID]) != 0 &&
           rs_call_kind(rs_load_relaxed(&slot->header[RS_HEADER_CALL])) == RS_CALL_REQUEST;
}

void rs_message_times(const struct rs_slot *slot, uint64_t *publish_ns, uint64_t *ttl_ns)
{
    *publish_ns = rs_load_relaxed(&slot->header[RS_HEADER_PUBLISH_NS]);
    *ttl_ns = rs_load_relaxed(&slot->header[RS_HEADER_TTL_NS]);
}

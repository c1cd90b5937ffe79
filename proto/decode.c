/* SPDX-License-Identifier: Apache-2.0 */
/* A look over the wire bytes, then protobuf-c with an allocator that has a budget. */
#include "proto/decode.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/err.h"

struct budget {
    size_t left_bytes; /* never refilled, so that a decode's total work is bounded too */
    int error;         /* why the last allocation was refused, or 0 */
};

static void *budget_alloc(void *data, size_t bytes)
{
    struct budget *budget = data;

    if (bytes > budget->left_bytes) {
        budget->error = -RINGSIDE_E_LIMIT;
        return NULL;
    }
    budget->left_bytes -= bytes;
    void *block = malloc(bytes > 0 ? bytes : 1);
    if (block == NULL)
        budget->error = -ENOMEM;
    return block;
}

static void budget_free(void *data, void *block)
{
    (void)data;
    free(block);
}

size_t rs_utf8_character(const uint8_t *text, size_t bytes)
{
    size_t length = text[0] < 0x80   ? 1
                    : text[0] < 0xc2 ? 0
                    : text[0] < 0xe0 ? 2
                    : text[0] < 0xf0 ? 3
                    : text[0] < 0xf5 ? 4
                                     : 0;

    if (length > bytes)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    /* Overlong forms, UTF-16 surrogates, and what lies beyond U+10FFFF. */
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
        (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))
        return 0;
    return length;
}

static bool is_text(const uint8_t *text, size_t bytes)
{
    while (bytes > 0) {
        size_t step = rs_utf8_character(text, bytes);
        if (step == 0 || text[0] == 0)
            return false;
        text += step;
        bytes -= step;
    }
    return true;
}

/* Reads a varint and moves past it. */
static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 70 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        if (shift < 64)
            *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* Bytes of a value of this wire type, its length prefix passed; false for one that does not fit. */
static bool value_bytes(unsigned wire_type, const uint8_t **at, const uint8_t *end, uint64_t *bytes)
{
    uint64_t ignored;

    switch (wire_type) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        *bytes = 0;
        return read_varint(at, end, &ignored);
    case PROTOBUF_C_WIRE_TYPE_64BIT:
        *bytes = 8;
        break;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        if (!read_varint(at, end, bytes))
            return false;
        break;
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        *bytes = 4;
        break;
    default:
        return false;
    }
    return *bytes <= (uint64_t)(end - *at);
}

/*
 * Whether a field's one message comes a second time. Protobuf says to merge the two; protobuf-c
 * loses plain numbers of the first.
 */
static bool is_doubled(const ProtobufCMessageDescriptor *type,
                       const ProtobufCFieldDescriptor *field, uint64_t *seen)
{
    size_t index = (size_t)(field - type->fields);

    if (field->label == PROTOBUF_C_LABEL_REPEATED || index >= 64)
        return false;
    bool doubled = *seen >> index & 1;
    *seen |= UINT64_C(1) << index;
    return doubled;
}

static int check(const ProtobufCMessageDescriptor *type, const uint8_t *at, const uint8_t *end,
                 unsigned depth)
{
    uint64_t seen = 0;

    if (depth > RS_DECODE_DEPTH)
        return -RINGSIDE_E_INVALID;
    while (at < end) {
        uint64_t tag, bytes;

        if (!read_varint(&at, end, &tag) || tag >> 3 == 0 || tag > UINT32_MAX ||
            !value_bytes(tag & 7, &at, end, &bytes))
            return -RINGSIDE_E_INVALID;
        const ProtobufCFieldDescriptor *field =
            (tag & 7) == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED
                ? protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3))
                : NULL;
        if (field != NULL && field->type == PROTOBUF_C_TYPE_STRING && !is_text(at, bytes))
            return -RINGSIDE_E_INVALID;
        if (field != NULL && field->type == PROTOBUF_C_TYPE_MESSAGE) {
            if (is_doubled(type, field, &seen) ||
                check(field->descriptor, at, at + bytes, depth + 1))
                return -RINGSIDE_E_INVALID;
        }
        at += bytes;
    }
    return 0;
}

int rs_decode(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t bytes,
              ProtobufCMessage **message)
{
    struct budget budget = {.left_bytes = RS_DECODE_BUDGET(bytes)};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};

    *message = NULL;
    if (bytes == 0)
        data = (const uint8_t *)""; /* an absent payload has no address, not even to add 0 to */
    int rc = check(type, data, data + bytes, 1);
    if (rc < 0)
        return rc;
    *message = protobuf_c_message_unpack(type, &allocator, bytes, data);
    if (*message != NULL)
        return 0;
    return budget.error < 0 ? budget.error : -RINGSIDE_E_INVALID;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Walks a message by its descriptor, so a field that is added to control.proto shows by itself. */
#include "client/cli/to_json.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/output.h"

static json_t *from_bytes(const ProtobufCBinaryData *bytes)
{
    char *text = output_need(malloc(2 * bytes->len + 1));

    text[0] = '\0';
    for (size_t i = 0; i < bytes->len; i++)
        sprintf(text + 2 * i, "%02x", bytes->data[i]);
    json_t *value = json_string(text);
    free(text);
    return value;
}

static json_t *from_enum(const ProtobufCEnumDescriptor *type, int number)
{
    const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(type, number);

    if (value == NULL)
        return json_integer(number);
    char name[64];
    size_t i = 0;
    for (; i + 1 < sizeof name && value->name[i] != '\0'; i++)
        name[i] = (char)tolower((unsigned char)value->name[i]);
    name[i] = '\0';
    return json_string(name);
}

/* A JSON integer ends at 2^63 here; what is larger keeps its digits in a string. */
static json_t *from_unsigned(uint64_t number)
{
    return number <= INT64_MAX ? json_integer((json_int_t)number)
                               : json_sprintf("%" PRIu64, number);
}

static json_t *from_element(const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_ENUM:
        return from_enum(field->descriptor, *(const int *)at);
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer(*(const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
        return from_unsigned(*(const uint64_t *)at);
    case PROTOBUF_C_TYPE_FIXED64:
        return json_sprintf("0x%016" PRIx64, *(const uint64_t *)at);
    case PROTOBUF_C_TYPE_FLOAT:
        return json_real((double)*(const float *)at);
    case PROTOBUF_C_TYPE_DOUBLE:
        return json_real(*(const double *)at);
    case PROTOBUF_C_TYPE_STRING:
        return json_string(*(char *const *)at);
    case PROTOBUF_C_TYPE_BYTES:
        return from_bytes(at);
    case PROTOBUF_C_TYPE_MESSAGE:
        return json_from_message(*(ProtobufCMessage *const *)at);
    }
    return json_null();
}

static size_t element_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static json_t *from_repeated(const ProtobufCFieldDescriptor *field, const uint8_t *base)
{
    size_t count = *(const size_t *)(const void *)(base + field->quantifier_offset);
    const uint8_t *elements = *(uint8_t *const *)(const void *)(base + field->offset);
    json_t *array = output_need(json_array());

    for (size_t i = 0; i < count; i++) {
        json_t *element = from_element(field, elements + i * element_bytes(field->type));
        json_array_append_new(array, output_need(element));
    }
    return array;
}

/* Whether a singular field is there at all. */
static bool is_set(const ProtobufCFieldDescriptor *field, const uint8_t *base)
{
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 &&
        *(const uint32_t *)(const void *)(base + field->quantifier_offset) != field->id)
        return false;
    return field->type != PROTOBUF_C_TYPE_MESSAGE ||
           *(ProtobufCMessage *const *)(const void *)(base + field->offset) != NULL;
}

json_t *json_from_message(const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    const uint8_t *base = (const uint8_t *)message;
    json_t *object = output_need(json_object());

    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        json_t *value;
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            value = from_repeated(field, base);
        else if (is_set(field, base))
            value = from_element(field, base + field->offset);
        else
            continue;
        json_object_set_new(object, field->name, output_need(value));
    }
    return object;
}

void json_print(json_t *value)
{
    json_dumpf(output_need(value), stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    putchar('\n');
    json_decref(value);
}

void json_print_line(json_t *value)
{
    json_dumpf(output_need(value), stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
    fflush(stdout);
    json_decref(value);
}

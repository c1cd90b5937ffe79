/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as text and as JSON. Their metadata come from strangers. */
#include "client/cli/message.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/slots.h"
#include "proto/tensor.h"

#define TRACE_BYTES 16

char *message_tensors(char *text, size_t bytes, const struct ringside_message *message)
{
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < message->tensor_count && at + 2 < bytes; i++) {
        const struct ringside_tensor *from = &message->tensors[i];
        Ringside__V1__Tensor tensor = RINGSIDE__V1__TENSOR__INIT;
        tensor.dtype = (Ringside__V1__Dtype)from->dtype;
        tensor.shape = (int64_t *)(uintptr_t)from->shape;
        tensor.n_shape = from->rank;
        if (i > 0)
            text[at++] = ' ';
        slots_tensor(text + at, bytes - at, &tensor);
        at += strlen(text + at);
    }
    return text;
}

uint64_t message_bytes(const struct ringside_message *message)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < message->tensor_count; i++)
        total += message->tensors[i].bytes;
    return total;
}

/* Kinds json and tree are JSON text. NULL when it is not that, whatever it says it is. */
static json_t *parse_metadata(const struct ringside_message *message)
{
    if (message->metadata_bytes == 0 || message->metadata_kind == RINGSIDE_OPAQUE)
        return NULL;
    return json_loadb(message->metadata, message->metadata_bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL,
                      NULL);
}

char *message_metadata(const struct ringside_message *message)
{
    json_t *value = parse_metadata(message);
    char *text = NULL;

    if (value != NULL) {
        text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        json_decref(value);
    }
    if (text == NULL) {
        text = output_need(malloc(OUTPUT_NUMBER_BYTES));
        text[0] = '\0';
        if (message->metadata_bytes > 0)
            snprintf(text, OUTPUT_NUMBER_BYTES, "%" PRIu32 " bytes", message->metadata_bytes);
    }
    return text;
}

static json_t *hexadecimal(const void *bytes, size_t count)
{
    char *text = output_need(malloc(2 * count + 1));

    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        sprintf(text + 2 * i, "%02x", ((const uint8_t *)bytes)[i]);
    json_t *value = json_string(text);
    free(text);
    return output_need(value);
}

static json_t *tensors_json(const struct ringside_message *message)
{
    json_t *tensors = output_need(json_array());

    for (uint32_t i = 0; i < message->tensor_count; i++) {
        const struct ringside_tensor *tensor = &message->tensors[i];
        const struct rs_dtype_info *dtype = rs_dtype_info(tensor->dtype);
        json_t *shape = output_need(json_array());
        for (unsigned k = 0; k < tensor->rank; k++)
            json_array_append_new(shape, json_integer(tensor->shape[k]));
        json_t *object = json_pack("{s:s, s:o, s:I}", "dtype", dtype != NULL ? dtype->name : "?",
                                   "shape", shape, "bytes", (json_int_t)tensor->bytes);
        json_array_append_new(tensors, output_need(object));
    }
    return tensors;
}

static void set_word(json_t *object, const char *name, uint64_t word)
{
    json_object_set_new(object, name, output_need(json_sprintf("0x%016" PRIx64, word)));
}

static void set_number(json_t *object, const char *name, uint64_t number)
{
    json_int_t most = INT64_MAX;

    json_object_set_new(object, name,
                        json_integer(number < (uint64_t)most ? (json_int_t)number : most));
}

json_t *message_json(const struct ringside_message *message, const char *text)
{
    static const char *const kinds[] = {"opaque", "json", "tree"};
    static const uint8_t no_trace[TRACE_BYTES];
    json_t *object = output_need(json_object()), *metadata = parse_metadata(message);
    uint64_t now_ns = cli_now_ns();

    set_word(object, "ticket", message->ticket);
    json_object_set_new(object, "text", output_need(json_string(text)));
    json_object_set_new(object, "tensors", tensors_json(message));
    json_object_set_new(
        object, "metadata_kind",
        json_string(kinds[message->metadata_kind < 3 ? message->metadata_kind : 0]));
    if (metadata != NULL)
        json_object_set_new(object, "metadata", metadata);
    else if (message->metadata_bytes > 0)
        json_object_set_new(object, "metadata_hex",
                            hexadecimal(message->metadata, message->metadata_bytes));
    set_number(object, "publish_ns", message->publish_ns);
    set_number(object, "age_ns", now_ns > message->publish_ns ? now_ns - message->publish_ns : 0);
    set_number(object, "ttl_ns", message->ttl_ns);
    set_word(object, "stream_id", message->stream_id);
    set_word(object, "sequence", message->sequence);
    if (memcmp(message->trace_id, no_trace, sizeof no_trace) != 0)
        json_object_set_new(object, "trace_id", hexadecimal(message->trace_id, TRACE_BYTES));
    json_object_set_new(object, "attempts", json_integer(message->attempts));
    if (message->origin_ticket != 0)
        set_word(object, "origin_ticket", message->origin_ticket);
    return object;
}

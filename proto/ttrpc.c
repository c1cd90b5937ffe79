/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of ttrpc: encoded by hand straight into the writer, decoded by protobuf-c. */
#include "proto/ttrpc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/err.h"

/* Wire tags, field << 3 | wire type, of ttrpc_wire.proto. */
enum tag {
    REQUEST_SERVICE = 1 << 3 | 2,
    REQUEST_METHOD = 2 << 3 | 2,
    REQUEST_PAYLOAD = 3 << 3 | 2,
    REQUEST_TIMEOUT = 4 << 3 | 0,
    REQUEST_METADATA = 5 << 3 | 2,
    RESPONSE_STATUS = 1 << 3 | 2,
    RESPONSE_PAYLOAD = 2 << 3 | 2,
    STATUS_CODE = 1 << 3 | 0,
    STATUS_MESSAGE = 2 << 3 | 2,
    PAIR_KEY = 1 << 3 | 2,
    PAIR_VALUE = 2 << 3 | 2,
};

static size_t varint_bytes(uint64_t value)
{
    size_t bytes = 1;

    while (value >>= 7)
        bytes++;
    return bytes;
}

/* Size of a length-prefixed field; every tag here is one byte. */
static size_t field_bytes(size_t length)
{
    return 1 + varint_bytes(length) + length;
}

static uint8_t *put_number(uint8_t *at, enum tag tag, uint64_t value)
{
    *at++ = (uint8_t)tag;
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static uint8_t *put_text(uint8_t *at, enum tag tag, const char *text, size_t bytes)
{
    at = put_number(at, tag, bytes);
    memcpy(at, text, bytes);
    return at + bytes;
}

static uint8_t *put_message(uint8_t *at, enum tag tag, const ProtobufCMessage *message,
                            size_t bytes)
{
    if (bytes == 0)
        return at;
    at = put_number(at, tag, bytes);
    return at + protobuf_c_message_pack(message, at);
}

static size_t packed_bytes(const ProtobufCMessage *message)
{
    return message != NULL ? protobuf_c_message_get_packed_size(message) : 0;
}

/* Refuses what does not fit before a length is cut to 32 bits. */
static int reserve(struct rs_ttrpc_writer *writer, struct rs_frame_header header, size_t bytes,
                   const int *fds, size_t fd_count, uint8_t **payload)
{
    if (bytes > RS_FRAME_MAX_BYTES)
        return -RINGSIDE_E_TOO_BIG;
    header.length = (uint32_t)bytes;
    return rs_ttrpc_writer_reserve(writer, &header, fds, fd_count, payload);
}

void rs_ttrpc_streams_init(struct rs_ttrpc_streams *streams, bool connected)
{
    streams->next = connected ? 1 : 2;
    streams->last = 0;
}

int rs_ttrpc_stream_open(struct rs_ttrpc_streams *streams, uint32_t *stream)
{
    if (streams->next > RS_TTRPC_STREAM_MAX)
        return -RINGSIDE_E_LIMIT;
    *stream = streams->next;
    streams->next += 2;
    return 0;
}

int rs_ttrpc_stream_accept(struct rs_ttrpc_streams *streams, uint32_t stream)
{
    if (stream == 0 || (stream & 1) == (streams->next & 1) || stream <= streams->last)
        return -RINGSIDE_E_INVALID;
    streams->last = stream;
    return 0;
}

bool rs_ttrpc_stream_is_ours(const struct rs_ttrpc_streams *streams, uint32_t stream)
{
    return stream != 0 && (stream & 1) == (streams->next & 1) && stream < streams->next;
}

static int64_t deadline(int64_t now_ns, int64_t timeout_ns)
{
    int64_t at;

    if (timeout_ns == 0)
        return RS_NO_DEADLINE;
    if (timeout_ns < 0) /* it passed while the request was being written */
        return now_ns;
    return __builtin_add_overflow(now_ns, timeout_ns, &at) ? RS_NO_DEADLINE : at;
}

static int check_request(const Ringside__Ttrpc__V1__Request *request, const char **why)
{
    size_t service_bytes = strlen(request->service);
    size_t method_bytes = strlen(request->method);

    if (service_bytes == 0 || service_bytes > RS_TTRPC_NAME_MAX) {
        *why = "the request's service is empty or longer than 255 bytes";
        return -RINGSIDE_E_INVALID;
    }
    if (method_bytes == 0 || method_bytes > RS_TTRPC_NAME_MAX) {
        *why = "the request's method is empty or longer than 255 bytes";
        return -RINGSIDE_E_INVALID;
    }
    if (request->n_metadata > RS_TTRPC_METADATA_MAX) {
        *why = "the request has more than 64 metadata pairs";
        return -RINGSIDE_E_LIMIT;
    }
    return 0;
}

int rs_ttrpc_request_decode(const struct rs_frame *frame, int64_t now_ns,
                            struct rs_ttrpc_call *call, Ringside__Ttrpc__V1__Request **request,
                            const char **why)
{
    ProtobufCMessage *message;

    *request = NULL;
    *why = NULL;
    int rc = rs_decode(&ringside__ttrpc__v1__request__descriptor, frame->payload,
                       frame->header.length, &message);
    if (rc < 0) {
        *why = rc == -RINGSIDE_E_INVALID ? "the frame does not hold a ttrpc request"
               : rc == -RINGSIDE_E_LIMIT ? "the request takes too much memory to decode"
                                         : "out of memory";
        return rc;
    }
    *request = (Ringside__Ttrpc__V1__Request *)message;
    rc = check_request(*request, why);
    if (rc < 0) {
        rs_ttrpc_request_free(*request);
        *request = NULL;
        return rc;
    }
    call->stream = frame->header.stream;
    call->streaming = (frame->header.flags & (RS_FRAME_REMOTE_CLOSED | RS_FRAME_REMOTE_OPEN)) != 0;
    call->open = (frame->header.flags & RS_FRAME_REMOTE_OPEN) != 0;
    call->deadline_ns = deadline(now_ns, (*request)->timeout_nano);
    return 0;
}

void rs_ttrpc_request_free(Ringside__Ttrpc__V1__Request *request)
{
    if (request != NULL)
        protobuf_c_message_free_unpacked(&request->base, NULL);
}

int rs_ttrpc_respond(struct rs_ttrpc_writer *writer, uint32_t stream,
                     const ProtobufCMessage *payload, const int *fds, size_t fd_count)
{
    struct rs_frame_header header = {.stream = stream, .type = RS_FRAME_RESPONSE};
    size_t bytes = packed_bytes(payload);
    uint8_t *at;

    int rc = reserve(writer, header, bytes > 0 ? field_bytes(bytes) : 0, fds, fd_count, &at);
    if (rc == 0)
        put_message(at, RESPONSE_PAYLOAD, payload, bytes);
    return rc;
}

/* Proto3 strings are UTF-8; a strict peer drops the whole response for one byte that is not. */
static void make_utf8(char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        size_t step = rs_utf8_character((uint8_t *)text + i, bytes - i);
        if (step == 0)
            text[i] = '?';
        i += step > 0 ? step : 1;
    }
}

int rs_ttrpc_respond_error(struct rs_ttrpc_writer *writer, uint32_t stream, int error,
                           const char *text)
{
    RS_REQUIRE(error < 0);
    return rs_ttrpc_respond_status(writer, stream, rs_error_status(error), rs_error_name(error),
                                   text != NULL ? text : rs_strerror(error));
}

int rs_ttrpc_respond_status(struct rs_ttrpc_writer *writer, uint32_t stream, unsigned code,
                            const char *name, const char *text)
{
    struct rs_frame_header header = {.stream = stream, .type = RS_FRAME_RESPONSE};
    char message[RS_TTRPC_MESSAGE_MAX];
    uint8_t *at;

    RS_REQUIRE(code > 0);
    int length = snprintf(message, sizeof message, "%s: %s", name, text);
    size_t bytes = (size_t)length < sizeof message ? (size_t)length : sizeof message - 1;
    make_utf8(message, bytes);
    size_t status_bytes = 1 + varint_bytes(code) + field_bytes(bytes);
    int rc = reserve(writer, header, field_bytes(status_bytes), NULL, 0, &at);
    if (rc < 0)
        return rc;
    at = put_number(at, RESPONSE_STATUS, status_bytes);
    at = put_number(at, STATUS_CODE, code);
    put_text(at, STATUS_MESSAGE, message, bytes);
    return 0;
}

int rs_ttrpc_stream_send(struct rs_ttrpc_writer *writer, uint32_t stream,
                         const ProtobufCMessage *payload, const int *fds, size_t fd_count)
{
    struct rs_frame_header header = {.stream = stream, .type = RS_FRAME_DATA};
    uint8_t *at;

    int rc = reserve(writer, header, packed_bytes(payload), fds, fd_count, &at);
    if (rc == 0 && payload != NULL)
        protobuf_c_message_pack(payload, at);
    return rc;
}

int rs_ttrpc_stream_end(struct rs_ttrpc_writer *writer, uint32_t stream)
{
    struct rs_frame_header header = {.stream = stream,
                                     .type = RS_FRAME_DATA,
                                     .flags = RS_FRAME_REMOTE_CLOSED | RS_FRAME_NO_DATA};
    uint8_t *at;

    return reserve(writer, header, 0, NULL, 0, &at);
}

static size_t pair_bytes(const struct rs_ttrpc_metadata *pair)
{
    return field_bytes(strlen(pair->key)) + field_bytes(strlen(pair->value));
}

int rs_ttrpc_request_write(struct rs_ttrpc_writer *writer, const struct rs_ttrpc_request *request,
                           const int *fds, size_t fd_count)
{
    struct rs_frame_header header = {
        .stream = request->stream, .type = RS_FRAME_REQUEST, .flags = request->flags};
    size_t service_bytes = strlen(request->service);
    size_t method_bytes = strlen(request->method);
    size_t payload_bytes = packed_bytes(request->payload);
    uint64_t timeout = (uint64_t)request->timeout_ns;
    uint8_t *at;

    if (service_bytes == 0 || service_bytes > RS_TTRPC_NAME_MAX || method_bytes == 0 ||
        method_bytes > RS_TTRPC_NAME_MAX || request->metadata_count > RS_TTRPC_METADATA_MAX)
        return -RINGSIDE_E_INVALID;
    size_t bytes = field_bytes(service_bytes) + field_bytes(method_bytes);
    if (payload_bytes > 0)
        bytes += field_bytes(payload_bytes);
    if (timeout != 0)
        bytes += 1 + varint_bytes(timeout);
    for (size_t i = 0; i < request->metadata_count; i++)
        bytes += field_bytes(pair_bytes(&request->metadata[i]));

    int rc = reserve(writer, header, bytes, fds, fd_count, &at);
    if (rc < 0)
        return rc;
    at = put_text(at, REQUEST_SERVICE, request->service, service_bytes);
    at = put_text(at, REQUEST_METHOD, request->method, method_bytes);
    at = put_message(at, REQUEST_PAYLOAD, request->payload, payload_bytes);
    if (timeout != 0)
        at = put_number(at, REQUEST_TIMEOUT, timeout);
    for (size_t i = 0; i < request->metadata_count; i++) {
        const struct rs_ttrpc_metadata *pair = &request->metadata[i];
        at = put_number(at, REQUEST_METADATA, pair_bytes(pair));
        at = put_text(at, PAIR_KEY, pair->key, strlen(pair->key));
        at = put_text(at, PAIR_VALUE, pair->value, strlen(pair->value));
    }
    return 0;
}

int rs_ttrpc_response_decode(const struct rs_frame *frame, const ProtobufCMessageDescriptor *type,
                             ProtobufCMessage **payload, char *text, size_t text_bytes)
{
    ProtobufCMessage *message;
    const char *reason;

    *payload = NULL;
    int rc = rs_decode(&ringside__ttrpc__v1__response__descriptor, frame->payload,
                       frame->header.length, &message);
    if (rc < 0) {
        snprintf(text, text_bytes, "the answer is not a ttrpc response");
        return rc == -RINGSIDE_E_INVALID ? -RINGSIDE_E_PROTOCOL : rc;
    }
    const Ringside__Ttrpc__V1__Response *response = (Ringside__Ttrpc__V1__Response *)message;
    if (response->status != NULL && response->status->code != RS_STATUS_OK) {
        rc = rs_ttrpc_status_error(response->status->code, response->status->message, &reason);
        snprintf(text, text_bytes, "%s", *reason != '\0' ? reason : rs_strerror(rc));
    } else {
        rc = rs_decode(type, response->payload.data, response->payload.len, payload);
        if (rc < 0)
            snprintf(text, text_bytes, "the answer does not hold a %s", type->name);
        if (rc == -RINGSIDE_E_INVALID)
            rc = -RINGSIDE_E_PROTOCOL;
    }
    protobuf_c_message_free_unpacked(message, NULL);
    return rc;
}

int rs_ttrpc_status_error(int code, const char *message, const char **text)
{
    char name[32];
    const char *colon = message != NULL ? strstr(message, ": ") : NULL;
    int error = 0;

    if (text != NULL)
        *text = message != NULL ? message : "";
    if (code == RS_STATUS_OK)
        return 0;
    if (colon != NULL && (size_t)(colon - message) < sizeof name) {
        memcpy(name, message, (size_t)(colon - message));
        name[colon - message] = '\0';
        error = rs_error_from_name(name);
    }
    if (error == 0)
        return rs_status_error(code);
    if (text != NULL)
        *text = colon + 2;
    return error;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A payload as a request and as a response, each as the side that gets it reads it. */
#include "proto/ttrpc.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/types.h"

/* What is in a writer, as the frame that the other side gets. */
static struct rs_frame sent(const struct rs_ttrpc_writer *writer)
{
    struct rs_frame frame = {.payload = writer->buffer + writer->begin + RS_FRAME_HEADER_BYTES};

    rs_frame_header_decode(&frame.header, writer->buffer + writer->begin);
    return frame;
}

static void decode_payload(const Ringside__Ttrpc__V1__Request *request)
{
    for (size_t i = 0; i < 2; i++) {
        const ProtobufCMethodDescriptor *method =
            protobuf_c_service_descriptor_get_method_by_name(services[i], request->method);
        ProtobufCMessage *message;

        if (method == NULL ||
            rs_decode(method->input, request->payload.data, request->payload.len, &message) < 0)
            continue;
        protobuf_c_message_free_unpacked(message, NULL);
    }
}

/* Names and timeout survive being sent again. */
static void send_again(const Ringside__Ttrpc__V1__Request *request)
{
    struct rs_ttrpc_request out = {.stream = 5,
                                   .service = request->service,
                                   .method = request->method,
                                   .timeout_ns = request->timeout_nano};
    Ringside__Ttrpc__V1__Request *again;
    struct rs_ttrpc_writer writer;
    struct rs_ttrpc_call call;
    const char *why;

    rs_ttrpc_writer_init(&writer, RS_FRAME_MAX_BYTES);
    CHECK(rs_ttrpc_request_write(&writer, &out, NULL, 0) == 0);
    struct rs_frame frame = sent(&writer);
    CHECK(rs_ttrpc_request_decode(&frame, 1, &call, &again, &why) == 0 && call.stream == 5);
    CHECK(strcmp(again->service, request->service) == 0 &&
          strcmp(again->method, request->method) == 0);
    CHECK(again->timeout_nano == request->timeout_nano);
    rs_ttrpc_request_free(again);
    rs_ttrpc_writer_finish(&writer);
}

/* Any text becomes an answer that any peer can decode, and the error keeps its identity. */
static void answer_with(const char *text)
{
    struct rs_ttrpc_writer writer;
    ProtobufCMessage *payload;
    char reason[RS_TTRPC_MESSAGE_MAX];

    rs_ttrpc_writer_init(&writer, RS_FRAME_MAX_BYTES);
    CHECK(rs_ttrpc_respond_error(&writer, 1, -RINGSIDE_E_STALE_TICKET, text) == 0);
    struct rs_frame frame = sent(&writer);
    CHECK(rs_ttrpc_response_decode(&frame, type_of(2), &payload, reason, sizeof reason) ==
          -RINGSIDE_E_STALE_TICKET);
    rs_ttrpc_writer_finish(&writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    unsigned type = (unsigned)next(&input, 1);
    struct rs_frame frame = {.header = {(uint32_t)input.left, 3, RS_FRAME_REQUEST, 0},
                             .payload = input.at};
    Ringside__Ttrpc__V1__Request *request;
    struct rs_ttrpc_call call;
    ProtobufCMessage *payload;
    const char *why;
    char text[300] = "";

    if (rs_ttrpc_request_decode(&frame, 1, &call, &request, &why) == 0) {
        CHECK(call.deadline_ns >= 1);
        decode_payload(request);
        send_again(request);
        rs_ttrpc_request_free(request);
    } else {
        CHECK(request == NULL && why != NULL);
    }
    int rc = rs_ttrpc_response_decode(&frame, type_of(type), &payload, text, sizeof text);
    CHECK((rc == 0) == (payload != NULL) && rc <= 0);
    if (rc == 0)
        protobuf_c_message_free_unpacked(payload, NULL);
    text[next_bytes(&input, text, sizeof text - 1)] = '\0';
    answer_with(text);
    return 0;
}

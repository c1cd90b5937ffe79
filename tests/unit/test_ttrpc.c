/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on the wire: what is written decodes with the schema, what is wrong is told apart. */
#include "proto/ttrpc.h"

#include <string.h>

#include "proto/err.h"
#include "tests/unit/rpc_fixture.h"

/* Any message serves as a payload; a KeyValue is at hand. */
static Ringside__Ttrpc__V1__KeyValue pair, empty_pair;
#define PAIR_TYPE (&ringside__ttrpc__v1__key_value__descriptor)

static struct rs_ttrpc_writer writer;
static struct rs_ttrpc_reader reader;

static int start(void **state)
{
    ringside__ttrpc__v1__key_value__init(&pair);
    ringside__ttrpc__v1__key_value__init(&empty_pair);
    pair.key = (char *)"k";
    pair.value = (char *)"v";
    rs_ttrpc_writer_init(&writer, 1 << 20);
    rs_ttrpc_reader_init(&reader, 0);
    return note_fds(state);
}

static int stop(void **state)
{
    rs_ttrpc_writer_finish(&writer);
    rs_ttrpc_reader_finish(&reader);
    return same_fds(state);
}

/* The oldest queued frame. */
static struct rs_frame written(void)
{
    size_t pending = rs_ttrpc_writer_pending(&writer);
    struct rs_frame frame;

    ssize_t fed = rs_ttrpc_reader_feed(&reader, writer.buffer + writer.begin, pending, 1);
    assert_true(fed >= 0);
    writer.begin += (size_t)fed;
    assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 1);
    return frame;
}

static void streams_have_a_side(void **state)
{
    struct rs_ttrpc_streams connected, accepted;
    uint32_t stream;

    (void)state;
    rs_ttrpc_streams_init(&connected, true);
    rs_ttrpc_streams_init(&accepted, false);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rs_ttrpc_stream_open(&connected, &stream), 0);
        assert_int_equal(stream, 1 + 2 * i);
        assert_int_equal(rs_ttrpc_stream_accept(&accepted, stream), 0);
        assert_int_equal(rs_ttrpc_stream_open(&accepted, &stream), 0);
        assert_int_equal(stream, 2 + 2 * i);
        assert_int_equal(rs_ttrpc_stream_accept(&connected, stream), 0);
    }
    assert_int_equal(rs_ttrpc_stream_accept(&accepted, 5), -RINGSIDE_E_INVALID); /* used */
    assert_int_equal(rs_ttrpc_stream_accept(&accepted, 3), -RINGSIDE_E_INVALID); /* older */
    assert_int_equal(rs_ttrpc_stream_accept(&accepted, 8), -RINGSIDE_E_INVALID); /* ours */
    assert_int_equal(rs_ttrpc_stream_accept(&accepted, 0), -RINGSIDE_E_INVALID);
    assert_int_equal(rs_ttrpc_stream_accept(&connected, 0), -RINGSIDE_E_INVALID);
    assert_int_equal(rs_ttrpc_stream_accept(&accepted, 99), 0); /* gaps are fine */
    assert_true(rs_ttrpc_stream_is_ours(&accepted, 6));
    assert_false(rs_ttrpc_stream_is_ours(&accepted, 8));
    assert_false(rs_ttrpc_stream_is_ours(&accepted, 5));
    assert_false(rs_ttrpc_stream_is_ours(&accepted, 0));
}

static void streams_end(void **state)
{
    struct rs_ttrpc_streams streams;
    uint32_t stream;

    (void)state;
    rs_ttrpc_streams_init(&streams, true);
    streams.next = RS_TTRPC_STREAM_MAX;
    assert_int_equal(rs_ttrpc_stream_open(&streams, &stream), 0);
    assert_int_equal(stream, RS_TTRPC_STREAM_MAX);
    assert_int_equal(rs_ttrpc_stream_open(&streams, &stream), -RINGSIDE_E_LIMIT);
}

static void request_round_trip(void **state)
{
    const struct rs_ttrpc_metadata metadata[] = {{"trace", "1"}, {"trace", ""}};
    struct rs_ttrpc_request request = {.stream = 5,
                                       .flags = RS_FRAME_REMOTE_CLOSED,
                                       .service = "ringside.v1.Control",
                                       .method = "Receive",
                                       .payload = &pair.base,
                                       .timeout_ns = 300,
                                       .metadata = metadata,
                                       .metadata_count = 2};
    Ringside__Ttrpc__V1__Request *decoded;
    struct rs_ttrpc_call call;
    const char *why;
    uint8_t payload[16];

    (void)state;
    assert_int_equal(rs_ttrpc_request_write(&writer, &request, NULL, 0), 0);
    struct rs_frame frame = written();
    assert_int_equal(frame.header.type, RS_FRAME_REQUEST);
    assert_int_equal(rs_ttrpc_request_decode(&frame, 1000, &call, &decoded, &why), 0);
    assert_int_equal(call.stream, 5);
    assert_true(call.streaming);
    assert_false(call.open);
    assert_int_equal(call.deadline_ns, 1300);
    assert_string_equal(decoded->service, "ringside.v1.Control");
    assert_string_equal(decoded->method, "Receive");
    assert_int_equal(decoded->payload.len, protobuf_c_message_pack(&pair.base, payload));
    assert_memory_equal(decoded->payload.data, payload, decoded->payload.len);
    assert_int_equal(decoded->n_metadata, 2);
    assert_string_equal(decoded->metadata[0]->key, "trace");
    assert_string_equal(decoded->metadata[0]->value, "1");
    assert_string_equal(decoded->metadata[1]->value, "");
    /* Byte for byte what the schema's own encoder gives, but for empty strings, which it omits. */
    assert_int_equal(ringside__ttrpc__v1__request__get_packed_size(decoded) + 2,
                     frame.header.length);
    rs_ttrpc_request_free(decoded);
    rs_ttrpc_request_free(NULL);
}

static void minimal_request_is_canonical(void **state)
{
    struct rs_ttrpc_request request = {.stream = 1, .service = "s", .method = "m"};
    const uint8_t expected[] = {0, 0, 0, 6, 0, 0, 0, 1, 1, 0, 0x0a, 1, 's', 0x12, 1, 'm'};

    (void)state;
    assert_int_equal(rs_ttrpc_request_write(&writer, &request, NULL, 0), 0);
    assert_int_equal(rs_ttrpc_writer_pending(&writer), sizeof expected);
    assert_memory_equal(writer.buffer, expected, sizeof expected);
}

static void deadlines(void **state)
{
    const int64_t cases[][2] = {
        {0, RS_NO_DEADLINE}, {1, 1001}, {-5, 1000}, {INT64_MAX, RS_NO_DEADLINE}, {INT64_MIN, 1000},
    };

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        struct rs_ttrpc_request request = {
            .stream = 1, .service = "s", .method = "m", .timeout_ns = cases[i][0]};
        Ringside__Ttrpc__V1__Request *decoded;
        struct rs_ttrpc_call call;
        const char *why;

        assert_int_equal(rs_ttrpc_request_write(&writer, &request, NULL, 0), 0);
        struct rs_frame frame = written();
        assert_int_equal(rs_ttrpc_request_decode(&frame, 1000, &call, &decoded, &why), 0);
        assert_int_equal(decoded->timeout_nano, cases[i][0]);
        assert_int_equal(call.deadline_ns, cases[i][1]);
        assert_false(call.streaming);
        rs_ttrpc_request_free(decoded);
    }
}

static int decode_bytes(const uint8_t *bytes, size_t count, const char **why)
{
    struct rs_frame frame = {{(uint32_t)count, 1, RS_FRAME_REQUEST, 0}, bytes, 0};
    Ringside__Ttrpc__V1__Request *decoded;
    struct rs_ttrpc_call call;
    int rc = rs_ttrpc_request_decode(&frame, 1, &call, &decoded, why);

    if (rc == 0)
        rs_ttrpc_request_free(decoded);
    else
        assert_true(decoded == NULL && *why != NULL);
    return rc;
}

static void bad_requests_say_why(void **state)
{
    const uint8_t no_method[] = {0x0a, 1, 's'}, no_service[] = {0x12, 1, 'm'};
    const uint8_t broken[] = {0x0a, 9, 's'};
    uint8_t large[7 + 2 * 65 + 300] = {0x0a, 1, 's', 0x12, 1, 'm'};
    const char *why;

    (void)state;
    assert_int_equal(decode_bytes(no_method, sizeof no_method, &why), -RINGSIDE_E_INVALID);
    assert_non_null(strstr(why, "method"));
    assert_int_equal(decode_bytes(no_service, sizeof no_service, &why), -RINGSIDE_E_INVALID);
    assert_non_null(strstr(why, "service"));
    assert_int_equal(decode_bytes(NULL, 0, &why), -RINGSIDE_E_INVALID);
    assert_int_equal(decode_bytes(broken, sizeof broken, &why), -RINGSIDE_E_INVALID);
    assert_non_null(strstr(why, "ttrpc request"));
    for (size_t i = 0; i < RS_TTRPC_METADATA_MAX + 1; i++)
        large[6 + 2 * i] = 0x2a;
    assert_int_equal(decode_bytes(large, 6 + 2 * RS_TTRPC_METADATA_MAX, &why), 0);
    assert_int_equal(decode_bytes(large, 6 + 2 * (RS_TTRPC_METADATA_MAX + 1), &why),
                     -RINGSIDE_E_LIMIT);
    assert_non_null(strstr(why, "metadata"));
    for (size_t name = 255; name <= 256; name++) {
        uint8_t bytes[300] = {
            0x0a, 1, 's', 0x12, (uint8_t)(name & 0x7f) | 0x80, (uint8_t)(name >> 7)};
        memset(bytes + 6, 'm', name);
        assert_int_equal(decode_bytes(bytes, 6 + name, &why),
                         name == 255 ? 0 : -RINGSIDE_E_INVALID);
    }
}

static void bad_requests_not_written(void **state)
{
    struct rs_ttrpc_request request = {.stream = 1, .service = "", .method = "m"};

    (void)state;
    assert_int_equal(rs_ttrpc_request_write(&writer, &request, NULL, 0), -RINGSIDE_E_INVALID);
    request.service = "s";
    request.method = "";
    assert_int_equal(rs_ttrpc_request_write(&writer, &request, NULL, 0), -RINGSIDE_E_INVALID);
    request.method = "m";
    request.metadata_count = RS_TTRPC_METADATA_MAX + 1;
    assert_int_equal(rs_ttrpc_request_write(&writer, &request, NULL, 0), -RINGSIDE_E_INVALID);
    assert_int_equal(rs_ttrpc_writer_pending(&writer), 0);
}

static void response_round_trip(void **state)
{
    ProtobufCMessage *payload;
    char text[64] = "";

    (void)state;
    assert_int_equal(rs_ttrpc_respond(&writer, 9, &pair.base, NULL, 0), 0);
    struct rs_frame frame = written();
    assert_int_equal(frame.header.stream, 9);
    assert_int_equal(frame.header.type, RS_FRAME_RESPONSE);
    assert_int_equal(frame.header.flags, 0);
    assert_int_equal(rs_ttrpc_response_decode(&frame, PAIR_TYPE, &payload, text, sizeof text), 0);
    assert_string_equal(((Ringside__Ttrpc__V1__KeyValue *)payload)->value, "v");
    protobuf_c_message_free_unpacked(payload, NULL);

    const ProtobufCMessage *empty[] = {NULL, &empty_pair.base};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(rs_ttrpc_respond(&writer, 9, empty[i], NULL, 0), 0);
        frame = written();
        assert_int_equal(frame.header.length, 0);
        assert_int_equal(rs_ttrpc_response_decode(&frame, PAIR_TYPE, &payload, text, sizeof text),
                         0);
        protobuf_c_message_free_unpacked(payload, NULL);
    }
}

static void error_round_trip(int error, int code, const char *status_message)
{
    ProtobufCMessage *payload, *message;
    char text[64];

    assert_int_equal(rs_ttrpc_respond_error(&writer, 3, error, "why: so"), 0);
    struct rs_frame frame = written();
    assert_int_equal(rs_decode(&ringside__ttrpc__v1__response__descriptor, frame.payload,
                               frame.header.length, &message),
                     0);
    const Ringside__Ttrpc__V1__Response *response = (Ringside__Ttrpc__V1__Response *)message;
    assert_int_equal(response->status->code, code);
    assert_string_equal(response->status->message, status_message);
    protobuf_c_message_free_unpacked(message, NULL);
    assert_int_equal(rs_ttrpc_response_decode(&frame, PAIR_TYPE, &payload, text, sizeof text),
                     error);
    assert_null(payload);
    assert_string_equal(text, "why: so");
}

/* Every error of ours arrives as itself, with the gRPC code that any client understands. */
static void errors_keep_their_identity(void **state)
{
    (void)state;
#define RS_X(name, number, code, string) \
    error_round_trip(-RINGSIDE_E_##name, RS_STATUS_##code, #name ": why: so");
    RINGSIDE_ERRORS(RS_X)
#undef RS_X
}

static void status_without_a_name(void **state)
{
    const char *text;

    (void)state;
    assert_int_equal(rs_ttrpc_status_error(0, "STALE_TICKET: x", &text), 0);
    assert_int_equal(rs_ttrpc_status_error(RS_STATUS_UNIMPLEMENTED, "no such: method", &text),
                     -RINGSIDE_E_UNIMPLEMENTED);
    assert_string_equal(text, "no such: method");
    assert_int_equal(rs_ttrpc_status_error(RS_STATUS_UNAVAILABLE, NULL, &text),
                     -RINGSIDE_E_UNAVAILABLE);
    assert_string_equal(text, "");
    assert_int_equal(rs_ttrpc_status_error(RS_STATUS_UNAVAILABLE, "DRAINING", NULL),
                     -RINGSIDE_E_UNAVAILABLE);
    assert_int_equal(rs_ttrpc_status_error(RS_STATUS_UNAVAILABLE, "DRAINING: bye", NULL),
                     -RINGSIDE_E_DRAINING);
    assert_int_equal(rs_ttrpc_status_error(-7, "?", NULL), -RINGSIDE_E_INTERNAL);
    assert_int_equal(rs_ttrpc_status_error(4711, ": ", NULL), -RINGSIDE_E_INTERNAL);
}

static void error_text_bounded_and_utf8(void **state)
{
    static char longest[3 * RS_TTRPC_MESSAGE_MAX];
    char text[2 * RS_TTRPC_MESSAGE_MAX];
    ProtobufCMessage *payload;

    (void)state;
    for (size_t i = 0; i + 3 < sizeof longest; i += 3)
        memcpy(longest + i, "\xe2\x82\xac", 3);
    const char *texts[] = {longest, "caf\xe9", NULL};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(rs_ttrpc_respond_error(&writer, 3, -ENOMEM, texts[i]), 0);
        struct rs_frame frame = written();
        assert_true(frame.header.length <= RS_TTRPC_MESSAGE_MAX + 16);
        assert_int_equal(rs_ttrpc_response_decode(&frame, PAIR_TYPE, &payload, text, sizeof text),
                         -RINGSIDE_E_FULL);
        if (i == 1)
            assert_string_equal(text, "ENOMEM: caf?");
        if (i == 2)
            assert_string_equal(text, "ENOMEM: Cannot allocate memory");
    }
}

static void stream_frames(void **state)
{
    struct rs_frame frame;
    ProtobufCMessage *message;

    (void)state;
    assert_int_equal(rs_ttrpc_stream_send(&writer, 7, &pair.base, NULL, 0), 0);
    frame = written();
    assert_int_equal(frame.header.type, RS_FRAME_DATA);
    assert_int_equal(frame.header.flags, 0);
    assert_int_equal(rs_decode(PAIR_TYPE, frame.payload, frame.header.length, &message), 0);
    assert_string_equal(((Ringside__Ttrpc__V1__KeyValue *)message)->key, "k");
    protobuf_c_message_free_unpacked(message, NULL);
    /* An empty message is data; the end is not. */
    assert_int_equal(rs_ttrpc_stream_send(&writer, 7, NULL, NULL, 0), 0);
    frame = written();
    assert_int_equal(frame.header.flags, 0);
    assert_int_equal(rs_ttrpc_stream_end(&writer, 7), 0);
    frame = written();
    assert_int_equal(frame.header.type, RS_FRAME_DATA);
    assert_int_equal(frame.header.length, 0);
    assert_int_equal(frame.header.flags, RS_FRAME_REMOTE_CLOSED | RS_FRAME_NO_DATA);
}

static void bad_responses(void **state)
{
    const uint8_t broken[] = {0x0a, 9, 's'}, wrong_payload[] = {0x12, 2, 0x0a, 5};
    struct rs_frame frame = {{sizeof broken, 1, RS_FRAME_RESPONSE, 0}, broken, 0};
    ProtobufCMessage *payload;
    char text[64];

    (void)state;
    assert_int_equal(rs_ttrpc_response_decode(&frame, PAIR_TYPE, &payload, text, sizeof text),
                     -RINGSIDE_E_PROTOCOL);
    assert_null(payload);
    frame.payload = wrong_payload;
    frame.header.length = sizeof wrong_payload;
    assert_int_equal(rs_ttrpc_response_decode(&frame, PAIR_TYPE, &payload, text, sizeof text),
                     -RINGSIDE_E_PROTOCOL);
    assert_null(payload);
    assert_non_null(strstr(text, "KeyValue"));
}

static void writer_full(void **state)
{
    (void)state;
    writer.cap_bytes = 12;
    assert_int_equal(rs_ttrpc_respond(&writer, 1, &pair.base, NULL, 0), -RINGSIDE_E_LIMIT);
    assert_int_equal(rs_ttrpc_stream_send(&writer, 1, &pair.base, NULL, 0), -RINGSIDE_E_LIMIT);
    assert_int_equal(rs_ttrpc_respond_error(&writer, 1, -EINVAL, "x"), -RINGSIDE_E_LIMIT);
    assert_int_equal(rs_ttrpc_stream_end(&writer, 1), 0);
    assert_int_equal(rs_ttrpc_stream_end(&writer, 1), -RINGSIDE_E_LIMIT);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(streams_have_a_side),
        CASE(streams_end),
        CASE(request_round_trip),
        CASE(minimal_request_is_canonical),
        CASE(deadlines),
        CASE(bad_requests_say_why),
        CASE(bad_requests_not_written),
        CASE(response_round_trip),
        CASE(errors_keep_their_identity),
        CASE(status_without_a_name),
        CASE(error_text_bounded_and_utf8),
        CASE(stream_frames),
        CASE(bad_responses),
        CASE(writer_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

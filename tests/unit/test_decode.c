/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile protobuf: no bytes may take more memory, stack or trust than they are worth. */
#include "proto/decode.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/ttrpc_wire.pb-c.h"
#define RS_WRAP_ALLOC
#include "tests/unit/rpc_fixture.h"

#define REQUEST  (&ringside__ttrpc__v1__request__descriptor)
#define RESPONSE (&ringside__ttrpc__v1__response__descriptor)

static int decode(const ProtobufCMessageDescriptor *type, const void *data, size_t bytes)
{
    ProtobufCMessage *message;
    int rc = rs_decode(type, data, bytes, &message);

    assert_true((rc == 0) == (message != NULL));
    protobuf_c_message_free_unpacked(message, NULL);
    return rc;
}

/* Two bytes on the wire, forty and more in memory. */
static void empty_elements_within_budget(void **state)
{
    size_t elements = 1000000;
    uint8_t *data = malloc(2 * elements);

    (void)state;
    for (size_t i = 0; i < elements; i++) {
        data[2 * i] = 5 << 3 | 2;
        data[2 * i + 1] = 0;
    }
    for (size_t count = elements; count >= 32768; count /= 5) {
        alloc_bytes = 0;
        assert_int_equal(decode(REQUEST, data, 2 * count), -RINGSIDE_E_LIMIT);
        assert_true(alloc_bytes <= RS_DECODE_BUDGET(2 * count));
    }
    assert_int_equal(decode(REQUEST, data, 2 * 64), 0);
    free(data);
}

/* What no field is known for is kept by the decoder too, so it counts as well. */
static void unknown_fields(void **state)
{
    const uint8_t few[] = {0x78, 0x01, 0x0a, 0x01, 's', 0xa2, 0x06, 0x03, 0, 0xff, 0x80, 0x79, 1,
                           2,    3,    4,    5,    6,   7,    8,    0x7d, 1, 2,    3,    4};
    ProtobufCMessage *message;
    uint8_t *many = malloc(200000);

    (void)state;
    assert_int_equal(rs_decode(REQUEST, few, sizeof few, &message), 0);
    assert_string_equal(((Ringside__Ttrpc__V1__Request *)message)->service, "s");
    assert_int_equal(message->n_unknown_fields, 4);
    protobuf_c_message_free_unpacked(message, NULL);
    for (size_t i = 0; i < 100000; i++) {
        many[2 * i] = 0x78;
        many[2 * i + 1] = 1;
    }
    assert_int_equal(decode(REQUEST, many, 200000), -RINGSIDE_E_LIMIT);
    free(many);
}

static void missing_and_doubled_fields(void **state)
{
    /* service twice: the last one counts; status twice: refused. */
    const uint8_t service[] = {0x0a, 1, 'a', 0x0a, 2, 'b', 'c'};
    const uint8_t status[] = {0x0a, 2, 0x08, 5, 0x0a, 3, 0x12, 1, 'm'};
    ProtobufCMessage *message;

    (void)state;
    assert_int_equal(rs_decode(REQUEST, NULL, 0, &message), 0);
    assert_string_equal(((Ringside__Ttrpc__V1__Request *)message)->method, "");
    protobuf_c_message_free_unpacked(message, NULL);
    assert_int_equal(rs_decode(REQUEST, service, sizeof service, &message), 0);
    assert_string_equal(((Ringside__Ttrpc__V1__Request *)message)->service, "bc");
    protobuf_c_message_free_unpacked(message, NULL);
    assert_int_equal(decode(RESPONSE, status, sizeof status), -RINGSIDE_E_INVALID);
    assert_int_equal(decode(RESPONSE, status, 4), 0);
}

static void malformed_refused(void **state)
{
    static const struct {
        size_t bytes;
        uint8_t data[16];
    } cases[] = {
        {1, {0x0a}},                                                       /* no length */
        {2, {0x0a, 0x01}},                                                 /* no byte */
        {3, {0x0a, 0x05, 'a'}},                                            /* cut */
        {7, {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 'a'}},                    /* 2^32 - 1 bytes */
        {12, {0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 'a'}}, /* 2^64 - 1 bytes */
        {2, {0x20, 0x80}},                                                 /* varint without end */
        {12, {0x20, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1}}, /* 11-byte varint */
        {2, {0x02, 0x00}},                                                 /* field 0 */
        {1, {0x0b}},                                                       /* group */
        {2, {0x0f, 0x00}},                                                 /* wire type 7 */
        {3, {0x79, 1, 2}},                                                 /* short 64-bit value */
        {2, {0x08, 0x01}},                                                 /* string as varint */
        {6, {0x2a, 4, 0x0a, 3, 'k', 'e'}},                                 /* cut inside */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(decode(REQUEST, cases[i].data, cases[i].bytes), -RINGSIDE_E_INVALID);
}

/* A name that C cuts at NUL is another name than the one that was checked. */
static void strings_are_text(void **state)
{
    const uint8_t nul[] = {0x0a, 3, 'a', 0, 'b'};
    const uint8_t nested[] = {0x2a, 5, 0x0a, 3, 'k', 0, 'e'};
    const uint8_t latin[] = {0x12, 3, 'n', 0xe9, 'e'};
    const uint8_t good[] = {0x12, 9, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x8e, 0xb5};
    const uint8_t payload[] = {0x1a, 3, 0, 0xff, 0xfe};

    (void)state;
    assert_int_equal(decode(REQUEST, nul, sizeof nul), -RINGSIDE_E_INVALID);
    assert_int_equal(decode(REQUEST, nested, sizeof nested), -RINGSIDE_E_INVALID);
    assert_int_equal(decode(REQUEST, latin, sizeof latin), -RINGSIDE_E_INVALID);
    assert_int_equal(decode(REQUEST, good, sizeof good), 0);
    assert_int_equal(decode(REQUEST, payload, sizeof payload), 0);
}

static void utf8_characters(void **state)
{
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {
        {"a", 1},
        {"\xc3\xa9", 2},
        {"\xe2\x82\xac", 3},
        {"\xf0\x9f\x8e\xb5", 4},
        {"\x80", 0},
        {"\xc0\x80", 0},
        {"\xc1\xbf", 0},
        {"\xe0\x9f\xbf", 0},
        {"\xc3", 0},
        {"\xed\xa0\x80", 0},
        {"\xf0\x8f\xbf\xbf", 0},
        {"\xf4\x90\x80\x80", 0},
        {"\xc3\x28", 0},
        {"\xf5\x80\x80\x80", 0},
        {"\xff", 0},
        {"\xf4\x8f\xbf\xbf", 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(rs_utf8_character((const uint8_t *)cases[i].text, strlen(cases[i].text)),
                         cases[i].length);
}

/* A request with every kind of field, as the wire has it. */
static size_t full_request(uint8_t *data)
{
    Ringside__Ttrpc__V1__KeyValue pairs[3], *list[3];
    Ringside__Ttrpc__V1__Request request = RINGSIDE__TTRPC__V1__REQUEST__INIT;

    for (size_t i = 0; i < 3; i++) {
        ringside__ttrpc__v1__key_value__init(&pairs[i]);
        pairs[i].key = (char *)"key";
        pairs[i].value = (char *)"value";
        list[i] = &pairs[i];
    }
    request.service = (char *)"ringside.v1.Control";
    request.method = (char *)"Loan";
    request.payload.data = (uint8_t *)"payload";
    request.payload.len = 7;
    request.timeout_nano = -1;
    request.metadata = list;
    request.n_metadata = 3;
    size_t bytes = ringside__ttrpc__v1__request__pack(&request, data);
    for (int i = 0; i < 40; i++) { /* more members than the decoder keeps on its stack */
        data[bytes++] = 0x20;
        data[bytes++] = 7;
    }
    data[bytes++] = 0x78; /* and one that it does not know */
    data[bytes++] = 1;
    return bytes;
}

static void nth_allocation_fails(void **state)
{
    uint8_t data[256];
    size_t bytes = full_request(data);
    ProtobufCMessage *message;
    int nth, rc = -1;

    (void)state;
    for (nth = 0; rc != 0; nth++) {
        alloc_countdown = nth;
        rc = rs_decode(REQUEST, data, bytes, &message);
        alloc_countdown = INT_MAX;
        assert_true(rc == 0 || (rc == -ENOMEM && message == NULL));
    }
    assert_true(nth > 10);
    protobuf_c_message_free_unpacked(message, NULL);
}

/* Every cut and every flipped bit: decoded or refused, and (with a sanitizer) nothing else. */
static void mutations_survive(void **state)
{
    uint8_t data[256], changed[256];
    size_t bytes = full_request(data), refused = 0;

    (void)state;
    for (size_t i = 0; i <= bytes; i++)
        refused += decode(REQUEST, data, i) < 0;
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        memcpy(changed, data, bytes);
        changed[bit / 8] ^= (uint8_t)(1u << bit % 8);
        refused += decode(REQUEST, changed, bytes) < 0;
        decode(RESPONSE, changed, bytes);
    }
    assert_true(refused > bytes / 2);
}

/* A message that holds itself: none of ours does, and one that did would be safe. */
static const ProtobufCMessageDescriptor recursive;
typedef struct {
    ProtobufCMessage base;
    ProtobufCMessage *child;
} Recursive;
static const ProtobufCFieldDescriptor child_field = {
    .name = "child",
    .id = 1,
    .label = PROTOBUF_C_LABEL_NONE,
    .type = PROTOBUF_C_TYPE_MESSAGE,
    .offset = offsetof(Recursive, child),
    .descriptor = &recursive,
};
static const unsigned child_index = 0;
static const ProtobufCIntRange child_range[] = {{1, 0}, {0, 1}};
static const ProtobufCMessageDescriptor recursive = {
    .magic = PROTOBUF_C__MESSAGE_DESCRIPTOR_MAGIC,
    .name = "Recursive",
    .sizeof_message = sizeof(Recursive),
    .n_fields = 1,
    .fields = &child_field,
    .fields_sorted_by_name = &child_index,
    .n_field_ranges = 1,
    .field_ranges = child_range,
};

/* `depth` messages, each but the last with one inside; written from the end. */
static const uint8_t *nest(uint8_t *data, size_t size, unsigned depth, size_t *bytes)
{
    uint8_t *at = data + size;

    *bytes = 0;
    for (unsigned level = 1; level < depth; level++) {
        size_t inner = *bytes;
        if (inner >= 128)
            *--at = (uint8_t)(inner >> 7);
        *--at = (uint8_t)(inner & 0x7f) | (inner >= 128 ? 0x80 : 0);
        *--at = 0x0a;
        *bytes = (size_t)(data + size - at);
    }
    return at;
}

static void *decode_deep(void *argument)
{
    uint8_t data[8192], full[256];
    size_t bytes;
    const uint8_t *at = nest(data, sizeof data, RS_DECODE_DEPTH, &bytes);
    int *rc = argument;

    rc[0] = decode(&recursive, at, bytes);
    at = nest(data, sizeof data, RS_DECODE_DEPTH + 1, &bytes);
    rc[1] = decode(&recursive, at, bytes);
    at = nest(data, sizeof data, 2500, &bytes);
    rc[2] = decode(&recursive, at, bytes);
    rc[3] = decode(REQUEST, full, full_request(full));
    return NULL;
}

static void depth_fits_a_small_stack(void **state)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int rc[4];

    (void)state;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    long least_bytes = sysconf(_SC_THREAD_STACK_MIN); /* 128 KiB on arm64 */
    size_t stack_bytes = least_bytes > 64 << 10 ? (size_t)least_bytes : 64 << 10;
    assert_int_equal(pthread_attr_setstacksize(&attributes, stack_bytes), 0);
    assert_int_equal(pthread_create(&thread, &attributes, decode_deep, rc), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    assert_int_equal(rc[0], 0);
    assert_int_equal(rc[1], -RINGSIDE_E_INVALID);
    assert_int_equal(rc[2], -RINGSIDE_E_INVALID);
    assert_int_equal(rc[3], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_elements_within_budget),
        cmocka_unit_test(unknown_fields),
        cmocka_unit_test(missing_and_doubled_fields),
        cmocka_unit_test(malformed_refused),
        cmocka_unit_test(strings_are_text),
        cmocka_unit_test(utf8_characters),
        cmocka_unit_test(nth_allocation_fails),
        cmocka_unit_test(mutations_survive),
        cmocka_unit_test(depth_fits_a_small_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Messages in a slot: layout, the header there and back, and headers that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/err.h"
#include "proto/tensor.h"

#define SLOT_BYTES 65536u
#define CANARY     0xa5

static _Alignas(64) struct rs_slot slot;
static struct rs_message message, loaded;
static uint8_t *area, *body; /* a slot's body between two canaries of a page each */

static int fresh(void **state)
{
    (void)state;
    memset(&slot, 0xee, sizeof slot); /* what an earlier message left behind */
    memset(&message, 0, sizeof message);
    memset(&loaded, 0xdd, sizeof loaded);
    area = aligned_alloc(4096, SLOT_BYTES + 2 * 4096);
    if (area == NULL)
        return -1;
    memset(area, CANARY, SLOT_BYTES + 2 * 4096);
    body = area + 4096;
    return 0;
}

static int canaries_intact(void **state)
{
    int broken = 0;

    (void)state;
    for (size_t i = 0; i < 4096; i++)
        broken |= area[i] != CANARY || area[4096 + SLOT_BYTES + i] != CANARY;
    free(area);
    return broken ? -1 : 0;
}

static void add(uint8_t dtype, uint8_t rank, const int64_t *shape)
{
    struct rs_tensor *tensor = &message.tensors[message.tensor_count++];

    tensor->dtype = dtype;
    tensor->rank = rank;
    for (unsigned i = 0; i < rank; i++)
        tensor->shape[i] = shape[i];
}
#define SHAPE(...) (const int64_t[]){__VA_ARGS__}

static int load(void)
{
    return rs_message_load(&loaded, &slot, body, SLOT_BYTES);
}

static void store_one(uint8_t dtype, uint8_t rank, const int64_t *shape, uint32_t metadata_bytes)
{
    uint64_t total;

    add(dtype, rank, shape);
    assert_int_equal(rs_message_plan(&message, metadata_bytes, &total), 0);
    assert_true(total <= SLOT_BYTES);
    rs_message_store(&message, &slot, body);
}

static void message_plan_single(void **state)
{
    uint64_t total;

    (void)state;
    add(RS_FLOAT32, 2, SHAPE(3, 5));
    assert_int_equal(rs_message_plan(&message, 0, &total), 0);
    assert_int_equal(total, 60);
    assert_int_equal(message.tensors[0].offset, 0);
    assert_int_equal(rs_message_plan(&message, 10, &total), 0);
    assert_int_equal(message.metadata_offset, 64);
    assert_int_equal(total, 74);
}

/* Three bytes, then float64: the odd one must not misalign its successors. */
static void message_plan_aligns_successors(void **state)
{
    uint64_t total;

    (void)state;
    add(RS_UINT8, 1, SHAPE(3));
    add(RS_FLOAT64, 1, SHAPE(7));
    add(RS_UINT8, 1, SHAPE(0));
    add(RS_UINT8, 1, SHAPE(1));
    assert_int_equal(rs_message_plan(&message, 5000, &total), 0);
    assert_int_equal(message.tensors[0].offset, 256); /* after three descriptors of 80 bytes */
    assert_int_equal(message.tensors[1].offset, 512);
    assert_int_equal(message.tensors[2].offset, 768);
    assert_int_equal(message.tensors[3].offset, 768);
    assert_int_equal(message.metadata_offset, 776);
    assert_int_equal(total, 5776);
}

static void message_plan_refuses(void **state)
{
    uint64_t total;

    (void)state;
    assert_int_equal(rs_message_plan(&message, 0, &total), -RINGSIDE_E_SHAPE); /* no tensor */
    for (int i = 0; i < 64; i++)
        add(RS_UINT8, 0, NULL);
    assert_int_equal(rs_message_plan(&message, 0, &total), 0);
    message.tensor_count = 65;
    assert_int_equal(rs_message_plan(&message, 0, &total), -RINGSIDE_E_SHAPE);
    message.tensor_count = 3; /* each fits 63 bits, the sum not 64 */
    for (int i = 0; i < 3; i++) {
        message.tensors[i].rank = 1;
        message.tensors[i].shape[0] = INT64_MAX;
    }
    assert_int_equal(rs_message_plan(&message, 0, &total), -RINGSIDE_E_SHAPE);
    message.tensors[1].dtype = 200;
    assert_int_equal(rs_message_plan(&message, 0, &total), -RINGSIDE_E_DTYPE);
}

static void message_roundtrip_everything(void **state)
{
    uint64_t total;

    (void)state;
    add(RS_BFLOAT16, 8, SHAPE(1, 2, 1, 3, 1, 1, 2, 1));
    add(RS_FLOAT8_E5M2, 0, NULL);
    add(RS_COMPLEX128, 3, SHAPE(2, 0, 9));
    assert_int_equal(rs_message_plan(&message, 4096, &total), 0);
    message.metadata_kind = 1;
    message.publish_ns = 123;
    message.ttl_ns = 456;
    message.stream_id = UINT64_MAX;
    message.sequence = 99;
    message.trace_id[0] = 1;
    message.trace_id[1] = 2;
    message.origin_ticket = 77;
    rs_message_store(&message, &slot, body);
    assert_int_equal(load(), 0);
    assert_int_equal(loaded.tensor_count, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(loaded.tensors[i].dtype, message.tensors[i].dtype);
        assert_int_equal(loaded.tensors[i].rank, message.tensors[i].rank);
        assert_int_equal(loaded.tensors[i].offset, message.tensors[i].offset);
        assert_int_equal(loaded.tensors[i].bytes, message.tensors[i].bytes);
        assert_memory_equal(loaded.tensors[i].shape, message.tensors[i].shape,
                            8u * message.tensors[i].rank);
    }
    assert_int_equal(loaded.metadata_kind, 1);
    assert_int_equal(loaded.metadata_bytes, 4096);
    assert_int_equal(loaded.metadata_offset, message.metadata_offset);
    assert_int_equal(loaded.publish_ns, 123);
    assert_int_equal(loaded.ttl_ns, 456);
    assert_true(loaded.stream_id == UINT64_MAX);
    assert_int_equal(loaded.sequence, 99);
    assert_int_equal(loaded.trace_id[0], 1);
    assert_int_equal(loaded.trace_id[1], 2);
    assert_int_equal(loaded.origin_ticket, 77);
}

/* An ordinary message leaves lines 2 and 3 of the record alone, and what stands there is not read. */
static void message_small_touches_two_lines(void **state)
{
    struct rs_slot before;

    (void)state;
    memcpy(&before, &slot, sizeof before);
    store_one(RS_FLOAT32, 2, SHAPE(4, 4), 0);
    assert_memory_equal((uint8_t *)&slot + 128, (uint8_t *)&before + 128, 128);
    assert_memory_equal(&slot, &before, offsetof(struct rs_slot, header));
    assert_int_equal(load(), 0);
    assert_int_equal(loaded.sequence, 0);
    assert_int_equal(loaded.stream_id, 0);
    assert_int_equal(loaded.trace_id[0] | loaded.trace_id[1] | loaded.origin_ticket, 0);
    assert_int_equal(loaded.metadata_bytes, 0);
}

static void message_scalar_and_empty(void **state)
{
    (void)state;
    store_one(RS_FLOAT64, 0, NULL, 0);
    assert_int_equal(load(), 0);
    assert_int_equal(loaded.tensors[0].bytes, 8);
    message.tensor_count = 0;
    store_one(RS_FLOAT64, 4, SHAPE(1, 8, 0, 128), 0);
    assert_int_equal(load(), 0);
    assert_int_equal(loaded.tensors[0].bytes, 0);
    assert_int_equal(loaded.tensors[0].shape[3], 128);
}

static void message_nan_payload_preserved(void **state)
{
    const uint64_t signalling = UINT64_C(0x7ff4dead0000beef);

    (void)state;
    add(RS_UINT8, 1, SHAPE(3));
    memcpy(body + 256, &signalling, 8);
    store_one(RS_FLOAT64, 1, SHAPE(1), 64);
    memcpy(body + message.tensors[1].offset, &signalling, 8);
    assert_int_equal(load(), 0);
    assert_memory_equal(body + loaded.tensors[1].offset, &signalling, 8);
}

/* ---- headers that lie ---- */

static void set(enum rs_header_word word, uint64_t value)
{
    rs_store_relaxed(&slot.header[word], value);
}

static void message_first_tensor_bounds(void **state)
{
    (void)state;
    store_one(RS_UINT8, 1, SHAPE(SLOT_BYTES), 0); /* the last byte is its last */
    assert_int_equal(load(), 0);
    set(RS_HEADER_SHAPE_0, SLOT_BYTES + 1); /* one past */
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    set(RS_HEADER_SHAPE_0, 4096);
    set(RS_HEADER_OFFSET, SLOT_BYTES - 4096);
    assert_int_equal(load(), 0);
    set(RS_HEADER_OFFSET, SLOT_BYTES);
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    set(RS_HEADER_SHAPE_0, 0); /* nothing, just behind the end */
    assert_int_equal(load(), 0);
    set(RS_HEADER_OFFSET, SLOT_BYTES + 4096);
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    set(RS_HEADER_SHAPE_0, 8192); /* offset + bytes wraps to a small number */
    set(RS_HEADER_OFFSET, UINT64_MAX - 4095);
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    set(RS_HEADER_SHAPE_0, 1);
    set(RS_HEADER_OFFSET, 8); /* inside, but misaligned */
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    set(RS_HEADER_OFFSET, 0);
    set(RS_HEADER_SHAPE_0, (uint64_t)-1);
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
}

static void message_metadata_bounds(void **state)
{
    const uint64_t summary = rs_header_summary(1, RS_UINT8, 0, RS_HEADER_LINE3, 100);

    (void)state;
    store_one(RS_UINT8, 0, NULL, 100);
    set(RS_HEADER_SUMMARY, summary);
    set(RS_HEADER_METADATA_OFFSET, SLOT_BYTES - 100);
    assert_int_equal(load(), 0);
    set(RS_HEADER_METADATA_OFFSET, SLOT_BYTES - 99);
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    set(RS_HEADER_METADATA_OFFSET, UINT64_MAX - 50);
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    set(RS_HEADER_METADATA_OFFSET, 0);
    set(RS_HEADER_SUMMARY, summary | UINT32_MAX);
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    set(RS_HEADER_SUMMARY, rs_header_summary(1, RS_UINT8, 0, 0, 100)); /* metadata, but no line 3 */
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
}

static void message_summary_nonsense(void **state)
{
    (void)state;
    store_one(RS_UINT8, 1, SHAPE(1), 0);
    assert_int_equal(load(), 0);
    const uint64_t bad[] = {
        0,
        UINT64_MAX,
        rs_header_summary(0, RS_UINT8, 1, 0, 0),
        rs_header_summary(65, RS_UINT8, 1, 0, 0),
        rs_header_summary(1, 0, 1, 0, 0),
        rs_header_summary(1, RS_DTYPE_COUNT, 1, 0, 0),
        rs_header_summary(1, RS_UINT8, 9, RS_HEADER_LINE2, 0),
        rs_header_summary(1, RS_UINT8, 255, RS_HEADER_LINE2, 0),
        rs_header_summary(1, RS_UINT8, 3, 0, 0), /* rank 3 needs line 2 */
        rs_header_summary(1, RS_UINT8, 1, 3, 0), /* unknown kind */
        rs_header_summary(1, RS_UINT8, 1, 0x40, 0),
        rs_header_summary(1, RS_UINT8, 1, 0x80, 0),
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        set(RS_HEADER_SUMMARY, bad[i]);
        assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    }
}

static void message_product_overflow(void **state)
{
    (void)state;
    store_one(RS_UINT8, 2, SHAPE(1, 1), 0);
    set(RS_HEADER_SHAPE_0, UINT64_C(1) << 32);
    set(RS_HEADER_SHAPE_1, UINT64_C(1) << 32); /* 2^64: as a 64-bit product, 0 */
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
}

static void message_table_bounds(void **state)
{
    (void)state;
    for (int i = 0; i < 63; i++)
        add(RS_UINT8, 0, NULL);
    store_one(RS_UINT8, 0, NULL, 0);
    assert_int_equal(load(), 0);
    assert_int_equal(rs_message_load(&loaded, &slot, body, 4096), -RINGSIDE_E_CORRUPT);
    assert_int_equal(rs_message_load(&loaded, &slot, NULL, SLOT_BYTES), 0);
    assert_int_equal(loaded.tensor_count, 64);
}

static void message_descriptor_nonsense(void **state)
{
    uint64_t *words = (uint64_t *)(void *)body;

    (void)state;
    add(RS_UINT8, 0, NULL);
    store_one(RS_FLOAT32, 1, SHAPE(4), 0);
    assert_int_equal(load(), 0);
    words[1] = UINT64_MAX - 255;
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    words[1] = SLOT_BYTES - 256;
    words[2] = 64;
    assert_int_equal(load(), 0);
    words[2] = 65;
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    words[1] = 256;
    words[2] = 4;
    words[0] = RS_FLOAT32 | 9 << 8;
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    words[0] = 0 | 1 << 8;
    assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    words[0] = RS_FLOAT32 | 1 << 8;
    assert_int_equal(load(), 0);
}

/* Whatever stands in the header and the table: what load accepts lies inside the slot. */
static void message_accepted_means_inside(void **state)
{
    const unsigned rounds = 200000;
    unsigned accepted = 0;
    uint64_t seed = 88172645463325252u;

    (void)state;
    for (int i = 0; i < 3; i++)
        add(RS_FLOAT32, 2, SHAPE(2, 3));
    store_one(RS_FLOAT32, 2, SHAPE(2, 3), 64);
    for (unsigned round = 0; round < rounds; round++) {
        struct rs_slot saved;
        uint8_t table[256];

        memcpy(&saved, &slot, sizeof saved);
        memcpy(table, body, sizeof table);
        for (unsigned flips = 0; flips <= round % 3; flips++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            if (seed & 1)
                ((uint8_t *)&slot)[80 + (seed >> 8) % 176] ^= (uint8_t)(1u << (seed >> 40 & 7));
            else
                body[(seed >> 8) % 240] ^= (uint8_t)(1u << (seed >> 40 & 7));
        }
        if (load() == 0) {
            accepted++;
            assert_true(loaded.metadata_offset <= SLOT_BYTES &&
                        loaded.metadata_bytes <= SLOT_BYTES - loaded.metadata_offset);
            for (unsigned i = 0; i < loaded.tensor_count; i++)
                assert_true(loaded.tensors[i].offset <= SLOT_BYTES &&
                            loaded.tensors[i].bytes <= SLOT_BYTES - loaded.tensors[i].offset);
        }
        memcpy(&slot, &saved, sizeof saved);
        memcpy(body, table, sizeof table);
    }
    assert_in_range(accepted, rounds / 100, rounds - rounds / 100);
}

/* A request of one tensor whose method stands behind the data. */
static void put_request(uint64_t method_offset, uint8_t method_bytes, uint64_t call)
{
    message.call_id = 5;
    message.call = call;
    message.admission = 6;
    message.method_offset = method_offset;
    message.method_bytes = method_bytes;
    message.tensor_count = 0;
    store_one(RS_UINT8, 1, SHAPE(64), 0);
}

static void message_call_roundtrip(void **state)
{
    (void)state;
    put_request(64, 63, rs_call_request(60, 4, 4095, 7));
    assert_int_equal(load(), 0);
    assert_true(rs_message_is_request(&slot));
    assert_int_equal(loaded.call_id, 5);
    assert_int_equal(loaded.admission, 6);
    assert_int_equal(loaded.method_offset, 64);
    assert_int_equal(loaded.method_bytes, 63);
    assert_int_equal(rs_call_kind(loaded.call), RS_CALL_REQUEST);
    assert_int_equal(rs_call_first_cell(loaded.call), 60);
    assert_int_equal(rs_call_credits(loaded.call), 4);
    assert_int_equal(rs_call_caller(loaded.call), 4095);
    assert_int_equal(rs_call_holder(loaded.call), 7);
    put_request(0, 0, rs_call_reply(14, RS_CALL_LAST, 0x1fffffe));
    assert_int_equal(load(), 0);
    assert_false(rs_message_is_request(&slot));
    assert_int_equal(rs_call_kind(loaded.call), RS_CALL_REPLY);
    assert_int_equal(rs_call_status(loaded.call), 14);
    assert_int_equal(rs_call_flags(loaded.call), RS_CALL_LAST);
    assert_int_equal(rs_call_number(loaded.call), 0xfffffe);
    message.call_id = 0; /* the words of a call stay behind and mean nothing */
    message.trace_id[0] = 1;
    message.tensor_count = 0;
    store_one(RS_UINT8, 1, SHAPE(64), 0);
    assert_int_equal(load(), 0);
    assert_int_equal(loaded.call_id, 0);
    assert_false(rs_message_is_request(&slot));
}

static void message_call_nonsense(void **state)
{
    const struct {
        uint64_t offset, call;
        uint8_t bytes;
    } wrong[] = {
        {64, rs_call_request(0, 1, 1, 1), 0},           {64, rs_call_request(0, 1, 1, 1), 64},
        {SLOT_BYTES - 3u, rs_call_request(0, 1, 1, 1), 4}, {(UINT64_C(1) << 56) - 1, rs_call_request(0, 1, 1, 1), 4},
        {64, rs_call_request(0, 0, 1, 1), 4},           {64, rs_call_request(64, 1, 1, 1), 4},
        {64, rs_call_request(1, 64, 1, 1), 4},          {64, rs_call_request(0, 255, 1, 1), 4},
        {64, 0, 4},                                     {64, rs_call_reply(0, 0, 0), 4},
        {0, (uint64_t)3 << 56, 0},
    };

    (void)state;
    put_request(SLOT_BYTES - 4, 4, rs_call_request(0, 64, 1, 1));
    assert_int_equal(load(), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        put_request(wrong[i].offset, wrong[i].bytes, wrong[i].call);
        assert_int_equal(load(), -RINGSIDE_E_CORRUPT);
    }
}

static void message_times(void **state)
{
    uint64_t publish_ns, ttl_ns;

    (void)state;
    message.publish_ns = 5;
    message.ttl_ns = 6;
    store_one(RS_UINT8, 0, NULL, 0);
    rs_message_times(&slot, &publish_ns, &ttl_ns);
    assert_int_equal(publish_ns, 5);
    assert_int_equal(ttl_ns, 6);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fresh, canaries_intact)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(message_plan_single),
        CASE(message_plan_aligns_successors),
        CASE(message_plan_refuses),
        CASE(message_roundtrip_everything),
        CASE(message_small_touches_two_lines),
        CASE(message_scalar_and_empty),
        CASE(message_nan_payload_preserved),
        CASE(message_first_tensor_bounds),
        CASE(message_metadata_bounds),
        CASE(message_summary_nonsense),
        CASE(message_product_overflow),
        CASE(message_table_bounds),
        CASE(message_descriptor_nonsense),
        CASE(message_accepted_means_inside),
        CASE(message_call_roundtrip),
        CASE(message_call_nonsense),
        CASE(message_times),
    };

    return cmocka_run_group_tests_name("message", tests, NULL, NULL);
}

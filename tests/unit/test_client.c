/* SPDX-License-Identifier: Apache-2.0 */
/* libringside against rings that no real sidecar serves: a message from its loan to its release. */
#include "tests/unit/client_fixture.h"

static void client_hands_a_message_over(void **state)
{
    struct ringside_tensor tensors[] = {
        {.dtype = RINGSIDE_FLOAT32, .rank = 3, .shape = {2, 3, 4}},
        {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {3}},
        {.dtype = RINGSIDE_INT64, .rank = 0},
    };
    struct ringside_options options = {
        .metadata = "{\"a\":1}", .metadata_bytes = 7, .metadata_kind = RINGSIDE_JSON,
        .stream_id = 11, .sequence = 12, .trace_id = {1, 2, 3}, .ttl_ns = 5000 * MS};

    (void)state;
    assert_string_equal(ringside_stage(a), "stage0");
    OK(ringside_loan(a, tensors, 3, 100, 0, &slot));
    assert_int_equal(slot.tensors[0].bytes, 96);
    assert_int_equal((uintptr_t)slot.tensors[1].data % 256, 0);
    memset(slot.tensors[0].data, 0x11, 96);
    memset(slot.tensors[1].data, 0x22, 3);
    *(int64_t *)slot.tensors[2].data = -5;
    uint64_t ticket = slot.ticket;
    OK(ringside_send(a, &slot, "1", &options));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(message.ticket, ticket);
    assert_int_equal(message.tensor_count, 3);
    assert_int_equal(message.tensors[0].dtype, RINGSIDE_FLOAT32);
    assert_int_equal(message.tensors[0].rank, 3);
    assert_int_equal(message.tensors[0].shape[2], 4);
    assert_int_equal(((const uint8_t *)message.tensors[0].data)[95], 0x11);
    assert_int_equal(((const uint8_t *)message.tensors[1].data)[2], 0x22);
    assert_int_equal(*(const int64_t *)message.tensors[2].data, -5);
    assert_int_equal(message.metadata_bytes, 7);
    assert_memory_equal(message.metadata, "{\"a\":1}", 7);
    assert_int_equal(message.metadata_kind, RINGSIDE_JSON);
    assert_int_equal(message.stream_id, 11);
    assert_int_equal(message.sequence, 12);
    assert_int_equal(message.trace_id[2], 3);
    assert_int_equal(message.attempts, 0);
    assert_int_equal(message.ttl_ns, 5000 * MS);
    assert_true(message.publish_ns <= (uint64_t)rs_now_ns());
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    OK(ringside_release(b, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(fake_count(0, RS_FREE), 12);
    assert_int_equal(fake_counter(0, 1, RS_SENT), 1);
    assert_int_equal(fake_counter(0, 1, RS_SENT_BYTES), 96 + 3 + 8 + 7);
    assert_int_equal(fake_counter(1, 1, RS_RECEIVED), 1);
    assert_int_equal(fake_counter(1, 1, RS_RELEASED), 1);
}

static void client_hands_over_empty_and_scalar(void **state)
{
    struct ringside_tensor tensors[] = {
        {.dtype = RINGSIDE_FLOAT64, .rank = 4, .shape = {1, 8, 0, 128}},
        {.dtype = RINGSIDE_BOOL, .rank = 0},
        {.dtype = RINGSIDE_FLOAT64, .rank = 1, .shape = {0}},
    };

    (void)state;
    OK(ringside_loan(a, tensors, 3, 0, 0, &slot));
    *(uint8_t *)slot.tensors[1].data = 1;
    OK(ringside_send(a, &slot, "1", NULL));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(message.tensors[0].bytes, 0);
    assert_int_equal(message.tensors[0].shape[3], 128);
    assert_int_equal(*(const uint8_t *)message.tensors[1].data, 1);
    assert_int_equal(message.tensors[2].rank, 1);
    OK(ringside_release(b, &message));
}

static void client_consumer_cannot_write(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 9));
    OK(ringside_receive(b, &message, 0));
    volatile uint8_t *data = message.tensors[0].data;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool seen = false;
    while (fgets(line, sizeof line, maps) != NULL) {
        uintptr_t first, last;
        char rights[8];

        if (sscanf(line, "%lx-%lx %7s", &first, &last, rights) == 3 && (uintptr_t)data >= first &&
            (uintptr_t)data < last) {
            assert_int_equal(rights[1], '-');
            seen = true;
        }
    }
    fclose(maps);
    assert_true(seen);
    OK(ringside_release(b, &message));
}

static void client_last_tensor_may_shrink(void **state)
{
    (void)state;
    loan_bytes(a, 1000);
    slot.tensors[0].shape[0] = 10;
    OK(ringside_send(a, &slot, "1", NULL));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(message.tensors[0].bytes, 10);
    OK(ringside_release(b, &message));
    loan_bytes(a, 1000);
    slot.tensors[0].shape[0] = 5000;
    assert_int_equal(ringside_send(a, &slot, "1", NULL), -RINGSIDE_ETOO_BIG);
    slot.tensors[0].shape[0] = 1000;
    slot.tensors[0].data = (uint8_t *)slot.tensors[0].data + 1;
    assert_int_equal(ringside_send(a, &slot, "1", NULL), -RINGSIDE_ESTATE);
    OK(ringside_abandon(a, &slot));
}

static void client_refuses_what_cannot_be_loaned(void **state)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {65537}};

    (void)state;
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_ETOO_BIG);
    assert_non_null(strstr(ringside_explain(a), "65536"));
    tensor.shape[0] = 65536;
    OK(ringside_loan(a, &tensor, 1, 0, 0, &slot));
    OK(ringside_abandon(a, &slot));
    assert_int_equal(ringside_loan(a, &tensor, 1, 1, 0, &slot), -RINGSIDE_ETOO_BIG);
    tensor.shape[0] = -1;
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_ESHAPE);
    tensor.rank = 9;
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_ESHAPE);
    tensor.rank = 0;
    tensor.dtype = 77;
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_EDTYPE);
    assert_int_equal(ringside_loan(a, &tensor, 0, 0, 0, &slot), -RINGSIDE_ESHAPE);
    assert_int_equal(ringside_loan(a, &tensor, 65, 0, 0, &slot), -RINGSIDE_ESHAPE);
}

static void client_spent_slots_and_messages(void **state)
{
    (void)state;
    loan_bytes(a, 1);
    assert_int_equal(ringside_send(b, &slot, "1", NULL), -RINGSIDE_ESTATE); /* not its loan */
    assert_int_equal(ringside_send(a, &slot, "nowhere", NULL), -RINGSIDE_ENO_ROUTE);
    OK(ringside_send(a, &slot, "1", NULL)); /* still ours after the error */
    assert_int_equal(ringside_send(a, &slot, "1", NULL), -RINGSIDE_ESTATE);
    assert_int_equal(ringside_abandon(a, &slot), -RINGSIDE_ESTATE);
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(ringside_release(a, &message), -RINGSIDE_ESTATE);
    OK(ringside_release(b, &message));
    assert_int_equal(ringside_release(b, &message), -RINGSIDE_ESTATE);
    assert_int_equal(ringside_nack(b, &message), -RINGSIDE_ESTATE);
    assert_int_equal(ringside_forward(b, &message, "2", NULL), -RINGSIDE_ESTATE);
}

static void client_metadata_room(void **state)
{
    static char much[5000];
    struct ringside_options options = {.metadata = much, .metadata_bytes = 4000};

    (void)state;
    memset(much, 'x', sizeof much);
    loan_bytes(a, 96); /* nothing reserved, but the slot has room */
    options.metadata_bytes = 4001;
    assert_int_equal(ringside_send(a, &slot, "1", &options), -RINGSIDE_EINVALID);
    options.metadata_bytes = 4000;
    options.metadata_kind = 3;
    assert_int_equal(ringside_send(a, &slot, "1", &options), -RINGSIDE_EINVALID);
    options.metadata_kind = RINGSIDE_OPAQUE;
    OK(ringside_send(a, &slot, "1", &options));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(message.metadata_bytes, 4000);
    assert_int_equal(((const char *)message.metadata)[3999], 'x');
    OK(ringside_release(b, &message));
}

/* ---- delivery ---- */

static void client_fan_out(void **state)
{
    (void)state;
    OK(send_byte(a, "all", 5));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 5);
    OK(ringside_release(b, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    OK(ringside_receive(c, &message, 0));
    assert_int_equal(value_of(&message), 5);
    OK(ringside_release(c, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_nack_delivers_again(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 3));
    for (unsigned attempt = 0; attempt < fake_attempts; attempt++) {
        OK(ringside_receive(b, &message, 0));
        assert_int_equal(message.attempts, attempt);
        OK(ringside_nack(b, &message));
    }
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(fake_counter(1, 1, RS_NACKED), 3);
    assert_int_equal(fake_counter(1, 1, RS_DEAD_LETTERED), 1);
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_expired_is_skipped(void **state)
{
    struct ringside_options options = {.ttl_ns = 1};

    (void)state;
    loan_bytes(a, 1);
    OK(ringside_send(a, &slot, "1", &options));
    OK(send_byte(a, "1", 2));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 2);
    assert_int_equal(fake_counter(1, 1, RS_EXPIRED), 1);
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    OK(ringside_release(b, &message));
}

static void client_batch(void **state)
{
    static struct ringside_message messages[8];

    (void)state;
    for (int i = 0; i < 5; i++)
        OK(send_byte(a, "1", (uint8_t)i));
    assert_int_equal(ringside_receive_batch(b, messages, 3, 0), 3);
    assert_int_equal(ringside_receive_batch(b, messages + 3, 5, 0), 2);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(value_of(&messages[i]), i);
        OK(ringside_release(b, &messages[i]));
    }
    assert_int_equal(ringside_receive_batch(b, messages, 8, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_receive_batch(b, messages, 0, 0), -RINGSIDE_EINVALID);
}

/* A header that makes no sense reaches nobody, and does not stop what comes after it. */
static void client_corrupt_header_is_refused(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 1));
    uint32_t broken = (uint32_t)(slot.ticket >> 28) & 0xfffff;
    rs_store_relaxed(&fake_stages[0].ring.slots[broken].header[RS_HEADER_SHAPE_0], 1u << 20);
    OK(send_byte(a, "1", 2));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 2);
    OK(ringside_release(b, &message));
    assert_int_equal(fake_counter(1, 1, RS_DEAD_LETTERED), 1);
    assert_non_null(strstr(last_log, "header"));
    assert_int_equal(fake_count(0, RS_FREE), 12);
}

static void client_forward_in_place(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 8));
    OK(ringside_receive(b, &message, 0));
    uint64_t ticket = message.ticket;
    assert_int_equal(ringside_forward(b, &message, "2", NULL), 1);
    assert_int_equal(ringside_release(b, &message), -RINGSIDE_ESTATE);
    OK(ringside_receive(c, &message, 0));
    assert_int_equal(message.ticket, ticket);
    assert_int_equal(value_of(&message), 8);
    OK(ringside_release(c, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(fake_counter(1, 1, RS_FORWARDED), 1);
    assert_int_equal(fake_counter(1, 1, RS_FORWARD_COPIES), 0);
}

static void client_forward_by_copy(void **state)
{
    struct ringside_options options = {.metadata = "meta", .metadata_bytes = 4, .sequence = 6};

    (void)state;
    loan_bytes(a, 100);
    memset(slot.tensors[0].data, 0x5a, 100);
    OK(ringside_send(a, &slot, "1", &options));
    OK(ringside_receive(b, &message, 0));
    /* The first ring does not know the next inbox. */
    rs_store_relaxed(&fake_stages[0].ring.destinations[2].state,
                     rs_destination_state(2, 3, 1, RS_DEST_INBOX, false));
    assert_int_equal(ringside_forward(b, &message, "2", NULL), 0);
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(fake_counter(1, 1, RS_FORWARD_COPIES), 1);
    OK(ringside_receive(c, &message, 0));
    assert_int_equal(message.ticket >> 48, 102);
    assert_int_equal(message.tensors[0].bytes, 100);
    assert_int_equal(((const uint8_t *)message.tensors[0].data)[99], 0x5a);
    assert_memory_equal(message.metadata, "meta", 4);
    assert_int_equal(message.sequence, 6);
    OK(ringside_release(c, &message));
}

static void client_close_gives_everything_back(void **state)
{
    struct ringside *worker = join(1);

    (void)state;
    OK(send_byte(a, "1", 4));
    OK(ringside_receive(worker, &message, 0));
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    loan_bytes(worker, 10);
    assert_int_equal(fake_count(1, RS_LOANED), 1);
    ringside_close(worker);
    assert_int_equal(fake_count(1, RS_LOANED), 0);
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 4);
    assert_int_equal(message.attempts, 1);
    OK(ringside_release(b, &message));
}

/* ---- many threads on one connection ---- */

#define THREADS  3
#define PER_EACH 4000

static _Atomic unsigned received_count;
static _Atomic uint64_t received_sum;

static void *produce_many(void *data)
{
    static _Thread_local struct ringside_slot mine;
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT64, .rank = 1, .shape = {2}};

    for (unsigned i = 1; i <= PER_EACH; i++) {
        OK(ringside_loan(a, &tensor, 1, 0, RINGSIDE_FOREVER, &mine));
        ((uint64_t *)mine.tensors[0].data)[0] = i;
        ((uint64_t *)mine.tensors[0].data)[1] = ~(uint64_t)i;
        OK(ringside_send(a, &mine, "1", NULL));
    }
    return data;
}

static void *consume_many(void *data)
{
    static _Thread_local struct ringside_message mine;

    while (received_count < THREADS * PER_EACH) {
        int rc = ringside_receive(b, &mine, 50 * MS);

        if (rc == -RINGSIDE_ETIMEOUT)
            continue;
        OK(rc);
        const uint64_t *values = mine.tensors[0].data;
        assert_true(values[0] == ~values[1]);
        received_sum += values[0];
        received_count++;
        OK(ringside_release(b, &mine));
    }
    return data;
}

static void client_many_threads(void **state)
{
    pthread_t producers[THREADS], consumers[THREADS];

    (void)state;
    received_count = 0;
    received_sum = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&producers[i], NULL, produce_many, NULL);
        pthread_create(&consumers[i], NULL, consume_many, NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(producers[i], NULL);
        pthread_join(consumers[i], NULL);
    }
    assert_int_equal(received_count, THREADS * PER_EACH);
    assert_int_equal(received_sum, (uint64_t)THREADS * PER_EACH * (PER_EACH + 1) / 2);
    assert_int_equal(fake_count(0, RS_FREE), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_hands_a_message_over),
        CASE(client_hands_over_empty_and_scalar),
        CASE(client_consumer_cannot_write),
        CASE(client_last_tensor_may_shrink),
        CASE(client_refuses_what_cannot_be_loaned),
        CASE(client_spent_slots_and_messages),
        CASE(client_metadata_room),
        CASE(client_fan_out),
        CASE(client_nack_delivers_again),
        CASE(client_expired_is_skipped),
        CASE(client_batch),
        CASE(client_corrupt_header_is_refused),
        CASE(client_forward_in_place),
        CASE(client_forward_by_copy),
        CASE(client_close_gives_everything_back),
        CASE(client_many_threads),
    };

    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}

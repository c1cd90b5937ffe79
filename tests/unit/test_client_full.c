/* SPDX-License-Identifier: Apache-2.0 */
/* libringside where there is nothing to take or no room: it says so, waits, or drops. */
#include "tests/unit/client_fixture.h"

#include <time.h>

static void client_empty_inbox_times_out(void **state)
{
    int64_t began_ns = rs_now_ns();

    (void)state;
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_receive(b, &message, 20 * MS), -RINGSIDE_ETIMEOUT);
    assert_true(rs_now_ns() - began_ns >= 20 * MS);
}

/* All slots taken: asking for more says so, and giving one back is never held up by those who ask. */
static void client_no_free_slot(void **state)
{
    static struct ringside_slot slots[8];
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};

    (void)state;
    for (int i = 0; i < 8; i++)
        OK(ringside_loan(a, &tensor, 1, 0, 0, &slots[i]));
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_EFULL);
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 5 * MS, &slot), -RINGSIDE_ETIMEOUT);
    OK(ringside_abandon(a, &slots[3]));
    OK(ringside_loan(a, &tensor, 1, 0, 0, &slot));
    OK(ringside_abandon(a, &slot));
    for (int i = 0; i < 8; i++)
        assert_int_equal(ringside_abandon(a, &slots[i]), i == 3 ? -RINGSIDE_ESTATE : 0);
}

static void *release_later(void *data)
{
    struct timespec time = {0, 20000000};

    nanosleep(&time, NULL);
    OK(ringside_abandon(a, data));
    return NULL;
}

static void client_loan_waits_for_a_slot(void **state)
{
    static struct ringside_slot slots[8];
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};
    pthread_t thread;

    (void)state;
    for (int i = 0; i < 8; i++)
        OK(ringside_loan(a, &tensor, 1, 0, 0, &slots[i]));
    pthread_create(&thread, NULL, release_later, &slots[5]);
    OK(ringside_loan(a, &tensor, 1, 0, RINGSIDE_FOREVER, &slot));
    pthread_join(thread, NULL);
    OK(ringside_abandon(a, &slot));
}

static void client_draining_refuses_loans(void **state)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};

    (void)state;
    rs_store_relaxed(&fake_stages[0].ring.shared->draining, 1);
    assert_int_equal(ringside_loan(a, &tensor, 1, 0, 0, &slot), -RINGSIDE_EDRAINING);
}

static void fill_inbox(void)
{
    for (int i = 0; i < 4; i++)
        OK(send_byte(a, "1", (uint8_t)i));
}

static void restart_with(Ringside__V1__Route__WhenFull when_full)
{
    restart(when_full, 16, 4);
}

static void client_full_inbox_is_an_error(void **state)
{
    (void)state;
    restart_with(RINGSIDE__V1__ROUTE__WHEN_FULL__ERROR);
    fill_inbox();
    assert_int_equal(send_byte(a, "1", 9), -RINGSIDE_EFULL);
    loan_bytes(a, 1);
    assert_int_equal(ringside_send(a, &slot, "1", NULL), -RINGSIDE_EFULL); /* never waits */
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    OK(ringside_send(a, &slot, "1", NULL)); /* was still ours */
}

static void client_full_inbox_drops_the_oldest(void **state)
{
    (void)state;
    restart_with(RINGSIDE__V1__ROUTE__WHEN_FULL__DROP_OLDEST);
    fill_inbox();
    OK(send_byte(a, "1", 4));
    OK(send_byte(a, "1", 5));
    assert_int_equal(fake_counter(0, 1, RS_DROPPED), 2);
    for (int i = 2; i <= 5; i++) {
        OK(ringside_receive(b, &message, 0));
        assert_int_equal(value_of(&message), i);
        OK(ringside_release(b, &message));
    }
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(fake_count(0, RS_FREE), 12);
    /* Only messages of the own ring are dropped. */
    for (int i = 0; i < 4; i++)
        OK(send_byte(c, "1", 0));
    assert_int_equal(send_byte(a, "1", 1), -RINGSIDE_EFULL);
}

static void *receive_later(void *data)
{
    struct timespec time = {0, 20000000};
    static struct ringside_message taken;

    (void)data;
    nanosleep(&time, NULL);
    OK(ringside_receive(b, &taken, 0));
    OK(ringside_release(b, &taken));
    return NULL;
}

static void client_full_inbox_blocks(void **state)
{
    struct ringside_options options = {.timeout_ns = 5 * MS};
    pthread_t thread;

    (void)state;
    restart_with(RINGSIDE__V1__ROUTE__WHEN_FULL__BLOCK);
    fill_inbox();
    loan_bytes(a, 1);
    assert_int_equal(ringside_send(a, &slot, "1", &options), -RINGSIDE_ETIMEOUT);
    pthread_create(&thread, NULL, receive_later, NULL);
    OK(ringside_send(a, &slot, "1", NULL));
    pthread_join(thread, NULL);
}

static void client_peer_not_connected(void **state)
{
    struct ringside_options options = {.timeout_ns = 30 * MS};

    (void)state;
    fake_unlinked_peers = true;
    loan_bytes(a, 1);
    assert_int_equal(ringside_send(a, &slot, "1", &options), -RINGSIDE_ETIMEOUT);
    fake_unlinked_peers = false;
    options.timeout_ns = 2000 * MS;
    OK(ringside_send(a, &slot, "1", &options));
}

/* A ring that cannot be opened yet: its messages stay, and are there when it can. */
static void client_ring_not_admitted_yet(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 7));
    fake_unlinked_peers = true;
    assert_int_equal(ringside_receive(b, &message, 30 * MS), -RINGSIDE_ETIMEOUT);
    fake_unlinked_peers = false;
    OK(ringside_receive(b, &message, 3000 * MS));
    assert_int_equal(value_of(&message), 7);
    OK(ringside_release(b, &message));
}

/* A ring that is away must not keep back what others sent, whichever was met last. */
static void client_ring_away_hides_no_other(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 1));
    OK(send_byte(c, "1", 2));
    fake_unlinked_ring = fake_number(1, 2);
    take_byte(b, 1);
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    fake_unlinked_ring = 0;
    OK(ringside_receive(b, &message, 5000 * MS));
    assert_int_equal(value_of(&message), 2);
    OK(ringside_release(b, &message));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_empty_inbox_times_out),
        CASE(client_no_free_slot),
        CASE(client_loan_waits_for_a_slot),
        CASE(client_draining_refuses_loans),
        CASE(client_full_inbox_is_an_error),
        CASE(client_full_inbox_drops_the_oldest),
        CASE(client_full_inbox_blocks),
        CASE(client_peer_not_connected),
        CASE(client_ring_not_admitted_yet),
        CASE(client_ring_away_hides_no_other),
    };

    return cmocka_run_group_tests_name("client_full", tests, NULL, NULL);
}

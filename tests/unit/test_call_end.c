/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of libringside that end before their reply: cancelled, over their time, their sides gone. */
#include "tests/unit/call_fixture.h"
#include "proto/repair.h"

#include <time.h>

static void call_cancelled_before_it_is_taken(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_call_cancel(a, &call));
    assert_int_equal(call.open, 0);
    assert_int_equal(ringside_receive(b, &request, 0), -RINGSIDE_ETIMEOUT);
    assert_all_free();
    struct ringside_call nonsense = {.open = 1};
    assert_int_equal(ringside_call_cancel(a, &nonsense), -RINGSIDE_ESTATE);
    assert_int_equal(ringside_call_cancel(a, NULL), -RINGSIDE_ESTATE);
}

static void call_cancelled_while_held(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    assert_int_equal(ringside_cancelled(b, &request), 0);
    OK(ringside_call_cancel(a, &call));
    assert_int_equal(ringside_cancelled(b, &request), 1);
    loan(b, 1);
    assert_int_equal(ringside_reply(b, &request, &slot, NULL, 1), -RINGSIDE_ECANCELLED);
    assert_int_equal(ringside_abandon(b, &slot), -RINGSIDE_ESTATE); /* it is spent */
    OK(ringside_release(b, &request));
    assert_all_free();
}

static void call_cancelled_with_replies_unread(void **state)
{
    const struct ringside_options options = {.credits = 4};

    (void)state;
    begin("x", 0, &options, &call);
    OK(ringside_receive(b, &request, LONG));
    for (uint32_t i = 0; i < 4; i++)
        answer(&request, i, 0);
    assert_int_equal(wait_reply(LONG), 1); /* one is read while the others are dropped */
    OK(ringside_call_cancel(a, &call));
    assert_int_equal(value_of(&reply), 0);
    assert_int_equal(fake_count(1, RS_FREE), 83);
    OK(ringside_release(a, &reply));
    assert_int_equal(fake_count(1, RS_FREE), 84);
    loan(b, 1);
    assert_int_equal(ringside_reply(b, &request, &slot, NULL, 1), -RINGSIDE_ECANCELLED);
    OK(ringside_release(b, &request));
    assert_all_free();
}

/* The cells of a cancelled call are not another's while its callee may post there. */
static void call_cancelled_keeps_its_cells(void **state)
{
    const struct ringside_options all = {.credits = 64};

    (void)state;
    begin("x", 0, &all, &call);
    OK(ringside_receive(b, &request, LONG));
    OK(ringside_call_cancel(a, &call));
    loan(a, 1);
    assert_int_equal(ringside_call(a, &slot, "1", "x", NULL, &call), -RINGSIDE_ELIMIT);
    struct ringside_slot kept = slot;
    OK(ringside_release(b, &request));
    OK(ringside_call(a, &kept, "1", "x", NULL, &call));
    OK(ringside_call_cancel(a, &call));
}

/* Begins a call and takes it within its time, which grows until the machine is fast enough for it. */
static void begin_and_take(struct ringside_options *options)
{
    for (;; options->ttl_ns *= 2) {
        begin("x", 0, options, &call);
        if (ringside_receive(b, &request, 0) == 0)
            return;
        assert_true(options->ttl_ns < (uint64_t)LONG);
        assert_int_equal(wait_reply(LONG), -RINGSIDE_ETIMEOUT);
    }
}

/* Until the time of a call that was begun before is over. */
static void outlast(const struct ringside_options *options)
{
    uint64_t ns = options->ttl_ns + MS;

    nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
}

static void call_over_its_time(void **state)
{
    struct ringside_options options = {.ttl_ns = 5 * MS};

    (void)state;
    begin_and_take(&options);
    assert_int_equal(wait_reply(LONG), -RINGSIDE_ETIMEOUT);
    assert_int_equal(call.open, 0);
    assert_int_equal(ringside_cancelled(b, &request), 1);
    OK(ringside_release(b, &request));
    begin("x", 0, &options, &call); /* nobody takes it in time */
    assert_int_equal(wait_reply(LONG), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_receive(b, &request, 0), -RINGSIDE_ETIMEOUT);
    begin("x", 0, &options, &call); /* looked for too late */
    outlast(&options);
    assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(call.open, 0);
}

/* Dropped for its age before the caller looked: it was the time all the same. */
static void call_dropped_when_its_time_was_over(void **state)
{
    const struct ringside_options options = {.ttl_ns = 5 * MS};

    (void)state;
    begin("x", 0, &options, &call);
    outlast(&options);
    assert_int_equal(ringside_receive(b, &request, 0), -RINGSIDE_ETIMEOUT); /* drops it */
    assert_int_equal(wait_reply(LONG), -RINGSIDE_ETIMEOUT);
    assert_int_equal(call.open, 0);
}

/* The callee sees that its time is over and lets go before the caller looks at the clock. */
static void call_let_go_when_its_time_was_over(void **state)
{
    struct ringside_options options = {.ttl_ns = 5 * MS};

    (void)state;
    begin_and_take(&options);
    outlast(&options);
    assert_int_equal(ringside_cancelled(b, &request), 1);
    OK(ringside_release(b, &request));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_ETIMEOUT);
    assert_int_equal(call.status, 0);
}

static void sweep(unsigned stage, uint16_t client)
{
    struct rs_repair repair;
    uint32_t cursor = 0;

    assert_int_equal(rs_repair_init(&repair, &fake_stages[stage].ring), 0);
    rs_repair_sweep(&repair, client, RS_NO_READER, &cursor, UINT32_MAX);
    rs_repair_wake(&repair);
    rs_repair_finish(&repair);
}

static void *wait_in_thread(void *rc)
{
    *(int *)rc = wait_reply(LONG);
    return NULL;
}

/* The sweep of the dead callee wakes the caller. */
static void call_callee_dies(void **state)
{
    pthread_t thread;
    int rc = 1;

    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    assert_int_equal(pthread_create(&thread, NULL, wait_in_thread, &rc), 0);
    nanosleep(&(struct timespec){0, 2 * MS}, NULL);
    for (uint16_t client = 2; client < 5; client++) /* b's number in ring 0 is among them */
        sweep(0, client);
    pthread_join(thread, NULL);
    assert_int_equal(rc, -RINGSIDE_EUNAVAILABLE);
    assert_int_equal(ringside_release(b, &request), -RINGSIDE_ESTATE);
    assert_all_free();
}

/* In its own entries the callee sees that the caller is gone, in the one ring or in the other. */
static void call_caller_dies(void **state)
{
    (void)state;
    for (unsigned stage = 0; stage < 2; stage++) {
        begin("x", 0, NULL, &call);
        OK(ringside_receive(b, &request, LONG));
        struct rs_client *clients = fake_stages[stage].ring.clients;
        uint64_t states[8];
        for (unsigned i = 0; i < 8; i++) {
            states[i] = rs_load_relaxed(&clients[i].state);
            rs_store_relaxed(&clients[i].state, rs_client_state(1, 0, 0, RS_CLIENT_DEAD));
        }
        assert_int_equal(ringside_cancelled(b, &request), 1);
        loan(b, 1);
        assert_int_equal(ringside_reply(b, &request, &slot, NULL, 1), -RINGSIDE_ECANCELLED);
        for (unsigned i = 0; i < 8; i++)
            rs_store_relaxed(&clients[i].state, states[i]);
        OK(ringside_release(b, &request));
        assert_int_equal(wait_reply(LONG), -RINGSIDE_EINTERNAL);
    }
}

/* What a slot of another stage, or somebody's stray write, leaves in a cell is dropped. */
static void call_strays_are_dropped(void **state)
{
    struct rs_box *box = &fake_stages[0].ring.boxes[1];

    (void)state;
    begin("x", 0, NULL, &call);
    for (unsigned i = 0; i < RS_BOX_CELLS; i++)
        rs_store_relaxed(&box->cell[i], i % 2 == 0 ? UINT64_MAX : rs_ticket_pack(102, 3, 1));
    OK(ringside_receive(b, &request, LONG));
    loan(b, 9);
    const struct ringside_options now = {.timeout_ns = 0};
    assert_int_equal(ringside_reply(b, &request, &slot, &now, 1), -RINGSIDE_EFULL);
    assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
    OK(ringside_reply(b, &request, &slot, &now, 1));
    OK(ringside_release(b, &request));
    OK(wait_reply(LONG));
    assert_int_equal(value_of(&reply), 9);
    OK(ringside_release(a, &reply));
    for (unsigned i = 0; i < RS_BOX_CELLS; i++)
        rs_store_relaxed(&box->cell[i], 0);
}

static void call_closed_callee(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    ringside_close(b);
    b = NULL;
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EUNAVAILABLE);
    b = join(1);
}

/* A caller that closes lets go of replies that it has read and of those that it has not. */
static void call_closed_caller(void **state)
{
    const struct ringside_options options = {.credits = 2};

    (void)state;
    begin("x", 0, &options, &call);
    OK(ringside_receive(b, &request, LONG));
    answer(&request, 1, 0);
    answer(&request, 2, 1);
    OK(ringside_release(b, &request));
    OK(wait_reply(LONG));
    ringside_close(a);
    a = NULL;
    assert_all_free();
    a = join(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(call_cancelled_before_it_is_taken),
        CASE(call_cancelled_while_held),
        CASE(call_cancelled_with_replies_unread),
        CASE(call_cancelled_keeps_its_cells),
        CASE(call_over_its_time),
        CASE(call_dropped_when_its_time_was_over),
        CASE(call_let_go_when_its_time_was_over),
        CASE(call_callee_dies),
        CASE(call_caller_dies),
        CASE(call_strays_are_dropped),
        CASE(call_closed_callee),
        CASE(call_closed_caller),
    };

    return cmocka_run_group_tests_name("call_end", tests, NULL, NULL);
}

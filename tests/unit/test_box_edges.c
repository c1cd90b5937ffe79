/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/box.c at its edges: who waits for room is woken whoever makes it, and a caller
 * that writes nonsense into its cell holds nobody. */
#include "tests/unit/slots_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#include "proto/box.h"

#define CALLER 8u
#define CALLEE 5u
#define CELL   3u

static struct rs_reply loaned_reply(struct ring_fixture *fixture)
{
    struct rs_reply reply = {.ring = &fixture->ring,
                             .owner = CALLEE,
                             .holder = CALLER,
                             .box = &fixture->ring.boxes[CALLER],
                             .cell = CELL,
                             .event_fd = -1};

    assert_int_equal(rs_ring_loan(&fixture->ring, CALLEE, 0, &reply.loan), 0);
    return reply;
}

static void set_phase(struct ring_fixture *fixture, unsigned phase)
{
    rs_store_relaxed(&fixture->ring.clients[CALLER].state,
                     rs_client_state(1, RS_NO_READER, 0, phase));
}

static bool is_armed(struct rs_box *box)
{
    return (rs_load_relaxed(&box->room) & RS_WAIT_ARMED) != 0;
}

static int setup(void **state)
{
    struct ring_fixture *fixture = calloc(1, sizeof *fixture);

    ring_fixture_init(fixture, 16, 16);
    set_phase(fixture, RS_CLIENT_ALIVE);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    ring_fixture_finish(*state);
    free(*state);
    return 0;
}

/* The cell was of an earlier call, whose callee comes late and takes its reply back. */
static void taking_back_wakes_who_waits_for_room(void **state)
{
    struct rs_reply reply = loaned_reply(*state);

    assert_int_equal(rs_reply_publish(&reply), 0);
    rs_wait_arm(&reply.box->room, RS_WAIT_FUTEX);
    assert_true(rs_reply_take_back(&reply, false));
    assert_int_equal(rs_load_relaxed(&reply.box->cell[CELL]), 0);
    assert_false(is_armed(reply.box));
}

/* The same, and it lost its loan between the post and the seal. */
static void post_without_a_seal_wakes_who_waits_for_room(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_reply reply = loaned_reply(fixture);

    assert_int_equal(rs_ring_abandon(&fixture->ring, CALLEE, &reply.loan), 0);
    rs_wait_arm(&reply.box->room, RS_WAIT_FUTEX);
    assert_int_equal(rs_reply_publish(&reply), -RINGSIDE_E_STATE);
    assert_int_equal(rs_load_relaxed(&reply.box->cell[CELL]), 0);
    assert_false(is_armed(reply.box));
}

/* The end of a sweep: the entry of the dead is not given up yet. */
static void callee_that_waits_for_the_dead_is_woken(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_box *box = &fixture->ring.boxes[CALLER];

    set_phase(fixture, RS_CLIENT_DEAD);
    rs_wait_arm(&box->room, RS_WAIT_FUTEX);
    rs_repair_wake(&fixture->repair);
    assert_false(is_armed(box));
}

/* ---- a caller that writes into its cell what it likes ---- */

static struct rs_reply hostile;
static atomic_bool over;

static void *write_and_empty(void *data)
{
    rs_word *cell = &hostile.box->cell[CELL];

    (void)data;
    while (!over) {
        rs_store_relaxed(cell, UINT64_MAX);
        rs_store_relaxed(cell, 0);
    }
    return NULL;
}

/* It is out, or there was no room: whichever, soon. */
static void cell_that_fills_and_empties_holds_nobody(void **state)
{
    pthread_t thread;

    hostile = loaned_reply(*state);
    over = false;
    assert_int_equal(pthread_create(&thread, NULL, write_and_empty, NULL), 0);
    for (int i = 0; i < 1000; i++) {
        int rc = rs_reply_publish(&hostile);

        assert_true(rc == 0 || rc == -RINGSIDE_E_FULL);
        if (rc < 0)
            continue;
        (void)rs_reply_take_back(&hostile, true); /* by whom the cell is emptied, nobody knows */
        assert_int_equal(rs_ring_loan(hostile.ring, CALLEE, 0, &hostile.loan), 0);
    }
    over = true;
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(taking_back_wakes_who_waits_for_room, setup, teardown),
        cmocka_unit_test_setup_teardown(post_without_a_seal_wakes_who_waits_for_room, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(callee_that_waits_for_the_dead_is_woken, setup, teardown),
        cmocka_unit_test_setup_teardown(cell_that_fills_and_empties_holds_nobody, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

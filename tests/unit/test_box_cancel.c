/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/box.c: cancelled calls, and cells and loans that are not what they should be. */
#include "tests/unit/reply_fixture.h"

static void cancelled_before_anybody_took_it(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    assert_true(
        rs_request_cancel(fixture->caller, fixture->pending.slot, fixture->pending.generation));
    assert_int_equal(look(fixture, &lease), RS_BOX_GONE);
    assert_int_equal(rs_inbox_take(&fixture->ring.inbox, &lease, &unmapped), 0);
    assert_all_free(fixture);
}

static void cancelled_while_held(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;

    take_request(fixture);
    assert_false(rs_request_is_cancelled(&fixture->request));
    assert_false(
        rs_request_cancel(fixture->caller, fixture->pending.slot, fixture->pending.generation));
    assert_true(rs_request_is_cancelled(&fixture->request));
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_true(rs_reply_take_back(&fixture->reply, false));
    fixture_audit(&fixture->ring, 0);
    assert_int_equal(fixture->ring.repair.quarantined, 0);
    assert_int_equal(look(fixture, &lease), RS_BOX_EMPTY);
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_all_free(fixture);
}

/* A callee that dies while it takes its reply back leaves it to the caller. */
static void taken_back_by_a_callee_that_dies(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;
    uint64_t ticket;

    take_request(fixture);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_false(
        rs_request_cancel(fixture->caller, fixture->pending.slot, fixture->pending.generation));
    rs_store_relaxed(&fixture->reply.box->cell[3],
                     rs_ticket_pack(8, fixture->reply.loan.slot, fixture->reply.loan.generation));
    assert_int_equal(look(fixture, &lease), RS_BOX_TAKEN_BACK);
    fixture_sweep(&fixture->ring, CALLEE, RS_NO_READER);
    assert_int_equal(look(fixture, &lease), RS_BOX_GONE);
    assert_int_equal(rs_box_look(fixture->reply.box, 3, fixture->caller, CALLER, &ticket, &lease),
                     RS_BOX_TAKEN_BACK);
    assert_true(rs_box_take(fixture->reply.box, 3, ticket));
    assert_int_equal(rs_ring_release(&lease), 0);
    assert_all_free(fixture);
}

/* The caller was first. */
static void cancelled_and_taken(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;

    take_request(fixture);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_false(
        rs_request_cancel(fixture->caller, fixture->pending.slot, fixture->pending.generation));
    assert_true(take(fixture, &lease));
    assert_false(rs_reply_take_back(&fixture->reply, false));
    assert_int_equal(rs_ring_release(&lease), 0);
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_all_free(fixture);
}

/* A cancel that comes late must not end what the slot holds now. */
static void cancel_of_another_generation_is_nothing(void **state)
{
    struct call_fixture *fixture = *state;

    take_request(fixture);
    assert_false(
        rs_request_cancel(fixture->caller, fixture->pending.slot, fixture->pending.generation - 1));
    assert_false(rs_request_is_cancelled(&fixture->request));
    assert_false(
        rs_request_is_over(fixture->caller, fixture->pending.slot, fixture->pending.generation));
    assert_true(rs_request_is_over(fixture->caller, fixture->pending.slot,
                                   fixture->pending.generation - 1));
}

static void cell_in_use_is_left_alone(void **state)
{
    struct call_fixture *fixture = *state;

    take_request(fixture);
    rs_store_relaxed(&fixture->reply.box->cell[3], 1);
    assert_int_equal(rs_reply_publish(&fixture->reply), -RINGSIDE_E_FULL);
    assert_int_equal(rs_load_relaxed(&fixture->reply.box->cell[3]), 1);
    assert_int_equal(fixture_phase(&fixture->ring, fixture->reply.loan.slot), RS_LOANED);
}

static void loan_that_was_lost_leaves_no_ticket(void **state)
{
    struct call_fixture *fixture = *state;

    take_request(fixture);
    assert_int_equal(rs_ring_abandon(&fixture->ring.ring, CALLEE, &fixture->reply.loan), 0);
    assert_int_equal(rs_reply_publish(&fixture->reply), -RINGSIDE_E_STATE);
    assert_int_equal(rs_load_relaxed(&fixture->reply.box->cell[3]), 0);
}

static void nonsense_in_a_cell_is_a_stray(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;
    struct rs_loan other = fixture_seal(&fixture->ring, 3); /* sealed, and nobody's reply */
    const uint64_t strays[] = {
        1,
        UINT64_MAX,
        rs_ticket_pack(7, 18, 0),
        rs_ticket_pack(9, 0, 0),
        rs_ticket_pack(7, other.slot, other.generation),
        rs_ticket_pack(7, other.slot, other.generation + 1),
    };

    take_request(fixture);
    for (unsigned i = 0; i < sizeof strays / sizeof strays[0]; i++) {
        rs_store_relaxed(&fixture->reply.box->cell[3], strays[i]);
        assert_int_equal(look(fixture, &lease), RS_BOX_STRAY);
    }
    rs_store_relaxed(&fixture->reply.box->cell[3], 0);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    fixture->pending.client = fixture->pending.holder = CALLER + 1; /* the box of another */
    rs_store_relaxed(&fixture->caller->boxes[CALLER + 1].cell[3],
                     rs_load_relaxed(&fixture->reply.box->cell[3]));
    assert_int_equal(look(fixture, &lease), RS_BOX_STRAY);
}

/* 4094 is a destination of a reply alone. */
static void nothing_is_queued_as_a_reply(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_loan loan = fixture_seal(&fixture->ring, 3);
    rs_word *word = &fixture->ring.ring.slots[loan.slot].delivery[1];

    rs_store_relaxed(word, rs_delivery(loan.generation, 0, RS_REPLY_DESTINATION, 0, RS_QUEUED));
    fixture_audit(&fixture->ring, 0);
    fixture_audit(&fixture->ring, 0);
    assert_int_equal(fixture->ring.repair.quarantined, 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(cancelled_before_anybody_took_it),
        CASE(cancelled_while_held),
        CASE(taken_back_by_a_callee_that_dies),
        CASE(cancelled_and_taken),
        CASE(cancel_of_another_generation_is_nothing),
        CASE(cell_in_use_is_left_alone),
        CASE(loan_that_was_lost_leaves_no_ticket),
        CASE(nonsense_in_a_cell_is_a_stray),
        CASE(nothing_is_queued_as_a_reply),
    };

    return cmocka_run_group_tests_name("box_cancel", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/box.c: what is left at each step of a reply, by whom it is ended, and whose cell
 * it is. */
#include "tests/unit/reply_fixture.h"

static void reply_comes_and_is_released(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;

    assert_int_equal(look(fixture, &lease), RS_BOX_EMPTY);
    take_request(fixture);
    assert_int_equal(look(fixture, &lease), RS_BOX_EMPTY);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_true(rs_client_is_there(&fixture->ring.ring, CALLER, NONCE, UINT64_MAX));
    assert_true(rs_client_is_there(&fixture->ring.ring, CALLER, NONCE & UINT32_MAX, UINT32_MAX));
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_true(take(fixture, &lease));
    assert_int_equal(lease.slot, fixture->reply.loan.slot);
    assert_int_equal(look(fixture, &lease), RS_BOX_GONE);
    assert_int_equal(rs_ring_release(&lease), 0);
    assert_all_free(fixture);
    fixture_audit(&fixture->ring, 0);
    assert_int_equal(fixture->ring.repair.quarantined, 0);
}

/* What a callee leaves that dies between the post and the seal. */
static void reply_that_was_not_sealed_is_swept(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;
    uint64_t ticket;

    take_request(fixture);
    ticket = rs_ticket_pack(7, fixture->reply.loan.slot, fixture->reply.loan.generation);
    rs_store_relaxed(&fixture->reply.box->cell[3], ticket);
    assert_int_equal(look(fixture, &lease), RS_BOX_UNSEALED);
    fixture_sweep(&fixture->ring, CALLEE, RS_NO_READER);
    assert_int_equal(fixture->ring.repair.freed_loans, 1);
    assert_int_equal(fixture->ring.repair.dead_lettered, 1);
    assert_int_equal(fixture->ring.repair.requeued, 0);
    assert_int_equal(look(fixture, &lease), RS_BOX_STRAY);
    assert_true(rs_box_take(fixture->reply.box, 3, ticket));
    assert_int_equal(look(fixture, &lease), RS_BOX_GONE);
    assert_all_free(fixture);
}

/* In the two rings of a call the sweeps come apart: the request may be over while the loan is not
 * swept. */
static void reply_of_the_dead_does_not_keep_its_caller(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;

    take_request(fixture);
    rs_store_relaxed(&fixture->reply.box->cell[3],
                     rs_ticket_pack(7, fixture->reply.loan.slot, fixture->reply.loan.generation));
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_int_equal(look(fixture, &lease), RS_BOX_GONE);
}

static void request_of_the_dead_is_not_delivered_again(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    take_request(fixture);
    fixture_sweep(&fixture->ring, CALLEE, RS_NO_READER);
    fixture_audit(&fixture->ring, 0);
    assert_int_equal(look(fixture, &lease), RS_BOX_GONE);
    assert_int_equal(rs_inbox_take(&fixture->ring.inbox, &lease, &unmapped), 0);
    assert_all_free(fixture);
}

static void nack_of_request_and_reply_ends_them(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;

    take_request(fixture);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_true(take(fixture, &lease));
    assert_int_equal(rs_ring_nack(&fixture->request, RS_MAX_ATTEMPTS), 1);
    assert_int_equal(rs_ring_nack(&lease, RS_MAX_ATTEMPTS), 1);
    assert_all_free(fixture);
}

static void reply_of_a_dead_caller_is_swept(void **state)
{
    struct call_fixture *fixture = *state;

    take_request(fixture);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    rs_store_relaxed(&fixture->caller->clients[CALLER].state,
                     rs_client_state(1, RS_NO_READER, 0, RS_CLIENT_DEAD));
    fixture_sweep(&fixture->ring, CALLER, RS_NO_READER);
    assert_int_equal(fixture->ring.repair.dead_lettered, 1);
    assert_int_equal(fixture->ring.repair.requeued, 0);
    rs_box_clear(fixture->reply.box);
    assert_all_free(fixture);
}

static void request_of_a_dead_caller_is_for_nobody(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    fixture_sweep(&fixture->ring, CALLER + 1, RS_NO_READER);
    assert_int_equal(fixture_count(&fixture->ring, RS_SEALED), 1);
    fixture_sweep(&fixture->ring, CALLER, RS_NO_READER);
    assert_int_equal(fixture->ring.repair.dead_lettered, 1);
    assert_int_equal(rs_inbox_take(&fixture->ring.inbox, &lease, &unmapped), 0);
    assert_all_free(fixture);
}

/* The sweep came before the seal and the box was emptied after it, or before: the callee ends the
 * reply. */
static void reply_to_the_dead_is_taken_back(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_client *entry = &fixture->caller->clients[CALLER];

    take_request(fixture);
    fixture_sweep(&fixture->ring, CALLER, RS_NO_READER);
    rs_store_relaxed(&entry->state, rs_client_state(1, RS_NO_READER, 0, RS_CLIENT_UNUSED));
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_false(rs_client_is_there(&fixture->ring.ring, CALLER, NONCE, UINT64_MAX));
    rs_store_relaxed(&entry->nonce, NONCE + 1);
    rs_store_relaxed(&entry->state, rs_client_state(2, RS_NO_READER, 0, RS_CLIENT_ALIVE));
    assert_false(rs_client_is_there(&fixture->ring.ring, CALLER, NONCE, UINT64_MAX));
    assert_false(rs_client_is_there(&fixture->ring.ring, 64, 0, 0));
    rs_box_clear(fixture->reply.box);
    assert_false(rs_reply_take_back(&fixture->reply, true));
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_all_free(fixture);
}

static bool somebody_sleeps(rs_word32 *word)
{
    return (rs_load_relaxed(word) & RS_WAIT_ARMED) != 0;
}

/* The next owner's callee waits for the cell, and nobody else will empty it. */
static void taken_back_out_of_anothers_box(void **state)
{
    struct call_fixture *fixture = *state;

    take_request(fixture);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    rs_wait_arm(&fixture->reply.box->room, RS_WAIT_FUTEX);
    assert_true(rs_reply_take_back(&fixture->reply, true));
    assert_false(somebody_sleeps(&fixture->reply.box->room));
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_all_free(fixture);
}

/* A look found a late reply to an earlier owner; its callee took it back and answers the new owner
 * in the same slot. */
static void late_reply_is_not_taken_for_the_next(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease late, lease;
    uint64_t ticket, next;

    take_request(fixture);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_int_equal(rs_call_look(&fixture->pending, &ticket, &late), RS_BOX_REPLY);
    assert_true(rs_reply_take_back(&fixture->reply, true));
    assert_int_equal(rs_ring_loan(&fixture->ring.ring, CALLEE, 0, &fixture->reply.loan), 0);
    assert_int_equal(fixture->reply.loan.slot, late.slot);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_false(rs_box_empty(fixture->reply.box, 3, ticket));
    assert_int_equal(rs_call_look(&fixture->pending, &next, &lease), RS_BOX_REPLY);
    assert_true(next != ticket);
    assert_true(rs_box_empty(fixture->reply.box, 3, next));
    assert_int_equal(rs_ring_release(&late), -RINGSIDE_E_STATE);
    assert_int_equal(rs_ring_release(&lease), 0);
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_all_free(fixture);
}

/* The callee died between the seal and its look at the entries. */
static void late_reply_of_the_dead_is_nobodys(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_client *entry = &fixture->caller->clients[CALLER];
    struct rs_repair *repair = &fixture->ring.repair;
    uint64_t in_use[RS_MAX_CLIENTS / 64] = {UINT64_C(1) << CALLER | UINT64_C(1) << CALLEE | 1},
                                     readers = 0, nonces[RS_MAX_CLIENTS] = {[CALLER] = NONCE};
    uint32_t cursor = 0;

    repair->nonces = nonces;
    repair->clients_in_use = in_use;
    repair->readers_in_use = &readers;
    take_request(fixture);
    rs_store_relaxed(
        &fixture->ring.ring.slots[fixture->reply.loan.slot].header[RS_HEADER_ADMISSION], NONCE);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    rs_store_relaxed(&entry->nonce, NONCE + 1); /* a stray write */
    assert_true(rs_repair_audit(repair, 0, &cursor, UINT32_MAX));
    assert_int_equal(fixture_count(&fixture->ring, RS_SEALED), 1); /* it is its caller's */
    nonces[CALLER]++;
    cursor = 0;
    assert_true(rs_repair_audit(repair, 0, &cursor, UINT32_MAX));
    assert_int_equal(repair->dead_lettered, 1);
    rs_box_clear(fixture->reply.box);
    assert_all_free(fixture);
}

/* It had what it wanted, and its callee is not told that nobody wanted it. */
static void caller_takes_its_reply_and_leaves(void **state)
{
    struct call_fixture *fixture = *state;
    struct rs_lease lease;

    take_request(fixture);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_true(take(fixture, &lease));
    assert_false(rs_reply_take_back(&fixture->reply, true));
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_all_free(fixture);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(reply_comes_and_is_released),
        CASE(reply_that_was_not_sealed_is_swept),
        CASE(reply_of_the_dead_does_not_keep_its_caller),
        CASE(request_of_the_dead_is_not_delivered_again),
        CASE(nack_of_request_and_reply_ends_them),
        CASE(reply_of_a_dead_caller_is_swept),
        CASE(request_of_a_dead_caller_is_for_nobody),
        CASE(reply_to_the_dead_is_taken_back),
        CASE(taken_back_out_of_anothers_box),
        CASE(late_reply_is_not_taken_for_the_next),
        CASE(late_reply_of_the_dead_is_nobodys),
        CASE(caller_takes_its_reply_and_leaves),
    };

    return cmocka_run_group_tests_name("box", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/box.c: what is left at each step of a reply, by whom it is ended, and whose cell
 * it is. */
#include "tests/unit/slots_fixture.h"

#include "proto/box.h"
#include "proto/tensor.h"
#include "proto/wait.h"

#define CALLER 8u
#define CALLEE 5u /* consumer of the fixture's inbox */
#define NONCE  UINT64_C(0x1234567890abcdef)

/* One ring plays both: the caller calls its own stage. */
struct call_fixture {
    struct ring_fixture ring;
    struct rs_ring *caller; /* the same ring as the caller sees it */
    struct rs_lease request;
    struct rs_reply reply;
    struct rs_pending pending;
};

static struct rs_loan put_request(struct ring_fixture *fixture)
{
    struct rs_loan loan;
    uint16_t destination = FIXTURE_STAGE;
    rs_word *header;

    assert_int_equal(rs_ring_loan(&fixture->ring, CALLER, 0, &loan), 0);
    header = fixture->ring.slots[loan.slot].header;
    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&header[i], 0);
    rs_store_relaxed(&header[RS_HEADER_SUMMARY],
                     rs_header_summary(1, RS_BYTES, 0, RS_HEADER_LINE3, 0));
    rs_store_relaxed(&header[RS_HEADER_CALL_ID], 1);
    rs_store_relaxed(&header[RS_HEADER_CALL], rs_call_request(3, 1, CALLER, CALLER));
    rs_ring_prepare(&fixture->ring, &loan, &destination, 1, 0);
    assert_int_equal(rs_ring_seal(&fixture->ring, CALLER, &loan, 0), 0);
    assert_int_equal(rs_inbox_push(&fixture->inbox, 0, loan.slot, 0), 0);
    return loan;
}

static void take_request(struct call_fixture *fixture)
{
    int unmapped;

    assert_int_equal(rs_inbox_take(&fixture->ring.inbox, &fixture->request, &unmapped), 1);
    fixture->ring.ring.client = CALLEE;
    assert_int_equal(rs_ring_loan(&fixture->ring.ring, CALLEE, 0, &fixture->reply.loan), 0);
    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&fixture->ring.ring.slots[fixture->reply.loan.slot].header[i], 0);
}

static int setup(void **state)
{
    struct call_fixture *fixture = calloc(1, sizeof *fixture);

    ring_fixture_init(&fixture->ring, 16, 16);
    fixture->caller = malloc(sizeof *fixture->caller);
    *fixture->caller = fixture->ring.ring;
    fixture->caller->client = CALLER;
    struct rs_client *entry = &fixture->caller->clients[CALLER];
    rs_store_relaxed(&entry->nonce, NONCE);
    rs_store_relaxed(&entry->state, rs_client_state(1, RS_NO_READER, 0, RS_CLIENT_ALIVE));
    struct rs_loan loan = put_request(&fixture->ring);
    fixture->pending = (struct rs_pending){.own = fixture->caller,
                                           .client = CALLER,
                                           .holder = CALLER,
                                           .slot = loan.slot,
                                           .generation = loan.generation,
                                           .ring = fixture->caller,
                                           .cell = 3};
    fixture->reply = (struct rs_reply){.ring = &fixture->ring.ring,
                                       .owner = CALLEE,
                                       .holder = CALLER,
                                       .box = &fixture->caller->boxes[CALLER],
                                       .cell = 3,
                                       .event_fd = -1};
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct call_fixture *fixture = *state;

    ring_fixture_finish(&fixture->ring);
    free(fixture->caller);
    free(fixture);
    return 0;
}

static enum rs_box_content look(struct call_fixture *fixture, struct rs_lease *lease)
{
    uint64_t ticket;

    return rs_call_look(&fixture->pending, &ticket, lease);
}

static bool take(struct call_fixture *fixture, struct rs_lease *lease)
{
    uint64_t ticket;

    return rs_call_look(&fixture->pending, &ticket, lease) == RS_BOX_REPLY &&
           rs_box_take(fixture->reply.box, 3, ticket);
}

static void assert_all_free(struct call_fixture *fixture)
{
    assert_int_equal(fixture_count(&fixture->ring, RS_FREE), 18);
    for (unsigned i = 0; i < RS_BOX_CELLS; i++)
        assert_int_equal(rs_load_relaxed(&fixture->reply.box->cell[i]), 0);
}

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
                                     readers = 0;
    uint32_t cursor = 0;

    repair->clients_in_use = in_use;
    repair->readers_in_use = &readers;
    take_request(fixture);
    rs_store_relaxed(
        &fixture->ring.ring.slots[fixture->reply.loan.slot].header[RS_HEADER_ADMISSION], NONCE);
    assert_int_equal(rs_reply_publish(&fixture->reply), 0);
    assert_int_equal(rs_ring_release(&fixture->request), 0);
    assert_true(rs_repair_audit(repair, 0, &cursor, UINT32_MAX));
    assert_int_equal(fixture_count(&fixture->ring, RS_SEALED), 1); /* it is its caller's */
    rs_store_relaxed(&entry->nonce, NONCE + 1);
    cursor = 0;
    assert_true(rs_repair_audit(repair, 0, &cursor, UINT32_MAX));
    assert_int_equal(repair->dead_lettered, 1);
    rs_box_clear(fixture->reply.box);
    assert_all_free(fixture);
}

static void death_wakes_who_waits_for_room(void **state)
{
    struct call_fixture *fixture = *state;
    rs_word32 *room = &fixture->reply.box->room;

    rs_wait_arm(room, RS_WAIT_FUTEX);
    rs_store_relaxed(&fixture->caller->clients[CALLER].state,
                     rs_client_state(1, RS_NO_READER, 0, RS_CLIENT_DEAD));
    rs_repair_wake(&fixture->ring.repair);
    assert_false(somebody_sleeps(room));
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
        CASE(reply_comes_and_is_released),
        CASE(reply_that_was_not_sealed_is_swept),
        CASE(reply_of_the_dead_does_not_keep_its_caller),
        CASE(request_of_the_dead_is_not_delivered_again),
        CASE(nack_of_request_and_reply_ends_them),
        CASE(reply_of_a_dead_caller_is_swept),
        CASE(request_of_a_dead_caller_is_for_nobody),
        CASE(taken_back_out_of_anothers_box),
        CASE(caller_takes_its_reply_and_leaves),
        CASE(late_reply_is_not_taken_for_the_next),
        CASE(late_reply_of_the_dead_is_nobodys),
        CASE(death_wakes_who_waits_for_room),
        CASE(reply_to_the_dead_is_taken_back),
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

    return cmocka_run_group_tests_name("box", tests, NULL, NULL);
}

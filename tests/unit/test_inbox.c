/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/inbox.c: order, full, stale and unknown cells, overflow, hostile hints. */
#include "tests/unit/slots_fixture.h"

static int setup(void **state)
{
    struct ring_fixture *fixture = malloc(sizeof *fixture);

    ring_fixture_init(fixture, 40, 8);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    ring_fixture_finish(*state);
    free(*state);
    return 0;
}

static bool take(struct ring_fixture *fixture, struct rs_lease *lease)
{
    int unmapped;
    int rc = rs_inbox_take(&fixture->inbox, lease, &unmapped);

    assert_true(rc >= 0);
    return rc == 1;
}

static void messages_come_in_order(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan sent[8];
    struct rs_lease lease;

    for (int lap = 0; lap < 20; lap++) {
        for (int i = 0; i < 5; i++)
            sent[i] = fixture_send(fixture, 3);
        assert_int_equal(rs_inbox_depth_now(&fixture->inbox), 5);
        for (int i = 0; i < 5; i++) {
            assert_true(take(fixture, &lease));
            assert_int_equal(lease.slot, sent[i].slot);
            assert_int_equal(lease.holder, 5);
            assert_int_equal(rs_ring_release(&lease), 0);
        }
        assert_false(take(fixture, &lease));
    }
    assert_int_equal(fixture_count(fixture, RS_FREE), 42);
}

static void full_inbox_overflows_and_loses_nothing(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    int taken = 0;

    for (int i = 0; i < 8; i++)
        fixture_send(fixture, 3);
    assert_false(rs_inbox_has_room(&fixture->inbox));
    for (int i = 0; i < 12; i++) {
        struct rs_loan loan = fixture_seal(fixture, 3);

        assert_int_equal(rs_inbox_push(&fixture->inbox, 0, loan.slot, 0), 1);
    }
    while (take(fixture, &lease)) {
        taken++;
        assert_int_equal(rs_ring_release(&lease), 0);
    }
    assert_int_equal(taken, 20);
    assert_int_equal(rs_load_relaxed(&fixture->inbox.shared->overflow) & RS_OVERFLOW_SET, 0);
    assert_true(rs_inbox_has_room(&fixture->inbox));
}

static void push_clears_a_stale_cell_of_the_last_lap(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    uint64_t word;
    struct rs_loan first = fixture_send(fixture, 3);

    for (int i = 1; i < 8; i++)
        fixture_send(fixture, 3);
    assert_true(rs_ring_takeable(&fixture->ring, first.slot, 0, FIXTURE_STAGE, &word));
    assert_true(rs_ring_expire(&fixture->ring, first.slot, 0, word));
    struct rs_loan occupied; /* else the next message takes the slot that the stale cell names */
    do
        assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &occupied), 0);
    while (occupied.slot != first.slot);
    struct rs_loan last = fixture_send(fixture, 3);
    for (int i = 1; i < 9; i++) {
        assert_true(take(fixture, &lease));
        if (i == 8)
            assert_int_equal(lease.slot, last.slot);
    }
    assert_false(take(fixture, &lease));
}

static void stale_and_doubled_cells_are_harmless(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    struct rs_loan loan = fixture_send(fixture, 3);

    assert_int_equal(rs_inbox_push(&fixture->inbox, 0, loan.slot, 0), 0);
    assert_int_equal(rs_inbox_push(&fixture->inbox, 0, loan.slot, 3), 0);
    assert_int_equal(rs_inbox_push(&fixture->inbox, 0, 99999, 3), 0);
    assert_true(take(fixture, &lease));
    assert_int_equal(rs_ring_release(&lease), 0);
    assert_false(take(fixture, &lease));
    assert_int_equal(fixture_count(fixture, RS_FREE), 42);
}

static void cell_of_an_unmapped_ring_is_left_alone(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    assert_int_equal(rs_inbox_push(&fixture->inbox, 9, 1, 0), 0);
    struct rs_loan loan = fixture_send(fixture, 3);
    assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 1);
    assert_int_equal(lease.slot, loan.slot);
    assert_int_equal(rs_ring_release(&lease), 0);
    assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 0);
    assert_int_equal(unmapped, 9);
    assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 0);
    assert_int_equal(unmapped, 9);
}

static void overflow_is_kept_while_a_known_ring_is_unmapped(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    rs_store_relaxed(&fixture->inbox.table[4].state, RS_RING_KNOWN);
    rs_inbox_overflow(&fixture->inbox);
    assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 0);
    assert_int_equal(unmapped, 4);
    assert_int_not_equal(rs_load_relaxed(&fixture->inbox.shared->overflow) & RS_OVERFLOW_SET, 0);
    rs_store_relaxed(&fixture->inbox.table[4].state, RS_RING_UNUSED);
    assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 0);
    assert_int_equal(rs_load_relaxed(&fixture->inbox.shared->overflow) & RS_OVERFLOW_SET, 0);
}

/* Cells that nobody here can judge fill the whole ring: a walk round it must end with "open that ring", not with an error. */
static void ring_full_of_unmapped_cells_is_no_wrong_hint(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    rs_store_relaxed(&fixture->inbox.table[9].state, RS_RING_KNOWN);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(rs_inbox_push(&fixture->inbox, 9, i, 0), 0);
    assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 0);
    assert_int_equal(unmapped, 9);
    assert_false(rs_inbox_mend_hints(&fixture->inbox));
}

/* A ring that cannot be had must not keep another from being asked for. */
static void unmapped_rings_take_turns(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    bool seen[256] = {false};
    int unmapped;

    assert_int_equal(rs_inbox_push(&fixture->inbox, 3, 1, 0), 0);
    assert_int_equal(rs_inbox_push(&fixture->inbox, 7, 1, 0), 0);
    assert_int_equal(rs_inbox_push(&fixture->inbox, 7, 2, 0), 0);
    rs_store_relaxed(&fixture->inbox.table[200].state, RS_RING_KNOWN);
    rs_inbox_overflow(&fixture->inbox);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 0);
        assert_in_range(unmapped, 0, 255);
        assert_false(seen[unmapped]);
        seen[unmapped] = true;
    }
    assert_true(seen[3] && seen[7] && seen[200]);
}

/* A cell cleared out of turn and filled again is two laps ahead of a head that still has full cells behind it. */
static void head_does_not_jump_over_full_cells(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    for (int i = 0; i < 8; i++)
        fixture_send(fixture, 3);
    uint64_t first = rs_load_relaxed(&fixture->inbox.cells[0]);
    uint32_t done = rs_cell_slot(first);
    uint64_t word = rs_load_relaxed(&fixture->ring.slots[done].delivery[0]);
    assert_true(rs_ring_expire(&fixture->ring, done, 0, word));
    /* Position 8 was filled and consumed, and the head hint never moved. */
    rs_store_relaxed(&fixture->inbox.cells[0], rs_cell(false, 2, 0, 0, 0));
    rs_store_relaxed(&fixture->inbox.shared->tail, 9);
    for (int i = 1; i < 8; i++) {
        assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 1);
        assert_int_equal(rs_ring_release(&lease), 0);
    }
    assert_int_equal(fixture_count(fixture, RS_FREE), 42);
}

/* A producer slept between its cell and its store of the tail, for laps. */
static void tail_set_back_by_laps_catches_up(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;

    for (int i = 0; i < 50; i++) {
        fixture_send(fixture, 3);
        assert_true(take(fixture, &lease));
        assert_int_equal(rs_ring_release(&lease), 0);
    }
    fixture_send(fixture, 3);
    rs_store_relaxed(&fixture->inbox.shared->tail, 3);
    for (int i = 0; i < 7; i++)
        fixture_send(fixture, 3);
    for (int i = 0; i < 8; i++)
        assert_true(take(fixture, &lease));
    assert_false(take(fixture, &lease));
}

static void healthy_hints_are_left_alone(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;

    for (int i = 0; i < 100; i++) {
        assert_false(rs_inbox_mend_hints(&fixture->inbox));
        fixture_send(fixture, 3);
        if (i % 9 == 8) {
            assert_false(rs_inbox_mend_hints(&fixture->inbox));
            while (take(fixture, &lease))
                assert_int_equal(rs_ring_release(&lease), 0);
        } else if (i % 9 == 7) {
            assert_false(rs_inbox_mend_hints(&fixture->inbox));
            assert_true(take(fixture, &lease));
            assert_int_equal(rs_ring_release(&lease), 0);
        }
    }
}

/* A message that stands behind the head, beyond a hole, or a lap beyond a cell that is left alone: found after a look. */
static void passed_over_message_is_found(void **state)
{
    static const struct {
        uint64_t head, tail, cell; /* cell: put into cells[0] when it is not 0 */
    } cases[] = {
        {1, 0, 0}, {7, 0, 0}, {1000, 0, 0}, {0, 5, 0}, {0, 7, 0},
        {UINT64_MAX - 7, 0, UINT64_C(1) << 63 | (uint64_t)RS_LAP_MASK << 35 | UINT64_C(9) << 27},
    };
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (uint32_t k = 0; k < 8; k++)
            rs_store_relaxed(&fixture->inbox.cells[k], rs_cell(false, 0, 0, 0, 0));
        if (cases[i].cell != 0)
            rs_store_relaxed(&fixture->inbox.cells[0], cases[i].cell);
        rs_store_relaxed(&fixture->inbox.shared->tail, cases[i].tail + (cases[i].cell != 0));
        rs_store_relaxed(&fixture->inbox.shared->head, cases[i].head);
        fixture_send(fixture, 3);
        assert_int_not_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 1);
        uint32_t sequence = rs_load_relaxed(&fixture->inbox.shared->not_empty);
        rs_repair_hints(&fixture->repair);
        assert_int_not_equal(rs_load_relaxed(&fixture->inbox.shared->not_empty), sequence);
        assert_true(take(fixture, &lease));
        assert_int_equal(rs_ring_release(&lease), 0);
        assert_false(take(fixture, &lease));
    }
}

/* Cells whose laps are all over the place could neither be filled nor walked over. */
static void cells_of_any_lap_begin_anew(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    uint64_t word = 88172645463325252u;

    for (int round = 0; round < 200; round++) {
        for (uint32_t k = 0; k < 8; k++) {
            word ^= word << 13, word ^= word >> 7, word ^= word << 17; /* xorshift */
            rs_store_relaxed(&fixture->inbox.cells[k], word);
        }
        rs_store_relaxed(&fixture->inbox.shared->head, word << 9);
        rs_store_relaxed(&fixture->inbox.shared->tail, round % 2 == 0 ? word << 9 : word);
        assert_true(rs_inbox_mend_hints(&fixture->inbox));
        assert_false(rs_inbox_mend_hints(&fixture->inbox));
        while (take(fixture, &lease)) /* clears the overflow word */
            fail();
        for (int i = 0; i < 20; i++) {
            struct rs_loan loan = fixture_seal(fixture, 3);
            assert_int_equal(rs_inbox_push(&fixture->inbox, 0, loan.slot, 0), 0);
            assert_true(take(fixture, &lease));
            assert_int_equal(rs_ring_release(&lease), 0);
        }
        assert_int_equal(rs_load_relaxed(&fixture->inbox.shared->overflow) & RS_OVERFLOW_SET, 0);
    }
}

/* A cell that names no ring at all would be left alone by everybody, for ever. */
static void cell_of_no_ring_is_cleared(void **state)
{
    struct ring_fixture *fixture = *state;

    assert_int_equal(rs_inbox_push(&fixture->inbox, 9, 1, 0), 0);
    rs_store_relaxed(&fixture->inbox.table[9].state, RS_RING_GONE);
    assert_false(rs_inbox_mend_hints(&fixture->inbox));
    rs_store_relaxed(&fixture->inbox.table[9].state, RS_RING_UNUSED);
    assert_true(rs_inbox_mend_hints(&fixture->inbox));
    assert_int_equal(rs_load_relaxed(&fixture->inbox.cells[0]) & RS_CELL_FULL, 0);
    assert_false(rs_inbox_mend_hints(&fixture->inbox));
}

static void nacked_message_comes_again(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;

    fixture_send(fixture, 3);
    assert_true(take(fixture, &lease));
    assert_int_equal(rs_ring_nack(&lease, 3), 0);
    assert_int_equal(rs_inbox_push(&fixture->inbox, 0, lease.slot, lease.delivery), 0);
    assert_true(take(fixture, &lease));
    assert_int_equal(rs_delivery_attempts(lease.word), 1);
    assert_int_equal(rs_ring_release(&lease), 0);
}

static void drop_oldest_drops_the_oldest_of_the_own_ring(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;

    assert_int_equal(rs_inbox_push(&fixture->inbox, 9, 1, 0), 0);
    struct rs_loan first = fixture_send(fixture, 3), second = fixture_send(fixture, 3);
    assert_true(rs_inbox_drop_oldest(&fixture->inbox, 0));
    assert_int_equal(fixture_phase(fixture, first.slot), RS_FREE);
    assert_true(take(fixture, &lease));
    assert_int_equal(lease.slot, second.slot);
    assert_false(rs_inbox_drop_oldest(&fixture->inbox, 0));
    assert_false(rs_inbox_drop_oldest(&fixture->inbox, 9));
}

static void hostile_hints_end_in_an_error_and_are_rebuilt(void **state)
{
    static const uint64_t heads[] = {1, 5, 1000, UINT64_MAX, UINT64_C(1) << 40, UINT64_C(1) << 31};
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct rs_loan loan = fixture_send(fixture, 3);
        uint64_t head = rs_load_relaxed(&fixture->inbox.shared->head);

        rs_store_relaxed(&fixture->inbox.shared->head, head + heads[i]);
        rs_store_relaxed(&fixture->inbox.shared->tail, head + heads[i] / 2);
        (void)rs_inbox_take(&fixture->inbox, &lease, &unmapped); /* ends */
        rs_store_relaxed(&fixture->inbox.shared->head, head + heads[i]);
        struct rs_loan second = fixture_seal(fixture, 3);
        (void)rs_inbox_push(&fixture->inbox, 0, second.slot, 0); /* ends */
        rs_inbox_rebuild_hints(&fixture->inbox);
        while (rs_inbox_take(&fixture->inbox, &lease, &unmapped) == 1)
            assert_int_equal(rs_ring_release(&lease), 0);
        if (fixture_phase(fixture, loan.slot) == RS_SEALED) { /* taken above under a wrong hint */
            uint64_t held = rs_load_relaxed(&fixture->ring.slots[loan.slot].delivery[0]);
            assert_int_equal(rs_delivery_phase(held), RS_HELD);
            fixture_sweep(fixture, 5, RS_NO_READER);
            fixture_audit(fixture, 0);
            while (rs_inbox_take(&fixture->inbox, &lease, &unmapped) == 1)
                assert_int_equal(rs_ring_release(&lease), 0);
        }
        assert_int_equal(fixture_count(fixture, RS_FREE), 42);
    }
}

static void garbage_cells_never_crash(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    int unmapped;
    uint64_t random = 88172645463325252u;

    for (int i = 0; i < 20000; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        rs_store_relaxed(&fixture->inbox.cells[random % 8], random * 0x9e3779b97f4a7c15u);
        if (rs_inbox_take(&fixture->inbox, &lease, &unmapped) == 1)
            rs_ring_release(&lease);
        struct rs_loan loan;
        uint16_t destination = FIXTURE_STAGE;
        if (rs_ring_loan(&fixture->ring, 3, 0, &loan) == 0) {
            rs_ring_prepare(&fixture->ring, &loan, &destination, 1, 0);
            rs_ring_seal(&fixture->ring, 3, &loan, 0);
            (void)rs_inbox_push(&fixture->inbox, 0, loan.slot, 0);
        }
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(messages_come_in_order),
        CASE(full_inbox_overflows_and_loses_nothing),
        CASE(push_clears_a_stale_cell_of_the_last_lap),
        CASE(stale_and_doubled_cells_are_harmless),
        CASE(cell_of_an_unmapped_ring_is_left_alone),
        CASE(overflow_is_kept_while_a_known_ring_is_unmapped),
        CASE(ring_full_of_unmapped_cells_is_no_wrong_hint),
        CASE(unmapped_rings_take_turns),
        CASE(head_does_not_jump_over_full_cells),
        CASE(tail_set_back_by_laps_catches_up),
        CASE(healthy_hints_are_left_alone),
        CASE(passed_over_message_is_found),
        CASE(cells_of_any_lap_begin_anew),
        CASE(cell_of_no_ring_is_cleared),
        CASE(nacked_message_comes_again),
        CASE(drop_oldest_drops_the_oldest_of_the_own_ring),
        CASE(hostile_hints_end_in_an_error_and_are_rebuilt),
        CASE(garbage_cells_never_crash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

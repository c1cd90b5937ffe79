/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/inbox.c at its edges: hints that are wrong by so much that the laps of cells,
 * which are kept modulo 2^28, look right. */
#include "tests/unit/slots_fixture.h"

#define CELLS 8

static int setup(void **state)
{
    struct ring_fixture *fixture = calloc(1, sizeof *fixture);

    ring_fixture_init(fixture, 40, CELLS);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    ring_fixture_finish(*state);
    free(*state);
    return 0;
}

static void take(struct ring_fixture *fixture, unsigned count)
{
    struct rs_lease lease;
    int unmapped;

    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(rs_inbox_take(&fixture->inbox, &lease, &unmapped), 1);
        assert_int_equal(rs_ring_release(&lease), 0);
    }
}

/* After the audit's look, and a message that comes and one that goes, for hints that only stand
 * back, the inbox is known to be as full as it is, and none is lost. */
static void assert_depth_counts(struct ring_fixture *fixture, unsigned queued)
{
    while (rs_inbox_mend_hints(&fixture->inbox))
        ;
    fixture_send(fixture, 3);
    take(fixture, 1);
    assert_int_equal(rs_inbox_depth_now(&fixture->inbox), queued);
    for (unsigned i = queued; i < CELLS; i++) {
        assert_true(rs_inbox_has_room(&fixture->inbox));
        fixture_send(fixture, 3);
    }
    assert_false(rs_inbox_has_room(&fixture->inbox));
    take(fixture, CELLS);
    assert_true(rs_inbox_has_room(&fixture->inbox));
    assert_int_equal(rs_inbox_depth_now(&fixture->inbox), 0);
    assert_false(rs_inbox_mend_hints(&fixture->inbox));
}

static void spoil(rs_word *hint, unsigned bit)
{
    rs_store_relaxed(hint, rs_load_relaxed(hint) ^ UINT64_C(1) << bit);
}

static void bit_of_a_hint_is_flipped(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_inbox_shared *shared = fixture->inbox.shared;

    for (unsigned bit = 0; bit < 64; bit++) {
        for (unsigned i = 0; i < 3; i++)
            fixture_send(fixture, 3);
        spoil(&shared->head, bit);
        assert_depth_counts(fixture, 3);
        fixture_send(fixture, 3);
        spoil(&shared->tail, bit);
        assert_depth_counts(fixture, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bit_of_a_hint_is_flipped, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

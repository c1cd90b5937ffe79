/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/ring.c: allocation, the seal, deliveries, forwards, readers and the free check. */
#include "tests/unit/slots_fixture.h"

static int setup(void **state)
{
    struct ring_fixture *fixture = malloc(sizeof *fixture);

    ring_fixture_init(fixture, 8, 16);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    ring_fixture_finish(*state);
    free(*state);
    return 0;
}

static void loan_gives_every_slot_once(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    uint32_t seen = 0;

    for (int i = 0; i < 8; i++) {
        assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
        assert_true(loan.slot < 8);
        assert_int_equal(seen & 1u << loan.slot, 0);
        seen |= 1u << loan.slot;
    }
    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), -RINGSIDE_E_FULL);
    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 1, &loan), 0);
    assert_int_equal(loan.slot, 8);
}

static void loan_finds_a_slot_whose_bit_is_off(void **state)
{
    struct ring_fixture *fixture = *state;
    rs_word *words = (rs_word *)(fixture->ring.control + fixture->ring.layout.classes[0].bitmap_offset);
    struct rs_loan loan;

    rs_store_relaxed(&words[0], 0);
    rs_store_relaxed(&words[1], 0);
    assert_int_equal(rs_ring_loan_hinted(&fixture->ring, 3, 0, &loan), -RINGSIDE_E_FULL);
    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
}

static void loan_survives_hostile_bitmap(void **state)
{
    struct ring_fixture *fixture = *state;
    rs_word *words = (rs_word *)(fixture->ring.control + fixture->ring.layout.classes[0].bitmap_offset);
    struct rs_loan loan;

    rs_store_relaxed(&words[0], UINT64_MAX); /* bits past the last slot of the class */
    rs_store_relaxed(&words[1], UINT64_MAX);
    for (int i = 0; i < 8; i++)
        assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), -RINGSIDE_E_FULL);
    assert_int_equal(fixture_phase(fixture, 8), RS_FREE);
}

/* Threads that race on the private list of recent slots can leave any number in it. */
static void recent_slot_of_another_class_is_not_loaned(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;

    rs_store_relaxed(&fixture->ring.recent[1].end, 1); /* entry 0 names slot 0, of class 0 */
    rs_store_relaxed(&fixture->ring.recent[1].first, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rs_ring_loan(&fixture->ring, 3, 1, &loan), 0);
        assert_true(loan.slot >= 8);
    }
    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 1, &loan), -RINGSIDE_E_FULL);
}

static void abandon_frees_only_the_owners_loan(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;

    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
    assert_int_equal(rs_ring_abandon(&fixture->ring, 4, &loan), -RINGSIDE_E_STATE);
    assert_int_equal(rs_ring_abandon(&fixture->ring, 3, &loan), 0);
    assert_int_equal(rs_ring_abandon(&fixture->ring, 3, &loan), -RINGSIDE_E_STATE);
    assert_int_equal(fixture_count(fixture, RS_FREE), 10);
}

static void words_are_not_takeable_before_the_seal(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    uint16_t destination = FIXTURE_STAGE;
    uint64_t word;

    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
    rs_ring_prepare(&fixture->ring, &loan, &destination, 1, 0);
    assert_false(rs_ring_takeable(&fixture->ring, loan.slot, 0, FIXTURE_STAGE, &word));
    assert_int_equal(rs_ring_seal(&fixture->ring, 3, &loan, 0), 0);
    assert_true(rs_ring_takeable(&fixture->ring, loan.slot, 0, FIXTURE_STAGE, &word));
    assert_false(rs_ring_takeable(&fixture->ring, loan.slot, 0, FIXTURE_STAGE + 1, &word));
    assert_false(rs_ring_takeable(&fixture->ring, loan.slot, 1, FIXTURE_STAGE, &word));
    assert_false(rs_ring_takeable(&fixture->ring, 99999, 0, FIXTURE_STAGE, &word));
    assert_int_equal(rs_ring_seal(&fixture->ring, 3, &loan, 0), -RINGSIDE_E_STATE);
}

static struct rs_lease take(struct ring_fixture *fixture, const struct rs_loan *loan, unsigned delivery,
                            unsigned destination, uint16_t holder)
{
    struct rs_lease lease;
    uint64_t word;

    assert_true(rs_ring_takeable(&fixture->ring, loan->slot, delivery, destination, &word));
    assert_true(rs_ring_take(&fixture->ring, loan->slot, delivery, word, holder, &lease));
    assert_false(rs_ring_take(&fixture->ring, loan->slot, delivery, word, holder, &lease));
    return lease;
}

static void fan_out_is_free_after_the_last_release(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    uint16_t destinations[8] = {1, 2, 3, 4, 5, 6, 7, 8};

    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
    rs_ring_prepare(&fixture->ring, &loan, destinations, 8, 0);
    assert_int_equal(rs_ring_seal(&fixture->ring, 3, &loan, 0), 0);
    for (unsigned i = 0; i < 8; i++) {
        struct rs_lease lease = take(fixture, &loan, i, destinations[i], 9);

        assert_int_equal(fixture_phase(fixture, loan.slot), RS_SEALED);
        assert_int_equal(rs_ring_release(&lease), 0);
        assert_int_equal(rs_ring_release(&lease), -RINGSIDE_E_STATE);
    }
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
}

static void nack_counts_attempts_and_dead_letters(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan = fixture_seal(fixture, 3);

    for (unsigned i = 0; i < 3; i++) {
        struct rs_lease lease = take(fixture, &loan, 0, FIXTURE_STAGE, 9);

        assert_int_equal(rs_delivery_attempts(lease.word), i);
        assert_int_equal(rs_ring_nack(&lease, 3), i == 2 ? 1 : 0);
    }
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
}

static void forward_moves_the_own_word(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan = fixture_seal(fixture, 3);
    struct rs_lease lease = take(fixture, &loan, 0, FIXTURE_STAGE, 9);
    uint16_t destinations[3] = {20, 21, 22};
    uint8_t deliveries[3];
    uint64_t word;

    assert_int_equal(rs_ring_forward(&lease, destinations, 3, deliveries), 3);
    assert_int_equal(deliveries[0], 1);
    assert_int_equal(deliveries[1], 2);
    assert_int_equal(deliveries[2], 0);
    for (unsigned i = 0; i < 3; i++)
        assert_true(rs_ring_takeable(&fixture->ring, loan.slot, deliveries[i], destinations[i], &word));
    assert_int_equal(rs_ring_release(&lease), -RINGSIDE_E_STATE);
    assert_int_equal(rs_ring_forward(&lease, destinations, 1, deliveries), -RINGSIDE_E_STATE);
}

static void forward_stops_when_no_word_is_left(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    uint16_t all[8] = {1, 1, 1, 1, 1, 1, 1, 1}, two[2] = {20, 21};
    uint8_t deliveries[2];

    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
    rs_ring_prepare(&fixture->ring, &loan, all, 8, 0);
    assert_int_equal(rs_ring_seal(&fixture->ring, 3, &loan, 0), 0);
    struct rs_lease lease = take(fixture, &loan, 6, 1, 9);
    assert_int_equal(rs_ring_forward(&lease, two, 2, deliveries), 0);
    assert_int_equal(rs_ring_release(&lease), 0);
}

static struct rs_ticket share(struct ring_fixture *fixture, unsigned left, bool kept, struct rs_loan *loan)
{
    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, loan), 0);
    rs_ring_prepare(&fixture->ring, loan, NULL, 0, rs_readers(loan->generation, left, kept));
    assert_int_equal(rs_ring_seal(&fixture->ring, 3, loan, RS_FLAG_TICKET), 0);
    return (struct rs_ticket){.sidecar_id = 7, .slot = loan->slot,
                              .generation = loan->generation & RS_TICKET_GENERATION_MASK};
}

static void reader_passes_its_reading_on(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    struct rs_ticket ticket = share(fixture, 1, false, &loan);
    uint32_t generation;

    assert_int_equal(rs_ring_readers_add(&fixture->ring, 4, loan.slot, 1), -RINGSIDE_E_STALE_TICKET);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 4, &ticket, &generation), 0);
    assert_int_equal(rs_ring_readers_add(&fixture->ring, 4, loan.slot, 1), 0);
    assert_int_equal(rs_ring_readers_add(&fixture->ring, 4, loan.slot, 254), -RINGSIDE_E_LIMIT);
    rs_ring_read_end(&fixture->ring, 4, loan.slot, generation, true);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_SEALED);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 5, &ticket, &generation), 0);
    assert_int_equal(rs_ring_readers_add(&fixture->ring, 5, loan.slot, -2), 0); /* more than there are: none */
    rs_ring_read_end(&fixture->ring, 5, loan.slot, generation, true);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
    assert_int_equal(rs_ring_readers_add(&fixture->ring, 5, loan.slot, 1), -RINGSIDE_E_STALE_TICKET);
}

static void reader_ends_the_ticket_that_it_reads(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    struct rs_ticket ticket = share(fixture, 0, true, &loan);
    uint32_t generation;

    assert_int_equal(rs_ring_read_retire(&fixture->ring, 4, loan.slot), -RINGSIDE_E_STALE_TICKET);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 4, &ticket, &generation), 0);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 5, &ticket, &generation), 0);
    assert_int_equal(rs_ring_read_retire(&fixture->ring, 4, loan.slot), 0);
    assert_int_equal(rs_ring_read_retire(&fixture->ring, 5, loan.slot), -RINGSIDE_E_STALE_TICKET);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 6, &ticket, &generation), -RINGSIDE_E_STALE_TICKET);
    rs_ring_read_end(&fixture->ring, 4, loan.slot, generation, true);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_SEALED); /* 5 reads it yet */
    rs_ring_read_end(&fixture->ring, 5, loan.slot, generation, true);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
}

static void readers_are_counted_down(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    struct rs_ticket ticket = share(fixture, 2, false, &loan);
    uint32_t generation;

    for (unsigned i = 1; i <= 2; i++) {
        assert_int_equal(rs_ring_read_begin(&fixture->ring, i, &ticket, &generation), 0);
        assert_int_equal(generation, loan.generation);
        assert_int_equal(rs_ring_read_begin(&fixture->ring, i, &ticket, &generation), -RINGSIDE_E_STATE);
        rs_ring_read_end(&fixture->ring, i, loan.slot, generation, true);
    }
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 1, &ticket, &generation), -RINGSIDE_E_STALE_TICKET);
}

static void free_waits_for_the_last_reader(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    struct rs_ticket ticket = share(fixture, 0, true, &loan);
    uint32_t generation;

    assert_int_equal(rs_ring_read_begin(&fixture->ring, 1, &ticket, &generation), 0);
    rs_ring_read_end(&fixture->ring, 1, loan.slot, generation, true);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_SEALED);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 1, &ticket, &generation), 0);
    assert_int_equal(rs_ring_ticket_free(&fixture->ring, 2, &ticket), 0);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 2, &ticket, &generation), -RINGSIDE_E_STALE_TICKET);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_SEALED);
    rs_ring_read_end(&fixture->ring, 1, loan.slot, generation, true);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
}

static void tickets_of_others_are_told_apart(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    struct rs_ticket ticket = share(fixture, 1, false, &loan), other = ticket;
    uint32_t generation;

    other.sidecar_id = 8;
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 1, &other, &generation), -RINGSIDE_E_FOREIGN_TICKET);
    other = ticket;
    other.has_text = true;
    other.incarnation = 1;
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 1, &other, &generation), -RINGSIDE_E_FOREIGN_TICKET);
    other = ticket;
    other.slot = 1000;
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 1, &other, &generation), -RINGSIDE_E_STALE_TICKET);
    other = ticket;
    other.generation += 1u << 16; /* the readers word cannot tell; the state can */
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 1, &other, &generation), -RINGSIDE_E_STALE_TICKET);
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 1, &ticket, &generation), 0);
}

/* A publisher that is stopped between load and compare-and-swap for a whole life of the slot must lose. */
static void stale_values_lose_after_one_lap(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan = fixture_seal(fixture, 3), next;
    uint64_t word;

    assert_true(rs_ring_takeable(&fixture->ring, loan.slot, 0, FIXTURE_STAGE, &word));
    struct rs_lease lease = take(fixture, &loan, 0, FIXTURE_STAGE, 9);
    assert_int_equal(rs_ring_release(&lease), 0);
    do
        next = fixture_seal(fixture, 3);
    while (next.slot != loan.slot);
    assert_false(rs_ring_take(&fixture->ring, loan.slot, 0, word, 9, &lease));
    assert_int_equal(rs_ring_seal(&fixture->ring, 3, &loan, 0), -RINGSIDE_E_STATE);
}

static void generations_wrap(void **state)
{
    struct ring_fixture *fixture = *state;

    for (uint32_t i = 0; i < 8; i++)
        rs_store_relaxed(&fixture->ring.slots[i].state, rs_state(UINT32_MAX - 2, 0, RS_FREE, 0));
    for (int i = 0; i < 64; i++) {
        struct rs_loan loan = fixture_seal(fixture, 3);
        struct rs_lease lease = take(fixture, &loan, 0, FIXTURE_STAGE, 9);

        assert_int_equal(rs_ring_release(&lease), 0);
        assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(loan_gives_every_slot_once),
        CASE(loan_finds_a_slot_whose_bit_is_off),
        CASE(loan_survives_hostile_bitmap),
        CASE(recent_slot_of_another_class_is_not_loaned),
        CASE(abandon_frees_only_the_owners_loan),
        CASE(words_are_not_takeable_before_the_seal),
        CASE(fan_out_is_free_after_the_last_release),
        CASE(nack_counts_attempts_and_dead_letters),
        CASE(forward_moves_the_own_word),
        CASE(forward_stops_when_no_word_is_left),
        CASE(reader_ends_the_ticket_that_it_reads),
        CASE(reader_passes_its_reading_on),
        CASE(readers_are_counted_down),
        CASE(free_waits_for_the_last_reader),
        CASE(tickets_of_others_are_told_apart),
        CASE(stale_values_lose_after_one_lap),
        CASE(generations_wrap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/repair.c: what is left at each step of a death, and what the sidecar makes of it. */
#include "tests/unit/slots_fixture.h"

static int setup(void **state)
{
    struct ring_fixture *fixture = malloc(sizeof *fixture);

    ring_fixture_init(fixture, 70, 128);
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

    return rs_inbox_take(&fixture->inbox, lease, &unmapped) == 1;
}

static void dead_producers_loans_come_back(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan mine, other;

    for (int i = 0; i < 5; i++)
        assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &mine), 0);
    assert_int_equal(rs_ring_loan(&fixture->ring, 4, 0, &other), 0);
    fixture_sweep(fixture, 3, RS_NO_READER);
    assert_int_equal(fixture->repair.freed_loans, 5);
    assert_int_equal(fixture_count(fixture, RS_LOANED), 1);
    assert_int_equal(rs_ring_abandon(&fixture->ring, 4, &other), 0);
}

static void sealed_but_not_pushed_gets_a_cell(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    struct rs_loan loan = fixture_seal(fixture, 3);

    assert_false(take(fixture, &lease));
    fixture_audit(fixture, 0);
    assert_int_equal(fixture->repair.pushed, 1);
    assert_true(take(fixture, &lease));
    assert_int_equal(lease.slot, loan.slot);
    assert_int_equal(rs_ring_release(&lease), 0);
}

static void audit_of_a_healthy_ring_pushes_nothing(void **state)
{
    struct ring_fixture *fixture = *state;

    for (int i = 0; i < 60; i++)
        fixture_send(fixture, 3);
    fixture_audit(fixture, 0);
    assert_int_equal(fixture->repair.pushed, 0);
    assert_int_equal(fixture->repair.quarantined, 0);
}

static void dead_holders_messages_come_again_up_to_the_limit(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;

    fixture_send(fixture, 3);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(take(fixture, &lease));
        assert_int_equal(rs_delivery_attempts(lease.word), i);
        fixture_sweep(fixture, 5, RS_NO_READER);
        fixture_audit(fixture, 0);
        assert_int_equal(rs_ring_release(&lease), -RINGSIDE_E_STATE);
    }
    assert_false(take(fixture, &lease));
    assert_int_equal(fixture->repair.requeued, 2);
    assert_int_equal(fixture->repair.dead_lettered, 1);
    assert_int_equal(rs_load_relaxed(&fixture->ring.clients[0].counter[RS_REQUEUED]), 2);
    assert_int_equal(rs_load_relaxed(&fixture->ring.clients[0].counter[RS_DEAD_LETTERED]), 1);
    assert_int_equal(fixture_count(fixture, RS_FREE), 72);
}

static void released_but_not_freed_is_freed(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan = fixture_seal(fixture, 3);
    rs_word *word = &fixture->ring.slots[loan.slot].delivery[0];

    rs_store_relaxed(word, rs_delivery(loan.generation, 0, FIXTURE_STAGE, 0, RS_DONE));
    fixture_audit(fixture, 0);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
}

static void freed_without_its_bit_gets_it(void **state)
{
    struct ring_fixture *fixture = *state;
    rs_word *words = (rs_word *)(fixture->ring.control + fixture->ring.layout.classes[0].bitmap_offset);

    for (int i = 0; i < 3; i++)
        rs_store_relaxed(&words[i], 0);
    fixture_audit(fixture, 0);
    assert_true(rs_load_relaxed(&words[0]) == UINT64_MAX);
    assert_int_equal(rs_load_relaxed(&words[1]), 63);
    assert_int_equal(rs_load_relaxed(&words[2]), 3);
}

static void dead_readers_bit_goes_and_the_count_stays(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;
    uint32_t generation;

    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&fixture->ring.slots[loan.slot].header[i], 0);
    rs_store_relaxed(&fixture->ring.slots[loan.slot].header[1], 1000); /* published at 1 us */
    rs_store_relaxed(&fixture->ring.slots[loan.slot].header[2], 5000); /* lives 5 us */
    rs_ring_prepare(&fixture->ring, &loan, NULL, 0, rs_readers(loan.generation, 1, false));
    assert_int_equal(rs_ring_seal(&fixture->ring, 3, &loan, RS_FLAG_TICKET), 0);
    struct rs_ticket ticket = {.sidecar_id = 7, .slot = loan.slot, .generation = loan.generation};
    assert_int_equal(rs_ring_read_begin(&fixture->ring, 4, &ticket, &generation), 0);
    fixture_sweep(fixture, 9, 4);
    assert_int_equal(rs_readers_left(rs_load_relaxed(&fixture->ring.slots[loan.slot].readers)), 1);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_SEALED);
    fixture_audit(fixture, 5000);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_SEALED);
    fixture_audit(fixture, 7000);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
}

static void queued_messages_expire_and_are_counted(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;
    struct rs_loan loan;
    uint16_t destination = FIXTURE_STAGE;

    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &loan), 0);
    rs_store_relaxed(&fixture->ring.slots[loan.slot].header[1], 1000);
    rs_store_relaxed(&fixture->ring.slots[loan.slot].header[2], 5000);
    rs_ring_prepare(&fixture->ring, &loan, &destination, 1, 0);
    assert_int_equal(rs_ring_seal(&fixture->ring, 3, &loan, 0), 0);
    assert_int_equal(rs_inbox_push(&fixture->inbox, 0, loan.slot, 0), 0);
    fixture_audit(fixture, 7000);
    assert_int_equal(fixture->repair.expired, 1);
    assert_int_equal(rs_load_relaxed(&fixture->ring.clients[0].counter[RS_EXPIRED]), 1);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_FREE);
    assert_false(take(fixture, &lease));
}

/* Who has which number, as the sidecar tells it. */
static void set_numbers(struct ring_fixture *fixture, const uint64_t *clients, const uint64_t *readers)
{
    fixture->repair.clients_in_use = clients;
    fixture->repair.readers_in_use = readers;
}

static void what_nobody_holds_comes_back(void **state)
{
    struct ring_fixture *fixture = *state;
    const uint64_t clients[RS_MAX_CLIENTS / 64] = {1u << 3 | 1u << 5}, readers = 1u << 4;
    struct rs_loan loan = fixture_send(fixture, 3), mine, nobodys, zeros;
    struct rs_slot *record = &fixture->ring.slots[loan.slot];
    struct rs_lease lease;

    set_numbers(fixture, clients, &readers);
    assert_int_equal(rs_ring_loan(&fixture->ring, 3, 0, &mine), 0);
    assert_int_equal(rs_ring_loan(&fixture->ring, 9, 0, &nobodys), 0);
    assert_int_equal(rs_ring_loan(&fixture->ring, 0, 0, &zeros), 0); /* one bit away from FREE */
    rs_store_relaxed(&record->delivery[0], rs_delivery(loan.generation, 9, FIXTURE_STAGE, 0, RS_HELD));
    rs_store_relaxed(&record->readers, rs_load_relaxed(&record->readers) | 1u << 4 | 1u << 6);
    fixture_audit(fixture, 0);
    assert_int_equal(fixture_phase(fixture, mine.slot), RS_LOANED);
    assert_int_equal(fixture_phase(fixture, nobodys.slot), RS_FREE);
    assert_int_equal(fixture_phase(fixture, zeros.slot), RS_FREE);
    assert_int_equal(rs_load_relaxed(&record->readers) & RS_READERS_BITS, 1u << 4);
    assert_true(take(fixture, &lease)); /* by 5, who has a number */
    assert_int_equal(rs_delivery_attempts(lease.word), 1);
    fixture_audit(fixture, 0);
    assert_int_equal(rs_ring_release(&lease), 0);
}

static void nothing_is_taken_while_numbers_are_unknown(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan;

    assert_int_equal(rs_ring_loan(&fixture->ring, 9, 0, &loan), 0);
    fixture_audit(fixture, 0);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_LOANED);
}

static void nonsense_seen_twice_is_quarantined(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_loan loan = fixture_send(fixture, 3);
    struct rs_lease lease;

    rs_store_relaxed(&fixture->ring.slots[loan.slot].delivery[2],
                     rs_delivery(loan.generation, 0, FIXTURE_STAGE, 0, 9));
    rs_store_relaxed(&fixture->ring.slots[50].state, rs_state(4, 0, 77, 0));
    fixture_audit(fixture, 0);
    assert_int_equal(fixture->repair.quarantined, 0);
    fixture_audit(fixture, 0);
    assert_int_equal(fixture->repair.quarantined, 2);
    assert_int_equal(fixture_phase(fixture, loan.slot), RS_QUARANTINED);
    assert_int_equal(fixture_phase(fixture, 50), RS_QUARANTINED);
    assert_false(take(fixture, &lease));
    fixture_send(fixture, 3);
    assert_true(take(fixture, &lease));
}

static void audit_survives_random_words(void **state)
{
    struct ring_fixture *fixture = *state;
    uint64_t random = 1;

    for (int i = 0; i < 3000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        rs_word *words = (rs_word *)&fixture->ring.slots[(random >> 33) % 72];
        rs_store_relaxed(&words[(random >> 20) % 32], random * 0x9e3779b97f4a7c15u);
        fixture_audit(fixture, (int64_t)i * 1000);
        fixture_sweep(fixture, (uint16_t)(random >> 50) & 63, (unsigned)(random >> 45) & 31);
    }
}

static void adopt_rebuilds_wrong_hints(void **state)
{
    struct ring_fixture *fixture = *state;
    struct rs_lease lease;

    fixture_send(fixture, 3);
    rs_store_relaxed(&fixture->inbox.shared->head, 1000000);
    rs_repair_adopt(&fixture->repair);
    fixture_audit(fixture, 0);
    assert_true(take(fixture, &lease));
    assert_int_equal(rs_load_relaxed(&((struct rs_superblock *)fixture->ring.control)->epoch), 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(dead_producers_loans_come_back),
        CASE(sealed_but_not_pushed_gets_a_cell),
        CASE(audit_of_a_healthy_ring_pushes_nothing),
        CASE(dead_holders_messages_come_again_up_to_the_limit),
        CASE(released_but_not_freed_is_freed),
        CASE(freed_without_its_bit_gets_it),
        CASE(dead_readers_bit_goes_and_the_count_stays),
        CASE(queued_messages_expire_and_are_counted),
        CASE(what_nobody_holds_comes_back),
        CASE(nothing_is_taken_while_numbers_are_unknown),
        CASE(nonsense_seen_twice_is_quarantined),
        CASE(audit_survives_random_words),
        CASE(adopt_rebuilds_wrong_hints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The free check, sleeping for a slot, the bitmap, tickets, forwarding. */
#include "acts.h"
#include "scenarios.h"

/* ---- the free check and the hints ---- */

static void two_holders(void)
{
    one_holder();
    put_delivery(0, 1, CLIENT(1), RS_HELD);
}

static void one_holder_bits_off(void)
{
    one_holder();
    set_bits(false);
}

/* The word's bit is off, the summary's still on. */
static void one_holder_bit_off(void)
{
    one_holder();
    rs_store_relaxed((rs_word *)(control[0] + BITMAP), 0);
}

static void abandon(void)
{
    struct rs_loan loan = {.slot = 0, .generation = GENERATION};

    weak_body_write(0, GENERATION);
    weak_require(rs_ring_abandon(&me()->ring, me()->ring.client, &loan) == 0,
                 "an abandon is refused");
}

/* A second sleeper, who waits for something else. */
static void arm_event(void)
{
    rs_wait_arm(&me()->ring.shared->slot_free, RS_WAIT_EVENT);
}

/* Thread 0 holds a message, two others want a slot: two are free in the end, or one and a loan. */
static void two_slots_one_held(void)
{
    format(2, 2, 2);
    put_message(0, CLIENT(0), RS_HELD);
}

/* ---- tickets ---- */

static const struct rs_ticket ticket = {
    .sidecar_id = SIDECAR_ID, .slot = 0, .generation = GENERATION};

static void put_readers(uint32_t generation, unsigned left, uint64_t more)
{
    rs_store_relaxed(&slot_at(0)->readers, rs_readers(generation, left, false) | more);
}

static void message_with_ticket(unsigned reads)
{
    one_holder();
    put_state(0, 0, RS_SEALED, RS_FLAG_TICKET);
    put_readers(GENERATION, reads, 0);
}

static void one_read_left(void)
{
    message_with_ticket(1);
}

static void two_reads_left(void)
{
    message_with_ticket(2);
}

static void queued_with_ticket(void)
{
    message_with_ticket(1);
    put_delivery(0, 0, 0, RS_QUEUED);
    put_cell(0, 0, 0);
}

static void read_by_ticket(void)
{
    struct rs_ring *ring = &me()->ring;
    uint32_t generation;

    if (rs_ring_read_begin(ring, ring->reader, &ticket, &generation) < 0)
        return;
    weak_note(READ, 1);
    weak_body_read(0, generation);
    rs_ring_read_end(ring, ring->reader, 0, generation, true);
}

static void end_ticket(void)
{
    weak_note(ENDED, rs_ring_ticket_free(&me()->ring, me()->ring.reader, &ticket) == 0);
}

static void freed_when_read(void)
{
    if (noted(READ) != 0 || noted(ENDED) != 0)
        freed();
}

static void taken_and_read(void)
{
    all_delivered(1);
    freed_when_read();
}

/* A loan whose ticket somebody has guessed. Its message goes nowhere else. */
static void loan_before_prepare(void)
{
    one_loan();
    put_readers(GENERATION - 1, 0, RS_READERS_RETIRED);
}

static void loan_after_prepare(void)
{
    one_loan();
    put_readers(GENERATION, 1, 0);
}

static void seal_with_ticket(void)
{
    struct rs_loan loan = {.slot = 0, .generation = GENERATION};

    seal_message(&loan, RS_FLAG_TICKET, rs_readers(GENERATION, 1, false));
}

/* The loan is given back, and the next one sealed. */
static void abandon_and_seal_with_ticket(void)
{
    struct rs_loan loan;

    abandon();
    if (rs_ring_loan(&me()->ring, me()->ring.client, 0, &loan) == 0)
        seal_message(&loan, RS_FLAG_TICKET, rs_readers(loan.generation, 1, false));
}

static void readable_once(void)
{
    const struct rs_ring *ring = &processes[CLOSER].ring;
    uint64_t readers = rs_load_relaxed(&slot_at(0)->readers);
    struct rs_ticket now = ticket;
    uint32_t generation;

    weak_require((readers & RS_READERS_BITS) == 0, "a reader's bit is stuck");
    if (noted(READ) != 0) {
        freed();
        return;
    }
    now.generation = rs_state_generation(rs_load_relaxed(&slot_at(0)->state));
    weak_require(rs_ring_read_begin(&processes[CLOSER].ring, ring->reader, &now, &generation) == 0,
                 "a ticket is lost");
}

#define DEAD_READER 6

static void dead_reader(void)
{
    message_with_ticket(0);
    put_readers(GENERATION, 0, RS_READERS_RETIRED | UINT64_C(1) << DEAD_READER);
}

/* The same before its message was retired; another reader may come yet. */
static void dead_reader_not_retired(void)
{
    message_with_ticket(0);
    put_readers(GENERATION, 0, UINT64_C(1) << DEAD_READER);
}

static void sweep_reader(void)
{
    struct sidecar sidecar;

    start_sidecar(&sidecar);
    sweep_all(&sidecar, DEAD_READER);
}

/* ---- forward and expiry ---- */

/* The second route is not used yet. A cell names the first, as after a second push. */
static void held_with_cell(void)
{
    one_holder();
    put_cell(0, 0, 0);
}

static void forward_to_two(void)
{
    struct rs_lease lease = lease_on(0);
    const uint16_t routes[] = {1, 0};
    uint8_t deliveries[2];

    weak_body_read(0, GENERATION);
    weak_require(rs_ring_forward(&lease, routes, 2, deliveries) == 2, "a forward is refused");
    rs_inbox_push(&me()->next, 1, 0, deliveries[0]);
    rs_inbox_push(&me()->inbox, 0, 0, deliveries[1]);
}

static void free_check_reuse(void)
{
    rs_ring_free_check(&me()->ring, 0);
    reuse();
}

static void forwarded(void)
{
    uint64_t count =
        noted(RECEIVED) + drain(&processes[CLOSER].inbox) + drain(&processes[CLOSER].next);

    weak_require(count == 2, "a forwarded message does not come once on each route");
    all_free();
}

static void queued_with_cell(void)
{
    held_with_cell();
    put_delivery(0, 0, 0, RS_QUEUED);
}

static void expire(void)
{
    bool expired = rs_ring_expire(&me()->ring, 0, 0, rs_delivery(GENERATION, 0, 0, 0, RS_QUEUED));

    weak_note(ENDED, expired);
}

static void taken_or_expired(void)
{
    weak_require(noted(RECEIVED) + noted(ENDED) == 1,
                 "a message is neither taken nor expired, or both");
    freed();
}

/* A row is one thing. */
/* clang-format off */
const struct weak_scenario weak_slot_scenarios[] = {
    {"release_release", "the last two holders let go at once", two_holders,
     {release_0, release_1}, freed, false},
    {"release_reuse", "the same, and a producer that wants the slot", two_holders,
     {release_0, release_1, reuse}, freed, false},
    {"release_sleep", "the last holder, and a producer that sleeps for a slot", one_holder,
     {release_0, loan_asleep}, all_awake, false},
    {"release_sleep_off", "the same when the slot's bit is off", one_holder_bits_off,
     {release_0, loan_asleep}, all_awake, false},
    {"release_sleep_two", "the last holder, and two producers that sleep, for two slots",
     two_slots_one_held, {release_0, loan_asleep, loan_asleep}, all_awake, false},
    {"abandon_sleep", "a loan given back, and a producer that sleeps for a slot", one_loan,
     {abandon, loan_asleep}, all_awake, false},
    {"wake_both", "the same while a second sleeper arms the word's other bit", one_loan,
     {abandon, loan_asleep, arm_event}, all_awake, false},
    {"abandon_loan", "a loan given back, and a producer that looks at the bitmap", one_loan,
     {abandon, loan_hinted}, freed, false},
    {"release_loan", "the last holder, and a producer that looks at the bitmap", one_holder,
     {release_0, loan_hinted}, freed, false},
    {"release_loan_off", "the same when both bits are off", one_holder_bits_off,
     {release_0, loan_hinted}, freed, false},
    {"release_loan_summary", "the same when only the summary's bit is on", one_holder_bit_off,
     {release_0, loan_hinted}, freed, false},
    {"loan_loan", "two producers at one slot, which is given back", one_loan,
     {abandon, reuse, reuse}, freed, false},
    {"read_release", "the last reading by ticket and the last holder", one_read_left,
     {release_0_reuse, read_by_ticket}, freed_when_read, false},
    {"read_free", "a reading, the end of the ticket, and the last holder, who uses the slot again",
     two_reads_left, {release_0_reuse, read_by_ticket, end_ticket}, freed_when_read, false},
    {"read_read", "the last two readings, and the last holder, who uses the slot again",
     two_reads_left, {release_0_reuse, read_by_ticket, read_by_ticket}, NULL, false},
    {"read_take", "a reading to the end while the message is taken", queued_with_ticket,
     {take_reuse, read_by_ticket}, taken_and_read, false},
    {"publish_read", "a seal with a ticket beside a reader that has guessed it",
     loan_before_prepare, {seal_with_ticket, read_by_ticket}, readable_once, false},
    {"read_reuse", "the same reader, and a loan that is given back and used again",
     loan_after_prepare, {abandon_and_seal_with_ticket, read_by_ticket}, readable_once, false},
    {"dead_reader", "a dead reader's bit is swept while the last holder lets go", dead_reader,
     {release_0, sweep_reader}, freed, false},
    {"dead_reader_read", "the same, another reader, and the slot's next message",
     dead_reader_not_retired, {release_0_reuse, sweep_reader, read_by_ticket}, freed, false},
    {"forward_take", "forward on two routes, a consumer of each, one uses the slot again",
     held_with_cell, {forward_to_two, take_reuse, take_from_next}, forwarded, false},
    {"forward_free", "forward on two routes, a consumer of the own word, and somebody's free check",
     held_with_cell, {forward_to_two, free_check_reuse, take}, forwarded, false},
    {"expire_take", "expiry and a consumer", queued_with_cell,
     {expire, take}, taken_or_expired, false},
    {NULL, NULL, NULL, {NULL}, NULL, false},
};

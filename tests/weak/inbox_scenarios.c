/* SPDX-License-Identifier: Apache-2.0 */
/* Push, take, clear and look again, overflow, room, the bell, wrong hints. */
#include "acts.h"
#include "scenarios.h"

/* ---- push and take ---- */

static void two_slots(void)
{
    format(2, 2, 2);
}

/* Slots loaned by the threads of the same number. */
static void loans(uint32_t slots, uint32_t cells)
{
    format(slots, cells, cells);
    for (uint32_t slot = 0; slot < slots; slot++)
        put_state(slot, CLIENT(slot), RS_LOANED, 0);
}

static void three_loans(void)
{
    loans(3, 2);
}

static void three_loans_one_cell(void)
{
    loans(3, 1);
}

static void push_loaned(void)
{
    publish_loaned();
}

static void publish_twice(void)
{
    publish();
    publish();
}

static void sleep_and_take_twice(void)
{
    sleep_and_take();
    sleep_and_take();
}

static void with_events(void)
{
    one_slot();
    for (unsigned i = 0; i < PROCESSES; i++)
        processes[i].inbox.event_fd = 1;
}

static void take_and_keep(void)
{
    struct rs_lease lease;

    if (!look(&me()->inbox, &lease))
        return;
    weak_body_read(lease.slot, lease.generation);
    weak_note(RECEIVED, weak_noted(weak_thread(), RECEIVED) + 1);
}

/* Somebody else arms the word and goes. */
static void arm_and_go(void)
{
    rs_wait_arm(&me()->inbox.shared->not_empty, RS_WAIT_FUTEX);
}

/* Laps wrap between the first two positions. */
static void one_cell(void)
{
    format(2, 1, 1);
}

static void two_queued(uint32_t cells)
{
    format(2, cells, cells);
    put_message(0, 0, RS_QUEUED);
    put_message(1, 0, RS_QUEUED);
}

static void two_cells_full(void)
{
    two_queued(2);
    put_cell(0, 0, 0);
    put_cell(1, 0, 1);
}

/* The first message has two cells, as after an audit. */
static void doubled_cell(void)
{
    two_queued(4);
    put_cell(0, 0, 0);
    put_cell(1, 0, 0);
    put_cell(2, 0, 1);
}

/* ---- words that become takeable again while a cell is cleared ---- */

static void held_by_the_dead(void)
{
    one_slot();
    put_message(0, DEAD_CLIENT, RS_HELD);
    put_cell(0, 0, 0);
}

static void held_with_cell(void)
{
    one_holder();
    put_cell(0, 0, 0);
}

static void nack(void)
{
    struct rs_lease lease = lease_on(0);

    weak_body_read(0, GENERATION);
    weak_require(rs_ring_nack(&lease, 3) == 0, "a nack is refused");
}

static void nack_and_push(void)
{
    nack();
    rs_inbox_push(&me()->inbox, 0, 0, 0);
}

/* The holder dies after its nack; the sidecar looks for the cell. */
static void nack_and_audit(void)
{
    nack();
    audit();
}

static void forward_and_audit(void)
{
    struct rs_lease lease = lease_on(0);
    const uint16_t route = 0;
    uint8_t delivery;

    weak_require(rs_ring_forward(&lease, &route, 1, &delivery) == 1, "a forward is refused");
    audit();
}

/* A stale cell names the word that a loan is about to queue. */
static void loan_with_stale_cell(void)
{
    one_loan();
    put_cell(0, 0, 0);
}

static void seal(void)
{
    struct rs_loan loan = {.slot = 0, .generation = GENERATION};

    seal_message(&loan, 0, 0);
}

static void audit_if_sealed(void)
{
    if (rs_state_phase(rs_load_seq_cst(&slot_at(0)->state)) != RS_SEALED)
        return;
    weak_note(ENDED, 1);
    audit();
}

/* An audit that sees the seal finds the cell or makes one; one that came too early proves nothing.
 */
static void delivered_if_audited(void)
{
    if (noted(ENDED) != 0)
        all_delivered(1);
}

/* An inbox of one cell, which is stale: its word is held by a dead client. */
static void stale_cell_in_the_way(void)
{
    loans(2, 1);
    put_message(0, DEAD_CLIENT, RS_HELD);
    put_cell(0, 0, 0);
}

/* One queued message, no free slot. */
static void full(void)
{
    format(1, 2, 1);
    put_message(0, 0, RS_QUEUED);
    put_cell(0, 0, 0);
}

static void drop(void)
{
    weak_note(DROPPED, rs_inbox_drop_oldest(&me()->inbox, 0));
}

static void drop_and_publish(void)
{
    drop();
    publish();
}

/* Frees the slot, seals a new message there, dies before its push; then an audit. */
static void free_seal_audit(void)
{
    struct rs_loan loan;

    rs_ring_free_check(&me()->ring, 0);
    if (loan_and_seal(&loan))
        audit();
}

static void delivered_or_dropped(void)
{
    all_delivered(1 + noted(SENT) - noted(DROPPED));
    freed();
}

/* ---- overflow and room ---- */

/* What stands in the only cell belongs to a ring that nobody here has mapped. */
static void blocked_cell(void)
{
    loans(3, 1);
    put_cell(0, 2, 0);
}

static void overflow(void)
{
    weak_require(publish_loaned() == 1, "a full inbox has room");
}

static void full_of_one(void)
{
    loans(2, 2);
    for (unsigned i = 0; i < PROCESSES; i++)
        processes[i].inbox.depth = 1;
    put_message(0, 0, RS_QUEUED);
    put_cell(0, 0, 0);
}

static void wait_and_push(void)
{
    wait_for_room();
    publish_loaned();
}

static void room_was_made(void)
{
    if (noted(RECEIVED) != 0)
        all_awake();
    if (!weak_asleep(1))
        all_delivered(2);
}

/* ---- the bell and wrong hints ---- */

/* Held by thread 0, without a cell; the bell has been rung before. */
static void rung(void)
{
    one_holder();
    rs_store_relaxed(&processes[0].ring.shared->bell, 1);
}

static void nack_and_ring(void)
{
    nack();
    rs_ring_bell(&me()->ring);
}

static void answer_bell(void)
{
    if (rs_ring_bell_clear(&me()->ring))
        audit();
}

/* Still rung, or else delivered. */
static void answered(void)
{
    if (rs_load_relaxed(&processes[0].ring.shared->bell) == 0)
        all_delivered(1);
}

/* Hints that a hostile client may leave: laps ahead. */
static void wrong_head(void)
{
    full();
    rs_store_relaxed(&inbox_words(0)->head, first_position(&processes[0].inbox) + 6);
}

static void wrong_tail(void)
{
    full_of_one();
    rs_store_relaxed(&inbox_words(0)->tail, first_position(&processes[0].inbox) + 6);
}

static void mend(void)
{
    struct sidecar sidecar;

    start_sidecar(&sidecar);
    rs_repair_hints(&sidecar.repair);
    audit_all(&sidecar);
}

/* Beside an honest producer and consumer there is nothing to mend. */
static void look_at_hints(void)
{
    weak_require(!rs_inbox_mend_hints(&me()->inbox), "good hints are called wrong");
}

static void mended_and_delivered(void)
{
    rs_inbox_mend_hints(&processes[CLOSER].inbox);
    all_delivered(2);
}

/* A row is one thing. */
/* clang-format off */
const struct weak_scenario weak_inbox_scenarios[] = {
    {"push_take", "a message, its only consumer, and the slot's next message", one_slot,
     {publish, take_reuse}, well_as_sent, false},
    {"push_sleep", "a producer and a consumer that goes to sleep", one_slot,
     {publish, sleep_and_take}, well_1, false},
    {"push_sleep_armed", "the same, and another who arms the word and goes", one_slot,
     {publish, sleep_and_take, arm_and_go}, well_1, false},
    {"push_event", "a producer and a consumer that polls its event", with_events,
     {publish, poll_and_take}, well_1, false},
    {"push_push_take", "two producers at one cell, and a consumer", two_slots,
     {publish, take_twice, publish}, well_2, false},
    {"push_push_sleep", "two producers and a consumer that goes to sleep twice", three_loans,
     {push_loaned, sleep_and_take_twice, push_loaned}, delivered_2, false},
    {"push_laps", "two messages through one cell, laps wrap, the consumer sleeps", one_cell,
     {publish_twice, sleep_and_take_twice}, well_2, false},
    {"push_laps_two", "two producers at one cell, and a consumer that goes to sleep twice",
     three_loans_one_cell, {push_loaned, sleep_and_take_twice, push_loaned}, delivered_2, true},
    {"take_take", "two consumers at a message with two cells, then another", doubled_cell,
     {take_twice, take_twice}, well_2, false},
    {"take_take_take", "three consumers at the same; they keep what they get", doubled_cell,
     {take_and_keep, take_and_keep, take_and_keep}, delivered_2, false},
    {"take_behind", "a consumer comes while another empties a full inbox", two_cells_full,
     {take_twice, take}, well_2, false},
    {"sweep_take", "a dead holder's word is queued and audited while its old cell is cleared",
     held_by_the_dead, {sweep_and_audit, take}, delivered_1, false},
    {"sweep_push", "the same when a producer clears the cell", stale_cell_in_the_way,
     {sweep_and_audit, push_loaned}, delivered_2, false},
    {"nack_take", "a nack and its push while the old cell is cleared; the slot's next message",
     held_with_cell, {nack_and_push, take_reuse}, well_1, false},
    {"nack_audit", "a nack, death, and the audit while the old cell is cleared", held_with_cell,
     {nack_and_audit, take}, delivered_1, false},
    {"nack_take_audit", "a nack and its push, a consumer of two looks, and an audit",
     held_with_cell, {nack_and_push, take_twice, audit}, delivered_1, false},
    {"forward_audit", "a forward, death, and the audit while the old cell is cleared",
     held_with_cell, {forward_and_audit, take}, delivered_1, false},
    {"seal_audit", "the same for a seal; the audit is another process's", loan_with_stale_cell,
     {seal, take, audit_if_sealed}, delivered_if_audited, false},
    {"drop_audit", "a dropped message's slot is used again and audited while its cell is cleared",
     full, {free_seal_audit, drop}, delivered_or_dropped, false},
    {"drop_push_take", "drop-oldest and its push beside a consumer", full,
     {take_reuse, drop_and_publish}, delivered_or_dropped, false},
    {"overflow_sleep", "a full inbox, and a consumer that goes to sleep", blocked_cell,
     {overflow, sleep_and_take}, all_awake, false},
    {"overflow_walk", "two producers overflow while a consumer walks and clears", blocked_cell,
     {overflow, take_twice, overflow}, delivered_2, false},
    {"overflow_walk_two", "a producer overflows while two consumers walk", blocked_cell,
     {overflow, take_twice, take_twice}, delivered_1, false},
    {"room_sleep", "a producer that sleeps for room, and a consumer", full_of_one,
     {take, wait_and_push}, room_was_made, false},
    {"room_sleep_two", "the same with two consumers at one cell", full_of_one,
     {take, wait_and_push, take}, room_was_made, false},
    {"bell", "a nack and the bell, which was rung already, beside the sidecar's audit", rung,
     {nack_and_ring, answer_bell}, answered, false},
    {"mend_take", "a wrong head is mended beside a consumer", wrong_head,
     {mend, take_any}, delivered_1, false},
    {"mend_push", "a wrong tail is mended beside a producer", wrong_tail,
     {mend, push_loaned}, mended_and_delivered, false},
    {"mend_nothing", "the sidecar looks at good hints beside a producer and a consumer",
     full_of_one, {take, push_loaned, look_at_hints}, delivered_2, false},
    {"mend_push_take", "the same and a consumer", wrong_tail,
     {mend, push_loaned, take_any}, mended_and_delivered, true},
    {NULL, NULL, NULL, {NULL}, NULL, false},
};

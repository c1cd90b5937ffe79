/* SPDX-License-Identifier: Apache-2.0 */
/* What processes do in scenarios, and what must hold at the end. */
#include "acts.h"

#include <string.h>

struct process *me(void)
{
    return &processes[weak_thread()];
}

/* ---- producing ---- */

void seal_message(const struct rs_loan *loan, unsigned flags, uint64_t readers)
{
    struct rs_ring *ring = &me()->ring;
    const uint16_t route = 0;

    weak_body_write(loan->slot, loan->generation);
    rs_store_relaxed(&ring->slots[loan->slot].header[0], loan->generation);
    rs_ring_prepare(ring, loan, &route, flags == 0, readers);
    weak_require(rs_ring_seal(ring, ring->client, loan, flags) == 0, "a seal is refused");
    weak_note(SENT, weak_noted(weak_thread(), SENT) + 1);
}

bool loan_and_seal(struct rs_loan *loan)
{
    if (rs_ring_loan(&me()->ring, me()->ring.client, 0, loan) < 0)
        return false;
    seal_message(loan, 0, 0);
    return true;
}

void publish(void)
{
    struct rs_loan loan;

    if (loan_and_seal(&loan))
        rs_inbox_push(&me()->inbox, 0, loan.slot, 0);
}

int publish_loaned(void)
{
    struct rs_loan loan = {.slot = weak_thread(), .generation = GENERATION};

    seal_message(&loan, 0, 0);
    return rs_inbox_push(&me()->inbox, 0, loan.slot, 0);
}

void reuse(void)
{
    struct rs_loan loan;

    if (rs_ring_loan(&me()->ring, me()->ring.client, 0, &loan) == 0)
        weak_body_write(loan.slot, loan.generation);
}

void loan_hinted(void)
{
    struct rs_loan loan;

    if (rs_ring_loan_hinted(&me()->ring, me()->ring.client, 0, &loan) == 0)
        weak_body_write(loan.slot, loan.generation);
}

void loan_asleep(void)
{
    rs_word32 *word = &me()->ring.shared->slot_free;
    struct rs_loan loan;

    for (;;) {
        uint32_t armed = rs_wait_arm(word, RS_WAIT_FUTEX);

        if (rs_ring_loan(&me()->ring, me()->ring.client, 0, &loan) == 0)
            break;
        rs_wait_sleep(word, armed, -1);
    }
    weak_body_write(loan.slot, loan.generation);
}

void wait_for_room(void)
{
    struct rs_inbox *inbox = &me()->inbox;
    rs_word32 *word = &inbox->shared->not_full;

    while (!rs_inbox_has_room(inbox)) {
        uint32_t armed = rs_wait_arm(word, RS_WAIT_FUTEX);

        if (rs_inbox_has_room(inbox))
            return;
        rs_wait_sleep(word, armed, -1);
    }
}

/* ---- consuming ---- */

bool look(struct rs_inbox *inbox, struct rs_lease *lease)
{
    int unmapped, rc = rs_inbox_take(inbox, lease, &unmapped);

    weak_require(rc >= 0, "the hints are called wrong");
    return rc == 1;
}

void read_and_release(const struct rs_lease *lease)
{
    uint64_t header = rs_load_relaxed(&lease->ring->slots[lease->slot].header[0]);

    weak_require(header == lease->generation, "a header of another generation is read");
    weak_body_read(lease->slot, lease->generation);
    weak_note(RECEIVED, weak_noted(weak_thread(), RECEIVED) + 1);
    weak_require(rs_ring_release(lease) == 0, "a release is refused");
}

struct rs_lease lease_on(unsigned delivery)
{
    struct rs_ring *ring = &me()->ring;

    return (struct rs_lease){
        .ring = ring,
        .word = rs_delivery(GENERATION, ring->client, 0, 0, RS_HELD),
        .generation = GENERATION,
        .holder = ring->client,
        .delivery = (uint8_t)delivery,
    };
}

static void take_from(struct rs_inbox *inbox)
{
    struct rs_lease lease;

    if (look(inbox, &lease))
        read_and_release(&lease);
}

void take(void)
{
    take_from(&me()->inbox);
}

void take_twice(void)
{
    take();
    take();
}

void take_reuse(void)
{
    take();
    reuse();
}

void take_from_next(void)
{
    take_from(&me()->next);
}

void take_any(void)
{
    struct rs_lease lease;
    int unmapped;

    if (rs_inbox_take(&me()->inbox, &lease, &unmapped) == 1)
        read_and_release(&lease);
}

void sleep_and_take(void)
{
    struct rs_inbox *inbox = &me()->inbox;
    rs_word32 *word = &inbox->shared->not_empty;
    struct rs_lease lease;

    for (;;) {
        uint32_t armed = rs_wait_arm(word, RS_WAIT_FUTEX);

        if (look(inbox, &lease))
            break;
        rs_wait_sleep(word, armed, -1);
        if (look(inbox, &lease))
            break;
    }
    read_and_release(&lease);
}

void poll_and_take(void)
{
    struct rs_inbox *inbox = &me()->inbox;
    struct rs_lease lease;

    while (!look(inbox, &lease)) {
        weak_event_clear(1);
        rs_wait_arm(&inbox->shared->not_empty, RS_WAIT_EVENT);
        if (look(inbox, &lease))
            break;
        weak_event_wait(1);
    }
    read_and_release(&lease);
}

void release_0(void)
{
    struct rs_lease lease = lease_on(0);

    read_and_release(&lease);
}

void release_1(void)
{
    struct rs_lease lease = lease_on(1);

    read_and_release(&lease);
}

void release_0_reuse(void)
{
    release_0();
    reuse();
}

/* ---- the sidecar ---- */

void start_sidecar(struct sidecar *sidecar)
{
    memset(sidecar, 0, sizeof *sidecar);
    sidecar->repair.ring = &me()->ring;
    sidecar->repair.suspect = sidecar->suspect;
    sidecar->repair.own = &me()->inbox;
    sidecar->repair.inboxes[0] = &me()->inbox;
}

void audit_all(struct sidecar *sidecar)
{
    uint32_t cursor = 0;

    rs_repair_audit(&sidecar->repair, 0, &cursor, UINT32_MAX);
}

void sweep_all(struct sidecar *sidecar, unsigned reader)
{
    uint32_t cursor = 0;

    rs_repair_sweep(&sidecar->repair, DEAD_CLIENT, reader, &cursor, UINT32_MAX);
}

void audit(void)
{
    struct sidecar sidecar;

    start_sidecar(&sidecar);
    audit_all(&sidecar);
}

void sweep_and_audit(void)
{
    struct sidecar sidecar;

    start_sidecar(&sidecar);
    sweep_all(&sidecar, RS_NO_READER);
    audit_all(&sidecar);
}

/* ---- what must hold ---- */

uint64_t noted(enum note note)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < WEAK_THREADS; i++)
        sum += weak_noted(i, note);
    return sum;
}

unsigned drain(struct rs_inbox *inbox)
{
    struct rs_lease lease;
    unsigned count = 0;

    while (count < 10 && look(inbox, &lease)) {
        rs_ring_release(&lease);
        count++;
    }
    return count;
}

void all_awake(void)
{
    for (unsigned i = 0; i < WEAK_THREADS; i++)
        weak_require(!weak_asleep(i), "somebody sleeps though there is what it waits for");
}

void all_delivered(uint64_t messages)
{
    uint64_t count = noted(RECEIVED) + drain(&processes[CLOSER].inbox);

    weak_require(count >= messages, "a message is lost");
    weak_require(count <= messages, "a message comes twice");
}

void all_free(void)
{
    struct process *closer = &processes[CLOSER];
    uint32_t slots = closer->ring.layout.slot_count, free = 0, found = 0;
    struct rs_loan loan;

    for (uint32_t slot = 0; slot < slots; slot++) {
        uint64_t phase = rs_state_phase(rs_load_relaxed(&slot_at(slot)->state));

        weak_require(phase != RS_SEALED, "a slot that nobody needs stays sealed");
        free += phase == RS_FREE;
    }
    while (found < slots && rs_ring_loan_hinted(&closer->ring, closer->ring.client, 0, &loan) == 0)
        found++;
    weak_require(found == free, "a free slot is hidden: its bit is off");
}

void freed(void)
{
    all_awake();
    all_free();
}

void delivered_1(void)
{
    all_awake();
    all_delivered(1);
}

void delivered_2(void)
{
    all_awake();
    all_delivered(2);
}

void well_1(void)
{
    delivered_1();
    all_free();
}

void well_2(void)
{
    delivered_2();
    all_free();
}

void well_as_sent(void)
{
    all_delivered(noted(SENT));
    freed();
}

/* ---- where it begins ---- */

void one_slot(void)
{
    format(1, 2, 2);
}

void one_loan(void)
{
    one_slot();
    put_state(0, CLIENT(0), RS_LOANED, 0);
}

void one_holder(void)
{
    one_slot();
    put_message(0, CLIENT(0), RS_HELD);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading by ticket: every step is a compare-and-swap loop on the one word `readers`. */
#include "proto/ring.h"

#include "proto/err.h"
#include "proto/failpoint.h"

static bool can_free(uint64_t readers)
{
    return (readers & (RS_READERS_LEFT_MASK | RS_READERS_KEPT | RS_READERS_BITS)) == 0;
}

/* Retired with no bits: nobody reads by ticket and nobody will. Retires what nobody needs before the words are scanned. */
bool rs_ring_readers_are_done(struct rs_slot *slot, uint32_t generation)
{
    uint64_t readers = rs_load_seq_cst(&slot->readers);

    for (;;) {
        if (rs_readers_generation(readers) != (generation & 0xffff))
            return false;
        if (readers & RS_READERS_RETIRED)
            return (readers & RS_READERS_BITS) == 0;
        if (!can_free(readers))
            return false;
        RS_FAILPOINT(retire_before);
        if (rs_cas_seq_cst(&slot->readers, &readers, readers | RS_READERS_RETIRED))
            return true;
    }
}

int rs_ring_ticket_slot(const struct rs_ring *ring, const struct rs_ticket *ticket)
{
    if (ticket->sidecar_id != ring->layout.sidecar_id)
        return -RINGSIDE_E_FOREIGN_TICKET;
    if (ticket->has_text && ticket->incarnation != (uint32_t)ring->layout.incarnation[0])
        return -RINGSIDE_E_FOREIGN_TICKET;
    if (ticket->slot >= ring->layout.slot_count)
        return -RINGSIDE_E_STALE_TICKET;
    return (int)ticket->slot;
}

static bool names(const struct rs_ticket *ticket, uint64_t state)
{
    uint32_t mask = ticket->has_text ? UINT32_MAX : RS_TICKET_GENERATION_MASK;

    return rs_state_phase(state) == RS_SEALED && (rs_state_flags(state) & RS_FLAG_TICKET) != 0 &&
           (rs_state_generation(state) & mask) == (ticket->generation & mask);
}

int rs_ring_read_begin(struct rs_ring *ring, unsigned reader, const struct rs_ticket *ticket,
                       uint32_t *generation)
{
    int index = rs_ring_ticket_slot(ring, ticket);
    uint64_t bit = UINT64_C(1) << reader;

    if (index < 0)
        return index;
    struct rs_slot *slot = &ring->slots[index];
    uint64_t readers = rs_load_seq_cst(&slot->readers);
    do {
        if (rs_readers_generation(readers) != (ticket->generation & 0xffff) ||
            (readers & RS_READERS_RETIRED) != 0)
            return -RINGSIDE_E_STALE_TICKET;
        if (readers & bit)
            return -RINGSIDE_E_STATE;
        RS_FAILPOINT(read_begin_before);
    } while (!rs_cas_seq_cst(&slot->readers, &readers, readers | bit));

    RS_FAILPOINT(read_begin_after);
    uint64_t state = rs_load_seq_cst(&slot->state);
    *generation = rs_state_generation(state);
    if (names(ticket, state))
        return 0;
    RS_FAILPOINT(read_undo);
    rs_ring_read_end(ring, reader, (uint32_t)index, ticket->generation, false);
    return -RINGSIDE_E_STALE_TICKET;
}

/* The own bit keeps the word: nobody else's generation can stand there. */
int rs_ring_readers_add(struct rs_ring *ring, unsigned reader, uint32_t slot, int by)
{
    rs_word *word = &ring->slots[slot].readers;
    uint64_t readers = rs_load_seq_cst(word), changed;

    do {
        int left = (int)rs_readers_left(readers) + by;

        if ((readers >> reader & 1) == 0 || (readers & RS_READERS_RETIRED) != 0)
            return -RINGSIDE_E_STALE_TICKET;
        if ((readers & RS_READERS_KEPT) != 0 || left < 0)
            return 0;
        if (left > RS_READERS_LEFT_MAX)
            return -RINGSIDE_E_LIMIT;
        changed = (readers & ~RS_READERS_LEFT_MASK) | (uint64_t)left * RS_READERS_LEFT_ONE;
        RS_FAILPOINT(readers_add_before);
    } while (!rs_cas_seq_cst(word, &readers, changed));
    RS_FAILPOINT(readers_add_after);
    return 0;
}

/* As who frees it beside this reader: the own bit stays on, so that the free check is its end's. */
int rs_ring_read_retire(struct rs_ring *ring, unsigned reader, uint32_t slot)
{
    rs_word *word = &ring->slots[slot].readers;
    uint64_t readers = rs_load_seq_cst(word);

    do {
        if ((readers >> reader & 1) == 0 || (readers & RS_READERS_RETIRED) != 0)
            return -RINGSIDE_E_STALE_TICKET;
        RS_FAILPOINT(read_retire_before);
    } while (!rs_cas_seq_cst(word, &readers,
                             (readers & ~(RS_READERS_LEFT_MASK | RS_READERS_KEPT)) | RS_READERS_RETIRED));
    RS_FAILPOINT(read_retire_after);
    return 0;
}

/* One CAS: own bit off, and what the caller's end means. Returns false when the bit was off: a new owner's store. */
static bool end_reading(struct rs_slot *slot, uint64_t bit, bool counted, bool free, uint64_t *after)
{
    uint64_t readers = rs_load_seq_cst(&slot->readers);

    do {
        if ((readers & bit) == 0)
            return false;
        *after = readers & ~bit;
        if (counted && rs_readers_left(*after) > 0)
            *after -= RS_READERS_LEFT_ONE;
        if (free)
            *after &= ~(RS_READERS_LEFT_MASK | RS_READERS_KEPT);
        if (free || can_free(*after))
            *after |= RS_READERS_RETIRED;
        RS_FAILPOINT(read_end_before);
    } while (!rs_cas_seq_cst(&slot->readers, &readers, *after));
    RS_FAILPOINT(read_end_after);
    return true;
}

void rs_ring_read_end(struct rs_ring *ring, unsigned reader, uint32_t slot, uint32_t generation,
                      bool counted)
{
    uint64_t after;

    (void)generation;
    if (end_reading(&ring->slots[slot], UINT64_C(1) << reader, counted, false, &after) &&
        (after & RS_READERS_RETIRED) && (after & RS_READERS_BITS) == 0)
        rs_ring_free_check(ring, slot);
}

int rs_ring_ticket_free(struct rs_ring *ring, unsigned reader, const struct rs_ticket *ticket)
{
    uint32_t generation;
    uint64_t after;
    int rc = rs_ring_read_begin(ring, reader, ticket, &generation);

    if (rc < 0)
        return rc;
    RS_FAILPOINT(ticket_free_begun);
    if (end_reading(&ring->slots[ticket->slot], UINT64_C(1) << reader, false, true, &after) &&
        (after & RS_READERS_BITS) == 0)
        rs_ring_free_check(ring, ticket->slot);
    return 0;
}

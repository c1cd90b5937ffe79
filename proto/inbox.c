/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox of a stage: push, take, overflow, drop-oldest. proto/README.md argues each step. */
#include "proto/inbox.h"

#include <string.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/wait.h"

#define TAKE_PASSES 16 /* looks from the head on, while others move it */

void rs_inbox_init(struct rs_inbox *inbox, struct rs_ring *owner, int event_fd)
{
    memset(inbox, 0, sizeof *inbox);
    inbox->shared = (struct rs_inbox_shared *)(owner->control + owner->layout.inbox_offset);
    inbox->table = (struct rs_ring_entry *)(owner->control + owner->layout.ring_table_offset);
    inbox->cells = (rs_word *)(owner->control + owner->layout.cells_offset);
    inbox->cell_count = owner->layout.inbox_cells;
    inbox->lap_shift = (unsigned)__builtin_ctz(inbox->cell_count);
    inbox->depth = rs_load_relaxed(&owner->layout.inbox_depth);
    inbox->event_fd = event_fd;
}

void rs_inbox_admit(struct rs_inbox *inbox, unsigned number, struct rs_ring *ring,
                    uint16_t destination, uint16_t holder)
{
    inbox->destination[number] = destination;
    inbox->holder[number] = holder;
    rs_store_release(&inbox->rings[number], ring);
}

void rs_inbox_forget(struct rs_inbox *inbox, unsigned number)
{
    rs_store_release(&inbox->rings[number], NULL);
}

/* ---- cells ---- */

static rs_word *cell_at(const struct rs_inbox *inbox, uint64_t position)
{
    return &inbox->cells[position & (inbox->cell_count - 1)];
}

static uint32_t lap_of(const struct rs_inbox *inbox, uint64_t position)
{
    return (uint32_t)(position >> inbox->lap_shift) & RS_LAP_MASK;
}

/* How many laps the cell is ahead of the position (negative: behind), modulo 2^28. */
static int32_t laps_ahead(const struct rs_inbox *inbox, uint64_t cell, uint64_t position)
{
    uint32_t difference = (rs_cell_lap(cell) - lap_of(inbox, position)) & RS_LAP_MASK;

    return (int32_t)(difference << 4) >> 4;
}

static void help_tail(struct rs_inbox *inbox, uint64_t position, uint64_t next)
{
    rs_cas_acq_rel(&inbox->shared->tail, &position, next);
}

/* Dekker pair with a producer that armed not_full and looks at the head again: the head first, the wait word second. */
static void help_head(struct rs_inbox *inbox, uint64_t position, uint64_t next)
{
    rs_cas_seq_cst(&inbox->shared->head, &position, next);
    rs_wait_wake(&inbox->shared->not_full, -1);
}

/* A producer that slept between its cell and its store of the tail may have set it back by laps. The cell tells how far:
 * its position of the lap before has been filled, and its own one as well when it is full. */
static void catch_up_tail(struct rs_inbox *inbox, uint64_t position, int32_t ahead, bool full)
{
    uint64_t laps = (uint64_t)(full ? ahead : ahead - 1);

    help_tail(inbox, position, position + (laps << inbox->lap_shift) + 1);
}

/* The cell at the head is laps ahead. It may have been cleared out of turn, so only what lies more than a lap before its
 * last filled position is surely past. Returns where to go on. */
static uint64_t catch_up_head(struct rs_inbox *inbox, uint64_t position, int32_t ahead)
{
    uint64_t laps = ahead > 2 ? (uint64_t)(ahead - 2) : 0;
    uint64_t next = position + (laps << inbox->lap_shift) + 1;

    help_head(inbox, position, next);
    /* Others may be far ahead of what we knew. */
    uint64_t head = rs_load_acquire(&inbox->shared->head);
    return (int64_t)(head - next) > 0 ? head : next;
}

static bool clear_cell(struct rs_inbox *inbox, uint64_t position, uint64_t cell)
{
    return rs_cas_seq_cst(cell_at(inbox, position), &cell,
                          rs_cell(false, rs_cell_lap(cell) + 1, 0, 0, 0));
}

static struct rs_ring *ring_of(struct rs_inbox *inbox, unsigned number)
{
    return rs_load_acquire(&inbox->rings[number]);
}

static bool cell_takeable(struct rs_inbox *inbox, struct rs_ring *ring, uint64_t cell, uint64_t *word)
{
    return rs_ring_takeable(ring, rs_cell_slot(cell), rs_cell_delivery(cell),
                            inbox->destination[rs_cell_ring(cell)], word);
}

void rs_inbox_overflow(struct rs_inbox *inbox)
{
    rs_word32 *overflow = &inbox->shared->overflow;
    uint32_t value = rs_load_relaxed(overflow);

    /* An RMW with a new sequence also when it is set: whoever clears it must have walked after us. */
    RS_FAILPOINT(overflow_before);
    while (!rs_cas_seq_cst(overflow, &value, (value + RS_OVERFLOW_STEP) | RS_OVERFLOW_SET))
        ;
    RS_FAILPOINT(overflow_set);
    rs_wait_wake(&inbox->shared->not_empty, inbox->event_fd);
}

/* ---- push ---- */

bool rs_inbox_has_room(struct rs_inbox *inbox)
{
    uint64_t tail = rs_load_relaxed(&inbox->shared->tail);

    if (tail - rs_load_relaxed(&inbox->head_seen) < inbox->depth)
        return true;
    /* Dekker pair: a sleeper on not_full armed by an RMW and now looks at the head. */
    uint64_t head = rs_load_seq_cst(&inbox->shared->head);
    rs_store_relaxed(&inbox->head_seen, head);
    return (int64_t)(tail - head) < (int64_t)inbox->depth;
}

uint32_t rs_inbox_depth_now(const struct rs_inbox *inbox)
{
    uint64_t head = rs_load_relaxed(&inbox->shared->head);
    uint64_t tail = rs_load_relaxed(&inbox->shared->tail);
    int64_t depth = (int64_t)(tail - head);

    return depth < 0 ? 0 : depth > inbox->cell_count ? inbox->cell_count : (uint32_t)depth;
}

/* The cell of the last lap stands in the way. True when it was stale and is cleared now. */
static bool clear_stale(struct rs_inbox *inbox, uint64_t tail, uint64_t cell)
{
    struct rs_ring *ring = ring_of(inbox, rs_cell_ring(cell));
    uint64_t word;

    if (ring == NULL || cell_takeable(inbox, ring, cell, &word))
        return false;
    RS_FAILPOINT(push_stale);
    if (clear_cell(inbox, tail, cell))
        help_head(inbox, tail - inbox->cell_count, tail - inbox->cell_count + 1);
    RS_FAILPOINT(push_stale_cleared);
    /* Its word may have become takeable between our look and the clear, and now lacks a cell. */
    if (cell_takeable(inbox, ring, cell, &word))
        rs_inbox_overflow(inbox);
    return true;
}

int rs_inbox_push(struct rs_inbox *inbox, unsigned ring_number, uint32_t slot, unsigned delivery)
{
    int rc = -RINGSIDE_E_INTERNAL;

    for (uint32_t round = 0; round < inbox->cell_count + 2; round++) {
        uint64_t tail = rs_load_relaxed(&inbox->shared->tail);
        uint64_t cell = rs_load_acquire(cell_at(inbox, tail));
        bool full = (cell & RS_CELL_FULL) != 0;
        int32_t ahead = laps_ahead(inbox, cell, tail);

        if (ahead == 0 && !full) {
            uint64_t next = rs_cell(true, lap_of(inbox, tail), ring_number, slot, delivery);

            RS_FAILPOINT(push_before);
            if (!rs_cas_seq_cst(cell_at(inbox, tail), &cell, next))
                continue;
            RS_FAILPOINT(push_after);
            rs_store_release(&inbox->shared->tail, tail + 1);
            RS_FAILPOINT(push_tail);
            rs_wait_wake(&inbox->shared->not_empty, inbox->event_fd);
            return 0;
        }
        if (ahead > 0 || (ahead == 0 && full)) {
            catch_up_tail(inbox, tail, ahead, full);
        } else if (ahead == -1 && full) {
            if (!clear_stale(inbox, tail, cell)) {
                rc = 1;
                break;
            }
        } else {
            break; /* the tail hint is wrong; the sidecar rebuilds it */
        }
    }
    /* The word is the truth and says QUEUED: the publish succeeded, only its cell is missing. */
    rs_inbox_overflow(inbox);
    return rc;
}

/* ---- take ---- */

static bool take_cell(struct rs_inbox *inbox, struct rs_ring *ring, uint64_t cell,
                      struct rs_lease *lease)
{
    unsigned number = rs_cell_ring(cell);
    uint64_t word;

    if (!cell_takeable(inbox, ring, cell, &word) ||
        !rs_ring_take(ring, rs_cell_slot(cell), rs_cell_delivery(cell), word, inbox->holder[number],
                      lease))
        return false;
    lease->ring_number = (uint8_t)number;
    return true;
}

/* Takes what a cell points at, and clears it whatever came of it. */
static bool consume_cell(struct rs_inbox *inbox, struct rs_ring *ring, uint64_t position,
                         uint64_t cell, struct rs_lease *lease)
{
    /* All lines that a take touches are with the producer: ask for them at once instead of in turn. */
    rs_ring_prefetch_take(ring, rs_cell_slot(cell));
    rs_prefetch_write(cell_at(inbox, position));
    bool taken = take_cell(inbox, ring, cell, lease);

    RS_FAILPOINT(clear_before);
    clear_cell(inbox, position, cell);
    RS_FAILPOINT(clear_after);
    help_head(inbox, position, position + 1);
    RS_FAILPOINT(clear_head);
    /* Not takeable, or lost: it may be takeable again (a nack, a new message in the slot) and then has no cell. */
    return taken || take_cell(inbox, ring, cell, lease);
}

static bool take_from_ring(struct rs_inbox *inbox, unsigned number, struct rs_ring *ring,
                           struct rs_lease *lease)
{
    for (uint32_t slot = 0; slot < ring->layout.slot_count; slot++) {
        if (rs_state_phase(rs_load_seq_cst(&ring->slots[slot].state)) != RS_SEALED)
            continue;
        for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
            if (take_cell(inbox, ring, rs_cell(true, 0, number, slot, i), lease))
                return true;
        }
    }
    return false;
}

/* Of several rings that are not mapped here, the next after the one that was given last: one that cannot be had must not
 * hide another. */
static void note_unmapped(struct rs_inbox *inbox, int *unmapped, unsigned number)
{
    uint32_t asked = rs_load_relaxed(&inbox->asked);

    if (*unmapped < 0 || ((number - asked - 1) & 0xff) < (((unsigned)*unmapped - asked - 1) & 0xff))
        *unmapped = (int)number;
}

static bool ring_is_known(const struct rs_inbox *inbox, unsigned number)
{
    return (rs_load_acquire(&inbox->table[number].state) & 0xff) != RS_RING_UNUSED;
}

/* The overflow word is set: queued words may lack a cell. Takes the first and leaves the word; only a complete walk of
 * all rings clears it. */
static bool take_overflowed(struct rs_inbox *inbox, struct rs_lease *lease, int *unmapped)
{
    uint32_t value = rs_load_seq_cst(&inbox->shared->overflow);
    bool complete = true;

    if ((value & RS_OVERFLOW_SET) == 0)
        return false;
    for (unsigned number = 0; number < RS_MAX_RINGS; number++) {
        struct rs_ring *ring = ring_of(inbox, number);

        if (ring != NULL) {
            if (take_from_ring(inbox, number, ring, lease))
                return true;
        } else if (ring_is_known(inbox, number)) {
            complete = false;
            note_unmapped(inbox, unmapped, number);
        }
    }
    RS_FAILPOINT(overflow_clear_before);
    if (complete)
        rs_cas_seq_cst(&inbox->shared->overflow, &value, value & ~RS_OVERFLOW_SET);
    RS_FAILPOINT(overflow_clear_after);
    return false;
}

/* The cells from the head on. 1, 0, or -RINGSIDE_E_INTERNAL when they contradict the head or never end. */
static int take_from(struct rs_inbox *inbox, uint64_t position, struct rs_lease *lease, int *unmapped)
{
    for (uint32_t round = 0; round < inbox->cell_count + 2; round++) {
        uint64_t cell = rs_load_seq_cst(cell_at(inbox, position));
        bool full = (cell & RS_CELL_FULL) != 0;
        int32_t ahead = laps_ahead(inbox, cell, position);

        if (ahead == 0 && !full)
            return 0;
        if (ahead > 0) {
            position = catch_up_head(inbox, position, ahead);
            continue;
        }
        /* Round the ring once and back at a cell that was left alone: not a wrong hint. */
        if (ahead < 0)
            return *unmapped < 0 ? -RINGSIDE_E_INTERNAL : 0;
        struct rs_ring *ring = ring_of(inbox, rs_cell_ring(cell));
        if (ring == NULL)
            note_unmapped(inbox, unmapped, rs_cell_ring(cell)); /* never clear what you cannot judge */
        else if (consume_cell(inbox, ring, position, cell, lease))
            return 1;
        position++;
    }
    return *unmapped < 0 ? -RINGSIDE_E_INTERNAL : 0;
}

int rs_inbox_take(struct rs_inbox *inbox, struct rs_lease *lease, int *unmapped)
{
    int rc = 0;

    *unmapped = -1;
    for (unsigned pass = 0; pass < TAKE_PASSES; pass++) {
        uint64_t head = rs_load_acquire(&inbox->shared->head);

        rc = take_from(inbox, head, lease, unmapped);
        if (rc > 0)
            return 1;
        /* Who lost every cell to others, or slept while they took, has proved nothing while the head moves on. */
        if (rc == 0 || rs_load_relaxed(&inbox->shared->head) == head)
            break;
    }
    if (take_overflowed(inbox, lease, unmapped))
        return 1;
    if (*unmapped >= 0)
        rs_store_relaxed(&inbox->asked, (uint32_t)*unmapped);
    return rc;
}

/* ---- drop-oldest ---- */

bool rs_inbox_drop_oldest(struct rs_inbox *inbox, unsigned ring_number)
{
    struct rs_ring *ring = ring_of(inbox, ring_number);
    uint64_t position = rs_load_acquire(&inbox->shared->head);

    for (uint32_t i = 0; ring != NULL && i < inbox->cell_count; i++, position++) {
        uint64_t cell = rs_load_acquire(cell_at(inbox, position)), word;
        int32_t ahead = laps_ahead(inbox, cell, position);

        if (ahead < 0 || (ahead == 0 && (cell & RS_CELL_FULL) == 0))
            return false;
        if (ahead > 0 || rs_cell_ring(cell) != ring_number ||
            !cell_takeable(inbox, ring, cell, &word))
            continue;
        uint64_t done = rs_delivery(rs_delivery_generation(word), 0, rs_delivery_destination(word),
                                    rs_delivery_attempts(word), RS_DONE);
        RS_FAILPOINT(drop_before);
        if (!rs_cas_seq_cst(&ring->slots[rs_cell_slot(cell)].delivery[rs_cell_delivery(cell)], &word,
                            done))
            continue;
        RS_FAILPOINT(drop_after);
        /* A stale cell would lead to the slot's next, newest message, which would be dropped first. */
        if (clear_cell(inbox, position, cell))
            help_head(inbox, position, position + 1);
        if (cell_takeable(inbox, ring, cell, &word))
            rs_inbox_overflow(inbox);
        RS_FAILPOINT(drop_cleared);
        rs_ring_free_check(ring, rs_cell_slot(cell));
        return true;
    }
    return false;
}

/* ---- hints ---- */

/* How far beyond the head the position is that a cell stands for: its lap gives it modulo 2^28 laps. */
static int64_t distance(const struct rs_inbox *inbox, uint64_t head, uint32_t index, uint64_t cell)
{
    uint64_t base = (head & ~(uint64_t)(inbox->cell_count - 1)) | index;

    return (int64_t)(base - head) + (int64_t)laps_ahead(inbox, cell, base) * (int64_t)inbox->cell_count;
}

/* The lowest position that is not filled: that of the first empty cell, or a lap after a full one that is left alone. */
static int64_t true_tail(const struct rs_inbox *inbox, uint64_t head)
{
    int64_t tail = INT64_MAX;

    for (uint32_t i = 0; i < inbox->cell_count; i++) {
        uint64_t cell = rs_load_acquire(&inbox->cells[i]);
        int64_t at = distance(inbox, head, i, cell);

        if ((cell & RS_CELL_FULL) != 0)
            at += inbox->cell_count;
        if (at < tail)
            tail = at;
    }
    return tail;
}

static bool is_unfilled(const struct rs_inbox *inbox, uint64_t position)
{
    uint64_t cell = rs_load_acquire(cell_at(inbox, position));

    return laps_ahead(inbox, cell, position) == ((cell & RS_CELL_FULL) != 0 ? -1 : 0);
}

/* Positions are filled in turn, so no cell beyond the tail has been filled: neither is it full, nor was it cleared. */
static bool is_out_of_turn(const struct rs_inbox *inbox, uint64_t cell, int64_t at, int64_t tail)
{
    return at >= tail && ((cell & RS_CELL_FULL) != 0 || at - tail >= inbox->cell_count);
}

/* Not even the number of a ring: nobody will ever judge this cell, and it would stand in the way for good. */
static bool names_no_ring(struct rs_inbox *inbox, uint64_t cell)
{
    unsigned number = rs_cell_ring(cell);

    return (cell & RS_CELL_FULL) != 0 && ring_of(inbox, number) == NULL && !ring_is_known(inbox, number);
}

/* Cells that no head would come by, or that no tail could fill, begin anew; the walk finds the messages of full ones. */
static void mend_cells(struct rs_inbox *inbox, uint64_t head)
{
    bool cleared = false;

    for (uint32_t i = 0; i < inbox->cell_count; i++) {
        uint64_t cell = rs_load_acquire(&inbox->cells[i]);

        if (names_no_ring(inbox, cell))
            cleared |= clear_cell(inbox, i, cell);
    }
    int64_t tail = true_tail(inbox, head);
    for (uint32_t i = 0; i < inbox->cell_count; i++) {
        uint64_t cell = rs_load_acquire(&inbox->cells[i]);
        uint64_t next = head + (uint64_t)tail;

        /* Whoever filled the tail meanwhile did so in turn. */
        if (!is_out_of_turn(inbox, cell, distance(inbox, head, i, cell), tail) ||
            !is_unfilled(inbox, next))
            continue;
        bool full = (cell & RS_CELL_FULL) != 0;
        next += (i - next) & (inbox->cell_count - 1);
        if (rs_cas_seq_cst(&inbox->cells[i], &cell, rs_cell(false, lap_of(inbox, next), 0, 0, 0)))
            cleared |= full;
    }
    RS_FAILPOINT(hints_cells_cleared);
    if (cleared)
        rs_inbox_overflow(inbox);
}

void rs_inbox_rebuild_hints(struct rs_inbox *inbox)
{
    uint64_t head = rs_load_relaxed(&inbox->shared->head), was_head = head;
    uint64_t tail = rs_load_relaxed(&inbox->shared->tail);

    mend_cells(inbox, head);
    int64_t next = true_tail(inbox, head), first = next;
    for (uint32_t i = 0; i < inbox->cell_count; i++) {
        uint64_t cell = rs_load_acquire(&inbox->cells[i]);
        int64_t at = distance(inbox, head, i, cell);

        if ((cell & RS_CELL_FULL) != 0 && at < first)
            first = at;
    }
    rs_cas_relaxed(&inbox->shared->head, &was_head, head + (uint64_t)first);
    RS_FAILPOINT(hints_head);
    rs_cas_relaxed(&inbox->shared->tail, &tail, head + (uint64_t)next);
    RS_FAILPOINT(hints_tail);
}

/* The hints are loaded before the cells, and the cell of the true tail once more after what contradicts it: what is in
 * order cannot look otherwise meanwhile. */
bool rs_inbox_mend_hints(struct rs_inbox *inbox)
{
    uint64_t head = rs_load_acquire(&inbox->shared->head);
    uint64_t tail = rs_load_acquire(&inbox->shared->tail);
    uint64_t cell = rs_load_acquire(cell_at(inbox, tail));
    int64_t next = true_tail(inbox, head);
    bool beyond = next < 0 || (int64_t)(tail - head) > next;
    /* What a push there takes for an error; or a tail that stands back by more than the laps of cells can tell, so that
     * nobody would ever find the inbox full. */
    bool wrong = laps_ahead(inbox, cell, tail) < ((cell & RS_CELL_FULL) != 0 ? -1 : 0) ||
                 (int64_t)(tail - head) < -(int64_t)(((uint64_t)RS_LAP_MASK + 1) / 2 * inbox->cell_count);

    for (uint32_t i = 0; i < inbox->cell_count; i++) {
        cell = rs_load_acquire(&inbox->cells[i]);
        int64_t at = distance(inbox, head, i, cell);

        wrong |= names_no_ring(inbox, cell) || ((cell & RS_CELL_FULL) != 0 && at < 0);
        beyond |= is_out_of_turn(inbox, cell, at, next);
    }
    if (!wrong && !(beyond && is_unfilled(inbox, head + (uint64_t)next)))
        return false;
    rs_inbox_rebuild_hints(inbox);
    return true;
}

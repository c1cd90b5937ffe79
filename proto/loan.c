/* SPDX-License-Identifier: Apache-2.0 */
/* The producer's side of a slot: loan, prepare, seal, abandon; and the hints that find a free one. */
#include "proto/ring.h"

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/wait.h"

/* A class of this size or more is allocated newest first: its body is worth more warm than its record is worth uncontended. */
#define WARM_BODY_BYTES (1u << 20)
/* How many of the newest entries are tried: each miss costs a cache line that a consumer is using. */
#define WARM_TRIES 4

/* ---- allocation ---- */

static rs_word *class_bitmap(const struct rs_ring *ring, unsigned class_index)
{
    return (rs_word *)(ring->control + ring->layout.classes[class_index].bitmap_offset);
}

static uint32_t bitmap_words(const struct rs_ring *ring, unsigned class_index)
{
    return (ring->layout.classes[class_index].slots + 63) / 64;
}

/* The load makes the usual case cheap: a bit that nobody cleared stays on, and its line shared. */
static void set_bit(rs_word *word, uint64_t bit)
{
    if ((rs_load_seq_cst(word) & bit) == 0)
        rs_fetch_or_seq_cst(word, bit);
}

void rs_ring_mark_free(struct rs_ring *ring, uint32_t slot)
{
    int index = rs_ring_class_of(ring, slot);
    uint32_t bit = slot - ring->layout.classes[index].first_slot;
    rs_word *words = class_bitmap(ring, (unsigned)index);
    rs_word *summary = words + bitmap_words(ring, (unsigned)index);

    set_bit(&words[bit / 64], UINT64_C(1) << bit % 64);
    RS_FAILPOINT(free_bit);
    set_bit(&summary[bit / 4096], UINT64_C(1) << bit / 64 % 64);
    RS_FAILPOINT(free_summary);
}

static void remember(struct rs_ring *ring, uint32_t slot)
{
    struct rs_recent *recent = &ring->recent[rs_ring_class_of(ring, slot)];
    uint32_t end = rs_load_relaxed(&recent->end);

    rs_store_relaxed(&recent->slot[end % RS_RECENT], slot);
    rs_store_relaxed(&recent->end, end + 1);
    if (end + 1 - rs_load_relaxed(&recent->first) > RS_RECENT)
        rs_store_relaxed(&recent->first, end + 1 - RS_RECENT);
}

static bool try_loan(struct rs_ring *ring, uint32_t slot, uint16_t owner, struct rs_loan *loan)
{
    rs_word *word = &ring->slots[slot].state;
    uint64_t state = rs_load_seq_cst(word);
    uint32_t generation = rs_state_generation(state) + 1;

    if (rs_state_phase(state) != RS_FREE)
        return false;
    RS_FAILPOINT(loan_before);
    if (!rs_cas_acq_rel(word, &state, rs_state(generation, owner, RS_LOANED, 0)))
        return false;
    RS_FAILPOINT(loan_after);
    loan->slot = slot;
    loan->generation = generation;
    return true;
}

static bool try_recent(struct rs_ring *ring, unsigned class_index, uint32_t at, uint16_t owner,
                       struct rs_loan *loan)
{
    const struct rs_class_layout *class = &ring->layout.classes[class_index];
    uint32_t slot = rs_load_relaxed(&ring->recent[class_index].slot[at % RS_RECENT]);

    return slot - class->first_slot < class->slots && try_loan(ring, slot, owner, loan);
}

/* Newest first for large bodies, which are warm; oldest first for small ones, whose records are free by now. The bitmap
 * bit of such a slot may stay on: whoever finds it there looks at the state. */
static bool loan_recent(struct rs_ring *ring, uint16_t owner, unsigned class_index,
                        struct rs_loan *loan)
{
    struct rs_recent *recent = &ring->recent[class_index];
    uint32_t first = rs_load_relaxed(&recent->first), end = rs_load_relaxed(&recent->end);
    uint32_t count = end - first < RS_RECENT ? end - first : RS_RECENT;

    if (count == 0)
        return false;
    /* try_recent checks the class: threads that race in remember can leave any entry here. */
    if (ring->layout.classes[class_index].slot_bytes < WARM_BODY_BYTES) {
        if (!try_recent(ring, class_index, first, owner, loan))
            return false;
        rs_store_relaxed(&recent->first, first + 1);
        /* The next loan's record: its line is with the consumer that freed it. */
        rs_prefetch_write(&ring->slots[rs_load_relaxed(&recent->slot[(first + 1) % RS_RECENT])]);
        return true;
    }
    for (uint32_t i = 1; i <= count && i <= WARM_TRIES; i++) {
        if (try_recent(ring, class_index, end - i, owner, loan)) {
            /* What is newer is in use; forgetting it keeps the list short. */
            rs_store_relaxed(&recent->end, end - i);
            return true;
        }
    }
    return false;
}

void rs_ring_prefetch_loan(struct rs_ring *ring, unsigned class_index)
{
    struct rs_recent *recent = &ring->recent[class_index];
    uint32_t first = rs_load_relaxed(&recent->first);

    if (first == rs_load_relaxed(&recent->end))
        return; /* this process has not loaned of late: another's lines stay where they are */
    uint32_t slot = rs_load_relaxed(&recent->slot[first % RS_RECENT]);
    uint8_t *record = (uint8_t *)&ring->slots[slot];

    rs_prefetch_write(record);
    rs_prefetch_write(record + RS_CACHE_LINE);
    rs_prefetch_write(ring->body + rs_ring_slot_offset(ring, slot));
}

/* Dekker pair: the bit is cleared before the state is read; who frees writes the state before it sets the bit. */
static bool loan_from_word(struct rs_ring *ring, uint16_t owner, uint32_t first_slot, uint32_t slots,
                           rs_word *word, struct rs_loan *loan)
{
    uint64_t valid = slots >= 64 ? UINT64_MAX : (UINT64_C(1) << slots) - 1;
    uint64_t bits = rs_load_seq_cst(word) & valid;

    while (bits != 0) {
        unsigned bit = (unsigned)__builtin_ctzll(bits);
        uint64_t mask = UINT64_C(1) << bit;

        if ((rs_fetch_and_seq_cst(word, ~mask) & mask) != 0 &&
            try_loan(ring, first_slot + bit, owner, loan))
            return true;
        bits &= ~mask;
    }
    return false;
}

static bool loan_from_bitmap(struct rs_ring *ring, uint16_t owner, unsigned class_index,
                             struct rs_loan *loan)
{
    const struct rs_class_layout *class = &ring->layout.classes[class_index];
    rs_word *words = class_bitmap(ring, class_index);
    uint32_t count = bitmap_words(ring, class_index);
    rs_word *summary = words + count;
    uint32_t groups = (count + 63) / 64;
    uint32_t start = rs_load_relaxed(&ring->recent[class_index].search) / 64;

    for (uint32_t i = 0; i < groups; i++) {
        uint32_t group = (start + i) % groups;
        uint64_t bits = rs_load_seq_cst(&summary[group]);

        for (; bits != 0; bits &= bits - 1) {
            uint32_t index = group * 64 + (uint32_t)__builtin_ctzll(bits);
            uint64_t mask = bits & -bits;

            if (index >= count)
                break;
            if (loan_from_word(ring, owner, class->first_slot + index * 64, class->slots - index * 64,
                               &words[index], loan)) {
                rs_store_relaxed(&ring->recent[class_index].search, index);
                return true;
            }
            rs_fetch_and_seq_cst(&summary[group], ~mask);
            if (rs_load_seq_cst(&words[index]) != 0)
                rs_fetch_or_seq_cst(&summary[group], mask);
        }
    }
    return false;
}

int rs_ring_loan_hinted(struct rs_ring *ring, uint16_t owner, unsigned class_index,
                        struct rs_loan *loan)
{
    if (loan_recent(ring, owner, class_index, loan) ||
        loan_from_bitmap(ring, owner, class_index, loan))
        return 0;
    return -RINGSIDE_E_FULL;
}

int rs_ring_loan(struct rs_ring *ring, uint16_t owner, unsigned class_index, struct rs_loan *loan)
{
    const struct rs_class_layout *class = &ring->layout.classes[class_index];

    if (rs_ring_loan_hinted(ring, owner, class_index, loan) == 0)
        return 0;
    for (uint32_t i = 0; i < class->slots; i++) {
        if (try_loan(ring, class->first_slot + i, owner, loan))
            return 0;
    }
    return -RINGSIDE_E_FULL;
}

void rs_ring_announce_free(struct rs_ring *ring, uint32_t slot)
{
    rs_ring_mark_free(ring, slot);
    rs_wait_wake(&ring->shared->slot_free, ring->space_fd);
}

int rs_ring_abandon(struct rs_ring *ring, uint16_t owner, const struct rs_loan *loan)
{
    uint64_t state = rs_state(loan->generation, owner, RS_LOANED, 0);

    RS_FAILPOINT(abandon_before);
    if (loan->slot >= ring->layout.slot_count ||
        !rs_cas_seq_cst(&ring->slots[loan->slot].state, &state,
                        rs_state(loan->generation, 0, RS_FREE, 0)))
        return -RINGSIDE_E_STATE;
    RS_FAILPOINT(abandon_after);
    remember(ring, loan->slot);
    rs_ring_announce_free(ring, loan->slot);
    return 0;
}

/* ---- publishing ---- */

void rs_ring_prepare(struct rs_ring *ring, const struct rs_loan *loan, const uint16_t *destinations,
                     unsigned count, uint64_t readers)
{
    struct rs_slot *slot = &ring->slots[loan->slot];

    for (unsigned i = 0; i < count; i++)
        rs_store_relaxed(&slot->delivery[i],
                         rs_delivery(loan->generation, 0, destinations[i], 0, RS_QUEUED));
    for (unsigned i = count; i < RS_MAX_DELIVERIES; i++)
        rs_store_relaxed(&slot->delivery[i], rs_delivery(loan->generation, 0, 0, 0, RS_NONE));
    RS_FAILPOINT(prepare_words);
    rs_store_relaxed(&slot->readers, readers);
    RS_FAILPOINT(prepare_readers);
}

int rs_ring_seal(struct rs_ring *ring, uint16_t owner, const struct rs_loan *loan, unsigned flags)
{
    uint64_t state = rs_state(loan->generation, owner, RS_LOANED, 0);

    RS_FAILPOINT(seal_before);
    if (!rs_cas_acq_rel(&ring->slots[loan->slot].state, &state,
                        rs_state(loan->generation, 0, RS_SEALED, (uint8_t)flags)))
        return -RINGSIDE_E_STATE;
    RS_FAILPOINT(seal_after);
    remember(ring, loan->slot);
    return 0;
}

int rs_ring_seal_reply(struct rs_ring *ring, uint16_t owner, const struct rs_loan *loan)
{
    uint64_t state = rs_state(loan->generation, owner, RS_LOANED, 0);

    /* Not only a release: the callee looks at the caller's words next. */
    if (!rs_cas_seq_cst(&ring->slots[loan->slot].state, &state,
                        rs_state(loan->generation, 0, RS_SEALED, 0)))
        return -RINGSIDE_E_STATE;
    RS_FAILPOINT(reply_sealed);
    remember(ring, loan->slot);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a mapped ring: mapping, allocation, seal, delivery words, and the check that frees a slot. */
#include "proto/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/err.h"
#include "proto/layout.h"
#include "proto/wait.h"

/* A class of this size or more is allocated newest first: its body is worth more warm than its record is worth uncontended. */
#define WARM_BODY_BYTES (1u << 20)
/* How many of the newest entries are tried: each miss costs a cache line that a consumer is using. */
#define WARM_TRIES 4

static void *map_shared(int fd, uint64_t bytes, bool writable)
{
    void *base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);

    /* A forked child must not keep its parent's lock byte alive through a mapping. */
    if (base != MAP_FAILED)
        (void)madvise(base, bytes, MADV_DONTFORK);
    return base;
}

static int map_body(struct rs_ring *ring, int body_fd)
{
    void *base = map_shared(body_fd, ring->layout.body_bytes, ring->body_writable);

    if (base == MAP_FAILED)
        return -errno;
    (void)madvise(base, ring->layout.body_bytes, MADV_DONTDUMP);
    ring->body = base;
    return 0;
}

static void locate(struct rs_ring *ring)
{
    uint8_t *base = ring->control;

    ring->slots = (struct rs_slot *)(base + ring->layout.slots_offset);
    ring->clients = (struct rs_client *)(base + ring->layout.clients_offset);
    ring->destinations = (struct rs_destination *)(base + ring->layout.destinations_offset);
    ring->shared = (struct rs_ring_shared *)(base + ring->layout.shared_offset);
}

int rs_ring_map(struct rs_ring *ring, int control_fd, int body_fd, bool body_writable,
                const char **why)
{
    struct stat control, body = {0};

    memset(ring, 0, sizeof *ring);
    ring->bell_fd = -1;
    ring->space_fd = -1;
    ring->reader = RS_NO_READER;
    ring->body_writable = body_writable;
    *why = "cannot read the size of a ring file";
    if (fstat(control_fd, &control) < 0 || (body_fd >= 0 && fstat(body_fd, &body) < 0))
        return -errno;
    if (control.st_size < RS_SUPERBLOCK_BYTES) {
        *why = "control file is shorter than a superblock";
        return -RINGSIDE_E_CORRUPT;
    }
    void *base = map_shared(control_fd, (uint64_t)control.st_size, true);
    *why = "cannot map the control file";
    if (base == MAP_FAILED)
        return -errno;
    ring->control = base;
    int rc = rs_layout_read(&ring->layout, base, (uint64_t)control.st_size,
                            body_fd >= 0 ? (uint64_t)body.st_size : INT64_MAX, why);
    if (rc == 0 && body_fd >= 0) {
        rc = map_body(ring, body_fd);
        if (rc < 0)
            *why = "cannot map the body file";
    }
    if (rc < 0) {
        ring->layout.control_bytes = (uint64_t)control.st_size;
        rs_ring_unmap(ring);
        return rc;
    }
    locate(ring);
    return 0;
}

void rs_ring_unmap(struct rs_ring *ring)
{
    if (ring->control != NULL)
        munmap(ring->control, ring->layout.control_bytes);
    if (ring->body != NULL)
        munmap(ring->body, ring->layout.body_bytes);
    ring->control = NULL;
    ring->body = NULL;
}

int rs_ring_class_for(const struct rs_ring *ring, uint64_t bytes)
{
    for (uint32_t i = 0; i < ring->layout.class_count; i++) {
        if (bytes <= ring->layout.classes[i].slot_bytes)
            return (int)i;
    }
    return -RINGSIDE_E_TOO_BIG;
}

int rs_ring_class_of(const struct rs_ring *ring, uint32_t slot)
{
    for (uint32_t i = 0; i < ring->layout.class_count; i++) {
        if (slot - ring->layout.classes[i].first_slot < ring->layout.classes[i].slots)
            return (int)i;
    }
    return -1;
}

uint64_t rs_ring_slot_bytes(const struct rs_ring *ring, uint32_t slot)
{
    int index = rs_ring_class_of(ring, slot);

    return index < 0 ? 0 : ring->layout.classes[index].slot_bytes;
}

uint64_t rs_ring_slot_offset(const struct rs_ring *ring, uint32_t slot)
{
    int index = rs_ring_class_of(ring, slot);

    if (index < 0)
        return 0;
    const struct rs_class_layout *class = &ring->layout.classes[index];
    return class->body_offset + (uint64_t)(slot - class->first_slot) * class->slot_bytes;
}

void rs_ring_count(struct rs_ring *ring, uint16_t client, unsigned counter, uint64_t n)
{
    rs_word *word = &ring->clients[client].counter[counter];

    /* No locked add: a count may be lost when threads of one client race, and costs nothing otherwise. */
    rs_store_relaxed(word, rs_load_relaxed(word) + n);
}

void rs_ring_bell(struct rs_ring *ring)
{
    /* Rung already: the sidecar clears the word before it looks, so it will see what we mean. */
    if (rs_fetch_or_seq_cst(&ring->shared->bell, 1) == 0)
        rs_event_write(ring->bell_fd);
}

bool rs_ring_bell_clear(struct rs_ring *ring)
{
    return rs_fetch_and_seq_cst(&ring->shared->bell, 0) != 0;
}

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
    set_bit(&summary[bit / 4096], UINT64_C(1) << bit / 64 % 64);
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
    if (!rs_cas_acq_rel(word, &state, rs_state(generation, owner, RS_LOANED, 0)))
        return false;
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

static void announce_free(struct rs_ring *ring, uint32_t slot)
{
    rs_ring_mark_free(ring, slot);
    rs_wait_wake(&ring->shared->slot_free, ring->space_fd);
}

int rs_ring_abandon(struct rs_ring *ring, uint16_t owner, const struct rs_loan *loan)
{
    uint64_t state = rs_state(loan->generation, owner, RS_LOANED, 0);

    if (loan->slot >= ring->layout.slot_count ||
        !rs_cas_seq_cst(&ring->slots[loan->slot].state, &state,
                        rs_state(loan->generation, 0, RS_FREE, 0)))
        return -RINGSIDE_E_STATE;
    remember(ring, loan->slot);
    announce_free(ring, loan->slot);
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
    rs_store_relaxed(&slot->readers, readers);
}

int rs_ring_seal(struct rs_ring *ring, uint16_t owner, const struct rs_loan *loan, unsigned flags)
{
    uint64_t state = rs_state(loan->generation, owner, RS_LOANED, 0);

    if (!rs_cas_acq_rel(&ring->slots[loan->slot].state, &state,
                        rs_state(loan->generation, 0, RS_SEALED, (uint8_t)flags)))
        return -RINGSIDE_E_STATE;
    remember(ring, loan->slot);
    return 0;
}

/* ---- deliveries ---- */

bool rs_ring_takeable(struct rs_ring *ring, uint32_t slot, unsigned delivery, unsigned destination,
                      uint64_t *word)
{
    if (slot >= ring->layout.slot_count)
        return false;
    struct rs_slot *record = &ring->slots[slot];
    *word = rs_load_seq_cst(&record->delivery[delivery]);
    if (rs_delivery_phase(*word) != RS_QUEUED || rs_delivery_destination(*word) != destination)
        return false;
    uint64_t state = rs_load_seq_cst(&record->state);
    return rs_state_phase(state) == RS_SEALED &&
           rs_state_generation(state) == rs_delivery_generation(*word);
}

bool rs_ring_take(struct rs_ring *ring, uint32_t slot, unsigned delivery, uint64_t word,
                  uint16_t holder, struct rs_lease *lease)
{
    uint64_t held = rs_delivery(rs_delivery_generation(word), holder, rs_delivery_destination(word),
                                rs_delivery_attempts(word), RS_HELD);

    if (!rs_cas_seq_cst(&ring->slots[slot].delivery[delivery], &word, held))
        return false;
    *lease = (struct rs_lease){
        .ring = ring,
        .word = held,
        .slot = slot,
        .generation = rs_delivery_generation(held),
        .holder = holder,
        .delivery = (uint8_t)delivery,
    };
    return true;
}

/* HELD -> the given value, by the holder alone. */
static int leave_held(const struct rs_lease *lease, uint64_t next)
{
    uint64_t word = lease->word;

    if (!rs_cas_seq_cst(&lease->ring->slots[lease->slot].delivery[lease->delivery], &word, next))
        return -RINGSIDE_E_STATE;
    return 0;
}

static uint64_t lease_word(const struct rs_lease *lease, unsigned destination, unsigned attempts,
                           unsigned phase)
{
    return rs_delivery(lease->generation, 0, destination, attempts, phase);
}

int rs_ring_release(const struct rs_lease *lease)
{
    int rc = leave_held(lease, lease_word(lease, rs_delivery_destination(lease->word),
                                          rs_delivery_attempts(lease->word), RS_DONE));

    if (rc == 0)
        rs_ring_free_check(lease->ring, lease->slot);
    return rc;
}

int rs_ring_nack(const struct rs_lease *lease, unsigned limit)
{
    unsigned attempts = rs_delivery_attempts(lease->word);
    unsigned destination = rs_delivery_destination(lease->word);
    bool over = attempts + 1 >= limit || attempts + 1 > RS_MAX_ATTEMPTS;

    attempts = attempts < RS_MAX_ATTEMPTS ? attempts + 1 : RS_MAX_ATTEMPTS;
    int rc = leave_held(lease, lease_word(lease, destination, attempts, over ? RS_DONE : RS_QUEUED));
    if (rc < 0)
        return rc;
    if (over)
        rs_ring_free_check(lease->ring, lease->slot);
    return over ? 1 : 0;
}

/* A further route gets a word above the holder's own: the free check scans upwards and so cannot miss it. */
static int queue_above(const struct rs_lease *lease, unsigned from, uint16_t destination)
{
    struct rs_slot *slot = &lease->ring->slots[lease->slot];

    for (unsigned i = from; i < RS_MAX_DELIVERIES; i++) {
        uint64_t none = rs_delivery(lease->generation, 0, 0, 0, RS_NONE);

        if (rs_cas_seq_cst(&slot->delivery[i], &none,
                           rs_delivery(lease->generation, 0, destination, 0, RS_QUEUED)))
            return (int)i;
    }
    return -RINGSIDE_E_FULL;
}

int rs_ring_forward(const struct rs_lease *lease, const uint16_t *destinations, unsigned count,
                    uint8_t *deliveries)
{
    unsigned above = lease->delivery + 1u;

    /* Looked at once before anything is queued, so that a lost lease queues nothing. */
    if (rs_load_seq_cst(&lease->ring->slots[lease->slot].delivery[lease->delivery]) != lease->word)
        return -RINGSIDE_E_STATE;
    for (unsigned i = 0; i + 1 < count; i++) {
        int index = queue_above(lease, above, destinations[i]);

        if (index < 0)
            return (int)i;
        deliveries[i] = (uint8_t)index;
        above = (unsigned)index + 1;
    }
    deliveries[count - 1] = lease->delivery;
    int rc = leave_held(lease, lease_word(lease, destinations[count - 1], 0, RS_QUEUED));
    return rc < 0 ? rc : (int)count;
}

bool rs_ring_expire(struct rs_ring *ring, uint32_t slot, unsigned delivery, uint64_t word)
{
    uint64_t done = rs_delivery(rs_delivery_generation(word), 0, rs_delivery_destination(word),
                                rs_delivery_attempts(word), RS_DONE);

    if (!rs_cas_seq_cst(&ring->slots[slot].delivery[delivery], &word, done))
        return false;
    rs_ring_free_check(ring, slot);
    return true;
}

/* ---- the free check ---- */

static bool can_free(uint64_t readers)
{
    return (readers & (RS_READERS_LEFT_MASK | RS_READERS_KEPT | RS_READERS_BITS)) == 0;
}

/* Retired with no bits: nobody reads by ticket and nobody will. Retires what nobody needs before the words are scanned. */
static bool readers_are_done(struct rs_slot *slot, uint32_t generation)
{
    uint64_t readers = rs_load_seq_cst(&slot->readers);

    for (;;) {
        if (rs_readers_generation(readers) != (generation & 0xffff))
            return false;
        if (readers & RS_READERS_RETIRED)
            return (readers & RS_READERS_BITS) == 0;
        if (!can_free(readers))
            return false;
        if (rs_cas_seq_cst(&slot->readers, &readers, readers | RS_READERS_RETIRED))
            return true;
    }
}

bool rs_ring_free_check(struct rs_ring *ring, uint32_t slot)
{
    struct rs_slot *record = &ring->slots[slot];
    uint64_t state = rs_load_seq_cst(&record->state);
    uint32_t generation = rs_state_generation(state);

    if (rs_state_phase(state) != RS_SEALED)
        return false;
    if ((rs_state_flags(state) & RS_FLAG_TICKET) && !readers_are_done(record, generation))
        return false;
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_seq_cst(&record->delivery[i]);
        unsigned phase = rs_delivery_phase(word);

        if (rs_delivery_generation(word) == generation && (phase == RS_QUEUED || phase == RS_HELD))
            return false;
    }
    if (!rs_cas_seq_cst(&record->state, &state, rs_state(generation, 0, RS_FREE, 0)))
        return false;
    announce_free(ring, slot);
    return true;
}

/* ---- reading by ticket ---- */

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
    } while (!rs_cas_seq_cst(&slot->readers, &readers, readers | bit));

    uint64_t state = rs_load_seq_cst(&slot->state);
    *generation = rs_state_generation(state);
    if (names(ticket, state))
        return 0;
    rs_ring_read_end(ring, reader, (uint32_t)index, ticket->generation, false);
    return -RINGSIDE_E_STALE_TICKET;
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
    } while (!rs_cas_seq_cst(&slot->readers, &readers, *after));
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
    if (end_reading(&ring->slots[ticket->slot], UINT64_C(1) << reader, false, true, &after) &&
        (after & RS_READERS_BITS) == 0)
        rs_ring_free_check(ring, ticket->slot);
    return 0;
}

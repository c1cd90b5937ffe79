/* SPDX-License-Identifier: Apache-2.0 */
/* A mapped ring: its places, the delivery words of a slot, and the check that frees it. */
#include "proto/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/layout.h"
#include "proto/tensor.h"
#include "proto/wait.h"

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
    ring->boxes = (struct rs_box *)(base + ring->layout.boxes_offset);
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
    /* Read, not mapped: whoever cuts the file now must not end us, and no guard stands there yet. */
    struct rs_superblock raw;
    if (pread(control_fd, &raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
        *why = "cannot read the superblock";
        return -RINGSIDE_E_CORRUPT;
    }
    int rc = rs_layout_read(&ring->layout, &raw, (uint64_t)control.st_size,
                            body_fd >= 0 ? (uint64_t)body.st_size : INT64_MAX, why);
    if (rc < 0)
        return rc;
    void *base = map_shared(control_fd, ring->layout.control_bytes, true);
    if (base == MAP_FAILED) {
        *why = "cannot map the control file";
        return -errno;
    }
    ring->control = base;
    if (body_fd >= 0) {
        rc = map_body(ring, body_fd);
        if (rc < 0)
            *why = "cannot map the body file";
    }
    if (rc < 0) {
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
    RS_FAILPOINT(bell_rung);
}

bool rs_ring_bell_clear(struct rs_ring *ring)
{
    return rs_fetch_and_seq_cst(&ring->shared->bell, 0) != 0;
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

    RS_FAILPOINT(take_before);
    if (!rs_cas_seq_cst(&ring->slots[slot].delivery[delivery], &word, held))
        return false;
    RS_FAILPOINT(take_after);
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
    RS_FAILPOINT(release_before);
    int rc = leave_held(lease, lease_word(lease, rs_delivery_destination(lease->word),
                                          rs_delivery_attempts(lease->word), RS_DONE));

    RS_FAILPOINT(release_after);
    if (rc == 0)
        rs_ring_free_check(lease->ring, lease->slot);
    return rc;
}

int rs_ring_nack(const struct rs_lease *lease, unsigned limit)
{
    unsigned attempts = rs_delivery_attempts(lease->word);
    unsigned destination = rs_delivery_destination(lease->word);
    bool over = attempts + 1 >= limit || attempts + 1 > RS_MAX_ATTEMPTS ||
                destination == RS_REPLY_DESTINATION ||
                rs_message_is_request(&lease->ring->slots[lease->slot]);

    attempts = attempts < RS_MAX_ATTEMPTS ? attempts + 1 : RS_MAX_ATTEMPTS;
    RS_FAILPOINT(nack_before);
    int rc = leave_held(lease, lease_word(lease, destination, attempts, over ? RS_DONE : RS_QUEUED));
    RS_FAILPOINT(nack_after);
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
        RS_FAILPOINT(forward_word_before);
        int index = queue_above(lease, above, destinations[i]);

        RS_FAILPOINT(forward_word_after);
        if (index < 0)
            return (int)i;
        deliveries[i] = (uint8_t)index;
        above = (unsigned)index + 1;
    }
    deliveries[count - 1] = lease->delivery;
    RS_FAILPOINT(forward_own_before);
    int rc = leave_held(lease, lease_word(lease, destinations[count - 1], 0, RS_QUEUED));
    RS_FAILPOINT(forward_own_after);
    return rc < 0 ? rc : (int)count;
}

bool rs_ring_expire(struct rs_ring *ring, uint32_t slot, unsigned delivery, uint64_t word)
{
    uint64_t done = rs_delivery(rs_delivery_generation(word), 0, rs_delivery_destination(word),
                                rs_delivery_attempts(word), RS_DONE);

    RS_FAILPOINT(expire_before);
    if (!rs_cas_seq_cst(&ring->slots[slot].delivery[delivery], &word, done))
        return false;
    RS_FAILPOINT(expire_after);
    rs_ring_free_check(ring, slot);
    return true;
}

/* ---- the free check ---- */

bool rs_ring_free_check(struct rs_ring *ring, uint32_t slot)
{
    struct rs_slot *record = &ring->slots[slot];
    uint64_t state = rs_load_seq_cst(&record->state);
    uint32_t generation = rs_state_generation(state);

    if (rs_state_phase(state) != RS_SEALED)
        return false;
    if ((rs_state_flags(state) & RS_FLAG_TICKET) && !rs_ring_readers_are_done(record, generation))
        return false;
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_seq_cst(&record->delivery[i]);
        unsigned phase = rs_delivery_phase(word);

        if (rs_delivery_generation(word) == generation && (phase == RS_QUEUED || phase == RS_HELD))
            return false;
    }
    RS_FAILPOINT(free_before);
    if (!rs_cas_seq_cst(&record->state, &state, rs_state(generation, 0, RS_FREE, 0)))
        return false;
    RS_FAILPOINT(free_after);
    rs_ring_announce_free(ring, slot);
    return true;
}

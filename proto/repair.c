/* SPDX-License-Identifier: Apache-2.0 */
/* What only the ring's own sidecar does: sweep after a death, audit of missing cells, quarantine, adoption. */
#include "proto/repair.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/box.h"
#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/tensor.h"
#include "proto/wait.h"

#define SLICE_MAX 64 /* slots whose missing cells are looked for in one pass over an inbox */
#define CLOCK_SLACK_NS UINT64_C(10000000000) /* the audit's time is that of its slice's begin, not of the publication */

int rs_repair_init(struct rs_repair *repair, struct rs_ring *ring)
{
    memset(repair, 0, sizeof *repair);
    repair->ring = ring;
    repair->suspect = calloc(ring->layout.slot_count, sizeof *repair->suspect);
    return repair->suspect == NULL ? -ENOMEM : 0;
}

void rs_repair_finish(struct rs_repair *repair)
{
    free(repair->suspect);
    memset(repair, 0, sizeof *repair);
}

static unsigned attempts_limit(struct rs_repair *repair, unsigned destination)
{
    unsigned limit = 0;

    if (destination < repair->ring->layout.destination_count)
        limit = rs_destination_attempts(rs_load_relaxed(&repair->ring->destinations[destination].state));
    return limit == 0 ? RS_MAX_ATTEMPTS : limit;
}

/* In the ring at once: a sidecar that dies in the middle of a slice must not take the counts of its messages along. */
static void count(struct rs_repair *repair, uint64_t *mine, enum rs_counter counter)
{
    ++*mine;
    rs_ring_count(repair->ring, 0, counter, 1);
}

/* ---- sweep ---- */

static void sweep_delivery(struct rs_repair *repair, uint32_t slot, unsigned index, uint16_t client)
{
    rs_word *delivery = &repair->ring->slots[slot].delivery[index];
    uint64_t word = rs_load_seq_cst(delivery);

    if (rs_delivery_phase(word) != RS_HELD || rs_delivery_holder(word) != client)
        return;
    unsigned destination = rs_delivery_destination(word);
    unsigned attempts = rs_delivery_attempts(word) + 1;
    /* A reply is its caller's alone, and a request is delivered at most once. */
    bool over = attempts >= attempts_limit(repair, destination) ||
                destination == RS_REPLY_DESTINATION ||
                rs_message_is_request(&repair->ring->slots[slot]);
    uint64_t next = rs_delivery(rs_delivery_generation(word), 0, destination,
                                attempts < RS_MAX_ATTEMPTS ? attempts : RS_MAX_ATTEMPTS,
                                over ? RS_DONE : RS_QUEUED);

    RS_FAILPOINT(sweep_delivery_before);
    if (!rs_cas_seq_cst(delivery, &word, next))
        return;
    RS_FAILPOINT(sweep_delivery_after);
    if (over)
        count(repair, &repair->dead_lettered, RS_DEAD_LETTERED);
    else
        count(repair, &repair->requeued, RS_REQUEUED);
}

/* A request of the dead that nobody has taken: it is for nobody. */
static void sweep_request(struct rs_repair *repair, uint32_t slot, uint64_t state, uint16_t client)
{
    struct rs_slot *record = &repair->ring->slots[slot];

    if (rs_state_phase(state) != RS_SEALED || !rs_message_is_request(record) ||
        rs_call_caller(rs_load_relaxed(&record->header[RS_HEADER_CALL])) != client)
        return;
    uint64_t word = rs_load_seq_cst(&record->delivery[0]);
    if (rs_delivery_phase(word) == RS_QUEUED &&
        rs_delivery_generation(word) == rs_state_generation(state) &&
        rs_ring_expire(repair->ring, slot, 0, word))
        count(repair, &repair->dead_lettered, RS_DEAD_LETTERED);
}

static void sweep_slot(struct rs_repair *repair, uint32_t slot, uint16_t client, unsigned reader)
{
    struct rs_slot *record = &repair->ring->slots[slot];
    uint64_t state = rs_load_seq_cst(&record->state);

    if (rs_state_phase(state) == RS_LOANED && rs_state_owner(state) == client) {
        struct rs_loan loan = {.slot = slot, .generation = rs_state_generation(state)};

        if (rs_ring_abandon(repair->ring, client, &loan) == 0)
            repair->freed_loans++;
        return;
    }
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++)
        sweep_delivery(repair, slot, i, client);
    sweep_request(repair, slot, state, client);
    if (reader < RS_MAX_READERS) {
        uint64_t bit = UINT64_C(1) << reader;

        /* The count is left as it was: a dead reader may not have read. Its time to live ends the message. */
        if (rs_load_seq_cst(&record->readers) & bit)
            rs_fetch_and_seq_cst(&record->readers, ~bit);
    }
    RS_FAILPOINT(sweep_reader);
    rs_ring_free_check(repair->ring, slot);
}

bool rs_repair_sweep(struct rs_repair *repair, uint16_t client, unsigned reader, uint32_t *cursor,
                     uint32_t slots)
{
    uint32_t count = repair->ring->layout.slot_count;

    /* Dekker pair: the entry is DEAD before the words are read; who gives this client a reply seals it, then reads the entry. */
    if (*cursor == 0)
        rs_fetch_or_seq_cst(&repair->ring->clients[client].state, 0);
    for (uint32_t i = 0; i < slots && *cursor < count; i++)
        sweep_slot(repair, (*cursor)++, client, reader);
    return *cursor >= count;
}

/* ---- audit ---- */

/* Deliveries of one slice that are queued, by (slot - first) * 8 + index: which of them a cell names. */
struct slice {
    uint32_t first;
    uint32_t count;
    uint16_t destination[SLICE_MAX * RS_MAX_DELIVERIES]; /* RS_NO_DESTINATION: not queued */
    uint8_t found[SLICE_MAX * RS_MAX_DELIVERIES];
};

/* A readable message has a readers word of its generation and a time to live that ends. */
static bool ticket_makes_sense(const struct rs_slot *record, uint64_t state, int64_t now_ns)
{
    uint64_t readers = rs_load_seq_cst(&record->readers), publish_ns, ttl_ns;

    rs_message_times(record, &publish_ns, &ttl_ns);
    return rs_readers_generation(readers) == (rs_state_generation(state) & 0xffff) && ttl_ns != 0 &&
           (now_ns <= 0 || publish_ns <= (uint64_t)now_ns + CLOCK_SLACK_NS);
}

static bool words_make_sense(struct rs_repair *repair, uint32_t slot, uint64_t state, int64_t now_ns)
{
    const struct rs_ring *ring = repair->ring;
    struct rs_slot *record = &ring->slots[slot];
    uint16_t owner = rs_state_owner(state);

    switch (rs_state_phase(state)) {
    case RS_FREE:
        return owner == 0 && rs_state_flags(state) == 0;
    case RS_LOANED:
        return owner < ring->layout.client_count && rs_state_flags(state) == 0;
    case RS_QUARANTINED:
        return true;
    case RS_SEALED:
        break;
    default:
        return false;
    }
    if (owner != 0 || (rs_state_flags(state) & ~RS_FLAG_TICKET) != 0)
        return false;
    if ((rs_state_flags(state) & RS_FLAG_TICKET) && !ticket_makes_sense(record, state, now_ns))
        return false;
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_seq_cst(&record->delivery[i]);

        if (rs_delivery_generation(word) != rs_state_generation(state))
            continue;
        unsigned destination = rs_delivery_destination(word), phase = rs_delivery_phase(word);
        bool reply = destination == RS_REPLY_DESTINATION && (phase == RS_HELD || phase == RS_DONE);

        if (phase > RS_DONE || rs_delivery_holder(word) >= ring->layout.client_count ||
            (destination >= ring->layout.destination_count && !reply))
            return false;
    }
    return true;
}

/* The same nonsense twice with the state unchanged between: set aside, so that the other slots work on. */
static void suspect(struct rs_repair *repair, uint32_t slot, uint64_t state)
{
    rs_word *word = &repair->ring->slots[slot].state;

    if (repair->suspect[slot] != state) {
        repair->suspect[slot] = state;
        return;
    }
    RS_FAILPOINT(quarantine_before);
    if (rs_cas_seq_cst(word, &state,
                       rs_state(rs_state_generation(state), 0, RS_QUARANTINED, 0)))
        repair->quarantined++;
    RS_FAILPOINT(quarantine_after);
    repair->suspect[slot] = 0;
}

static bool is_over(const struct rs_slot *slot, int64_t now_ns)
{
    uint64_t publish_ns, ttl_ns;

    rs_message_times(slot, &publish_ns, &ttl_ns);
    return ttl_ns != 0 && now_ns > 0 && (uint64_t)now_ns > publish_ns &&
           (uint64_t)now_ns - publish_ns > ttl_ns;
}

static void end_ticket(struct rs_repair *repair, uint32_t slot, uint64_t state)
{
    struct rs_ticket ticket = {
        .sidecar_id = (uint16_t)repair->ring->layout.sidecar_id,
        .slot = slot,
        .generation = rs_state_generation(state),
        .incarnation = (uint32_t)repair->ring->layout.incarnation[0],
        .has_text = true,
    };

    if (rs_ring_ticket_free(repair->ring, 0, &ticket) == 0)
        count(repair, &repair->expired, RS_EXPIRED);
}

/* The header was read before the words' compare-and-swap proves that it was current. */
static void expire_slot(struct rs_repair *repair, uint32_t slot, uint64_t state)
{
    struct rs_slot *record = &repair->ring->slots[slot];

    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_seq_cst(&record->delivery[i]);

        if (rs_delivery_phase(word) == RS_QUEUED &&
            rs_delivery_generation(word) == rs_state_generation(state) &&
            rs_ring_expire(repair->ring, slot, i, word))
            count(repair, &repair->expired, RS_EXPIRED);
    }
    if (rs_state_flags(state) & RS_FLAG_TICKET)
        end_ticket(repair, slot, state);
}

static void collect(struct rs_repair *repair, struct slice *slice, uint32_t slot)
{
    uint32_t base = (slot - slice->first) * RS_MAX_DELIVERIES;

    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_seq_cst(&repair->ring->slots[slot].delivery[i]);
        unsigned destination = rs_delivery_destination(word);

        if (destination < repair->ring->layout.destination_count &&
            repair->inboxes[destination] != NULL &&
            rs_ring_takeable(repair->ring, slot, i, destination, &word))
            slice->destination[base + i] = (uint16_t)destination;
    }
}

static bool has_number(const uint64_t *in_use, unsigned number)
{
    return (in_use[number / 64] >> number % 64 & 1) != 0;
}

/* A reply says for whom it is. Its callee may have died before it saw that the number has another owner now, who knows
 * nothing of it. The header was read before the compare-and-swap proves that it was this reply's. The entry's nonce is not
 * asked: overwritten, it would end what its client reads. */
static void sweep_stranger(struct rs_repair *repair, uint32_t slot, unsigned index, uint64_t word)
{
    struct rs_slot *record = &repair->ring->slots[slot];
    uint64_t admission = rs_load_relaxed(&record->header[RS_HEADER_ADMISSION]);

    if (rs_delivery_destination(word) != RS_REPLY_DESTINATION || admission == 0 ||
        admission == repair->nonces[rs_delivery_holder(word)])
        return;
    if (rs_cas_seq_cst(&record->delivery[index], &word,
                       rs_delivery(rs_delivery_generation(word), 0, RS_REPLY_DESTINATION, 0, RS_DONE)))
        count(repair, &repair->dead_lettered, RS_DEAD_LETTERED);
}

/* A number is given anew only after its sweep and an audit, so what a free one holds was never taken: a stray write says
 * so, and nobody would ever give it back. */
static void sweep_nobody(struct rs_repair *repair, uint32_t slot, uint64_t state)
{
    struct rs_slot *record = &repair->ring->slots[slot];
    uint16_t owner = rs_state_owner(state);

    if (repair->clients_in_use == NULL)
        return;
    if (rs_state_phase(state) == RS_LOANED && !has_number(repair->clients_in_use, owner))
        sweep_slot(repair, slot, owner, RS_NO_READER);
    if (rs_state_phase(state) != RS_SEALED)
        return;
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_seq_cst(&record->delivery[i]);
        uint16_t holder = (uint16_t)rs_delivery_holder(word);

        if (rs_delivery_phase(word) != RS_HELD ||
            rs_delivery_generation(word) != rs_state_generation(state))
            continue;
        if (!has_number(repair->clients_in_use, holder))
            sweep_delivery(repair, slot, i, holder);
        else
            sweep_stranger(repair, slot, i, word);
    }
    uint64_t bits = rs_load_seq_cst(&record->readers) & RS_READERS_BITS & ~*repair->readers_in_use;
    if (bits != 0)
        rs_fetch_and_seq_cst(&record->readers, ~bits);
}

static void audit_slot(struct rs_repair *repair, struct slice *slice, uint32_t slot, int64_t now_ns)
{
    struct rs_slot *record = &repair->ring->slots[slot];
    uint64_t state = rs_load_seq_cst(&record->state);

    if (!words_make_sense(repair, slot, state, now_ns)) {
        suspect(repair, slot, state);
        return;
    }
    repair->suspect[slot] = 0;
    if (rs_state_phase(state) == RS_FREE) {
        rs_ring_mark_free(repair->ring, slot);
        return;
    }
    sweep_nobody(repair, slot, state);
    if (rs_state_phase(state) != RS_SEALED)
        return;
    if (is_over(record, now_ns))
        expire_slot(repair, slot, state);
    if (!rs_ring_free_check(repair->ring, slot))
        collect(repair, slice, slot);
}

/* One pass over an inbox finds the cells of all collected deliveries. The words were read before: a word that has no
 * cell now has had none since, or was taken meanwhile, and then the second cell is harmless. */
static void find_cells(struct rs_repair *repair, struct slice *slice, unsigned destination)
{
    struct rs_inbox *inbox = repair->inboxes[destination];

    for (uint32_t i = 0; i < inbox->cell_count; i++) {
        uint64_t cell = rs_load_seq_cst(&inbox->cells[i]);
        uint32_t offset = rs_cell_slot(cell) - slice->first;

        if ((cell & RS_CELL_FULL) == 0 || offset >= slice->count ||
            rs_cell_ring(cell) != repair->ring_number[destination])
            continue;
        offset = offset * RS_MAX_DELIVERIES + rs_cell_delivery(cell);
        if (slice->destination[offset] == destination)
            slice->found[offset] = 1;
    }
}

static void push_missing(struct rs_repair *repair, struct slice *slice)
{
    uint32_t total = slice->count * RS_MAX_DELIVERIES;
    uint64_t searched[RS_MAX_DESTINATIONS / 64] = {0};

    for (uint32_t i = 0; i < total; i++) {
        unsigned destination = slice->destination[i];

        if (destination == RS_NO_DESTINATION)
            continue;
        if ((searched[destination / 64] >> destination % 64 & 1) == 0) {
            searched[destination / 64] |= UINT64_C(1) << destination % 64;
            find_cells(repair, slice, destination);
        }
        if (slice->found[i])
            continue;
        RS_FAILPOINT(audit_push_before);
        rs_inbox_push(repair->inboxes[destination], repair->ring_number[destination],
                      slice->first + i / RS_MAX_DELIVERIES, i % RS_MAX_DELIVERIES);
        RS_FAILPOINT(audit_push_after);
        repair->pushed++;
    }
}

bool rs_repair_audit(struct rs_repair *repair, int64_t now_ns, uint32_t *cursor, uint32_t slots)
{
    uint32_t count = repair->ring->layout.slot_count;

    while (slots > 0 && *cursor < count) {
        struct slice slice = {.first = *cursor};

        slice.count = count - *cursor < SLICE_MAX ? count - *cursor : SLICE_MAX;
        slice.count = slice.count < slots ? slice.count : slots;
        for (uint32_t i = 0; i < slice.count * RS_MAX_DELIVERIES; i++)
            slice.destination[i] = RS_NO_DESTINATION;
        for (uint32_t i = 0; i < slice.count; i++)
            audit_slot(repair, &slice, slice.first + i, now_ns);
        push_missing(repair, &slice);
        *cursor += slice.count;
        slots -= slice.count;
    }
    return *cursor >= count;
}

/* ---- hints, wake, adopt ---- */

static void wake_inbox(struct rs_inbox *inbox)
{
    rs_wait_wake_all(&inbox->shared->not_empty, inbox->event_fd);
    rs_wait_wake_all(&inbox->shared->not_full, -1);
}

bool rs_repair_hints(struct rs_repair *repair)
{
    if (repair->own == NULL || !rs_inbox_mend_hints(repair->own))
        return false;
    /* Whoever looked under the wrong hint found nothing and sleeps. */
    wake_inbox(repair->own);
    return true;
}

void rs_repair_wake(struct rs_repair *repair)
{
    rs_wait_wake_all(&repair->ring->shared->slot_free, repair->ring->space_fd);
    /* Callers whose request the dead one held, and callees that wait for room in its own box: its
     * number is not given up yet. */
    for (uint32_t i = 0; i < repair->ring->layout.client_count; i++) {
        if (rs_client_phase(rs_load_relaxed(&repair->ring->clients[i].state)) != RS_CLIENT_UNUSED)
            rs_box_wake(&repair->ring->boxes[i]);
    }
    if (repair->own != NULL)
        wake_inbox(repair->own);
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++) {
        if (repair->inboxes[i] != NULL && repair->inboxes[i] != repair->own)
            wake_inbox(repair->inboxes[i]);
    }
}

void rs_repair_adopt(struct rs_repair *repair)
{
    struct rs_ring *ring = repair->ring;
    struct rs_superblock *superblock = (struct rs_superblock *)ring->control;

    RS_FAILPOINT(adopt_before);
    rs_fetch_add_relaxed(&superblock->epoch, 1);
    RS_FAILPOINT(adopt_epoch);
    rs_store_relaxed(&ring->layout.epoch, rs_load_relaxed(&superblock->epoch));
    rs_repair_hints(repair);
    RS_FAILPOINT(adopt_hints);
    /* The old sidecar's own reader bit, before this one frees any ticket. */
    for (uint32_t i = 0; i < ring->layout.slot_count; i++)
        rs_fetch_and_seq_cst(&ring->slots[i].readers, ~UINT64_C(1));
    RS_FAILPOINT(adopt_readers);
}

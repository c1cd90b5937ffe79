/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of calls: a slot sealed as held by its caller, whose ticket is posted before the seal. */
#include "proto/box.h"

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/wait.h"

#define POST_TRIES 8 /* an honest caller empties its cell once while a reply is posted */

static uint64_t held_by(uint32_t generation, uint16_t holder)
{
    return rs_delivery(generation, holder, RS_REPLY_DESTINATION, 0, RS_HELD);
}

static uint64_t ticket_of(const struct rs_ring *ring, const struct rs_loan *loan)
{
    return rs_ticket_pack((uint16_t)ring->layout.sidecar_id, loan->slot, loan->generation);
}

/* What a cell holds of a reply that is being taken back: the ticket with another sidecar id, and
 * never 0. */
static unsigned id_taken_back(unsigned id)
{
    return id == UINT16_MAX ? 1 : id + 1;
}

/* ---- the callee ---- */

/* Of a later call the cell may be by now, whose callee found it in use. */
static void take_out(const struct rs_reply *reply, uint64_t ticket)
{
    (void)rs_cas_seq_cst(&reply->box->cell[reply->cell], &ticket, 0);
    rs_wait_wake(&reply->box->room, -1);
}

/* Swapped without a look first: the caller polls the line, and would have to give it twice. A swap
 * that failed orders nothing, so the look of one who sleeps for room comes after it. */
static bool post(const struct rs_reply *reply, uint64_t ticket)
{
    rs_word *cell = &reply->box->cell[reply->cell];

    for (unsigned tries = 0; tries < POST_TRIES; tries++) {
        uint64_t empty = 0;

        if (rs_cas_seq_cst(cell, &empty, ticket))
            return true;
        if (rs_load_seq_cst(cell) != 0)
            return false;
    }
    return false;
}

static void prepare(const struct rs_reply *reply)
{
    struct rs_slot *slot = &reply->ring->slots[reply->loan.slot];
    uint32_t generation = reply->loan.generation;

    rs_store_relaxed(&slot->delivery[0], held_by(generation, reply->holder));
    for (unsigned i = 1; i < RS_MAX_DELIVERIES; i++)
        rs_store_relaxed(&slot->delivery[i], rs_delivery(generation, 0, 0, 0, RS_NONE));
    rs_store_relaxed(&slot->readers, 0);
}

int rs_reply_publish(const struct rs_reply *reply)
{
    struct rs_ring *ring = reply->ring;
    uint64_t ticket = ticket_of(ring, &reply->loan);

    prepare(reply);
    /* Before the seal: a sealed reply always has its cell, whenever its callee dies. */
    RS_FAILPOINT(post_before);
    if (!post(reply, ticket))
        return -RINGSIDE_E_FULL;
    RS_FAILPOINT(post_after);
    if (rs_ring_seal_reply(ring, reply->owner, &reply->loan) < 0) {
        take_out(reply, ticket);
        return -RINGSIDE_E_STATE;
    }
    rs_wait_wake(&reply->box->posted, reply->event_fd);
    return 0;
}

bool rs_reply_take_back(const struct rs_reply *reply, bool caller_is_gone)
{
    rs_word *cell = &reply->box->cell[reply->cell];
    uint64_t ticket = ticket_of(reply->ring, &reply->loan);
    uint64_t back = rs_ticket_pack((uint16_t)id_taken_back(rs_ticket_sidecar(ticket)),
                                   reply->loan.slot, reply->loan.generation);
    struct rs_lease lease = {
        .ring = reply->ring,
        .word = held_by(reply->loan.generation, reply->holder),
        .slot = reply->loan.slot,
        .generation = reply->loan.generation,
    };

    RS_FAILPOINT(take_back_before);
    /* The dead take nothing: their box may have been emptied, and their words swept before the
     * seal. */
    bool won = rs_cas_seq_cst(cell, &ticket, back);
    if (!won && !caller_is_gone)
        return false;
    RS_FAILPOINT(take_back_after);
    if (rs_ring_release(&lease) < 0)
        rs_ring_free_check(reply->ring, lease.slot);
    /* Not before: who dies here leaves the caller what to end. The number may have a new owner by
     * now, whose callee waits for the cell. */
    if (won)
        take_out(reply, back);
    return won;
}

bool rs_client_is_there(const struct rs_ring *ring, unsigned number, uint64_t nonce, uint64_t mask)
{
    if (number >= ring->layout.client_count)
        return false;
    /* The state first: a nonce is stored before the state that makes it somebody's. */
    return rs_client_phase(rs_load_seq_cst(&ring->clients[number].state)) == RS_CLIENT_ALIVE &&
           (rs_load_relaxed(&ring->clients[number].nonce) & mask) == nonce;
}

bool rs_request_is_cancelled(const struct rs_lease *request)
{
    const struct rs_slot *record = &request->ring->slots[request->slot];
    uint64_t word = rs_load_seq_cst(&record->delivery[RS_CANCEL_WORD]);

    return (rs_delivery_phase(word) == RS_DONE &&
            rs_delivery_generation(word) == request->generation) ||
           rs_load_relaxed(&record->delivery[request->delivery]) != request->word;
}

/* ---- the caller ---- */

enum rs_box_content rs_box_look(struct rs_box *box, unsigned cell, struct rs_ring *ring,
                                uint16_t holder, uint64_t *ticket, struct rs_lease *lease)
{
    *ticket = rs_load_seq_cst(&box->cell[cell]);
    if (*ticket == 0)
        return RS_BOX_EMPTY;
    uint32_t slot = rs_ticket_slot(*ticket);
    bool back = rs_ticket_sidecar(*ticket) == id_taken_back(ring->layout.sidecar_id);
    if ((rs_ticket_sidecar(*ticket) != ring->layout.sidecar_id && !back) ||
        slot >= ring->layout.slot_count)
        return RS_BOX_STRAY;
    struct rs_slot *record = &ring->slots[slot];
    /* What is read and written next, all at once. */
    rs_prefetch_write(record);
    rs_prefetch_read((const uint8_t *)record + RS_CACHE_LINE);
    rs_prefetch_read((const uint8_t *)record + 3 * RS_CACHE_LINE);
    rs_prefetch_write(&box->cell[cell]);
    uint64_t state = rs_load_seq_cst(&record->state);
    uint32_t generation = rs_state_generation(state);

    if ((generation & RS_TICKET_GENERATION_MASK) != rs_ticket_generation(*ticket))
        return RS_BOX_STRAY;
    if (rs_state_phase(state) == RS_LOANED)
        return RS_BOX_UNSEALED;
    uint64_t word = held_by(generation, holder);
    if (rs_state_phase(state) != RS_SEALED || rs_load_acquire(&record->delivery[0]) != word)
        return RS_BOX_STRAY;
    *lease = (struct rs_lease){
        .ring = ring,
        .word = word,
        .slot = slot,
        .generation = generation,
        .holder = holder,
    };
    return back ? RS_BOX_TAKEN_BACK : RS_BOX_REPLY;
}

bool rs_box_take(struct rs_box *box, unsigned cell, uint64_t ticket)
{
    RS_FAILPOINT(box_take_before);
    if (!rs_cas_seq_cst(&box->cell[cell], &ticket, 0))
        return false;
    RS_FAILPOINT(box_take_after);
    rs_wait_wake(&box->room, -1);
    return true;
}

bool rs_box_empty(struct rs_box *box, unsigned cell, uint64_t ticket)
{
    RS_FAILPOINT(box_take_before);
    if (!rs_cas_seq_cst(&box->cell[cell], &ticket, 0))
        return false;
    RS_FAILPOINT(box_take_after);
    return true;
}

bool rs_request_cancel(struct rs_ring *ring, uint32_t slot, uint32_t generation)
{
    struct rs_slot *record = &ring->slots[slot];
    uint64_t word = rs_load_seq_cst(&record->delivery[0]);
    uint64_t none = rs_delivery(generation, 0, 0, 0, RS_NONE);

    if (rs_delivery_generation(word) == generation && rs_delivery_phase(word) == RS_QUEUED &&
        rs_ring_expire(ring, slot, 0, word))
        return true;
    RS_FAILPOINT(cancel_before);
    (void)rs_cas_seq_cst(&record->delivery[RS_CANCEL_WORD], &none,
                         rs_delivery(generation, 0, 0, 0, RS_DONE));
    RS_FAILPOINT(cancel_after);
    return false;
}

bool rs_request_is_over(const struct rs_ring *ring, uint32_t slot, uint32_t generation)
{
    uint64_t word = rs_load_seq_cst(&ring->slots[slot].delivery[0]);
    unsigned phase = rs_delivery_phase(word);

    return rs_delivery_generation(word) != generation || (phase != RS_QUEUED && phase != RS_HELD);
}

enum rs_box_content rs_call_look(const struct rs_pending *call, uint64_t *ticket,
                                 struct rs_lease *lease)
{
    struct rs_box *box = &call->own->boxes[call->client];
    /* The word first: a callee posts and seals before it lets the request go. */
    bool over = rs_request_is_over(call->own, call->slot, call->generation);
    enum rs_box_content content =
        rs_box_look(box, call->cell, call->ring, call->holder, ticket, lease);

    return over && content != RS_BOX_REPLY && content != RS_BOX_STRAY ? RS_BOX_GONE : content;
}

/* ---- the sidecar ---- */

void rs_box_clear(struct rs_box *box)
{
    for (unsigned i = 0; i < RS_BOX_CELLS; i++)
        rs_exchange_seq_cst(&box->cell[i], 0);
}

void rs_box_wake(struct rs_box *box)
{
    rs_wait_wake_all(&box->posted, -1);
    rs_wait_wake_all(&box->room, -1);
}

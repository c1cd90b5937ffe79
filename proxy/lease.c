/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of the wire against the words of the ring; request ids that give the same lease again. */
#include <string.h>

#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"
#include "proxy/session.h"

/* ---- leases ---- */

static struct rs_ring *ring_of(struct session *session, const ProtobufCBinaryData *incarnation,
                               uint8_t *number)
{
    struct proxy *proxy = session->proxy;

    *number = 0;
    if (incarnation->len == 0)
        return &proxy->ring;
    if (incarnation->len != 16)
        return NULL;
    if (memcmp(incarnation->data, proxy->ring.layout.incarnation, 16) == 0)
        return &proxy->ring;
    for (unsigned i = 1; session->inbox != NULL && i < RS_MAX_RINGS; i++) {
        struct rs_ring *ring = rs_load_acquire(&session->inbox->rings[i]);
        if (ring != NULL && memcmp(incarnation->data, ring->layout.incarnation, 16) == 0) {
            *number = (uint8_t)i;
            return ring;
        }
    }
    return NULL;
}

/* The ring of a stage that a route leads to, when the lease is a reply or a reading there: the stage may send here as well,
 * and its ring is mapped twice then, with a number of its own for each. */
static struct rs_ring *answering_ring(const struct session *session,
                                      const Ringside__V1__Lease *wire,
                                      const struct rs_ticket *ticket, bool held)
{
    if (wire->ring.len != 16 || wire->delivery > 0)
        return NULL;
    for (const struct answerer *answerer = session->answerers; answerer != NULL;
         answerer = answerer->next) {
        struct rs_ring *ring = answerer->ring;

        if (memcmp(wire->ring.data, ring->layout.incarnation, 16) != 0 ||
            answerer->reads != (wire->delivery < 0) || ticket->slot >= ring->layout.slot_count)
            continue;
        if (answerer->reads) {
            if (!held || session_reads(session, ring, ticket->slot))
                return ring;
            continue;
        }
        uint64_t word = rs_load_seq_cst(&ring->slots[ticket->slot].delivery[0]);
        if (!held || (rs_delivery_destination(word) == RS_REPLY_DESTINATION &&
                      rs_delivery_holder(word) == answerer->client))
            return ring;
    }
    return NULL;
}

int session_lease_of(struct session *session, const Ringside__V1__Lease *wire,
                     struct session_lease *lease)
{
    struct rs_ticket ticket;

    if (wire == NULL || wire->delivery < -1 || wire->delivery >= RS_MAX_DELIVERIES)
        return -RINGSIDE_E_INVALID;
    int rc = rs_ticket_unpack(&ticket, wire->ticket);
    if (rc < 0)
        return rc;
    lease->ring_number = 0;
    lease->ring = answering_ring(session, wire, &ticket, true);
    if (lease->ring == NULL)
        lease->ring = ring_of(session, &wire->ring, &lease->ring_number);
    if (lease->ring == NULL) /* one that was released */
        lease->ring = answering_ring(session, wire, &ticket, false);
    if (lease->ring == NULL || ticket.sidecar_id != lease->ring->layout.sidecar_id ||
        ticket.slot >= lease->ring->layout.slot_count)
        return -RINGSIDE_E_FOREIGN_TICKET;
    lease->slot = ticket.slot;
    lease->generation = ticket.generation;
    lease->delivery = wire->delivery;
    lease->reply = session_place(session, lease->ring, lease->delivery < 0) != NULL;
    return 0;
}

static bool same_generation(uint32_t whole, uint32_t from_ticket)
{
    return (whole & RS_TICKET_GENERATION_MASK) == (from_ticket & RS_TICKET_GENERATION_MASK);
}

int session_loan(struct session *session, const struct session_lease *lease, struct rs_loan *loan)
{
    uint64_t state = rs_load_seq_cst(&lease->ring->slots[lease->slot].state);

    if (lease->delivery != -1 || lease->ring_number != 0 || rs_state_phase(state) != RS_LOANED ||
        rs_state_owner(state) != session->number ||
        !same_generation(rs_state_generation(state), lease->generation))
        return -RINGSIDE_E_STATE;
    loan->slot = lease->slot;
    loan->generation = rs_state_generation(state);
    return 0;
}

int session_delivery(struct session *session, const struct session_lease *lease,
                     struct rs_lease *held)
{
    if (lease->delivery < 0)
        return -RINGSIDE_E_STATE;
    uint16_t holder = lease->reply ? session_answerer(session, lease->ring)->client
                      : lease->ring_number == 0 ? session->number
                                                : session->inbox->holder[lease->ring_number];
    uint64_t word = rs_load_seq_cst(&lease->ring->slots[lease->slot].delivery[lease->delivery]);
    if (rs_delivery_phase(word) != RS_HELD || rs_delivery_holder(word) != holder ||
        !same_generation(rs_delivery_generation(word), lease->generation))
        return -RINGSIDE_E_STATE;
    *held = (struct rs_lease){.ring = lease->ring,
                              .word = word,
                              .slot = lease->slot,
                              .generation = rs_delivery_generation(word),
                              .holder = holder,
                              .delivery = (uint8_t)lease->delivery,
                              .ring_number = lease->ring_number};
    return 0;
}

bool session_has_ring(const struct session *session, const struct session_lease *lease)
{
    if (lease->reply)
        return session_place(session, lease->ring, lease->delivery < 0) != NULL;
    if (lease->ring_number == 0)
        return true;
    return session->inbox != NULL &&
           rs_load_relaxed(&session->inbox->rings[lease->ring_number]) == lease->ring &&
           lease->slot < lease->ring->layout.slot_count;
}

void session_spend(struct session *session, const struct session_lease *lease)
{
    struct answerer *answerer =
        lease->reply ? session_place(session, lease->ring, lease->delivery < 0) : NULL;

    if (session->held > 0)
        session->held--;
    if (answerer != NULL && answerer->uses > 0)
        answerer->uses--;
}

/* ---- request ids ---- */

static bool same_lease(const struct session_lease *a, const struct session_lease *b)
{
    return a->ring == b->ring && a->slot == b->slot && a->delivery == b->delivery &&
           same_generation(a->generation, b->generation);
}

void session_remember(struct session *session, uint64_t id, const struct session_lease *lease)
{
    if (id != 0)
        session->requests[session->next_request++ % SESSION_CALLS] =
            (struct session_request){.id = id, .lease = *lease};
}

const struct session_lease *session_recall(const struct session *session, uint64_t id)
{
    for (unsigned i = 0; id != 0 && i < SESSION_CALLS; i++) {
        if (session->requests[i].id == id)
            return &session->requests[i].lease;
    }
    return NULL;
}

static void forget(struct session *session, unsigned first, const struct session_lease *lease)
{
    for (unsigned i = first; i < SESSION_REMEMBERED; i++) {
        if (session->requests[i].id != 0 && same_lease(&session->requests[i].lease, lease))
            session->requests[i].id = 0;
    }
}

void session_forget(struct session *session, const struct session_lease *lease)
{
    forget(session, 0, lease);
}

void session_remember_streamed(struct session *session, uint64_t id,
                               const struct session_lease *lease)
{
    session->requests[SESSION_CALLS + session->next_streamed++ % SESSION_STREAMED] =
        (struct session_request){.id = id, .lease = *lease};
}

const struct session_lease *session_streamed(const struct session *session, uint64_t id,
                                             uint32_t position)
{
    const struct session_request *request =
        &session->requests[SESSION_CALLS + position % SESSION_STREAMED];

    return request->id == id && session->next_streamed - position <= SESSION_STREAMED
               ? &request->lease
               : NULL;
}

void session_forget_streamed(struct session *session, const struct session_lease *lease)
{
    forget(session, SESSION_CALLS, lease);
}

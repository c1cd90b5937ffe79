/* SPDX-License-Identifier: Apache-2.0 */
/* Read, AddReaders and Free: by ticket, in the own ring and in those of the stages next to this
 * one. */
#include <errno.h>

#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"

int control_ticket(struct rs_ticket *ticket, uint64_t number, const char *text)
{
    return text != NULL ? rs_ticket_parse(ticket, text) : rs_ticket_unpack(ticket, number);
}

static bool has_generation(const struct rs_ring *ring, const struct rs_ticket *ticket)
{
    uint32_t mask = ticket->has_text ? UINT32_MAX : RS_TICKET_GENERATION_MASK;
    uint64_t state = rs_load_acquire(&ring->slots[ticket->slot].state);

    return ((rs_state_generation(state) ^ ticket->generation) & mask) == 0;
}

int control_ticket_ring(struct proxy *proxy, const struct rs_ticket *ticket, struct rs_ring **ring,
                        unsigned *ring_number)
{
    int found = -RINGSIDE_E_FOREIGN_TICKET;

    for (unsigned i = 0; i < RS_MAX_RINGS; i++) {
        struct rs_ring *one = i == 0 ? &proxy->ring : rs_load_acquire(&proxy->inbox.rings[i]);
        int slot = one != NULL ? rs_ring_ticket_slot(one, ticket) : -RINGSIDE_E_FOREIGN_TICKET;

        if (slot == -RINGSIDE_E_FOREIGN_TICKET)
            continue;
        bool here = slot >= 0 && has_generation(one, ticket);
        if (!here && found != -RINGSIDE_E_FOREIGN_TICKET)
            continue;
        found = slot;
        *ring = one;
        *ring_number = i;
        if (here)
            break;
    }
    return found;
}

void control_refuse_ticket(struct conn_call *call, int error, const struct rs_ticket *ticket)
{
    const struct proxy *proxy = conn_proxy(call->conn);

    switch (error) {
    case -RINGSIDE_E_MALFORMED_TICKET:
        conn_reply_error(call, error,
                         "not a ticket: pass the number or the text (rst1-...) that Share gave");
        break;
    case -RINGSIDE_E_FOREIGN_TICKET:
        conn_reply_error(call, error,
                         "the ticket is of sidecar %u%s, whose ring stage %s does not read (its "
                         "own: %u); read it at a stage next to that one",
                         ticket->sidecar_id,
                         ticket->has_text ? ", or of an earlier ring of it" : "",
                         proxy->config.stage, proxy->ring.layout.sidecar_id);
        break;
    case -RINGSIDE_E_STALE_TICKET:
        conn_reply_error(call, error,
                         "the ticket's message (sidecar %u, slot %u) was read by all its readers, "
                         "freed, or its slot was used again",
                         ticket->sidecar_id, ticket->slot);
        break;
    case -RINGSIDE_E_UNAVAILABLE:
        conn_reply_error(call, error,
                         "the sidecar %u, in whose ring the ticket's message is, gave no place in "
                         "it; see `ringside status`",
                         ticket->sidecar_id);
        break;
    case -RINGSIDE_E_LIMIT:
        conn_reply_error(call, error,
                         "all reader numbers of the ring of sidecar %u are in use; have fewer "
                         "workers attached there",
                         ticket->sidecar_id);
        break;
    default:
        conn_reply_error(call, error, "%s", rs_strerror(error));
    }
}

/* ---- Read ---- */

/* Where a ticket's message is. */
struct found {
    struct rs_ring *ring;
    unsigned number; /* of the ring in the inbox; 0: the own one, or `lender` */
    const struct answerer
        *lender; /* the session's place with a stage that a route leads to, or NULL */
};

/* 1: found, and the session has a place there; 0: asked for one; else an error. */
static int find_place(struct wait *wait, const struct rs_ticket *ticket, struct found *found)
{
    struct session *session = wait->session;
    struct answerer *lender;

    found->lender = NULL;
    int rc = control_ticket_ring(session->proxy, ticket, &found->ring, &found->number);
    if (rc >= 0)
        return found->number == 0 ? 1 : control_place(wait, found->number);
    unsigned destination = rc == -RINGSIDE_E_FOREIGN_TICKET
                               ? peers_ticket_destination(session->proxy, ticket)
                               : RS_NO_DESTINATION;
    if (destination == RS_NO_DESTINATION)
        return rc;
    rc = peers_answerer(session, destination, true, !wait->asked, &lender);
    wait->asked |= rc == 0;
    if (rc > 0) {
        found->ring = lender->ring;
        found->number = 0;
        found->lender = lender;
        rc = rs_ring_ticket_slot(lender->ring, ticket);
    }
    return rc < 0 ? rc : found->lender != NULL;
}

/* Begins the reading and answers. 0, or a negative error: not answered. */
static int read_slot(struct session *session, struct conn_call *call, const struct found *found,
                     const struct rs_ticket *ticket, bool added)
{
    Ringside__V1__ReadResponse response = RINGSIDE__V1__READ_RESPONSE__INIT;
    struct session_lease lease = {found->ring, ticket->slot,           0,
                                  -1,          (uint8_t)found->number, found->lender != NULL};
    struct wire_message wire;

    int rc =
        session_read_begin(session, found->ring, found->number, ticket, added, &lease.generation);
    if (rc < 0)
        return rc;
    if (wire_message_is_over(&found->ring->slots[ticket->slot]))
        rc = -RINGSIDE_E_EXPIRED_TICKET;
    else
        rc = wire_message_fill(&wire, session->proxy, &lease,
                               found->lender != NULL ? found->lender->body_path
                                                     : control_body_path(session, found->number),
                               0);
    if (rc < 0) {
        session_read_end(session, &lease, false);
        return rc;
    }
    response.message = &wire.message;
    control_reply_lease(session, call, &response.base, &lease, 0, true);
    return 0;
}

static int try_read(struct wait *wait)
{
    const Ringside__V1__ReadRequest *request = (const Ringside__V1__ReadRequest *)wait->request;
    struct rs_ticket ticket;
    struct found found;

    int rc = control_ticket(&ticket, request->ticket,
                            request->by_case == RINGSIDE__V1__READ_REQUEST__BY_TEXT ? request->text
                                                                                    : NULL);
    if (rc == 0) {
        rc = find_place(wait, &ticket, &found);
        if (rc == 0)
            return 0;
    }
    if (rc > 0)
        rc = read_slot(wait->session, wait->call, &found, &ticket, request->added);
    if (rc < 0)
        control_refuse_ticket(wait->call, rc, &ticket);
    return 1;
}

void control_read(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__v1__read_request__descriptor);

    if (request != NULL)
        control_wait(session, call, request, try_read, WAIT_ROOM);
}

/* ---- AddReaders ---- */

static void refuse_readers(struct conn_call *call, int error)
{
    if (error == -RINGSIDE_E_STATE)
        conn_reply_error(call, error,
                         "the lease is no reading of this session: received, released, or of an "
                         "earlier sidecar; pass the lease that Read gave");
    else if (error == -RINGSIDE_E_LIMIT)
        conn_reply_error(call, error,
                         "a message is read at most %d times in all; share it with kept and free "
                         "it at the end",
                         RS_READERS_LEFT_MAX);
    else
        conn_reply_error(call, error, "%s", rs_strerror(error));
}

void control_add_readers(struct session *session, struct conn_call *call)
{
    Ringside__V1__AddReadersRequest *request = (Ringside__V1__AddReadersRequest *)conn_decode(
        call, &ringside__v1__add_readers_request__descriptor);
    Ringside__V1__Empty response = RINGSIDE__V1__EMPTY__INIT;
    struct session_lease lease;

    if (request == NULL)
        return;
    unsigned readers = request->readers;
    int rc = session_lease_of(session, request->lease, &lease);
    conn_free_message(&request->base);
    if (readers < 1 || readers > RS_READERS_LEFT_MAX) {
        conn_reply_error(call, -RINGSIDE_E_INVALID, "%u readers to add: 1..%d", readers,
                         RS_READERS_LEFT_MAX);
        return;
    }
    if (rc == 0)
        rc = lease.delivery < 0 ? session_read_add(session, &lease, readers) : -RINGSIDE_E_STATE;
    if (rc < 0)
        refuse_readers(call, rc);
    else
        conn_reply(call, &response.base, NULL, 0);
}

/* ---- Free ---- */

/* This sidecar's reader number in a ring; only borrowed, so that what it does is over at once. */
static unsigned own_reader(struct rs_ring *ring, unsigned ring_number)
{
    if (ring_number == 0)
        return 0;
    unsigned reader = rs_client_reader(rs_load_acquire(&ring->clients[ring->client].state));
    return reader > 0 && reader < CLIENTS_SHARED_READER ? reader : RS_NO_READER;
}

static int free_ticket(struct session *session, const struct found *found,
                       const struct rs_ticket *ticket)
{
    if (found->lender != NULL)
        return session_ticket_free(session, found->ring, ticket);
    unsigned reader = own_reader(found->ring, found->number);
    return reader == RS_NO_READER ? -RINGSIDE_E_LIMIT
                                  : rs_ring_ticket_free(found->ring, reader, ticket);
}

static int try_free(struct wait *wait)
{
    const Ringside__V1__FreeRequest *request = (const Ringside__V1__FreeRequest *)wait->request;
    Ringside__V1__Empty response = RINGSIDE__V1__EMPTY__INIT;
    struct proxy *proxy = wait->session->proxy;
    struct rs_ticket ticket;
    struct found found = {0};

    int rc = control_ticket(&ticket, request->ticket,
                            request->by_case == RINGSIDE__V1__FREE_REQUEST__BY_TEXT ? request->text
                                                                                    : NULL);
    /* Where the sidecar has a number of its own the session needs no place. */
    if (rc == 0)
        rc = control_ticket_ring(proxy, &ticket, &found.ring, &found.number) >= 0
                 ? 1
                 : find_place(wait, &ticket, &found);
    if (rc == 0)
        return 0;
    if (rc > 0)
        rc = free_ticket(wait->session, &found, &ticket);
    if (rc < 0)
        control_refuse_ticket(wait->call, rc, &ticket);
    else
        conn_reply(wait->call, &response.base, NULL, 0);
    return 1;
}

void control_free(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__v1__free_request__descriptor);

    if (request != NULL)
        control_wait(session, call, request, try_free, WAIT_ROOM);
}

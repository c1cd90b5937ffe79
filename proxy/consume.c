/* SPDX-License-Identifier: Apache-2.0 */
/* Receive, Release, Nack, Read and Free for those who let the sidecar take every step in the rings.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"

#define TAKES_MAX 1024 /* expired messages skipped by one call before others get their turn */

static const Ringside__V1__Empty empty = RINGSIDE__V1__EMPTY__INIT;

static void spend(struct session *session)
{
    if (session->held > 0)
        session->held--;
}

static void count(struct session *session, enum rs_counter counter)
{
    rs_ring_count(&session->proxy->ring, session->number, counter, 1);
}

static bool is_over(const struct rs_slot *slot)
{
    uint64_t publish_ns, ttl_ns, now = uv_hrtime();

    rs_message_times(slot, &publish_ns, &ttl_ns);
    return ttl_ns != 0 && now > publish_ns && now - publish_ns > ttl_ns;
}

/* ---- Receive ---- */

static void on_admitted(struct proxy *proxy, uint16_t number, unsigned ring_number, int error,
                        const struct peers_admission *admission)
{
    struct session *session = session_find(proxy, number);

    if (session == NULL || session->inbox == NULL)
        return;
    session->asked[ring_number / 64] &= ~(UINT64_C(1) << ring_number % 64);
    if (error < 0) {
        log_warn(&proxy->log, "clients", 0, "client %u (%s) cannot read ring %u of the inbox: %s",
                 number, session->name, ring_number, rs_strerror(error));
        return;
    }
    session->body_paths[ring_number] = admission->body_path;
    rs_inbox_admit(session->inbox, ring_number, admission->ring, admission->destination,
                   admission->client);
    control_look_again(proxy);
}

/* True when the ring is there at once. */
static bool ask_for_ring(struct session *session, unsigned ring_number)
{
    uint64_t bit = UINT64_C(1) << ring_number % 64;

    if (session->asked[ring_number / 64] & bit)
        return false;
    session->asked[ring_number / 64] |= bit;
    if (peers_admit_session(session->proxy, session->number, session->name,
                            conn_socket(session->conn), ring_number, on_admitted) < 0)
        session->asked[ring_number / 64] &= ~bit;
    return rs_load_acquire(&session->inbox->rings[ring_number]) != NULL;
}

static int open_inbox(struct session *session)
{
    struct proxy *proxy = session->proxy;

    if (session->inbox != NULL)
        return 0;
    session->inbox = malloc(sizeof *session->inbox);
    if (session->inbox == NULL)
        return -ENOMEM;
    rs_inbox_init(session->inbox, &proxy->ring, proxy->inbox_event);
    rs_inbox_admit(session->inbox, 0, &proxy->ring, proxy->routes.self, session->number);
    return 0;
}

static const char *body_path(struct session *session, unsigned ring_number)
{
    return ring_number == 0 ? session->proxy->files.body_path : session->body_paths[ring_number];
}

/* Sets a lease that cannot be told aside, so that it does not come again and again. */
static void refuse_message(struct session *session, struct conn_call *call,
                           const struct rs_lease *held, int error)
{
    if (error == -RINGSIDE_E_TOO_BIG) {
        if (rs_ring_nack(held, RS_MAX_ATTEMPTS) == 0)
            control_requeue(session->proxy, held, held->ring_number);
        conn_reply_error(call, error,
                         "the next message has more than %u bytes of metadata, too many for the "
                         "socket; receive it with libringside",
                         CONTROL_METADATA_OUT);
        return;
    }
    rs_ring_release(held);
    rs_ring_bell(held->ring);
    log_warn(&session->proxy->log, "ring", 0,
             "a message of ring %u (slot %u) holds nonsense in its header and was dropped",
             held->ring_number, held->slot);
    conn_reply_error(call, error, "the next message's header held nonsense; it was dropped");
}

static void answer_message(struct session *session, struct conn_call *call,
                           const struct rs_lease *held, uint64_t request_id, bool again)
{
    Ringside__V1__ReceiveResponse response = RINGSIDE__V1__RECEIVE_RESPONSE__INIT;
    struct session_lease lease = {held->ring, held->slot, held->generation, held->delivery,
                                  held->ring_number};
    struct wire_message wire;

    int rc = wire_message_fill(&wire, session->proxy, &lease, body_path(session, held->ring_number),
                               rs_delivery_attempts(held->word));
    if (rc < 0) {
        refuse_message(session, call, held, rc);
        return;
    }
    response.message = &wire.message;
    if (again) {
        conn_reply(call, &response.base, NULL, 0);
        return;
    }
    count(session, RS_RECEIVED);
    control_reply_lease(session, call, &response.base, &lease, request_id, false);
}

static void receive_again(struct session *session, struct conn_call *call,
                          const struct session_lease *lease, uint64_t request_id)
{
    struct rs_lease held;

    if (session_delivery(session, lease, &held) < 0)
        conn_reply_error(call, -RINGSIDE_E_STATE,
                         "request id %llu was answered before and its message is no longer held; "
                         "use a fresh id",
                         (unsigned long long)request_id);
    else
        answer_message(session, call, &held, request_id, true);
}

static int try_receive(struct wait *wait)
{
    const Ringside__V1__ReceiveRequest *request =
        (const Ringside__V1__ReceiveRequest *)wait->request;
    struct session *session = wait->session;
    struct rs_lease held;
    int unmapped,
        first = -1; /* ring that is not there at once; when it comes again, all were asked for */

    const struct session_lease *before = session_recall(session, request->request_id);
    if (before != NULL) {
        receive_again(session, wait->call, before, request->request_id);
        return 1;
    }
    for (int i = 0; i < TAKES_MAX && !conn_is_behind(session->conn); i++) {
        int rc = rs_inbox_take(session->inbox, &held, &unmapped);
        if (rc < 0) {
            rs_ring_bell(&session->proxy->ring);
            conn_reply_error(wait->call, rc,
                             "the inbox's cells make no sense; repair was asked for");
            return 1;
        }
        if (rc == 0 && (unmapped < 0 || unmapped == first))
            return 0;
        if (rc == 0) {
            if (!ask_for_ring(session, (unsigned)unmapped) && first < 0)
                first = unmapped;
            continue;
        }
        if (!is_over(&held.ring->slots[held.slot])) {
            answer_message(session, wait->call, &held, request->request_id, false);
            return 1;
        }
        rs_ring_release(&held);
        count(session, RS_EXPIRED);
    }
    control_look_again(session->proxy);
    return 0;
}

void control_receive(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__v1__receive_request__descriptor);

    if (request == NULL)
        return;
    if (open_inbox(session) < 0) {
        conn_free_message(request);
        conn_reply_error(call, -ENOMEM, "out of memory");
        return;
    }
    control_wait(session, call, request, try_receive, true);
}

/* ---- Release and Nack ---- */

static void refuse_lease(struct conn_call *call, int error)
{
    conn_reply_error(call, error, "%s",
                     error == -RINGSIDE_E_STATE
                         ? "this session does not hold that: released, sent on or never had"
                     : error == -RINGSIDE_E_INVALID ? "the request names no lease"
                                                    : rs_strerror(error));
}

void control_release(struct session *session, struct conn_call *call)
{
    Ringside__V1__LeaseRequest *request =
        (Ringside__V1__LeaseRequest *)conn_decode(call, &ringside__v1__lease_request__descriptor);
    struct session_lease lease;
    struct rs_lease held;

    if (request == NULL)
        return;
    int rc = session_lease_of(session, request->lease, &lease);
    conn_free_message(&request->base);
    if (rc == 0 && lease.delivery < 0) {
        rc = session_read_end(session, lease.slot, lease.generation, true);
        if (rc == 0)
            count(session, RS_READS);
    } else if (rc == 0) {
        rc = session_delivery(session, &lease, &held);
        if (rc == 0)
            rc = rs_ring_release(&held);
        if (rc == 0)
            count(session, RS_RELEASED);
    }
    if (rc < 0) {
        refuse_lease(call, rc);
        return;
    }
    spend(session);
    conn_reply(call, &empty.base, NULL, 0);
}

void control_nack(struct session *session, struct conn_call *call)
{
    Ringside__V1__LeaseRequest *request =
        (Ringside__V1__LeaseRequest *)conn_decode(call, &ringside__v1__lease_request__descriptor);
    struct session_lease lease;
    struct rs_lease held;

    if (request == NULL)
        return;
    int rc = session_lease_of(session, request->lease, &lease);
    conn_free_message(&request->base);
    if (rc == 0)
        rc = session_delivery(session, &lease, &held);
    if (rc == 0) {
        unsigned destination = rs_delivery_destination(held.word);
        unsigned limit = destination < held.ring->layout.destination_count
                             ? rs_destination_attempts(
                                   rs_load_relaxed(&held.ring->destinations[destination].state))
                             : 0;
        rc = rs_ring_nack(&held, limit > 0 ? limit : RS_MAX_ATTEMPTS);
    }
    if (rc < 0) {
        refuse_lease(call, rc);
        return;
    }
    if (rc == 0)
        control_requeue(session->proxy, &held, held.ring_number);
    count(session, rc == 0 ? RS_NACKED : RS_DEAD_LETTERED);
    spend(session);
    conn_reply(call, &empty.base, NULL, 0);
    control_look_again(session->proxy);
}

/* ---- Read and Free ---- */

static void refuse_ticket(struct conn_call *call, int error)
{
    conn_reply_error(call, error, "%s", rs_strerror(error));
}

void control_read(struct session *session, struct conn_call *call)
{
    Ringside__V1__ReadRequest *request =
        (Ringside__V1__ReadRequest *)conn_decode(call, &ringside__v1__read_request__descriptor);
    Ringside__V1__ReadResponse response = RINGSIDE__V1__READ_RESPONSE__INIT;
    struct rs_ring *ring = &session->proxy->ring;
    struct rs_ticket ticket;
    struct wire_message wire;
    uint32_t generation;

    if (request == NULL)
        return;
    int rc = control_ticket(&ticket, request->ticket,
                            request->by_case == RINGSIDE__V1__READ_REQUEST__BY_TEXT ? request->text
                                                                                    : NULL);
    conn_free_message(&request->base);
    if (rc == 0)
        rc = session_read_begin(session, &ticket, &generation);
    if (rc < 0) {
        refuse_ticket(call, rc);
        return;
    }
    struct session_lease lease = {ring, ticket.slot, generation, -1, 0};
    if (is_over(&ring->slots[ticket.slot]))
        rc = -RINGSIDE_E_EXPIRED_TICKET;
    else
        rc = wire_message_fill(&wire, session->proxy, &lease, session->proxy->files.body_path, 0);
    if (rc < 0) {
        session_read_end(session, ticket.slot, generation, false);
        refuse_ticket(call, rc);
        return;
    }
    response.message = &wire.message;
    control_reply_lease(session, call, &response.base, &lease, 0, true);
}

void control_free(struct session *session, struct conn_call *call)
{
    Ringside__V1__FreeRequest *request =
        (Ringside__V1__FreeRequest *)conn_decode(call, &ringside__v1__free_request__descriptor);
    struct rs_ticket ticket;

    if (request == NULL)
        return;
    int rc = control_ticket(&ticket, request->ticket,
                            request->by_case == RINGSIDE__V1__FREE_REQUEST__BY_TEXT ? request->text
                                                                                    : NULL);
    conn_free_message(&request->base);
    if (rc == 0)
        rc = rs_ring_ticket_free(&session->proxy->ring, 0, &ticket);
    if (rc < 0)
        refuse_ticket(call, rc);
    else
        conn_reply(call, &empty.base, NULL, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Receive, Release and Nack for those who let the sidecar take every step in the rings. */
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

static void count(struct session *session, enum rs_counter counter)
{
    rs_ring_count(&session->proxy->ring, session->number, counter, 1);
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
    if (rs_load_relaxed(&session->inbox->rings[ring_number]) != admission->ring)
        session_drop_readings(session, ring_number);
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

int control_place(struct wait *wait, unsigned ring_number)
{
    struct session *session = wait->session;

    if (control_open_inbox(session) < 0)
        return -ENOMEM;
    if (rs_load_acquire(&session->inbox->rings[ring_number]) != NULL)
        return 1;
    if (session->asked[ring_number / 64] & UINT64_C(1) << ring_number % 64)
        return 0;
    if (wait->asked)
        return -RINGSIDE_E_UNAVAILABLE;
    wait->asked = true;
    return ask_for_ring(session, ring_number);
}

int control_open_inbox(struct session *session)
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

const char *control_body_path(struct session *session, unsigned ring_number)
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

int control_tell(struct session *session, struct conn_call *call, const struct rs_lease *held,
                 struct wire_message *wire)
{
    struct session_lease lease = session_lease_from(held);

    int rc = wire_message_fill(wire, session->proxy, &lease,
                               control_body_path(session, held->ring_number),
                               rs_delivery_attempts(held->word));
    if (rc < 0)
        refuse_message(session, call, held, rc);
    return rc;
}

static void answer_message(struct session *session, struct conn_call *call,
                           const struct rs_lease *held, uint64_t request_id, bool again)
{
    Ringside__V1__ReceiveResponse response = RINGSIDE__V1__RECEIVE_RESPONSE__INIT;
    struct session_lease lease = session_lease_from(held);
    struct wire_message wire;

    if (control_tell(session, call, held, &wire) < 0)
        return;
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

int control_take(struct session *session, struct rs_lease *held)
{
    int unmapped,
        first = -1; /* ring that is not there at once; when it comes again, all were asked for */

    for (int i = 0; i < TAKES_MAX && !conn_is_behind(session->conn); i++) {
        int rc = rs_inbox_take(session->inbox, held, &unmapped);
        if (rc < 0) {
            rs_ring_bell(&session->proxy->ring);
            return rc;
        }
        if (rc == 0 && (unmapped < 0 || unmapped == first))
            return 0;
        if (rc == 0) {
            if (!ask_for_ring(session, (unsigned)unmapped) && first < 0)
                first = unmapped;
            continue;
        }
        if (!wire_message_is_over(&held->ring->slots[held->slot]))
            return 1;
        rs_ring_release(held);
        count(session, RS_EXPIRED);
    }
    control_look_again(session->proxy);
    return 0;
}

static int try_receive(struct wait *wait)
{
    const Ringside__V1__ReceiveRequest *request =
        (const Ringside__V1__ReceiveRequest *)wait->request;
    struct session *session = wait->session;
    struct rs_lease held;

    const struct session_lease *before = session_recall(session, request->request_id);
    if (before != NULL) {
        receive_again(session, wait->call, before, request->request_id);
        return 1;
    }
    int rc = control_take(session, &held);
    if (rc < 0)
        conn_reply_error(wait->call, rc, "the inbox's cells make no sense; repair was asked for");
    else if (rc > 0)
        answer_message(session, wait->call, &held, request->request_id, false);
    return rc != 0;
}

void control_receive(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__v1__receive_request__descriptor);

    if (request == NULL)
        return;
    if (control_open_inbox(session) < 0) {
        conn_free_message(request);
        conn_reply_error(call, -ENOMEM, "out of memory");
        return;
    }
    control_wait(session, call, request, try_receive, WAIT_MESSAGE);
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

static int release(struct session *session, const struct rs_lease *held)
{
    uint64_t call = control_request_call(held);

    if (call != 0)
        control_answer_for(session, held);
    int rc = rs_ring_release(held);
    control_wake_caller(session, held, call);
    if (rc == 0)
        count(session, RS_RELEASED);
    return rc;
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
        rc = session_read_end(session, &lease, true);
        if (rc == 0)
            count(session, RS_READS);
    } else if (rc == 0) {
        rc = session_delivery(session, &lease, &held);
        if (rc == 0)
            rc = release(session, &held);
        session_forget_streamed(session, &lease);
    }
    if (rc < 0) {
        refuse_lease(call, rc);
        return;
    }
    session_spend(session, &lease);
    conn_reply(call, &empty.base, NULL, 0);
}

void control_nack(struct session *session, struct conn_call *call)
{
    Ringside__V1__LeaseRequest *request =
        (Ringside__V1__LeaseRequest *)conn_decode(call, &ringside__v1__lease_request__descriptor);
    struct session_lease lease;
    struct rs_lease held;
    uint64_t call_word = 0;

    if (request == NULL)
        return;
    int rc = session_lease_of(session, request->lease, &lease);
    conn_free_message(&request->base);
    if (rc == 0)
        rc = session_delivery(session, &lease, &held);
    if (rc == 0) {
        call_word = control_request_call(&held);
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
    session_forget_streamed(session, &lease);
    if (rc == 0)
        control_requeue(session->proxy, &held, held.ring_number);
    else
        control_wake_caller(session, &held, call_word);
    count(session, rc == 0 ? RS_NACKED : RS_DEAD_LETTERED);
    session_spend(session, &lease);
    conn_reply(call, &empty.base, NULL, 0);
    control_look_again(session->proxy);
}

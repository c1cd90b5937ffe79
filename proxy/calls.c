/* SPDX-License-Identifier: Apache-2.0 */
/* Call and CallStream for those who let the sidecar take every step: the request, replies in the
 * session's box, cancellation. */
#include <errno.h>
#include <string.h>
#include <uv.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/wait.h"
#include "proxy/calls_private.h"

#define BURST_MAX  64   /* replies before others get their turn */
#define TEXT_BYTES 1024 /* of an error reply */

/* ---- replies ---- */

static int fail(struct wait *wait, int error, const char *text)
{
    conn_reply_error(wait->call, error, "%s", text);
    return 1;
}

/* What the callee says went wrong. */
static void answer_status(struct wait *wait, const struct rs_lease *lease,
                          const struct rs_message *header)
{
    char text[TEXT_BYTES + 1];
    size_t bytes = header->metadata_bytes < TEXT_BYTES ? header->metadata_bytes : TEXT_BYTES;

    memcpy(text, control_body(lease->ring, lease->slot) + header->metadata_offset, bytes);
    text[bytes] = '\0';
    conn_reply_status(wait->call, rs_call_status(header->call), "CALLEE",
                      bytes > 0 ? text : "the callee gave no reason");
}

/* Hands a reply over. 1: the call of the wire is answered or its stream failed; 0: the stream goes
 * on. */
static int give(struct wait *wait, const struct session_call *call, const struct rs_lease *lease)
{
    Ringside__V1__CallResponse response = RINGSIDE__V1__CALL_RESPONSE__INIT;
    struct session *session = wait->session;
    const struct proxy *proxy = session->proxy;
    struct session_lease held = session_lease_from(lease);
    struct wire_message wire;

    held.reply = call->answerer != NULL;
    int rc = wire_message_fill(&wire, session->proxy, &held,
                               held.reply ? call->answerer->body_path : proxy->files.body_path, 0);
    if (rc < 0) {
        (void)rs_ring_nack(lease, 0);
        rs_ring_bell(lease->ring);
        return fail(wait, rc,
                    rc == -RINGSIDE_E_TOO_BIG
                        ? "the reply has more than 1 MiB of metadata, too much for the socket"
                        : "the reply's header held nonsense; it was dropped");
    }
    response.message = &wire.message;
    rs_ring_count(&session->proxy->ring, session->number, RS_RECEIVED, 1);
    if (!wait->call->streaming) {
        const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)wait->request;

        control_reply_lease(session, wait->call, &response.base, &held, request->request_id, false);
        return 1;
    }
    rc = control_stream_lease(session, wait->call, &response.base, &held, 0);
    if (rc == -ENOMEM)
        return fail(wait, rc, "out of memory; the reply was dropped");
    wait->stream.credits--;
    wait->idle = rc < 0; /* the connection ends in a moment */
    return 0;
}

/* 1: answered; 0: it was no reply to this call, or the stream goes on. */
static int accept_reply(struct wait *wait, struct session_call *call,
                        const struct rs_pending *pending, uint64_t ticket,
                        const struct rs_lease *lease)
{
    struct session *session = wait->session;
    struct rs_message header;
    int rc = rs_message_load(&header, &lease->ring->slots[lease->slot],
                             control_body(lease->ring, lease->slot),
                             rs_ring_slot_bytes(lease->ring, lease->slot));

    /* After the header: the cell still names the slot, so what was read was this reply's. */
    if (!rs_box_take(session_box(session), pending->cell, ticket))
        return 0;
    if (rc == 0) {
        if (header.call_id != call->id || rs_call_kind(header.call) != RS_CALL_REPLY ||
            rs_call_number(header.call) != (call->number & RS_CALL_NUMBER_MASK)) {
            (void)rs_ring_release(lease); /* of another call, whose callee came late */
            return 0;
        }
        call->number++;
        if (rs_call_status(header.call) != RS_STATUS_OK) {
            answer_status(wait, lease, &header);
            (void)rs_ring_release(lease);
            wait->made = NULL;
            session_call_end(session, call);
            return 1;
        }
    } else {
        header.call = 0; /* `give` finds the same */
    }
    bool last = (rs_call_flags(header.call) & RS_CALL_LAST) != 0;
    rc = give(wait, call, lease);
    RS_FAILPOINT(session_reply_given);
    if (rc == 0 && !last)
        return 0;
    if (rc == 0)
        conn_stream_end(wait->call);
    wait->made = NULL;
    if (last)
        session_call_end(session, call);
    else
        session_call_cancel(session, call);
    return 1;
}

static int fail_gone(struct wait *wait, struct session_call *call)
{
    wait->made = NULL;
    /* A request whose time is over may have been let go for it before the caller's timer runs. */
    if (uv_hrtime() >= call->deadline_ns)
        conn_reply_error(wait->call, -RINGSIDE_E_TIMEOUT,
                         "the time of the call is over; stage %s gave no reply within it",
                         call->ring->layout.stage);
    else
        conn_reply_error(wait->call, -RINGSIDE_E_UNAVAILABLE,
                         "no reply will come: a worker of stage %s died with the call, let it go "
                         "without a reply, or it was dropped",
                         call->ring->layout.stage);
    session_call_end_early(wait->session, call);
    return 1;
}

static int try_reply(struct wait *wait)
{
    struct session *session = wait->session;
    struct session_call *call = wait->made;
    struct rs_box *box = session_box(session);

    for (int i = 0; i < BURST_MAX && !wait->idle; i++) {
        struct rs_pending pending = {.own = &session->proxy->ring,
                                     .client = session->number,
                                     .holder = call->holder,
                                     .slot = call->slot,
                                     .generation = call->generation,
                                     .ring = call->ring,
                                     .cell = call->first + call->number % call->credits};
        struct rs_lease lease;
        uint64_t ticket;

        if (wait->call->streaming && wait->stream.credits == 0) {
            wait->idle = true; /* until Credit */
            return 0;
        }
        if (conn_is_behind(session->conn))
            break;
        rs_wait_arm(&box->posted, RS_WAIT_EVENT);
        enum rs_box_content content = rs_call_look(&pending, &ticket, &lease);
        if (content == RS_BOX_GONE)
            return fail_gone(wait, call);
        if (content == RS_BOX_EMPTY || content == RS_BOX_UNSEALED || content == RS_BOX_TAKEN_BACK)
            return 0;
        if (content != RS_BOX_REPLY)
            (void)rs_box_take(box, pending.cell, ticket);
        else if (accept_reply(wait, call, &pending, ticket, &lease) != 0)
            return 1;
    }
    control_look_again(session->proxy);
    return 0;
}

/* ---- the request ---- */

static bool is_fine(struct wait *wait, const struct route *route)
{
    const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)wait->request;
    size_t bytes = strlen(request->method);

    if (route == NULL)
        conn_reply_error(wait->call, -RINGSIDE_E_NO_ROUTE, "stage %s has no route \"%.63s\"",
                         wait->session->proxy->config.stage, request->route);
    else if (route->config->to_count != 1)
        conn_reply_error(wait->call, -RINGSIDE_E_INVALID,
                         "route \"%s\" leads to %u stages; a call goes to one: use a route with "
                         "one target",
                         route->config->name, (unsigned)route->config->to_count);
    else if (bytes < 1 || bytes > RS_METHOD_MAX)
        conn_reply_error(wait->call, -RINGSIDE_E_INVALID, "method \"%.70s\": a name of 1..%d bytes",
                         request->method, RS_METHOD_MAX);
    else
        return control_check_options(wait->call, request->options) == 0;
    return false;
}

/* Where replies will be held. 1: known; 0: asked for; else answered. */
static int find_answerer(struct wait *wait, const struct route *route, struct answerer **answerer)
{
    struct session *session = wait->session;
    unsigned destination = route->destinations[0];

    *answerer = NULL;
    if (destination == session->proxy->routes.self)
        return 1;
    int rc = peers_answerer(session, destination, false, !wait->asked, answerer);
    wait->asked |= rc == 0;
    if (rc < 0)
        conn_reply_error(wait->call, rc,
                         "the sidecar of unix:%s gives no place for replies in its ring: %s",
                         route->config->to[0],
                         rc == -RINGSIDE_E_LIMIT ? "raise clients.max there" : rs_strerror(rc));
    return rc;
}

/* The shorter of what the caller waits and what it says. 0: none. */
static uint64_t ttl_of(const struct wait *wait, const struct route *route)
{
    const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)wait->request;
    uint64_t ttl_ns = route->config->ttl_ms * 1000000;
    int64_t now_ns = (int64_t)uv_hrtime(), deadline_ns = wait->call->deadline_ns;

    if (request->options != NULL && request->options->ttl_ns != 0)
        ttl_ns = request->options->ttl_ns;
    if (deadline_ns == INT64_MAX)
        return ttl_ns;
    uint64_t left_ns = deadline_ns > now_ns ? (uint64_t)(deadline_ns - now_ns) : 1;
    return ttl_ns == 0 || left_ns < ttl_ns ? left_ns : ttl_ns;
}

/* Never 0, and unlike the one before also where it begins anew. */
static uint32_t next_count(struct session_calls *calls)
{
    if (++calls->count == 0)
        ++calls->count;
    return calls->count;
}

/* Of a request whose header is stored. */
static uint64_t deadline_of(const struct rs_slot *slot)
{
    uint64_t publish_ns, ttl_ns, deadline_ns;

    rs_message_times(slot, &publish_ns, &ttl_ns);
    if (ttl_ns == 0 || __builtin_add_overflow(publish_ns, ttl_ns, &deadline_ns))
        return UINT64_MAX;
    return deadline_ns;
}

/* 0, or a negative error: answered. */
static int send_request(struct wait *wait, const struct route *route, const struct rs_loan *loan,
                        struct session_call *call)
{
    const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)wait->request;
    struct session *session = wait->session;
    struct rs_ring *own = &session->proxy->ring;
    struct call_words words = {
        .method = request->method,
        .id = rs_load_relaxed(&own->clients[session->number].nonce) << 32 |
              next_count(session->calls),
        .call = rs_call_request(call->first, call->credits, session->number, call->holder),
        .admission = call->answerer != NULL ? call->answerer->nonce
                                            : rs_load_relaxed(&own->clients[session->number].nonce),
    };
    uint64_t bytes;

    int rc = control_complete(session, wait->call, loan, request->options, ttl_of(wait, route),
                              &words, &bytes);
    if (rc < 0)
        return rc;
    call->deadline_ns = deadline_of(&own->slots[loan->slot]);
    rc = control_publish(session->proxy, session->number, loan, route);
    if (rc < 0) {
        conn_reply_error(wait->call, rc, "the loan was lost meanwhile");
        return rc;
    }
    if (session->held > 0)
        session->held--;
    call->id = words.id;
    call->slot = loan->slot;
    call->generation = loan->generation;
    rs_ring_count(own, session->number, RS_SENT, 1);
    rs_ring_count(own, session->number, RS_SENT_BYTES, bytes);
    rs_ring_count(own, session->number, RS_CALLS, 1);
    return 0;
}

static int make_call(struct wait *wait, const struct route *route, const struct rs_loan *loan,
                     struct answerer *answerer)
{
    const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)wait->request;
    struct session *session = wait->session;
    unsigned credits = wait->call->streaming ? request->credits : 1;
    struct session_calls *calls = session_calls_open(session);

    if (calls == NULL)
        return fail(wait, -ENOMEM, "out of memory");
    session_calls_reap(session);
    struct session_call *call = session_call_take(calls, credits);
    if (call == NULL) {
        conn_reply_error(wait->call, -RINGSIDE_E_LIMIT,
                         "no room for %u more replies: this session awaits up to %u at a time "
                         "(calls in progress x credits); end some calls, or attach once more",
                         credits, session->call_cells);
        return 1;
    }
    call->answerer = answerer;
    call->ring = answerer != NULL ? answerer->ring : &session->proxy->ring;
    call->holder = answerer != NULL ? answerer->client : session->number;
    if (answerer != NULL)
        answerer->uses++;
    if (send_request(wait, route, loan, call) < 0) {
        session_call_end(session, call);
        return 1;
    }
    wait->made = call;
    wait->kind = WAIT_REPLY;
    wait->again = try_reply;
    RS_FAILPOINT(session_called);
    return 0;
}

static int answer_again(struct wait *wait, const struct session_lease *lease)
{
    Ringside__V1__CallResponse response = RINGSIDE__V1__CALL_RESPONSE__INIT;
    struct session *session = wait->session;
    struct wire_message wire;
    struct rs_lease held;

    if (!session_has_ring(session, lease) || session_delivery(session, lease, &held) < 0)
        return fail(wait, -RINGSIDE_E_STATE,
                    "the request id was answered before and its reply is no longer held; use a "
                    "fresh id");
    const struct answerer *answerer = lease->reply ? session_answerer(session, lease->ring) : NULL;
    int rc = wire_message_fill(
        &wire, session->proxy, lease,
        answerer != NULL ? answerer->body_path : session->proxy->files.body_path, 0);
    if (rc < 0)
        return fail(wait, rc, "the reply's header holds nonsense");
    response.message = &wire.message;
    conn_reply(wait->call, &response.base, NULL, 0);
    return 1;
}

static int try_call(struct wait *wait)
{
    const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)wait->request;
    struct session *session = wait->session;
    const struct route *route = routes_find(&session->proxy->routes, request->route);
    const struct session_lease *before =
        wait->call->streaming ? NULL : session_recall(session, request->request_id);
    struct answerer *answerer;
    struct rs_loan loan;

    if (before != NULL)
        return answer_again(wait, before);
    if (control_find_loan(session, wait->call, request->lease, &loan) < 0 || !is_fine(wait, route))
        return 1;
    int rc = control_room(wait, route, false);
    if (rc != 0)
        return rc > 0;
    rc = find_answerer(wait, route, &answerer);
    if (rc <= 0)
        return rc < 0;
    rc = control_room(wait, route, true);
    return rc == 0 ? make_call(wait, route, &loan, answerer) : rc > 0;
}

static bool may_call(const struct session *session, struct conn_call *call)
{
    if (session->call_cells == 0)
        conn_reply_error(call, -RINGSIDE_E_UNIMPLEMENTED,
                         "this session took descriptors at Attach and left no cells of its reply "
                         "box to the sidecar: attach with call_cells, or call in memory");
    return session->call_cells > 0;
}

void control_call(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *message = conn_decode(call, &ringside__v1__call_request__descriptor);
    const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)message;

    if (message == NULL)
        return;
    if (!may_call(session, call)) {
        conn_free_message(message);
    } else if (request->credits != 0) {
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "%u credits; Call gives one reply: leave them out, or use CallStream",
                         request->credits);
        conn_free_message(message);
    } else {
        control_wait(session, call, message, try_call, WAIT_ROOM);
    }
}

static int begin_stream(struct wait *wait)
{
    const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)wait->request;

    wait->stream.id = request->request_id;
    wait->stream.credits = request->credits;
    wait->again = try_call;
    return try_call(wait);
}

void control_call_stream(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *message = conn_decode(call, &ringside__v1__call_request__descriptor);
    const Ringside__V1__CallRequest *request = (const Ringside__V1__CallRequest *)message;

    if (message == NULL)
        return;
    if (!may_call(session, call)) {
        /* Answered. */
    } else if (request->request_id == 0) {
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "request_id is 0; a stream needs one, by which Credit names it");
    } else if (request->credits < 1 || request->credits > RS_BOX_CELLS) {
        conn_reply_error(call, -RINGSIDE_E_LIMIT, "%u credits; a call begins with 1..%d",
                         request->credits, RS_BOX_CELLS);
    } else if (control_find_stream(session, request->request_id) != NULL) {
        conn_reply_error(call, -RINGSIDE_E_IN_USE,
                         "a stream with request id %llu is open in this session; end it with "
                         "Credit, or use a fresh id",
                         (unsigned long long)request->request_id);
    } else {
        control_wait(session, call, message, begin_stream, WAIT_ROOM);
        return;
    }
    conn_free_message(message);
}

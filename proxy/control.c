/* SPDX-License-Identifier: Apache-2.0 */
/* The control service: which method does what, and who may call it. */
#include "proxy/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "proto/err.h"
#include "proto/fdpass.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"

struct control {
    struct sessions *sessions;
    struct waits *waits;
};

struct sessions *control_sessions(struct proxy *proxy)
{
    return proxy->control->sessions;
}

struct waits *control_waits(struct proxy *proxy)
{
    return proxy->control->waits;
}

/* ---- Open ---- */

/* The own inbox is a destination like any other to who asks for it. */
static void open_own_inbox(struct session *session, struct conn_call *call)
{
    struct proxy *proxy = session->proxy;
    Ringside__V1__OpenResponse response = RINGSIDE__V1__OPEN_RESPONSE__INIT;
    Ringside__V1__Descriptor kinds[2] = {RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE,
                                         RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT};
    Ringside__V1__Ring ring;
    uint8_t incarnation[16];
    int fds[2] = {ring_files_control_fd(&proxy->files, -1), -1};

    if (fds[0] >= 0)
        fds[1] = fcntl(proxy->inbox_event, F_DUPFD_CLOEXEC, 0);
    if (fds[1] < 0) {
        rs_fd_close(fds, 2);
        conn_reply_error(call, -EMFILE, "cannot pass the inbox's descriptors");
        return;
    }
    session_fill_ring(proxy, &ring, incarnation);
    ring.client = session->number;
    response.ring = &ring;
    response.n_descriptors = 2;
    response.descriptors = kinds;
    conn_reply(call, &response.base, fds, 2);
}

static void open_target(struct session *session, struct conn_call *call)
{
    struct proxy *proxy = session->proxy;
    Ringside__V1__OpenRequest *request =
        (Ringside__V1__OpenRequest *)conn_decode(call, &ringside__v1__open_request__descriptor);

    if (request == NULL)
        return;
    if (!session->locked) {
        conn_reply_error(call, -RINGSIDE_E_STATE,
                         "this session took no descriptors at Attach (want_descriptors)");
    } else if (request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_RING &&
               request->ring > 0 && request->ring < RS_MAX_RINGS) {
        peers_open_ring(proxy, call, session->number, session->name, request->ring);
    } else if (request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_DESTINATION &&
               request->destination == proxy->routes.self &&
               request->destination != RS_NO_DESTINATION) {
        open_own_inbox(session, call);
    } else if (request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_DESTINATION &&
               request->destination < RS_MAX_DESTINATIONS) {
        peers_open_destination(proxy, call, session->number, request->destination);
    } else if (request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_REPLY &&
               request->reply < RS_MAX_DESTINATIONS) {
        peers_open_answering(proxy, call, session->name, request->reply, true);
    } else if (request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_TICKETS &&
               request->tickets < RS_MAX_DESTINATIONS) {
        peers_open_answering(proxy, call, session->name, request->tickets, false);
    } else {
        conn_reply_error(
            call, -RINGSIDE_E_INVALID,
            "Open takes the number of a peer's ring (1..%u) or of a destination (0..%u); got %u",
            RS_MAX_RINGS - 1, RS_MAX_DESTINATIONS - 1,
            request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_RING ? request->ring
            : request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_DESTINATION
                ? request->destination
            : request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_REPLY ? request->reply
            : request->target_case == RINGSIDE__V1__OPEN_REQUEST__TARGET_TICKETS
                ? request->tickets
                : 0);
    }
    conn_free_message(&request->base);
}

/* ---- Drain ---- */

static void drain(struct proxy *proxy, struct conn_call *call)
{
    Ringside__V1__DrainRequest *request =
        (Ringside__V1__DrainRequest *)conn_decode(call, &ringside__v1__drain_request__descriptor);

    if (request == NULL)
        return;
    uint64_t timeout_ms = (request->timeout_ns + 999999) / 1000000;
    if (request->timeout_ns == 0)
        timeout_ms = proxy->config.drain_timeout_ms;
    conn_free_message(&request->base);
    proxy_drain_for(proxy, call, timeout_ms);
}

/* ---- dispatch ---- */

typedef void session_method(struct session *session, struct conn_call *call);
typedef void proxy_method(struct proxy *proxy, struct conn_call *call);

static const struct method {
    const char *name;
    session_method *with_session;
    proxy_method *without; /* works on a connection that is not attached */
    bool streams;
} methods[] = {
    {.name = "Receive", .with_session = control_receive},
    {.name = "ReceiveStream", .with_session = control_receive_stream, .streams = true},
    {.name = "Credit", .with_session = control_credit},
    {.name = "Call", .with_session = control_call},
    {.name = "CallStream", .with_session = control_call_stream, .streams = true},
    {.name = "Reply", .with_session = control_answer},
    {.name = "Cancelled", .with_session = control_cancelled},
    {.name = "Release", .with_session = control_release},
    {.name = "Loan", .with_session = control_loan},
    {.name = "Send", .with_session = control_send},
    {.name = "Share", .with_session = control_share},
    {.name = "Abandon", .with_session = control_abandon},
    {.name = "Forward", .with_session = control_forward},
    {.name = "Nack", .with_session = control_nack},
    {.name = "Read", .with_session = control_read},
    {.name = "AddReaders", .with_session = control_add_readers},
    {.name = "Free", .with_session = control_free},
    {.name = "Open", .with_session = open_target},
    {.name = "Status", .without = report_status},
    {.name = "List", .without = report_list},
    {.name = "Describe", .without = report_describe},
    {.name = "Drain", .without = drain},
};

static const struct method *find(const char *name)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(methods[i].name, name) == 0)
            return &methods[i];
    }
    return NULL;
}

/* Whether the caller expects what the method gives; else answers. */
static bool is_awaited(struct conn_call *call, bool streams)
{
    if (call->streaming && !streams)
        conn_reply_error(call, -RINGSIDE_E_UNIMPLEMENTED,
                         "%.64s gives one answer and no stream: its request's frame takes no flags",
                         call->method);
    else if (!call->streaming && streams)
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "%.64s streams its answers: set the flag \"remote closed\" (1) in the "
                         "request's frame",
                         call->method);
    else
        return true;
    return false;
}

void control_dispatch(struct conn_call *call)
{
    struct proxy *proxy = conn_proxy(call->conn);
    const struct method *method = find(call->method);

    if (method == NULL && strcmp(call->method, "Attach") != 0) {
        conn_reply_error(call, -RINGSIDE_E_UNIMPLEMENTED, "no method %.64s in ringside.v1.Control",
                         call->method);
    } else if (!is_awaited(call, method != NULL && method->streams)) {
        /* Answered. */
    } else if (method == NULL) {
        session_attach(call);
    } else if (method->without != NULL) {
        method->without(proxy, call);
    } else {
        struct session *session = session_of(call->conn);
        if (session == NULL)
            conn_reply_error(call, -RINGSIDE_E_STATE, "call Attach first on this connection");
        else if (proxy_is_damaged(proxy))
            conn_reply_error(call, -RINGSIDE_E_CORRUPT,
                             "the ring lost memory (a file was truncated); restart the sidecar");
        else
            method->with_session(session, call);
    }
}

/* ---- life ---- */

int control_open(struct proxy *proxy)
{
    proxy->control = calloc(1, sizeof *proxy->control);
    if (proxy->control == NULL)
        return -ENOMEM;
    proxy->control->sessions = calloc(1, sizeof *proxy->control->sessions);
    proxy->control->waits = waits_create(proxy);
    return proxy->control->sessions != NULL && proxy->control->waits != NULL ? 0 : -ENOMEM;
}

void control_close(struct proxy *proxy)
{
    if (proxy->control != NULL)
        waits_close(proxy->control->waits);
}

void control_destroy(struct proxy *proxy)
{
    if (proxy->control == NULL)
        return;
    if (proxy->control->sessions != NULL)
        sessions_destroy(proxy);
    free(proxy->control->waits);
    free(proxy->control);
    proxy->control = NULL;
}

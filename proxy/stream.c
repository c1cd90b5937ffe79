/* SPDX-License-Identifier: Apache-2.0 */
/* ReceiveStream and Credit: messages as they come, as many as the caller has said that it can hold.
 */
#include <errno.h>

#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/proxy.h"

#define CREDITS_MAX SESSION_STREAMED /* so that an equal stream can give all of them again */
#define BURST_MAX   64               /* messages before others get their turn */

static int fail(struct wait *wait, int error, const char *text)
{
    conn_reply_error(wait->call, error, "%s", text);
    return 1;
}

/* 0: sent, and a credit is spent; 1: the stream is over. */
static int give(struct wait *wait, const struct rs_lease *held, bool again)
{
    Ringside__V1__ReceiveResponse response = RINGSIDE__V1__RECEIVE_RESPONSE__INIT;
    struct session *session = wait->session;
    struct session_lease lease = session_lease_from(held);
    struct wire_message wire;

    if (control_tell(session, wait->call, held, &wire) < 0)
        return 1;
    response.message = &wire.message;
    int rc =
        again ? conn_stream_send(wait->call, &response.base, NULL, NULL)
              : control_stream_lease(session, wait->call, &response.base, &lease, wait->stream.id);
    if (rc == -ENOMEM)
        return fail(wait, rc, "out of memory; the message went back to the inbox");
    if (rc < 0) {
        wait->idle = true; /* the connection ends in a moment */
        return 0;
    }
    wait->stream.credits--;
    if (!again)
        rs_ring_count(&session->proxy->ring, session->number, RS_RECEIVED, 1);
    return 0;
}

/* What an earlier stream of this request id gave and the session still holds. */
static bool next_again(struct wait *wait, struct rs_lease *held)
{
    struct session *session = wait->session;

    while (wait->stream.again != wait->stream.again_end) {
        const struct session_lease *lease =
            session_streamed(session, wait->stream.id, wait->stream.again++);
        if (lease != NULL && session_has_ring(session, lease) &&
            session_delivery(session, lease, held) == 0)
            return true;
    }
    return false;
}

static int try_stream(struct wait *wait)
{
    struct session *session = wait->session;
    struct rs_lease held;

    for (int i = 0; i < BURST_MAX && !wait->idle; i++) {
        if (wait->stream.credits == 0) {
            wait->idle = true; /* until Credit */
            return 0;
        }
        if (conn_is_behind(session->conn))
            break;
        bool again = next_again(wait, &held);
        int rc = again ? 1 : control_take(session, &held);
        if (rc < 0)
            return fail(wait, rc, "the inbox's cells make no sense; repair was asked for");
        if (rc == 0)
            return 0;
        if (give(wait, &held, again) != 0)
            return 1;
    }
    control_look_again(session->proxy);
    return 0;
}

static int begin(struct wait *wait)
{
    const Ringside__V1__ReceiveStreamRequest *request =
        (const Ringside__V1__ReceiveStreamRequest *)wait->request;
    struct session *session = wait->session;

    wait->stream.id = request->request_id;
    wait->stream.credits = request->credits;
    wait->stream.again_end = session->next_streamed;
    wait->stream.again = session->next_streamed - SESSION_STREAMED;
    wait->again = try_stream;
    return try_stream(wait);
}

static bool is_fine(struct session *session, struct conn_call *call,
                    const Ringside__V1__ReceiveStreamRequest *request)
{
    if (request->request_id == 0)
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "request_id is 0; a stream needs one, by which Credit names it");
    else if (request->credits > CREDITS_MAX)
        conn_reply_error(call, -RINGSIDE_E_LIMIT,
                         "%u credits; a stream has at most %u, and Credit gives more later",
                         request->credits, CREDITS_MAX);
    else if (control_find_stream(session, request->request_id) != NULL)
        conn_reply_error(call, -RINGSIDE_E_IN_USE,
                         "a stream with request id %llu is open in this session; end it with "
                         "Credit, or use a fresh id",
                         (unsigned long long)request->request_id);
    else if (control_open_inbox(session) < 0)
        conn_reply_error(call, -ENOMEM, "out of memory");
    else
        return true;
    return false;
}

void control_receive_stream(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request =
        conn_decode(call, &ringside__v1__receive_stream_request__descriptor);

    if (request == NULL)
        return;
    if (is_fine(session, call, (const Ringside__V1__ReceiveStreamRequest *)request))
        control_wait(session, call, request, begin, WAIT_MESSAGE);
    else
        conn_free_message(request);
}

void control_credit(struct session *session, struct conn_call *call)
{
    Ringside__V1__Empty response = RINGSIDE__V1__EMPTY__INIT;
    Ringside__V1__CreditRequest *request =
        (Ringside__V1__CreditRequest *)conn_decode(call, &ringside__v1__credit_request__descriptor);

    if (request == NULL)
        return;
    uint64_t id = request->request_id;
    uint32_t more = request->credits;
    bool end = request->end;
    conn_free_message(&request->base);
    struct wait *stream = id != 0 ? control_find_stream(session, id) : NULL;
    if (stream == NULL) {
        conn_reply_error(call, -RINGSIDE_E_STATE,
                         "no stream with request id %llu is open in this session (any more)",
                         (unsigned long long)id);
    } else if (more > CREDITS_MAX - stream->stream.credits) {
        conn_reply_error(call, -RINGSIDE_E_LIMIT,
                         "%u credits more, %u are left; a stream has at most %u", more,
                         stream->stream.credits, CREDITS_MAX);
    } else {
        conn_reply(call, &response.base, NULL, 0);
        stream->stream.credits += more;
        if (end)
            control_end_stream(stream);
        else
            control_wait_again(stream);
    }
}

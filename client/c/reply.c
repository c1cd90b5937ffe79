/* SPDX-License-Identifier: Apache-2.0 */
/* Answering: replies sealed as held by the caller, error replies, and what becomes of a call
 * without an answer. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <string.h>

#define SPINS_FIRST 64   /* looks for room before a sleep */
#define TEXT_MAX    1024 /* bytes of an error reply's text */

/* A held request and what its caller said in it. */
struct request {
    struct rs_lease lease;
    struct peer *peer; /* ring of the caller */
    uint64_t call;     /* call word */
    uint64_t id;
    uint64_t admission; /* nonce of the caller in the own ring */
};

static void request_of(const struct ringside_message *message, struct request *request)
{
    lease_of(message, &request->lease);
    request->peer = (struct peer *)request->lease.ring;
    request->call = message->private_[MESSAGE_CALL];
    request->id = message->call_id;
    request->admission = rs_load_relaxed(
        &request->peer->ring.slots[request->lease.slot].header[RS_HEADER_ADMISSION]);
}

static bool is_held_call(const struct ringside *connection, const struct ringside_message *message)
{
    return message != NULL && message->private_[MESSAGE_TAG] == tag_of(connection, TAG_HELD) &&
           message->method != NULL;
}

/* By the entries in both rings: who had a number then may be dead, and another have it. */
static bool caller_is_there(struct ringside *connection, const struct request *request)
{
    return rs_client_is_there(&request->peer->ring, rs_call_caller(request->call),
                              request->id >> 32, UINT32_MAX) &&
           rs_client_is_there(&connection->own.ring, rs_call_holder(request->call),
                              request->admission, UINT64_MAX);
}

static bool time_is_over(const struct ringside_message *message)
{
    return message->ttl_ns != 0 && (uint64_t)rs_now_ns() - message->publish_ns > message->ttl_ns;
}

int ringside_is_call(const struct ringside_message *message)
{
    return message != NULL && message->private_[MESSAGE_TAG] != 0 && message->method != NULL;
}

SELDOM static int fail_request(const struct ringside *connection)
{
    return fail_with(connection, -RINGSIDE_E_STATE,
                     "not a call that this connection holds and has not answered to the end");
}

int ringside_cancelled(struct ringside *connection, const struct ringside_message *message)
{
    struct request request;

    /* Its words are not mapped there. */
    if (UNLIKELY(rs_load_relaxed(&connection->down) == RINGSIDE_E_FORKED))
        return fail_down(connection);
    if (!is_held_call(connection, message))
        return fail_request(connection);
    request_of(message, &request);
    return rs_request_is_cancelled(&request.lease) || !caller_is_there(connection, &request) ||
           time_is_over(message);
}

/* ---- out with it ---- */

SELDOM static int fail_unwanted(const struct ringside *connection)
{
    return fail_with(connection, -RINGSIDE_E_CANCELLED,
                     "nobody waits for replies to this call any more: release it");
}

SELDOM static int fail_room(struct ringside *connection, const struct request *request, int error)
{
    return fail(connection, error,
                "the caller has not read the last %u replies of this call (its credits)",
                rs_call_credits(request->call));
}

/* The caller has not read as many replies as the call has credits. */
SELDOM static int wait_for_room(struct ringside *connection, const struct ringside_message *message,
                                const struct request *request, const struct rs_reply *reply,
                                int64_t timeout_ns)
{
    rs_word32 *room = &reply->box->room;
    int64_t deadline_ns = deadline_after(timeout_ns);
    int rc = -RINGSIDE_E_FULL;

    for (unsigned spins = 0; spins < SPINS_FIRST && rc == -RINGSIDE_E_FULL; spins++) {
        rs_pause();
        rc = rs_reply_publish(reply);
    }
    while (rc == -RINGSIDE_E_FULL) {
        uint32_t armed = rs_wait_arm(room, RS_WAIT_FUTEX);

        rc = rs_reply_publish(reply);
        if (rc != -RINGSIDE_E_FULL)
            return rc;
        if (ringside_cancelled(connection, message) != 0)
            return -RINGSIDE_E_CANCELLED;
        int64_t left_ns = time_left(deadline_ns);
        if (left_ns == 0)
            return fail_room(connection, request,
                             timeout_ns == 0 ? -RINGSIDE_E_FULL : -RINGSIDE_E_TIMEOUT);
        link_tend(connection, left_ns < 0 || left_ns > CALL_TIMEOUT_NS);
        if (is_down(connection))
            return fail_down(connection);
        rs_wait_sleep(room, armed, left_ns);
        rc = rs_reply_publish(reply);
    }
    return rc;
}

/* The loan is spent when this returns 0, -RINGSIDE_E_STATE or -RINGSIDE_E_CANCELLED. */
static int send_reply(struct ringside *connection, struct ringside_message *message,
                      const struct rs_loan *loan, uint8_t *base, struct rs_message *header,
                      unsigned status, bool last, int64_t timeout_ns)
{
    struct rs_ring *own = &connection->own.ring;
    uint64_t number = message->private_[MESSAGE_REPLIES];
    struct request request;

    request_of(message, &request);
    unsigned credits = rs_call_credits(request.call);
    /* Whether they are the caller's yet is looked at after the seal. */
    if (UNLIKELY(rs_call_caller(request.call) >= request.peer->ring.layout.client_count ||
                 rs_call_holder(request.call) >= own->layout.client_count)) {
        (void)rs_ring_abandon(own, own->client, loan);
        return fail_unwanted(connection);
    }
    struct rs_reply reply = {
        .ring = own,
        .loan = *loan,
        .owner = own->client,
        .holder = (uint16_t)rs_call_holder(request.call),
        .box = &request.peer->ring.boxes[rs_call_caller(request.call)],
        .cell = rs_call_first_cell(request.call) + (unsigned)(credits == 1 ? 0 : number % credits),
        .event_fd =
            request.peer == &connection->own ? connection->event_fd : request.peer->event_fd,
    };
    header->ttl_ns = 0;
    header->publish_ns = (uint64_t)rs_now_coarse_ns();
    header->call_id = request.id;
    header->call = rs_call_reply(status, last ? RS_CALL_LAST : 0, (uint32_t)number);
    header->method_offset = 0;
    header->method_bytes = 0;
    header->admission = request.admission;
    rs_message_store(header, &own->slots[loan->slot], base);
    int rc = rs_reply_publish(&reply);
    if (UNLIKELY(rc == -RINGSIDE_E_FULL))
        rc = wait_for_room(connection, message, &request, &reply, timeout_ns);
    if (UNLIKELY(rc == -RINGSIDE_E_STATE))
        return fail_with(connection, rc, "the loan was taken back by the sidecar");
    if (UNLIKELY(rc == -RINGSIDE_E_CANCELLED)) {
        (void)rs_ring_abandon(own, own->client, loan);
        return fail_unwanted(connection);
    }
    if (UNLIKELY(rc < 0))
        return rc;
    /* After the seal: whoever gives up or dies later finds the reply. */
    bool gone = !caller_is_there(connection, &request);
    if ((UNLIKELY(gone) || UNLIKELY(rs_request_is_cancelled(&request.lease))) &&
        rs_reply_take_back(&reply, gone))
        return fail_unwanted(connection);
    RS_FAILPOINT(replied);
    message->private_[MESSAGE_REPLIES] = (number + 1) | (last ? MESSAGE_ANSWERED : 0);
    rs_ring_count(own, own->client, RS_SENT, 1);
    rs_ring_count(own, own->client, RS_REPLIES, 1);
    rs_ring_count(own, own->client, RS_SENT_BYTES, message_data_bytes(header));
    return 0;
}

IN_ONE_PIECE int ringside_reply(struct ringside *connection, struct ringside_message *message,
                                struct ringside_slot *slot, const struct ringside_options *options,
                                int last)
{
    struct rs_message header;
    struct rs_loan loan;

    if (is_down(connection))
        return fail_down(connection);
    if (!is_held_call(connection, message) ||
        (message->private_[MESSAGE_REPLIES] & MESSAGE_ANSWERED) != 0)
        return fail_request(connection);
    int rc = slot_loan(connection, slot, &loan);
    if (rc < 0)
        return rc;
    struct body body = body_of(&connection->own.ring, loan.slot);
    rc = slot_describe(connection, slot, &body, options, NULL, 0, &header);
    if (rc < 0)
        return rc;
    rc = send_reply(connection, message, &loan, body.base, &header, RINGSIDE_STATUS_OK, last != 0,
                    options != NULL ? options->timeout_ns : RINGSIDE_FOREVER);
    if (rc == 0 || rc == -RINGSIDE_E_STATE || rc == -RINGSIDE_E_CANCELLED)
        slot->private_[SLOT_TAG] = 0;
    return rc;
}

/* ---- errors ---- */

static int reply_error(struct ringside *connection, struct ringside_message *message,
                       unsigned status, const char *text, int64_t timeout_ns)
{
    struct rs_ring *own = &connection->own.ring;
    uint32_t text_bytes = text != NULL ? (uint32_t)strnlen(text, TEXT_MAX) : 0;
    struct rs_message header = {.tensor_count = 1};
    int64_t deadline_ns = deadline_after(timeout_ns);
    struct rs_loan loan;
    uint64_t bytes;

    header.tensors[0] = (struct rs_tensor){.dtype = RS_BYTES, .rank = 1};
    int rc = rs_message_plan(&header, text_bytes, &bytes);
    if (rc == 0)
        rc = loan_take(connection, bytes, timeout_ns, &loan);
    if (rc < 0)
        return rc;
    uint8_t *base = body_of(own, loan.slot).base;
    if (text_bytes > 0)
        memcpy(base + header.metadata_offset, text, text_bytes);
    rc = send_reply(connection, message, &loan, base, &header, status, true,
                    timeout_ns == 0 ? 0 : time_left(deadline_ns));
    if (rc < 0 && rc != -RINGSIDE_E_STATE && rc != -RINGSIDE_E_CANCELLED)
        (void)rs_ring_abandon(own, own->client, &loan);
    return rc;
}

int ringside_reply_error(struct ringside *connection, struct ringside_message *message,
                         unsigned status, const char *text)
{
    int64_t timeout_ns = CALL_TIMEOUT_NS;

    if (is_down(connection))
        return fail_down(connection);
    if (!is_held_call(connection, message) ||
        (message->private_[MESSAGE_REPLIES] & MESSAGE_ANSWERED) != 0)
        return fail_request(connection);
    if (status == RINGSIDE_STATUS_OK || status > 255)
        return fail(connection, -RINGSIDE_E_INVALID,
                    "status %u of an error reply: 1..255 (enum ringside_status)", status);
    if (message->ttl_ns != 0) {
        int64_t left_ns = (int64_t)(message->publish_ns + message->ttl_ns - (uint64_t)rs_now_ns());

        if (left_ns < timeout_ns)
            timeout_ns = left_ns > 0 ? left_ns : 0;
    }
    return reply_error(connection, message, status, text, timeout_ns);
}

/* ---- without an answer ---- */

int request_release(struct ringside *connection, struct ringside_message *message)
{
    uint64_t call = message->private_[MESSAGE_CALL];
    struct rs_lease lease;
    bool answered = (message->private_[MESSAGE_REPLIES] & MESSAGE_ANSWERED) != 0;

    /* One whose time is over is let go: its caller tells by the clock, and no other error comes first. */
    if (!answered && !time_is_over(message))
        answered = reply_error(connection, message, RINGSIDE_STATUS_INTERNAL,
                               "the callee released the call without a last reply", 0) == 0;
    lease_of(message, &lease);
    message->private_[MESSAGE_TAG] = 0;
    int rc = lease_release(connection, &lease);
    if (UNLIKELY(!answered))
        request_wake_caller(connection, (struct peer *)lease.ring, call);
    return rc;
}

void request_wake_caller(struct ringside *connection, struct peer *peer, uint64_t call)
{
    unsigned caller = rs_call_caller(call);

    if (caller < peer->ring.layout.client_count)
        rs_wait_wake(&peer->ring.boxes[caller].posted,
                     peer == &connection->own ? connection->event_fd : peer->event_fd);
}

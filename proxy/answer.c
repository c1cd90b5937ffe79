/* SPDX-License-Identifier: Apache-2.0 */
/* Reply and Cancelled for those who let the sidecar take every step, and what becomes of a call
 * without an answer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "proto/box.h"
#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/wait.h"
#include "proxy/control.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"

#define TEXT_MAX 1024 /* bytes of an error reply's text */

static const Ringside__V1__Empty empty = RINGSIDE__V1__EMPTY__INIT;

/* A held call and what its caller said in it. */
struct request {
    struct rs_lease held;
    struct rs_message header; /* a copy that was checked */
};

/* How far the answer to a held call is. */
struct session_served {
    struct rs_ring *ring;
    uint32_t slot, generation;
    uint32_t number; /* of the next reply */
    bool answered;   /* to the end */
    bool torn;       /* an earlier sidecar may have sent some of its replies */
};

/* ---- what was answered ---- */

static struct session_served *find_served(const struct session *session,
                                          const struct rs_lease *held)
{
    for (uint32_t i = 0; i < session->served_count; i++) {
        struct session_served *served = &session->served[i];

        if (served->ring == held->ring && served->slot == held->slot &&
            served->generation == held->generation)
            return served;
    }
    return NULL;
}

/* Of calls that a sweep ended, or whose ring is gone, an entry may be left: it is taken over. NULL:
 * no memory. */
static struct session_served *add_served(struct session *session, const struct rs_lease *held)
{
    struct session_served *served = find_served(session, held);

    for (uint32_t i = 0; served == NULL && i < session->served_count; i++) {
        if (session->served[i].ring == held->ring && session->served[i].slot == held->slot)
            served = &session->served[i];
    }
    if (served == NULL && session->served_count == session->served_capacity) {
        uint32_t more = session->served_capacity > 0 ? session->served_capacity * 2 : 8;
        void *larger = realloc(session->served, more * sizeof *served);
        if (larger == NULL)
            return NULL;
        session->served = larger;
        session->served_capacity = more;
    }
    if (served == NULL)
        served = &session->served[session->served_count++];
    if (served->generation != held->generation || served->ring != held->ring ||
        served->slot != held->slot)
        *served = (struct session_served){
            .ring = held->ring, .slot = held->slot, .generation = held->generation};
    return served;
}

static void drop_served(struct session *session, const struct rs_lease *held)
{
    struct session_served *served = find_served(session, held);

    if (served != NULL)
        *served = session->served[--session->served_count];
}

/* ---- the request ---- */

/* The kind is looked at in the copy, once: whoever has the ring mapped may change what is there,
 * and only the header of a request was checked for its cells. */
static int load_request(struct request *request)
{
    const struct rs_lease *held = &request->held;
    int rc = rs_message_load(&request->header, &held->ring->slots[held->slot],
                             control_body(held->ring, held->slot),
                             rs_ring_slot_bytes(held->ring, held->slot));

    if (rc < 0)
        return rc;
    bool is_request =
        request->header.call_id != 0 && rs_call_kind(request->header.call) == RS_CALL_REQUEST;
    return is_request ? 0 : -RINGSIDE_E_STATE;
}

/* 0, or a negative error. */
static int find_request(struct session *session, const Ringside__V1__Lease *wire,
                        struct request *request)
{
    struct session_lease lease;

    int rc = session_lease_of(session, wire, &lease);
    if (rc == 0)
        rc = session_delivery(session, &lease, &request->held);
    return rc < 0 ? rc : load_request(request);
}

static int fail(struct wait *wait, int error, const char *text)
{
    conn_reply_error(wait->call, error, "%s", text);
    return 1;
}

static const char *request_fault(int error)
{
    return error == -RINGSIDE_E_STATE     ? "not a call that this session holds"
           : error == -RINGSIDE_E_INVALID ? "the request names no lease of a call"
                                          : rs_strerror(error);
}

/* By the entries in both rings: who had a number then may be dead, and another have it. */
static bool caller_is_there(const struct session *session, const struct request *request)
{
    const struct rs_message *header = &request->header;

    return rs_client_is_there(request->held.ring, rs_call_caller(header->call),
                              header->call_id >> 32, UINT32_MAX) &&
           rs_client_is_there(&session->proxy->ring, rs_call_holder(header->call),
                              header->admission, UINT64_MAX);
}

static bool is_cancelled(const struct session *session, const struct request *request)
{
    return rs_request_is_cancelled(&request->held) || !caller_is_there(session, request) ||
           wire_message_is_over(&request->held.ring->slots[request->held.slot]);
}

void control_cancelled(struct session *session, struct conn_call *call)
{
    Ringside__V1__LeaseRequest *message =
        (Ringside__V1__LeaseRequest *)conn_decode(call, &ringside__v1__lease_request__descriptor);
    Ringside__V1__CancelledResponse response = RINGSIDE__V1__CANCELLED_RESPONSE__INIT;
    struct request request;

    if (message == NULL)
        return;
    int rc = find_request(session, message->lease, &request);
    conn_free_message(&message->base);
    if (rc < 0) {
        conn_reply_error(call, rc, "%s", request_fault(rc));
        return;
    }
    response.cancelled = is_cancelled(session, &request);
    conn_reply(call, &response.base, NULL, 0);
}

/* ---- out with it ---- */

static struct rs_box *box_of(const struct request *request)
{
    return &request->held.ring->boxes[rs_call_caller(request->header.call)];
}

/* The loan's header is complete but for the reply's own words. -RINGSIDE_E_FULL: the slot is still
 * loaned; 0; or -RINGSIDE_E_STATE, -RINGSIDE_E_CANCELLED: it is spent. */
static int publish(struct session *session, const struct request *request,
                   const struct rs_loan *loan, uint32_t number, uint64_t bytes)
{
    struct rs_ring *own = &session->proxy->ring;
    uint64_t call = request->header.call;
    struct rs_reply reply = {
        .ring = own,
        .loan = *loan,
        .owner = session->number,
        .holder = (uint16_t)rs_call_holder(call),
        .box = box_of(request),
        .cell = rs_call_first_cell(call) + number % rs_call_credits(call),
        .event_fd = peers_ring_event(session->proxy, request->held.ring_number),
    };

    int rc = rs_reply_publish(&reply);
    if (rc < 0)
        return rc;
    /* After the seal: whoever gives up or dies later finds the reply. */
    bool gone = !caller_is_there(session, request);
    if ((gone || rs_request_is_cancelled(&request->held)) && rs_reply_take_back(&reply, gone))
        return -RINGSIDE_E_CANCELLED;
    RS_FAILPOINT(session_replied);
    rs_ring_count(own, session->number, RS_SENT, 1);
    rs_ring_count(own, session->number, RS_REPLIES, 1);
    rs_ring_count(own, session->number, RS_SENT_BYTES, bytes);
    return 0;
}

static struct call_words words_of(const struct request *request, unsigned status, bool last,
                                  uint32_t number)
{
    return (struct call_words){.id = request->header.call_id,
                               .call = rs_call_reply(status, last ? RS_CALL_LAST : 0, number),
                               .admission = request->header.admission};
}

/* A slot with a text and no data. 0 or -RINGSIDE_E_FULL; -RINGSIDE_E_TOO_BIG: no slot has room for
 * it. */
static int loan_text(struct session *session, const struct call_words *words, const char *text,
                     struct rs_loan *loan)
{
    struct rs_ring *own = &session->proxy->ring;
    struct rs_message header = {.tensor_count = 1};
    uint32_t bytes = (uint32_t)strnlen(text, TEXT_MAX);
    uint64_t total;

    header.tensors[0] = (struct rs_tensor){.dtype = RS_BYTES, .rank = 1};
    int rc = rs_message_plan(&header, bytes, &total);
    int class = rc == 0 ? rs_ring_class_for(own, total) : rc;
    if (class < 0)
        return class;
    if (control_loan_slot(session, (unsigned)class, loan) < 0)
        return -RINGSIDE_E_FULL;
    uint8_t *body = control_body(own, loan->slot);
    if (bytes > 0)
        memcpy(body + header.metadata_offset, text, bytes);
    header.publish_ns = uv_hrtime();
    header.call_id = words->id;
    header.call = words->call;
    header.admission = words->admission;
    rs_message_store(&header, &own->slots[loan->slot], body);
    return 0;
}

/* ---- Reply ---- */

static int check(struct wait *wait, const struct session_served *served)
{
    const Ringside__V1__ReplyRequest *message = (const Ringside__V1__ReplyRequest *)wait->request;

    if (served != NULL && served->answered)
        return fail(wait, -RINGSIDE_E_STATE, "the call had its last reply; release it");
    if (served != NULL && served->torn)
        return fail(wait, -RINGSIDE_E_UNAVAILABLE,
                    "the sidecar was restarted since the call came, and does not know how many "
                    "replies there were: release it, so that its caller is told");
    if ((message->reply != NULL) == (message->status != 0))
        return fail(wait, -RINGSIDE_E_INVALID,
                    "Reply takes either a loan (reply) or a status other than 0");
    if (message->status > 255) {
        conn_reply_error(wait->call, -RINGSIDE_E_INVALID, "status %u of an error reply: 1..255",
                         message->status);
        return 1;
    }
    if (message->status != 0 && message->more)
        return fail(wait, -RINGSIDE_E_INVALID, "an error is the last reply: leave `more` out");
    return control_check_options(wait->call, message->options) < 0;
}

/* Nobody waits any more: a loan of the session is given back. */
static int give_up(struct wait *wait, const struct rs_loan *loan)
{
    struct session *session = wait->session;

    if (loan != NULL && rs_ring_abandon(&session->proxy->ring, session->number, loan) == 0 &&
        session->held > 0)
        session->held--;
    return fail(wait, -RINGSIDE_E_CANCELLED,
                "nobody waits for replies to this call any more: release it");
}

/* Completes the loan, or takes a slot for the text of an error. 1: there is one; 0: not yet;
 * negative: answered. */
static int fill_slot(struct wait *wait, const struct request *request, uint32_t number,
                     struct rs_loan *loan, uint64_t *bytes)
{
    const Ringside__V1__ReplyRequest *message = (const Ringside__V1__ReplyRequest *)wait->request;
    struct session *session = wait->session;
    struct call_words words = words_of(request, message->status, !message->more, number);

    if (message->status == 0) {
        int rc = control_complete(session, wait->call, loan, message->options, 0, &words, bytes);

        return rc < 0 ? rc : 1;
    }
    *bytes = strnlen(message->text, TEXT_MAX);
    if (!wait->copy.begun) {
        int rc = loan_text(session, &words, message->text, &wait->copy.loan);

        if (rc == -RINGSIDE_E_FULL)
            return 0;
        if (rc < 0) {
            conn_reply_error(wait->call, rc, "the text fits no slot of this stage (ring.classes)");
            return rc;
        }
        wait->copy.begun = true;
    }
    *loan = wait->copy.loan;
    /* Another Reply of this call may have come first meanwhile, and the number is its by now. */
    rs_store_relaxed(&session->proxy->ring.slots[loan->slot].header[RS_HEADER_CALL], words.call);
    return 1;
}

static int try_answer(struct wait *wait)
{
    const Ringside__V1__ReplyRequest *message = (const Ringside__V1__ReplyRequest *)wait->request;
    struct session *session = wait->session;
    bool by_loan = message->status == 0;
    struct request request;
    struct rs_loan loan;
    uint64_t bytes;

    int rc = find_request(session, message->request, &request);
    if (rc < 0)
        return fail(wait, rc, request_fault(rc));
    if (check(wait, find_served(session, &request.held)) != 0 ||
        (by_loan && control_find_loan(session, wait->call, message->reply, &loan) < 0))
        return 1;
    if (is_cancelled(session, &request))
        return give_up(wait, by_loan ? &loan : NULL);
    struct session_served *served = add_served(session, &request.held);
    if (served == NULL)
        return fail(wait, -ENOMEM, "out of memory");
    rc = fill_slot(wait, &request, served->number, &loan, &bytes);
    if (rc <= 0)
        return rc < 0;
    rc = publish(session, &request, &loan, served->number, bytes);
    if (rc == -RINGSIDE_E_FULL)
        return 0;
    wait->copy.begun = false; /* sealed, released or lost */
    if (by_loan && session->held > 0)
        session->held--;
    if (rc == -RINGSIDE_E_CANCELLED)
        return give_up(wait, NULL);
    if (rc < 0)
        return fail(wait, rc, "the loan was lost meanwhile");
    served->number++;
    served->answered = !message->more;
    conn_reply(wait->call, &empty.base, NULL, 0);
    return 1;
}

void control_answer(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__v1__reply_request__descriptor);

    if (request != NULL)
        control_wait(session, call, request, try_answer, WAIT_ROOM);
}

/* ---- without an answer ---- */

/* The number of a reply decides on its cell, and a stream with a hole would not be noticed. A call
 * with one cell goes on: if it had replies, the caller finds the number wrong. */
int control_adopt_request(struct session *session, uint32_t slot)
{
    struct rs_ring *ring = &session->proxy->ring;
    uint64_t word = rs_load_seq_cst(&ring->slots[slot].delivery[0]);
    struct request request = {
        .held = {
            .ring = ring, .word = word, .slot = slot, .generation = rs_delivery_generation(word)}};

    if (rs_delivery_phase(word) != RS_HELD || rs_delivery_holder(word) != session->number ||
        load_request(&request) < 0 || rs_call_credits(request.header.call) == 1)
        return 0;
    struct session_served *served = add_served(session, &request.held);
    if (served == NULL)
        return -ENOMEM;
    served->torn = true;
    return 0;
}

uint64_t control_request_call(const struct rs_lease *held)
{
    const struct rs_slot *slot = &held->ring->slots[held->slot];

    return rs_message_is_request(slot) ? rs_load_relaxed(&slot->header[RS_HEADER_CALL]) : 0;
}

void control_answer_for(struct session *session, const struct rs_lease *held)
{
    const struct session_served *served = find_served(session, held);
    uint32_t number = served != NULL ? served->number : 0;
    struct request request = {.held = *held};
    static const char text[] = "the callee released the call without a last reply";
    struct rs_loan loan;

    if ((served != NULL && (served->answered || served->torn)) || load_request(&request) < 0 ||
        is_cancelled(session, &request))
        return;
    struct call_words words = words_of(&request, RS_STATUS_INTERNAL, true, number);
    if (loan_text(session, &words, text, &loan) == 0 &&
        publish(session, &request, &loan, number, sizeof text - 1) == -RINGSIDE_E_FULL)
        (void)rs_ring_abandon(&session->proxy->ring, session->number, &loan);
}

void control_wake_caller(struct session *session, const struct rs_lease *held, uint64_t call)
{
    unsigned caller = rs_call_caller(call);

    if (call == 0)
        return;
    drop_served(session, held);
    if (caller < held->ring->layout.client_count)
        rs_wait_wake(&held->ring->boxes[caller].posted,
                     peers_ring_event(session->proxy, held->ring_number));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Loan, Send, Share and Abandon for those who let the sidecar take every step in the ring. */
#include <errno.h>
#include <string.h>
#include <uv.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proxy/control.h"
#include "proxy/proxy.h"

#define WALK_SLOTS 4096u /* of a class whose every slot is looked at when hints find none */

/* ---- routes ---- */

/* 0, -RINGSIDE_E_FULL or -RINGSIDE_E_UNAVAILABLE, with *index of the destination. */
static int look_for_room(struct proxy *proxy, uint16_t number, const struct route *route, bool drop,
                         unsigned *index)
{
    struct rs_repair *repair = &proxy->repair;
    bool drops = route->config->when_full == RS_CONFIG_DROP_OLDEST;

    for (*index = 0; *index < route->config->to_count; ++*index) {
        unsigned destination = route->destinations[*index];

        if (repair->inboxes[destination] == NULL ||
            !rs_destination_connected(
                rs_load_acquire(&proxy->ring.destinations[destination].state)))
            return -RINGSIDE_E_UNAVAILABLE;
    }
    for (*index = 0; *index < route->config->to_count; ++*index) {
        unsigned destination = route->destinations[*index];
        struct rs_inbox *inbox = repair->inboxes[destination];

        if ((drops && !drop) || rs_inbox_has_room(inbox))
            continue;
        if (!drops || !rs_inbox_drop_oldest(inbox, repair->ring_number[destination]))
            return -RINGSIDE_E_FULL;
        rs_ring_count(&proxy->ring, number, RS_DROPPED, 1);
    }
    return 0;
}

int control_room(struct wait *wait, const struct route *route, bool drop)
{
    unsigned index;

    int rc = look_for_room(wait->session->proxy, wait->session->number, route, drop, &index);
    if (rc == 0 || route->config->when_full == RS_CONFIG_BLOCK)
        return rc;
    if (rc == -RINGSIDE_E_UNAVAILABLE)
        conn_reply_error(wait->call, rc,
                         "route %s: no link to unix:%s (yet); see `ringside status`",
                         route->config->name, route->config->to[index]);
    else
        conn_reply_error(wait->call, rc, "route %s: the inbox of unix:%s is full",
                         route->config->name, route->config->to[index]);
    return 1;
}

static void push(struct proxy *proxy, uint16_t number, unsigned destination, uint32_t slot,
                 unsigned delivery)
{
    struct rs_repair *repair = &proxy->repair;

    if (rs_inbox_push(repair->inboxes[destination], repair->ring_number[destination], slot,
                      delivery) != 0) {
        rs_ring_count(&proxy->ring, number, RS_OVERFLOWS, 1);
        rs_ring_bell(&proxy->ring);
    }
}

int control_publish(struct proxy *proxy, uint16_t number, const struct rs_loan *loan,
                    const struct route *route)
{
    unsigned count = route->config->to_count;

    rs_ring_prepare(&proxy->ring, loan, route->destinations, count, 0);
    int rc = rs_ring_seal(&proxy->ring, number, loan, 0);
    RS_FAILPOINT(session_published);
    for (unsigned i = 0; rc == 0 && i < count; i++)
        push(proxy, number, route->destinations[i], loan->slot, i);
    return rc;
}

void control_requeue(struct proxy *proxy, const struct rs_lease *lease, unsigned ring_number)
{
    if (rs_inbox_push(&proxy->inbox, ring_number, lease->slot, lease->delivery) != 0)
        rs_ring_bell(lease->ring);
}

/* ---- Loan ---- */

int control_loan_slot(struct session *session, unsigned class_index, struct rs_loan *loan)
{
    struct rs_ring *ring = &session->proxy->ring;

    /* A walk over a large class would hold up the loop at each try; what hints lose the audit
     * finds. */
    if (ring->layout.classes[class_index].slots <= WALK_SLOTS)
        return rs_ring_loan(ring, session->number, class_index, loan);
    return rs_ring_loan_hinted(ring, session->number, class_index, loan);
}

static int plan(struct conn_call *call, const Ringside__V1__LoanRequest *request,
                struct rs_message *header, uint64_t *total_bytes)
{
    memset(header, 0, offsetof(struct rs_message, tensors));
    if (request->n_tensors < 1 || request->n_tensors > RS_MAX_TENSORS) {
        conn_reply_error(call, -RINGSIDE_E_SHAPE, "a message has 1..%u tensors, not %zu",
                         RS_MAX_TENSORS, request->n_tensors);
        return -RINGSIDE_E_SHAPE;
    }
    header->tensor_count = (uint8_t)request->n_tensors;
    for (size_t i = 0; i < request->n_tensors; i++) {
        const Ringside__V1__Tensor *tensor = request->tensors[i];

        if (tensor->n_shape > RS_MAX_RANK) {
            conn_reply_error(call, -RINGSIDE_E_SHAPE, "tensor %zu has rank %zu, the limit is %u", i,
                             tensor->n_shape, RS_MAX_RANK);
            return -RINGSIDE_E_SHAPE;
        }
        header->tensors[i] = (struct rs_tensor){
            .dtype = (unsigned)tensor->dtype < (unsigned)RS_DTYPE_COUNT ? (uint8_t)tensor->dtype
                                                                        : RS_DTYPE_NONE,
            .rank = (uint8_t)tensor->n_shape};
        if (tensor->n_shape > 0)
            memcpy(header->tensors[i].shape, tensor->shape, tensor->n_shape * sizeof(int64_t));
        int rc = rs_tensor_size(&header->tensors[i]);
        if (rc < 0) {
            conn_reply_error(call, rc, "tensor %zu: %s (dtype %d, rank %zu)", i, rs_strerror(rc),
                             (int)tensor->dtype, tensor->n_shape);
            return rc;
        }
    }
    int rc = rs_message_plan(header, request->metadata_bytes, total_bytes);
    if (rc < 0)
        conn_reply_error(call, rc, "the tensors together: %s", rs_strerror(rc));
    return rc;
}

static void answer_loan(struct session *session, struct conn_call *call, struct rs_message *header,
                        const struct session_lease *lease, uint64_t request_id, bool again)
{
    struct proxy *proxy = session->proxy;
    Ringside__V1__LoanResponse response = RINGSIDE__V1__LOAN_RESPONSE__INIT;
    Ringside__V1__Lease wire;
    Ringside__V1__Tensor tensors[RS_MAX_TENSORS], *pointers[RS_MAX_TENSORS];

    wire_lease_fill(&wire, lease, NULL);
    wire_tensors_fill(header, tensors, pointers);
    response.lease = &wire;
    response.n_tensors = header->tensor_count;
    response.tensors = pointers;
    response.body_path = proxy->files.body_path;
    response.slot_offset = rs_ring_slot_offset(&proxy->ring, lease->slot);
    response.slot_bytes = rs_ring_slot_bytes(&proxy->ring, lease->slot);
    if (again)
        conn_reply(call, &response.base, NULL, 0);
    else
        control_reply_lease(session, call, &response.base, lease, request_id, false);
}

/* A retry whose first answer got lost: the same lease, when it is still held. */
static void loan_again(struct session *session, struct conn_call *call,
                       const struct session_lease *lease, uint64_t request_id)
{
    struct proxy *proxy = session->proxy;
    struct rs_message header;
    struct rs_loan loan;

    if (session_loan(session, lease, &loan) < 0)
        conn_reply_error(call, -RINGSIDE_E_STATE,
                         "request id %llu was answered before and its slot is no longer loaned; "
                         "use a fresh id",
                         (unsigned long long)request_id);
    else if (rs_message_load(&header, &proxy->ring.slots[loan.slot],
                             control_body(&proxy->ring, loan.slot),
                             rs_ring_slot_bytes(&proxy->ring, loan.slot)) < 0)
        conn_reply_error(call, -RINGSIDE_E_CORRUPT, "the loaned slot's header was overwritten");
    else
        answer_loan(session, call, &header, lease, request_id, true);
}

static int try_loan(struct wait *wait)
{
    const Ringside__V1__LoanRequest *request = (const Ringside__V1__LoanRequest *)wait->request;
    struct session *session = wait->session;
    struct proxy *proxy = session->proxy;
    struct rs_message header;
    uint64_t total_bytes;
    struct rs_loan loan;

    const struct session_lease *before = session_recall(session, request->request_id);
    if (before != NULL) {
        loan_again(session, wait->call, before, request->request_id);
        return 1;
    }
    if (proxy_is_draining(proxy)) {
        conn_reply_error(wait->call, -RINGSIDE_E_DRAINING, "stage %s is draining: no new loans",
                         proxy->config.stage);
        return 1;
    }
    if (plan(wait->call, request, &header, &total_bytes) < 0)
        return 1;
    int class = rs_ring_class_for(&proxy->ring, total_bytes);
    if (class < 0) {
        const struct rs_superblock *layout = &proxy->ring.layout;
        conn_reply_error(wait->call, class,
                         "the message takes %llu bytes, the largest slot has %llu (ring.classes)",
                         (unsigned long long)total_bytes,
                         (unsigned long long)layout->classes[layout->class_count - 1].slot_bytes);
        return 1;
    }
    if (control_loan_slot(session, (unsigned)class, &loan) < 0)
        return 0;
    rs_message_store(&header, &proxy->ring.slots[loan.slot], control_body(&proxy->ring, loan.slot));
    struct session_lease lease = {&proxy->ring, loan.slot, loan.generation, -1, 0, false};
    answer_loan(session, wait->call, &header, &lease, request->request_id, false);
    return 1;
}

void control_loan(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__v1__loan_request__descriptor);

    if (request != NULL)
        control_wait(session, call, request, try_loan, WAIT_ROOM);
}

/* ---- Send and Share ---- */

int control_find_loan(struct session *session, struct conn_call *call,
                      const Ringside__V1__Lease *wire, struct rs_loan *loan)
{
    struct session_lease lease;

    int rc = session_lease_of(session, wire, &lease);
    if (rc == 0)
        rc = session_loan(session, &lease, loan);
    if (rc < 0)
        conn_reply_error(call, rc, "%s",
                         rc == -RINGSIDE_E_STATE
                             ? "the lease is no loan of this session: sent, abandoned or never had"
                         : rc == -RINGSIDE_E_INVALID ? "the request names no lease"
                                                     : rs_strerror(rc));
    return rc;
}

int control_check_options(struct conn_call *call, const Ringside__V1__Options *options)
{
    if (options == NULL)
        return 0;
    if (options->metadata.len > CONTROL_METADATA_MAX) {
        conn_reply_error(call, -RINGSIDE_E_LIMIT,
                         "%zu bytes of metadata; over the socket the limit is %u",
                         options->metadata.len, CONTROL_METADATA_MAX);
        return -RINGSIDE_E_LIMIT;
    }
    if (options->trace_id.len != 0 && options->trace_id.len != 16) {
        conn_reply_error(call, -RINGSIDE_E_INVALID, "a trace id has 16 bytes, not %zu",
                         options->trace_id.len);
        return -RINGSIDE_E_INVALID;
    }
    if ((unsigned)options->metadata_kind > RINGSIDE__V1__METADATA_KIND__TREE) {
        conn_reply_error(call, -RINGSIDE_E_INVALID, "metadata kind %d is unknown",
                         (int)options->metadata_kind);
        return -RINGSIDE_E_INVALID;
    }
    return 0;
}

/* Where metadata goes: behind the tensors and the name of the method, which is put there. */
static uint64_t place_call(struct rs_message *header, const struct call_words *words, uint8_t *body,
                           uint64_t slot_bytes)
{
    uint64_t offset = rs_message_metadata_offset(header);
    size_t bytes = words != NULL && words->method != NULL ? strlen(words->method) : 0;

    header->call_id = words != NULL ? words->id : 0;
    if (words == NULL)
        return offset;
    header->call = words->call;
    header->admission = words->admission;
    header->method_offset = bytes > 0 ? offset : 0;
    header->method_bytes = (uint8_t)bytes;
    if (bytes > 0 && offset <= slot_bytes && bytes <= slot_bytes - offset)
        memcpy(body + offset, words->method, bytes);
    return offset + (bytes + 7) / 8 * 8;
}

int control_complete(struct session *session, struct conn_call *call, const struct rs_loan *loan,
                     const Ringside__V1__Options *options, uint64_t ttl_ns,
                     const struct call_words *words, uint64_t *body_bytes)
{
    struct rs_ring *ring = &session->proxy->ring;
    struct rs_slot *record = &ring->slots[loan->slot];
    uint64_t slot_bytes = rs_ring_slot_bytes(ring, loan->slot);
    uint8_t *body = control_body(ring, loan->slot);
    struct rs_message header;

    if (rs_message_load(&header, record, body, slot_bytes) < 0) {
        conn_reply_error(call, -RINGSIDE_E_CORRUPT,
                         "the header of the loaned slot was overwritten; abandon it");
        return -RINGSIDE_E_CORRUPT;
    }
    uint64_t offset = place_call(&header, words, body, slot_bytes);
    size_t metadata_bytes = options != NULL ? options->metadata.len : 0;
    if (offset > slot_bytes || metadata_bytes > slot_bytes - offset) {
        conn_reply_error(call, -RINGSIDE_E_TOO_BIG,
                         "%zu bytes of metadata%s do not fit behind the tensors (%llu bytes left); "
                         "ask for more with Loan",
                         metadata_bytes,
                         words != NULL && words->method != NULL ? " and the method's name" : "",
                         (unsigned long long)(offset > slot_bytes ? 0 : slot_bytes - offset));
        return -RINGSIDE_E_TOO_BIG;
    }
    header.metadata_bytes = (uint32_t)metadata_bytes;
    header.metadata_offset = metadata_bytes > 0 ? offset : 0;
    header.metadata_kind = 0;
    if (options != NULL) {
        header.metadata_kind = metadata_bytes > 0 ? (uint8_t)options->metadata_kind : 0;
        header.stream_id = options->stream_id;
        header.sequence = options->sequence;
        if (options->trace_id.len == 16)
            memcpy(header.trace_id, options->trace_id.data, 16);
    }
    header.ttl_ns = ttl_ns;
    header.publish_ns = uv_hrtime();
    if (metadata_bytes > 0)
        memcpy(body + offset, options->metadata.data, metadata_bytes);
    rs_message_store(&header, record, body);
    *body_bytes = metadata_bytes;
    for (unsigned i = 0; i < header.tensor_count; i++)
        *body_bytes += header.tensors[i].bytes;
    return 0;
}

static void spend(struct session *session)
{
    if (session->held > 0)
        session->held--;
}

static uint64_t ttl_of(const Ringside__V1__Options *options, uint64_t otherwise_ns)
{
    return options != NULL && options->ttl_ns != 0 ? options->ttl_ns : otherwise_ns;
}

static int try_send(struct wait *wait)
{
    const Ringside__V1__SendRequest *request = (const Ringside__V1__SendRequest *)wait->request;
    struct session *session = wait->session;
    struct proxy *proxy = session->proxy;
    Ringside__V1__SendResponse response = RINGSIDE__V1__SEND_RESPONSE__INIT;
    const struct route *route = routes_find(&proxy->routes, request->route);
    uint64_t bytes;
    struct rs_loan loan;

    if (control_find_loan(session, wait->call, request->lease, &loan) < 0)
        return 1;
    if (route == NULL) {
        conn_reply_error(wait->call, -RINGSIDE_E_NO_ROUTE, "stage %s has no route \"%.63s\"",
                         proxy->config.stage, request->route);
        return 1;
    }
    /* Before room is made: a request that is refused drops nothing. */
    if (control_check_options(wait->call, request->options) < 0)
        return 1;
    int rc = control_room(wait, route, true);
    if (rc != 0)
        return rc > 0;
    if (control_complete(session, wait->call, &loan, request->options,
                         ttl_of(request->options, route->config->ttl_ms * 1000000), NULL,
                         &bytes) < 0)
        return 1;
    rc = control_publish(proxy, session->number, &loan, route);
    if (rc < 0) {
        conn_reply_error(wait->call, rc, "the loan was lost meanwhile");
        return 1;
    }
    spend(session);
    rs_ring_count(&proxy->ring, session->number, RS_SENT, 1);
    rs_ring_count(&proxy->ring, session->number, RS_SENT_BYTES, bytes);
    response.ticket =
        rs_ticket_pack((uint16_t)proxy->ring.layout.sidecar_id, loan.slot, loan.generation);
    conn_reply(wait->call, &response.base, NULL, 0);
    return 1;
}

void control_send(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__v1__send_request__descriptor);

    if (request != NULL)
        control_wait(session, call, request, try_send, WAIT_ROOM);
}

static void share(struct session *session, struct conn_call *call,
                  const Ringside__V1__ShareRequest *request)
{
    struct proxy *proxy = session->proxy;
    const struct rs_superblock *layout = &proxy->ring.layout;
    Ringside__V1__ShareResponse response = RINGSIDE__V1__SHARE_RESPONSE__INIT;
    uint64_t longest_ns = proxy->config.tickets.ttl_ms * 1000000, bytes;
    char text[RS_TICKET_TEXT_BYTES];
    struct rs_loan loan;

    if (control_find_loan(session, call, request->lease, &loan) < 0)
        return;
    if (request->kept == (request->readers != 0) || request->readers > 255) {
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "Share takes either readers 1..255 or kept; got readers %u, kept %s",
                         request->readers, request->kept ? "true" : "false");
        return;
    }
    if (control_check_options(call, request->options) < 0)
        return;
    if (request->options != NULL && request->options->ttl_ns > longest_ns) {
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "a time to live of %llu ns is over tickets.ttl_ms (%llu ms)",
                         (unsigned long long)request->options->ttl_ns,
                         (unsigned long long)proxy->config.tickets.ttl_ms);
        return;
    }
    if (control_complete(session, call, &loan, request->options,
                         ttl_of(request->options, longest_ns), NULL, &bytes) < 0)
        return;
    rs_ring_prepare(&proxy->ring, &loan, NULL, 0,
                    rs_readers(loan.generation, request->readers, request->kept));
    int rc = rs_ring_seal(&proxy->ring, session->number, &loan, RS_FLAG_TICKET);
    if (rc < 0) {
        conn_reply_error(call, rc, "the loan was lost meanwhile");
        return;
    }
    spend(session);
    rs_ring_count(&proxy->ring, session->number, RS_SHARED, 1);
    rs_ring_count(&proxy->ring, session->number, RS_SENT_BYTES, bytes);
    rs_ticket_format(text, (uint16_t)layout->sidecar_id, loan.slot, loan.generation,
                     (uint32_t)layout->incarnation[0]);
    response.ticket = rs_ticket_pack((uint16_t)layout->sidecar_id, loan.slot, loan.generation);
    response.text = text;
    conn_reply(call, &response.base, NULL, 0);
}

void control_share(struct session *session, struct conn_call *call)
{
    Ringside__V1__ShareRequest *request =
        (Ringside__V1__ShareRequest *)conn_decode(call, &ringside__v1__share_request__descriptor);

    if (request != NULL)
        share(session, call, request);
    conn_free_message((ProtobufCMessage *)request);
}

void control_abandon(struct session *session, struct conn_call *call)
{
    Ringside__V1__Empty response = RINGSIDE__V1__EMPTY__INIT;
    Ringside__V1__LeaseRequest *request =
        (Ringside__V1__LeaseRequest *)conn_decode(call, &ringside__v1__lease_request__descriptor);
    struct rs_loan loan;

    if (request != NULL && control_find_loan(session, call, request->lease, &loan) == 0) {
        rs_ring_abandon(&session->proxy->ring, session->number, &loan);
        spend(session);
        conn_reply(call, &response.base, NULL, 0);
    }
    conn_free_message((ProtobufCMessage *)request);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the ring in their wire form, and answers that hand out leases. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/decode.h"
#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"

uint8_t *control_body(const struct rs_ring *ring, uint32_t slot)
{
    return ring->body + rs_ring_slot_offset(ring, slot);
}

void wire_tensors_fill(const struct rs_message *header, Ringside__V1__Tensor *tensors,
                       Ringside__V1__Tensor **pointers)
{
    for (unsigned i = 0; i < header->tensor_count; i++) {
        const struct rs_tensor *tensor = &header->tensors[i];

        ringside__v1__tensor__init(&tensors[i]);
        tensors[i].dtype = (Ringside__V1__Dtype)tensor->dtype;
        tensors[i].n_shape = tensor->rank;
        tensors[i].shape = (int64_t *)tensor->shape;
        tensors[i].offset = tensor->offset;
        tensors[i].bytes = tensor->bytes;
        pointers[i] = &tensors[i];
    }
}

void wire_lease_fill(Ringside__V1__Lease *wire, const struct session_lease *lease,
                     uint8_t incarnation[16])
{
    ringside__v1__lease__init(wire);
    wire->ticket =
        rs_ticket_pack((uint16_t)lease->ring->layout.sidecar_id, lease->slot, lease->generation);
    wire->delivery = lease->delivery;
    if (lease->ring_number != 0 || lease->reply) {
        memcpy(incarnation, lease->ring->layout.incarnation, 16);
        wire->ring = (ProtobufCBinaryData){.len = 16, .data = incarnation};
    }
}

/* What is no text becomes "?", for strings on the wire are UTF-8. */
static void copy_method(const struct rs_message *header, const uint8_t *body,
                        char method[RS_METHOD_MAX + 1])
{
    memcpy(method, body + header->method_offset, header->method_bytes);
    method[header->method_bytes] = '\0';
    for (size_t i = 0, step; i < header->method_bytes; i += step > 0 ? step : 1) {
        step = rs_utf8_character((const uint8_t *)method + i, header->method_bytes - i);
        if (step == 0 || (unsigned char)method[i] < 0x20 || method[i] == 0x7f)
            method[i] = '?';
    }
}

static void fill_call(struct wire_message *wire, const uint8_t *body)
{
    const struct rs_message *header = &wire->header;

    wire->message.call_id = header->call_id;
    if (header->call_id == 0 || rs_call_kind(header->call) != RS_CALL_REQUEST)
        return;
    copy_method(header, body, wire->method);
    wire->message.method = wire->method;
    wire->message.credits = rs_call_credits(header->call);
}

int wire_message_fill(struct wire_message *wire, struct proxy *proxy,
                      const struct session_lease *lease, const char *body_path, unsigned attempts)
{
    struct rs_ring *ring = lease->ring;
    uint64_t slot_bytes = rs_ring_slot_bytes(ring, lease->slot);
    struct rs_message *header = &wire->header;

    (void)proxy;
    if (rs_message_load(header, &ring->slots[lease->slot], control_body(ring, lease->slot),
                        slot_bytes) < 0)
        return -RINGSIDE_E_CORRUPT;
    if (header->metadata_bytes > CONTROL_METADATA_OUT)
        return -RINGSIDE_E_TOO_BIG;
    Ringside__V1__Message *message = &wire->message;
    ringside__v1__message__init(message);
    wire_lease_fill(&wire->lease, lease, wire->incarnation);
    wire_tensors_fill(header, wire->tensors, wire->tensor_pointers);
    message->lease = &wire->lease;
    message->n_tensors = header->tensor_count;
    message->tensors = wire->tensor_pointers;
    if (header->metadata_bytes > 0)
        message->metadata = (ProtobufCBinaryData){.len = header->metadata_bytes,
                                                  .data = control_body(ring, lease->slot) +
                                                          header->metadata_offset};
    message->metadata_kind = (Ringside__V1__MetadataKind)header->metadata_kind;
    message->body_path = (char *)body_path;
    message->slot_offset = rs_ring_slot_offset(ring, lease->slot);
    message->slot_bytes = slot_bytes;
    message->publish_ns = header->publish_ns;
    message->ttl_ns = header->ttl_ns;
    message->stream_id = header->stream_id;
    message->sequence = header->sequence;
    memcpy(wire->trace_id, header->trace_id, sizeof wire->trace_id);
    if ((header->trace_id[0] | header->trace_id[1]) != 0)
        message->trace_id = (ProtobufCBinaryData){.len = 16, .data = wire->trace_id};
    message->attempts = attempts;
    message->origin_ticket = header->origin_ticket;
    fill_call(wire, control_body(ring, lease->slot));
    return 0;
}

bool wire_message_is_over(const struct rs_slot *slot)
{
    uint64_t publish_ns, ttl_ns, now = uv_hrtime();

    rs_message_times(slot, &publish_ns, &ttl_ns);
    return ttl_ns != 0 && now > publish_ns && now - publish_ns > ttl_ns;
}

/* ---- leases handed out ---- */

struct gift {
    struct proxy *proxy;
    uint16_t number;
    bool is_reading;
    struct session_lease lease;
};

static void take_back(struct gift *gift)
{
    struct session *session = session_find(gift->proxy, gift->number);
    struct rs_loan loan;
    struct rs_lease held;

    if (session == NULL)
        return;
    session_forget(session, &gift->lease);
    if (!session_has_ring(session, &gift->lease)) {
        /* Nothing of it is held any more. */
    } else if (gift->is_reading) {
        session_read_end(session, &gift->lease, false);
    } else if (session_loan(session, &gift->lease, &loan) == 0) {
        rs_ring_abandon(gift->lease.ring, session->number, &loan);
    } else if (session_delivery(session, &gift->lease, &held) == 0) {
        /* The attempt that was not one counts, but a limit of the route does not end it; a call and a reply end. */
        uint64_t call = control_request_call(&held);

        if (rs_ring_nack(&held, RS_MAX_ATTEMPTS + 2) == 0)
            control_requeue(gift->proxy, &held, held.ring_number);
        else
            control_wake_caller(session, &held, call);
    } else {
        return;
    }
    session_spend(session, &gift->lease);
}

static void on_done(void *data, bool delivered)
{
    struct gift *gift = data;

    if (!delivered)
        take_back(gift);
    free(gift);
}

/* From here on the session holds it. NULL: no memory, and it has been taken back. */
static struct gift *make_gift(struct session *session, const struct session_lease *lease,
                              bool is_reading)
{
    struct gift now = {session->proxy, session->number, is_reading, *lease};
    struct gift *gift = malloc(sizeof *gift);

    session->held++;
    if (lease->reply)
        session_place(session, lease->ring, lease->delivery < 0)->uses++;
    if (gift == NULL)
        take_back(&now);
    else
        *gift = now;
    return gift;
}

void control_reply_lease(struct session *session, struct conn_call *call,
                         const ProtobufCMessage *response, const struct session_lease *lease,
                         uint64_t request_id, bool is_reading)
{
    struct gift *gift = make_gift(session, lease, is_reading);

    if (gift == NULL) {
        conn_reply_error(call, -RINGSIDE_E_LIMIT, "out of memory");
        return;
    }
    session_remember(session, request_id, lease);
    if (conn_reply_tracked(call, response, NULL, 0, on_done, gift) < 0)
        on_done(gift, false);
}

int control_stream_lease(struct session *session, struct conn_call *call,
                         const ProtobufCMessage *response, const struct session_lease *lease,
                         uint64_t request_id)
{
    struct gift *gift = make_gift(session, lease, false);

    if (gift == NULL)
        return -ENOMEM;
    if (request_id != 0)
        session_remember_streamed(session, request_id, lease);
    int rc = conn_stream_send(call, response, on_done, gift);
    if (rc < 0)
        on_done(gift, false);
    return rc;
}

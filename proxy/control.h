/* SPDX-License-Identifier: Apache-2.0 */
/* The service ringside.v1.Control: the methods, by file, and the calls that wait. */
#ifndef RINGSIDE_PROXY_CONTROL_H
#define RINGSIDE_PROXY_CONTROL_H

#include "proto/control.pb-c.h"
#include "proxy/session.h"

struct route;

#define CONTROL_METADATA_MAX (48u << 10) /* bytes of metadata in a request */
#define CONTROL_METADATA_OUT (1u << 20)  /* bytes of metadata in an answer */

int control_open(struct proxy *proxy);
void control_close(
    struct proxy *proxy); /* handles; memory goes with control_destroy, after the loop */
void control_destroy(struct proxy *proxy);
void control_dispatch(struct conn_call *call);
struct sessions *control_sessions(struct proxy *proxy);

/* ---- methods; each answers or keeps its call ---- */
void control_loan(struct session *session, struct conn_call *call);
void control_send(struct session *session, struct conn_call *call);
void control_share(struct session *session, struct conn_call *call);
void control_abandon(struct session *session, struct conn_call *call);
void control_receive(struct session *session, struct conn_call *call);
void control_release(struct session *session, struct conn_call *call);
void control_nack(struct session *session, struct conn_call *call);
void control_forward(struct session *session, struct conn_call *call);
void control_read(struct session *session, struct conn_call *call);
void control_free(struct session *session, struct conn_call *call);

/* ---- calls that wait (wait.c) ---- */

/* One try: 1 the call is answered, 0 it has to wait. */
struct wait;
typedef int wait_try(struct wait *wait);
struct wait {
    struct wait *next;
    struct session *session;
    struct conn_call *call;
    ProtobufCMessage *request; /* owned */
    wait_try *again;
    bool for_inbox; /* waits for a message, not for room */
    struct {
        bool begun;           /* the loan is this call's, abandoned when it is cancelled */
        struct rs_loan loan;  /* in the own ring */
        uint64_t total_bytes; /* of the message, as it was when the loan was chosen */
        uint64_t done_bytes;  /* of the slot, from its start */
    } copy;                   /* Forward where it cannot be done in place */
};
/* Tries at once and again until answered or cancelled. Takes `request` over. */
void control_wait(struct session *session, struct conn_call *call, ProtobufCMessage *request,
                  wait_try *again, bool for_inbox);
/* Something came (a peer ring was admitted): whoever waits for a message looks again. */
void control_look_again(struct proxy *proxy);

struct waits;
struct waits *waits_create(struct proxy *proxy);
void waits_close(struct waits *waits);
struct waits *control_waits(struct proxy *proxy);

/* ---- messages (message_wire.c) ---- */

/* A message on the wire; valid while the slot is held. */
struct wire_message {
    Ringside__V1__Message message;
    Ringside__V1__Lease lease;
    struct rs_message header;
    Ringside__V1__Tensor tensors[RS_MAX_TENSORS];
    Ringside__V1__Tensor *tensor_pointers[RS_MAX_TENSORS];
    uint8_t incarnation[16];
    uint8_t trace_id[16];
};
/* 0, -RINGSIDE_E_CORRUPT, or -RINGSIDE_E_TOO_BIG when the metadata does not fit an answer. */
int wire_message_fill(struct wire_message *wire, struct proxy *proxy,
                      const struct session_lease *lease, const char *body_path, unsigned attempts);
void wire_tensors_fill(const struct rs_message *header, Ringside__V1__Tensor *tensors,
                       Ringside__V1__Tensor **pointers);
void wire_lease_fill(Ringside__V1__Lease *wire, const struct session_lease *lease,
                     uint8_t incarnation[16]);
uint8_t *control_body(const struct rs_ring *ring, uint32_t slot);

/* An answer that hands out a lease: undone when it cannot be delivered. */
void control_reply_lease(struct session *session, struct conn_call *call,
                         const ProtobufCMessage *response, const struct session_lease *lease,
                         uint64_t request_id, bool is_reading);

/* ---- routes ---- */

/* Whether every destination of the route is connected and has room now. 0: yes; 1: no, and the call
 * is answered; -RINGSIDE_E_FULL or -RINGSIDE_E_UNAVAILABLE: the route blocks, so the call waits.
 * With `drop` a drop-oldest route makes room, without it such a route has room. */
int control_room(struct wait *wait, const struct route *route, bool drop);
/* A slot of the own ring for a call that tries again until it has one. 0 or -RINGSIDE_E_FULL. */
int control_loan_slot(struct session *session, unsigned class_index, struct rs_loan *loan);
/* Seals a prepared loan and queues it on the route. 0 or -RINGSIDE_E_STATE. */
int control_publish(struct proxy *proxy, uint16_t number, const struct rs_loan *loan,
                    const struct route *route);
/* Queues one more cell after a nack or an undo. */
void control_requeue(struct proxy *proxy, const struct rs_lease *lease, unsigned ring_number);

/* ---- report.c ---- */
void report_status(struct proxy *proxy, struct conn_call *call);
void report_list(struct proxy *proxy, struct conn_call *call);
void report_describe(struct proxy *proxy, struct conn_call *call);

/* ---- tickets ---- */

/* From the two forms of a request; `text` NULL: the number. 0 or -RINGSIDE_E_MALFORMED_TICKET. */
int control_ticket(struct rs_ticket *ticket, uint64_t number, const char *text);

#endif

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
void control_add_readers(struct session *session, struct conn_call *call);
void control_free(struct session *session, struct conn_call *call);
void control_receive_stream(struct session *session, struct conn_call *call);
void control_credit(struct session *session, struct conn_call *call);
void control_call(struct session *session, struct conn_call *call);
void control_call_stream(struct session *session, struct conn_call *call);
void control_answer(struct session *session, struct conn_call *call);
void control_cancelled(struct session *session, struct conn_call *call);

/* ---- calls that wait (wait.c) ---- */

/* One try: 1 the call is answered, 0 it has to wait or goes on. */
struct wait;
typedef int wait_try(struct wait *wait);
enum wait_kind {
    WAIT_ROOM,    /* for a slot, a cell, a peer: looked for all the time */
    WAIT_MESSAGE, /* in the inbox */
    WAIT_REPLY,   /* in the session's reply box */
};
struct wait {
    struct wait *next;
    struct session *session;
    struct conn_call *call;
    ProtobufCMessage *request; /* owned */
    wait_try *again;
    enum wait_kind kind;
    bool idle;      /* not tried until control_wait_again */
    bool asked;     /* for the place in another stage's ring that the call needs */
    struct {
        bool begun;           /* the loan is this call's, abandoned when it is cancelled */
        struct rs_loan loan;  /* in the own ring */
        uint64_t total_bytes; /* of the message, as it was when the loan was chosen */
        uint64_t done_bytes;  /* of the slot, from its start */
    } copy;                   /* Forward where it cannot be done in place; the slot of an error reply */
    struct session_call *made; /* Call: what waits for replies, cancelled when it is discarded */
    struct {
        uint64_t id;        /* request id; 0: the call is no stream, or not begun */
        uint32_t credits;   /* messages that may still be sent */
        uint32_t again;     /* position of what an earlier stream gave, see session_streamed */
        uint32_t again_end; /* position after the last of them */
    } stream;
};
/* Tries at once and again until answered or cancelled. Takes `request` over. */
void control_wait(struct session *session, struct conn_call *call, ProtobufCMessage *request,
                  wait_try *again, enum wait_kind kind);
/* Tries an idle wait now. */
void control_wait_again(struct wait *wait);
/* The session's open stream of that request id, or NULL. */
struct wait *control_find_stream(struct session *session, uint64_t id);
/* Ends a stream in good order. */
void control_end_stream(struct wait *wait);
/* Something came (a peer ring was admitted): whoever waits for a message looks again. */
void control_look_again(struct proxy *proxy);

struct waits;
struct waits *waits_create(struct proxy *proxy);
void waits_close(struct waits *waits);
struct waits *control_waits(struct proxy *proxy);

/* ---- messages (wire.c) ---- */

/* A message on the wire; valid while the slot is held. */
struct wire_message {
    Ringside__V1__Message message;
    Ringside__V1__Lease lease;
    struct rs_message header;
    Ringside__V1__Tensor tensors[RS_MAX_TENSORS];
    Ringside__V1__Tensor *tensor_pointers[RS_MAX_TENSORS];
    uint8_t incarnation[16];
    uint8_t trace_id[16];
    char method[RS_METHOD_MAX + 1];
};
/* 0, -RINGSIDE_E_CORRUPT, or -RINGSIDE_E_TOO_BIG when the metadata does not fit an answer. */
int wire_message_fill(struct wire_message *wire, struct proxy *proxy,
                      const struct session_lease *lease, const char *body_path, unsigned attempts);
bool wire_message_is_over(const struct rs_slot *slot); /* its time to live */
void wire_tensors_fill(const struct rs_message *header, Ringside__V1__Tensor *tensors,
                       Ringside__V1__Tensor **pointers);
void wire_lease_fill(Ringside__V1__Lease *wire, const struct session_lease *lease,
                     uint8_t incarnation[16]);
uint8_t *control_body(const struct rs_ring *ring, uint32_t slot);

/* An answer that hands out a lease: undone when it cannot be delivered. */
void control_reply_lease(struct session *session, struct conn_call *call,
                         const ProtobufCMessage *response, const struct session_lease *lease,
                         uint64_t request_id, bool is_reading);
/* The same for one message of a stream, which goes on. 0, or a negative error: undone, and the call
 * still stands. */
int control_stream_lease(struct session *session, struct conn_call *call,
                         const ProtobufCMessage *response, const struct session_lease *lease,
                         uint64_t request_id);

/* ---- taking (consume.c) ---- */

/* Makes the session's view of the inbox. 0 or -ENOMEM. */
int control_open_inbox(struct session *session);
/* Takes the next message that has not expired. 1: held; 0: none now (who waits will look again);
 * -RINGSIDE_E_INTERNAL: repair was asked for. */
int control_take(struct session *session, struct rs_lease *held);
/* Makes the wire form of a held message. 0, or a negative error: the message was put aside and the
 * call answered. */
int control_tell(struct session *session, struct conn_call *call, const struct rs_lease *held,
                 struct wire_message *wire);
/* A place in a ring of the inbox. 1: it is there; 0: asked for, look again; -RINGSIDE_E_UNAVAILABLE
 * when it was asked for in vain (`wait->asked`). */
int control_place(struct wait *wait, unsigned ring_number);
const char *control_body_path(struct session *session, unsigned ring_number);

/* ---- calls (answer.c) ---- */

/* The call word of what is held, or 0 when that is no request. */
uint64_t control_request_call(const struct rs_lease *held);
/* Before a held request is released: an error, when there was no last reply. */
void control_answer_for(struct session *session, const struct rs_lease *held);
/* Of a slot of the own ring, when a session resumes that an earlier sidecar served. 0 or -ENOMEM. */
int control_adopt_request(struct session *session, uint32_t slot);
/* After a held request was ended: its caller looks. `call` from control_request_call, 0: nothing. */
void control_wake_caller(struct session *session, const struct rs_lease *held, uint64_t call);

/* Calls that sessions made through an earlier sidecar ended with their connections. NULL: those of
 * all that do not work in memory themselves. */
void control_adopt_calls(struct proxy *proxy, const struct session *session);

/* ---- loans (publish.c) ---- */

/* What makes a message a request or a reply. */
struct call_words {
    const char *method; /* NULL: of a reply */
    uint64_t id, call, admission;
};
/* Understands the lease of a request and answers what is wrong with it. */
int control_find_loan(struct session *session, struct conn_call *call,
                      const Ringside__V1__Lease *wire, struct rs_loan *loan);
/* NULL will do. Answers what is wrong. */
int control_check_options(struct conn_call *call, const Ringside__V1__Options *options);
/* Completes the header that Loan stored, and copies the metadata of checked options in. Answers
 * what is wrong. */
int control_complete(struct session *session, struct conn_call *call, const struct rs_loan *loan,
                     const Ringside__V1__Options *options, uint64_t ttl_ns,
                     const struct call_words *words, uint64_t *body_bytes);
/* The session has that no more. */
void session_spend(struct session *session, const struct session_lease *lease);

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
/* The ring that a ticket names: the own one or one of the inbox that this sidecar has mapped, with
 * its number there. The text form names one incarnation; a bare ticket, of several rings with its
 * id, the one that has its generation, else the first. The slot, -RINGSIDE_E_FOREIGN_TICKET or
 * -RINGSIDE_E_STALE_TICKET. */
int control_ticket_ring(struct proxy *proxy, const struct rs_ticket *ticket, struct rs_ring **ring,
                        unsigned *ring_number);
void control_refuse_ticket(struct conn_call *call, int error, const struct rs_ticket *ticket);

#endif

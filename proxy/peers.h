/* SPDX-License-Identifier: Apache-2.0 */
/* Other sidecars of this node: links to the stages that routes lead to, and to those whose messages
 * come here. */
#ifndef RINGSIDE_PROXY_PEERS_H
#define RINGSIDE_PROXY_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/control.pb-c.h"
#include "proxy/conn.h"

struct proxy;
struct rs_ring;

/* Begins to connect to every address of proxy->routes but the own one. On the loop, before the
 * socket listens. 0 or a negative error. */
int peers_open(struct proxy *proxy);
/* At shutdown, before conn_close_all: closes timers and links. Idempotent; accepts proxy->peers ==
 * NULL. */
void peers_close(struct proxy *proxy);
/* After the loop has ended: unmaps and frees. Accepts proxy->peers == NULL. */
void peers_destroy(struct proxy *proxy);

/* A call of the service ringside.peer.v1.Peer. */
void peers_dispatch(struct conn_call *call);

/* Control.Open for client `number` of the own ring, whose session is on call->conn. Both answer the
 * call, now or later. */
void peers_open_ring(struct proxy *proxy, struct conn_call *call, uint16_t number, const char *name,
                     unsigned ring_number);
/* The ring of the stage that the destination leads to: for replies, or to read its tickets. */
void peers_open_answering(struct proxy *proxy, struct conn_call *call, const char *name,
                          unsigned destination, bool for_replies);
void peers_open_destination(struct proxy *proxy, struct conn_call *call, uint16_t number,
                            unsigned destination);

/* A place of a session that works through the sidecar in a ring of the stage's inbox. */
struct peers_admission {
    struct rs_ring *ring;  /* control file writable, body read-only; shared; valid until
                              peers_session_gone(number) */
    uint16_t client;       /* the session's own number in that ring */
    uint16_t destination;  /* index of the stage's inbox in that ring's destination table */
    const char *body_path; /* for people and for languages without descriptors */
};

/* error 0 and an admission, or a negative error and NULL. */
typedef void peers_admitted_cb(struct proxy *proxy, uint16_t number, unsigned ring_number,
                               int error, const struct peers_admission *admission);

/*
 * Asks for the ring with that number in the own inbox, for client `number` of the own ring, whose
 * socket is `socket` (for a pidfd). 0: the callback comes exactly once, at once or later on the
 * loop; a repeated ask answers with the same place. Or a negative error, and no callback.
 */
int peers_admit_session(struct proxy *proxy, uint16_t number, const char *name, int socket,
                        unsigned ring_number, peers_admitted_cb *callback);
/* The number is given back: its places in other rings go with it. Pending callbacks do not come any
 * more. */
void peers_session_gone(struct proxy *proxy, uint16_t number);

/* A session's place in the ring of a stage that a route leads to: there replies to its calls are held, or, in a place of
 * its own, because it takes a reader number, that stage's tickets are read. */
struct answerer {
    struct answerer *next;  /* of the session */
    struct rs_ring *ring;   /* control file writable, body read-only; shared */
    const char *body_path;  /* for people and for languages without descriptors */
    uint64_t nonce;         /* of the admission */
    uint32_t uses;          /* calls, leases and readings in it, while which it stays */
    uint16_t destination;   /* in the own ring */
    uint16_t client;        /* the session's number in that ring */
    bool reads;             /* for tickets, not for replies */
};

struct session;
struct rs_ticket;

/* 1: *answerer is the session's place, of either kind, with the stage of a destination that is another one's. 0: it was asked for (only with
 * `may_ask`), look again in a moment. Or a negative error: -RINGSIDE_E_UNAVAILABLE, -RINGSIDE_E_LIMIT there, ... */
int peers_answerer(struct session *session, unsigned destination, bool reads, bool may_ask,
                   struct answerer **answerer);
/* The destination of the stage whose ring a ticket names, of those that routes lead to, or
 * RS_NO_DESTINATION. */
unsigned peers_ticket_destination(const struct proxy *proxy, const struct rs_ticket *ticket);
/* That ring, as its inbox is mapped: without the body. NULL: none. */
struct rs_ring *peers_ticket_ring(const struct proxy *proxy, const struct rs_ticket *ticket);
/* The event of the inbox of the ring with that number in the own inbox, or -1: for callers there. */
int peers_ring_event(const struct proxy *proxy, unsigned ring_number);

/* Whether the sidecar of any other stage that messages go to is connected. */
bool peers_linked(const struct proxy *proxy);

/* The address that a destination of the own ring leads to, by a route or because another stage made it
 * known; "?" when neither says. */
const char *peers_path(const struct proxy *proxy, unsigned destination);

/* Rows of the status, allocated for protobuf_c_message_free_unpacked. 0 or -ENOMEM. */
int peers_status(struct proxy *proxy, Ringside__V1__PeerStatus ***peers, size_t *count);

#endif

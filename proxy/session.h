/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's session: what the control socket knows about one client number while its process
 * lives. */
#ifndef RINGSIDE_PROXY_SESSION_H
#define RINGSIDE_PROXY_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/control.pb-c.h"
#include "proto/inbox.h"
#include "proto/tensor.h"
#include "proxy/conn.h"

#define SESSION_CALLS      64u /* request ids of Loan and Receive whose lease is given again */
#define SESSION_STREAMED   64u /* leases that streams gave and that an equal stream gives again */
#define SESSION_REMEMBERED (SESSION_CALLS + SESSION_STREAMED)

struct proxy;

/* What a lease of the wire names: a loan or a reading (delivery -1), or a delivery. */
struct session_lease {
    struct rs_ring *ring;
    uint32_t slot;
    uint32_t generation;
    int delivery;        /* -1: a loan or a reading */
    uint8_t ring_number; /* in the stage's inbox; 0: the own ring */
    bool reply;          /* `ring` is that of one of the session's places with a stage that a route leads to, and no
                          * ring number counts: a reply, or a reading */
};

/* A reading through the sidecar: one bit of the readers word, however many calls share it. */
struct session_reading {
    struct rs_ring *ring;
    uint32_t slot;
    uint32_t generation;
    uint32_t count;      /* calls of this session that have not ended */
    uint8_t ring_number; /* in the stage's inbox; 0: the own ring, or `placed` */
    bool placed;         /* in one of the session's answerers */
    uint8_t reader;      /* whose bit it is */
    bool counted;        /* one that has ended succeeded */
};

struct session_request {
    uint64_t id; /* 0: unused */
    struct session_lease lease;
};

struct answerer;
struct session_call;
struct session_calls;
struct session_served;

struct session {
    struct proxy *proxy;
    uint16_t number;
    uint8_t reader;    /* used for Read: the client's own, or CLIENTS_SHARED_READER */
    bool locked;       /* works in shared memory itself */
    bool fresh;        /* not attached yet: what it holds when it resumes, an earlier sidecar gave */
    uint8_t call_cells; /* the last ones of its box are for calls made here */
    struct conn *conn; /* NULL while detached */
    char name[RS_NAME_BYTES];
    uint32_t held;          /* loans, deliveries and readings given through the socket */
    struct rs_inbox *inbox; /* own view with its own numbers; NULL before the first Receive */
    uint64_t asked[RS_MAX_RINGS / 64];    /* peer rings whose admission is under way */
    const char *body_paths[RS_MAX_RINGS]; /* of admitted peer rings; peers.c's */
    struct session_reading *readings;
    uint32_t reading_count, reading_capacity;
    struct session_request requests[SESSION_REMEMBERED]; /* calls' first, then streams' */
    uint32_t next_request, next_streamed;                /* positions, never reduced */
    struct answerer *answerers;      /* places in the rings of stages that were called; peer_answerer.c's */
    struct session_calls *calls;     /* calls.c's; NULL before the first one */
    struct session_served *served;   /* calls that were answered and are held; answer.c's */
    uint32_t served_count, served_capacity;
};

/* ---- sessions by number ---- */

struct sessions {
    struct session *by_number[RS_MAX_CLIENTS];
    struct session_reading *shared; /* of CLIENTS_SHARED_READER, over all sessions */
    uint32_t shared_count, shared_capacity;
};

/* The session of a connection, or NULL. */
struct session *session_of(struct conn *conn);
struct session *session_find(struct proxy *proxy, uint16_t number);
/* Attach: answers the call. */
void session_attach(struct conn_call *call);
/* The number is given back: ends readings, closes a connection that is left, frees. Called by
 * clients.c. */
void session_over(struct proxy *proxy, uint16_t number, const char *why);
void sessions_destroy(struct proxy *proxy);

/* Fills in the wire form of the own ring. `incarnation` holds 16 bytes for it. */
void session_fill_ring(struct proxy *proxy, Ringside__V1__Ring *ring, uint8_t incarnation[16]);

/* ---- leases ---- */

/* Understands a lease of the wire. 0, or -RINGSIDE_E_INVALID (none given), _MALFORMED_TICKET,
 * _FOREIGN_TICKET. */
int session_lease_of(struct session *session, const Ringside__V1__Lease *wire,
                     struct session_lease *lease);
static inline struct session_lease session_lease_from(const struct rs_lease *held)
{
    return (struct session_lease){held->ring, held->slot, held->generation, held->delivery,
                                  held->ring_number, false};
}
/* The loan or the delivery as the ring has it now. 0 or -RINGSIDE_E_STATE when it is not this
 * session's. */
int session_loan(struct session *session, const struct session_lease *lease, struct rs_loan *loan);
int session_delivery(struct session *session, const struct session_lease *lease,
                     struct rs_lease *held);

void session_remember(struct session *session, uint64_t id, const struct session_lease *lease);
const struct session_lease *session_recall(const struct session *session, uint64_t id);
void session_forget(struct session *session, const struct session_lease *lease);
/* The same for streams, which give many leases. The one at a position below next_streamed, or NULL
 * when it is another stream's, was overwritten or given back. */
void session_remember_streamed(struct session *session, uint64_t id,
                               const struct session_lease *lease);
const struct session_lease *session_streamed(const struct session *session, uint64_t id,
                                             uint32_t position);
void session_forget_streamed(struct session *session, const struct session_lease *lease);
/* A peer's ring may have been unmapped since, and another one have come in its place. */
bool session_has_ring(const struct session *session, const struct session_lease *lease);

/* ---- calls (call_cells.c) ---- */

/* Nobody waits for its replies any more: its callee is told. */
void session_call_cancel(struct session *session, struct session_call *call);
/* Calls that ended early and whose callee has let go: their cells are free again. */
void session_calls_reap(struct session *session);
/* The place of that kind whose ring that is, or NULL. */
struct answerer *session_place(const struct session *session, const struct rs_ring *ring,
                               bool reads);
static inline struct answerer *session_answerer(const struct session *session,
                                                const struct rs_ring *ring)
{
    return session_place(session, ring, false);
}

/* ---- readings ---- */

static inline struct session_lease session_lease_read(const struct session_reading *reading)
{
    return (struct session_lease){reading->ring, reading->slot, reading->generation, -1,
                                  reading->ring_number, reading->placed};
}
/* Begins one more reading by ticket in the own ring or in one that the session has a place in. 0
 * and *generation, -RINGSIDE_E_LIMIT when the place has no reader number, or what
 * rs_ring_read_begin says. `added`: a read that session_read_add added, which is given back when
 * this is no reading of its own. */
int session_read_begin(struct session *session, struct rs_ring *ring, unsigned ring_number,
                       const struct rs_ticket *ticket, bool added, uint32_t *generation);
/* Adds reads to the ticket of one. -RINGSIDE_E_STATE when there is none, or what
 * rs_ring_readers_add says. */
int session_read_add(const struct session *session, const struct session_lease *lease,
                     unsigned readers);
/* Whether it reads that slot. */
bool session_reads(const struct session *session, const struct rs_ring *ring, uint32_t slot);
/* Ends a ticket of a ring in which the session has a place for reading. What rs_ring_ticket_free
 * says, or -RINGSIDE_E_LIMIT. */
int session_ticket_free(struct session *session, struct rs_ring *ring,
                        const struct rs_ticket *ticket);
/* Takes over one that an earlier sidecar began for this session, as the own ring's readers word
 * says. */
void session_read_adopt(struct session *session, uint32_t slot, uint32_t generation);
/* Ends one. -RINGSIDE_E_STATE when there is none of that slot and generation. `counted`: the
 * reading succeeded. */
int session_read_end(struct session *session, const struct session_lease *lease, bool counted);
/* Those of a ring that was unmapped: another one has its number now. */
void session_drop_readings(struct session *session, unsigned ring_number);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that sessions made: their cells in the session's reply box, and their end. */
#ifndef RINGSIDE_PROXY_CALLS_PRIVATE_H
#define RINGSIDE_PROXY_CALLS_PRIVATE_H

#include "proto/box.h"
#include "proxy/control.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"

/* A call that was sent. */
struct session_call {
    struct rs_ring *ring;      /* of the callee */
    struct answerer *answerer; /* whose ring that is; NULL: the own ring */
    uint64_t id;
    uint64_t deadline_ns;      /* CLOCK_MONOTONIC; UINT64_MAX: none */
    uint32_t slot, generation; /* of the request */
    uint32_t number;           /* of the next reply */
    uint16_t holder;           /* the session's number in `ring` */
    uint8_t first, credits;    /* cells in its box */
};

struct session_calls {
    uint64_t free_cells; /* of the box, of those that are not the session's own */
    uint64_t lingering;  /* first cells of calls that ended early and may be answered yet */
    uint32_t count;      /* of ids */
    struct session_call by_cell[RS_BOX_CELLS]; /* by the first */
};

struct rs_box *session_box(const struct session *session);
/* The session's calls, made before the first one. NULL: no memory. */
struct session_calls *session_calls_open(struct session *session);
/* A call with that many cells and nothing else. NULL: the session awaits as many replies as it may.
 */
struct session_call *session_call_take(struct session_calls *calls, unsigned credits);
/* Its last reply came, or it was not sent. */
void session_call_end(struct session *session, struct session_call *call);
/* It may be answered yet: its cells stay set aside as long. */
void session_call_end_early(struct session *session, struct session_call *call);

#endif

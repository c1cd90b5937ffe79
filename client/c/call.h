/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of calling share: a call's words, and its ends. */
#ifndef RINGSIDE_CLIENT_CALL_H
#define RINGSIDE_CLIENT_CALL_H

#include "client/c/private.h"

/* private_ of a call */
enum { CALL_TAG, CALL_PEER, CALL_REQUEST, CALL_CELLS, CALL_NUMBER, CALL_DEADLINE };

/* In CALL_CELLS, beside first cell and credits: the call is counted in calls.polled. */
#define CALL_IS_POLLED (UINT64_C(1) << 16)

static inline struct peer *call_peer(const struct ringside_call *call)
{
    return (struct peer *)(uintptr_t)call->private_[CALL_PEER];
}

static inline unsigned call_first_cell(const struct ringside_call *call)
{
    return (unsigned)call->private_[CALL_CELLS] & 0xff;
}

static inline unsigned call_credits(const struct ringside_call *call)
{
    return (unsigned)(call->private_[CALL_CELLS] >> 8) & 0xff;
}

static inline struct rs_pending call_pending(struct ringside *connection,
                                             const struct ringside_call *call)
{
    uint64_t request = call->private_[CALL_REQUEST];
    unsigned credits = call_credits(call);
    unsigned turn = credits == 1 ? 0 : (unsigned)(call->private_[CALL_NUMBER] % credits);

    return (struct rs_pending){
        .own = &connection->own.ring,
        .client = connection->own.ring.client,
        .holder = call_peer(call)->ring.client,
        .slot = (uint32_t)(request >> 32),
        .generation = (uint32_t)request,
        .ring = &call_peer(call)->ring,
        .cell = call_first_cell(call) + turn,
    };
}

static inline struct rs_box *call_box(struct ringside *connection)
{
    return &connection->own.ring.boxes[connection->own.ring.client];
}

/* No reply is awaited any more; its cells stay as they are. */
void call_close(struct ringside *connection, struct ringside_call *call);
/* After the last reply. */
void call_end(struct ringside *connection, struct ringside_call *call);
/* While the request may be held: its cells are kept until it is not. */
SELDOM void call_end_early(struct ringside *connection, struct ringside_call *call);
/* The same, and its callee is told. */
SELDOM void call_cancel(struct ringside *connection, struct ringside_call *call);
/* Of what is no open call. */
SELDOM int call_fail(const struct ringside *connection);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of calls: the boxes in which their tickets wait, how one is sealed as held by its caller,
 * cancellation. */
#ifndef RINGSIDE_PROTO_BOX_H
#define RINGSIDE_PROTO_BOX_H

#include "proto/ring.h"

/* ---- the callee: `ring` is its own, `box` the caller's ---- */

/* What a reply goes out with, and comes back by. */
struct rs_reply {
    struct rs_ring *ring; /* of the callee */
    struct rs_loan loan;  /* its header is stored */
    uint16_t owner;       /* number of who has the loan in that ring */
    uint16_t holder;      /* number of the caller in that ring */
    struct rs_box *box;   /* of the caller, in its own ring */
    unsigned cell;
    int event_fd; /* of those who armed the event bit of box->posted, or -1 */
};

/* LOANED -> SEALED and HELD by the caller, with its ticket in the cell; then wakes the caller. 0;
 * -RINGSIDE_E_FULL while the cell is in use (the slot is still loaned); -RINGSIDE_E_STATE when the
 * loan is lost. */
int rs_reply_publish(const struct rs_reply *reply);
/* When the caller is found gone, or the call cancelled, after rs_reply_publish. True when this call
 * took it back: the slot is released then. False: the caller took it. If it lives, it ends it; of
 * one that is gone, maybe because it had all that it wanted, this call has released what was left.
 */
bool rs_reply_take_back(const struct rs_reply *reply, bool caller_is_gone);
/* Whether the number is still that client's: `mask` says which bits of its nonce are known. After a
 * seal, see README. */
bool rs_client_is_there(const struct rs_ring *ring, unsigned number, uint64_t nonce, uint64_t mask);
/* Whether the caller of a request that is held here has cancelled it, or it is not held any more.
 */
bool rs_request_is_cancelled(const struct rs_lease *request);

/* ---- the caller ---- */

enum rs_box_content {
    RS_BOX_EMPTY,
    RS_BOX_REPLY,      /* *lease is the caller's, once it takes the cell */
    RS_BOX_UNSEALED,   /* a reply that is not out yet, or whose callee died on the way */
    RS_BOX_TAKEN_BACK, /* one that its callee is taking back; when that died, the caller ends it */
    RS_BOX_STRAY,      /* nothing that concerns the caller */
    RS_BOX_GONE,       /* no reply, and none will come */
};

/* What a cell of a box names, as far as `ring` is the callee's and the caller has the number
 * `holder` there. *ticket is what the cell holds. */
enum rs_box_content rs_box_look(struct rs_box *box, unsigned cell, struct rs_ring *ring,
                                uint16_t holder, uint64_t *ticket, struct rs_lease *lease);
/* The cell becomes empty; then wakes who waits for room. False when it was not `ticket` any more.
 */
bool rs_box_take(struct rs_box *box, unsigned cell, uint64_t ticket);
/* The same for the last reply of a call that is not cancelled: nobody waits for the cell. False
 * when what was looked at was a late reply to an earlier owner of the number, and its slot may hold
 * another by now: then nothing that was read of it counts. */
bool rs_box_empty(struct rs_box *box, unsigned cell, uint64_t ticket);

/* True: nobody had taken the request, and nobody will. False: a callee has or had it, and may see
 * that it is cancelled. */
bool rs_request_cancel(struct rs_ring *ring, uint32_t slot, uint32_t generation);
/* Whether nobody holds or will take the request any more. A reply that was sealed before is in its
 * cell then. */
bool rs_request_is_over(const struct rs_ring *ring, uint32_t slot, uint32_t generation);

/* A request that is not over yet, and where its next reply belongs. */
struct rs_pending {
    struct rs_ring *own; /* of the caller */
    uint16_t client;     /* its number there: whose box it is */
    uint16_t holder;     /* its number in the ring of the callee */
    uint32_t slot;       /* of the request, with its generation */
    uint32_t generation;
    struct rs_ring *ring; /* of the callee */
    unsigned cell;
};

/* As rs_box_look, and RS_BOX_GONE when no reply is there and none will come. */
enum rs_box_content rs_call_look(const struct rs_pending *call, uint64_t *ticket,
                                 struct rs_lease *lease);

/* ---- the sidecar ---- */

/* Before the number is given to somebody. */
void rs_box_clear(struct rs_box *box);
/* Wakes the caller and all callees of a box, armed or not. */
void rs_box_wake(struct rs_box *box);

#endif

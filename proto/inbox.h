/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox of a stage: a bounded ring of cells that point at queued deliveries. Cells are hints with a sequel: who
 * clears one looks at the delivery word again. */
#ifndef RINGSIDE_PROTO_INBOX_H
#define RINGSIDE_PROTO_INBOX_H

#include "proto/ring.h"

/* One process's view of an inbox; producers, consumers and sidecars have the same. */
struct rs_inbox {
    struct rs_inbox_shared *shared;
    struct rs_ring_entry *table;               /* rings that may appear here */
    rs_word *cells;
    uint32_t cell_count;                       /* power of two */
    unsigned lap_shift;                        /* log2 of it */
    uint32_t depth;                            /* limit for rs_inbox_has_room */
    int event_fd;                              /* the inbox's eventfd, or -1; not owned */
    rs_word head_seen;                         /* private: head as last loaded, for the depth check */
    rs_word32 asked;                           /* private: number that *unmapped gave last */
    _Atomic(struct rs_ring *) rings[RS_MAX_RINGS]; /* mapped rings by number; NULL: cannot be judged here */
    uint16_t destination[RS_MAX_RINGS];        /* index of this inbox in that ring's destination table */
    uint16_t holder[RS_MAX_RINGS];             /* client number that takes from that ring */
};

/* The view of the inbox that lies in a mapped ring. Rings are added by rs_inbox_admit. */
void rs_inbox_init(struct rs_inbox *inbox, struct rs_ring *owner, int event_fd);
/* Makes messages of `ring` (numbered `number` here) judgeable and, with holder, takeable. Safe while others take. */
void rs_inbox_admit(struct rs_inbox *inbox, unsigned number, struct rs_ring *ring,
                    uint16_t destination, uint16_t holder);
void rs_inbox_forget(struct rs_inbox *inbox, unsigned number);

/* Depth check with hints, before a seal. */
bool rs_inbox_has_room(struct rs_inbox *inbox);
uint32_t rs_inbox_depth_now(const struct rs_inbox *inbox);

/* One cell for a queued delivery, then the wake. Always succeeds for the caller: when the inbox is full the overflow
 * word is set instead (returns 1; the caller rings the bell of the message's ring). 0 when a cell was filled;
 * -RINGSIDE_E_INTERNAL when hints are hostile (overflow is set then, too). */
int rs_inbox_push(struct rs_inbox *inbox, unsigned ring_number, uint32_t slot, unsigned delivery);

/* Takes the next message. 1: *lease is held. 0: nothing that can be judged; *unmapped is then the number of a ring whose
 * messages may be here and which is not mapped, or -1; several such rings take turns, one a call. -RINGSIDE_E_INTERNAL after N + 2 rounds. Expired messages are the caller's affair. */
int rs_inbox_take(struct rs_inbox *inbox, struct rs_lease *lease, int *unmapped);

/* drop-oldest: ends the oldest queued message of `ring` here. True when one was dropped. */
bool rs_inbox_drop_oldest(struct rs_inbox *inbox, unsigned ring_number);

/* Recomputes head and tail from the cells, by compare-and-swap; for the sidecar. rs_inbox_mend_hints does it only when a
 * hint is one that no sequence of pushes and takes can leave; returns whether it was. */
void rs_inbox_rebuild_hints(struct rs_inbox *inbox);
bool rs_inbox_mend_hints(struct rs_inbox *inbox);

/* Sets overflow (always an RMW) and wakes the consumers. */
void rs_inbox_overflow(struct rs_inbox *inbox);

#endif

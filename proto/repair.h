/* SPDX-License-Identifier: Apache-2.0 */
/* What only the ring's own sidecar does: sweep after a death, audit of missing cells, quarantine, adoption. */
#ifndef RINGSIDE_PROTO_REPAIR_H
#define RINGSIDE_PROTO_REPAIR_H

#include "proto/inbox.h"

/* A ring with the inboxes that its destinations lead to. */
struct rs_repair {
    struct rs_ring *ring;
    struct rs_inbox *inboxes[RS_MAX_DESTINATIONS];  /* by destination index; NULL while not connected */
    uint8_t ring_number[RS_MAX_DESTINATIONS];       /* of this ring in that inbox */
    struct rs_inbox *own;                           /* the stage's own inbox, whose hints it mends; may be NULL */
    uint64_t *suspect;                              /* per slot: nonsense state seen once, or 0; owned */
    /* Bits of the client and of the reader numbers that may hold something; not owned. NULL: nobody knows, and nothing
     * is taken back but by a sweep. */
    const uint64_t *clients_in_use, *readers_in_use;
    const uint64_t *nonces; /* of the clients in use, by number; with clients_in_use */
    /* Since init; the first three also count as client 0's in the ring. */
    uint64_t requeued, dead_lettered, expired, freed_loans, quarantined, pushed;
};

int rs_repair_init(struct rs_repair *repair, struct rs_ring *ring); /* 0 or -ENOMEM */
void rs_repair_finish(struct rs_repair *repair);

/* All in slices: from *cursor (start with 0) at most `slots` slots; *cursor is advanced. True when the end is reached. */

/* After the kernel said that client `client` is dead: its loans freed, its leases queued again with attempts + 1 (past
 * the destination's limit: dead-lettered), its reader bit off. The caller then audits, wakes and marks the entry UNUSED. */
bool rs_repair_sweep(struct rs_repair *repair, uint16_t client, unsigned reader, uint32_t *cursor,
                     uint32_t slots);
/* Each takeable word without a cell gets one; slots that nobody needs are freed, bitmap bits set; what a number holds that
 * nobody has is swept; nonsense seen twice is quarantined; time to live of queued messages and tickets enforced against
 * now_ns. */
bool rs_repair_audit(struct rs_repair *repair, int64_t now_ns, uint32_t *cursor, uint32_t slots);

/* Looks at the own inbox's hints and rebuilds them when they are wrong; before an audit. True when they were: a producer
 * may have been at work meanwhile, so another look is due. */
bool rs_repair_hints(struct rs_repair *repair);

/* Wakes every waiter of every word that a dead client could have woken. */
void rs_repair_wake(struct rs_repair *repair);

/* First step of adoption, after the owner byte is locked: hints back into range by compare-and-swap, the old sidecar's
 * own reader bits off, epoch + 1. The caller then sweeps client 0 and every dead one, and audits. */
void rs_repair_adopt(struct rs_repair *repair);

#endif

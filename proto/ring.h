/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a mapped ring: loan, seal, release, reading by ticket, and the check that frees a slot. */
#ifndef RINGSIDE_PROTO_RING_H
#define RINGSIDE_PROTO_RING_H

#include "proto/ring_layout.h"
#include "proto/ticket.h"

#define RS_RECENT 64 /* power of two */

/* Slots of one class that this process sealed or gave back: likely free again, and warm. Only hints, so threads that
 * race here lose or double an entry at worst. */
struct rs_recent {
    rs_word32 slot[RS_RECENT];
    rs_word32 first;                      /* oldest entry */
    rs_word32 end;                        /* one past the newest */
    rs_word32 search;                     /* bitmap word where the last search ended */
};

/* One process's view of a ring. Sizes and offsets come from the private copy of the superblock, never from memory. */
struct rs_ring {
    struct rs_superblock layout;          /* private, validated copy */
    uint8_t *control;                     /* mapping of layout.control_bytes */
    uint8_t *body;                        /* mapping of layout.body_bytes; NULL when not mapped */
    bool body_writable;
    struct rs_slot *slots;
    struct rs_client *clients;
    struct rs_destination *destinations;
    struct rs_ring_shared *shared;
    struct rs_box *boxes;                 /* by client number */
    int bell_fd;                          /* eventfd of the ring's sidecar, or -1; not owned */
    int space_fd;                         /* eventfd of sleepers on slot_free that armed the event bit, or -1; not owned */
    uint16_t client;                      /* my number here: holder of leases, owner of loans */
    uint8_t reader;                       /* my reader number, or RS_NO_READER */
    struct rs_recent recent[RS_MAX_CLASSES]; /* private */
};

/* A slot that its owner may write. */
struct rs_loan {
    uint32_t slot;
    uint32_t generation;
};

/* A delivery that its holder may read. */
struct rs_lease {
    struct rs_ring *ring;
    uint64_t word;       /* the delivery word as HELD */
    uint32_t slot;
    uint32_t generation;
    uint16_t holder;     /* client number in that ring */
    uint8_t delivery;    /* index of the word */
    uint8_t ring_number; /* in the inbox it came from */
};

/* Maps a ring. body_fd may be -1. Descriptors stay the caller's. On error *why says what is wrong (static text).
 * 0, -errno, -RINGSIDE_E_VERSION or -RINGSIDE_E_CORRUPT. */
int rs_ring_map(struct rs_ring *ring, int control_fd, int body_fd, bool body_writable,
                const char **why);
void rs_ring_unmap(struct rs_ring *ring);

/* Class index for a message of that many bytes, or -RINGSIDE_E_TOO_BIG. */
int rs_ring_class_for(const struct rs_ring *ring, uint64_t bytes);
/* Class index of a slot, or -1. */
int rs_ring_class_of(const struct rs_ring *ring, uint32_t slot);
uint64_t rs_ring_slot_bytes(const struct rs_ring *ring, uint32_t slot);
/* Offset of the slot in the body file. */
uint64_t rs_ring_slot_offset(const struct rs_ring *ring, uint32_t slot);

/* FREE -> LOANED(owner). Lock-free, never waits. Looks at the hints first and at every slot's state before it says that
 * there is none; rs_ring_loan_hinted looks at the hints alone (for spinning). 0 or -RINGSIDE_E_FULL. */
int rs_ring_loan_hinted(struct rs_ring *ring, uint16_t owner, unsigned class_index, struct rs_loan *loan);
int rs_ring_loan(struct rs_ring *ring, uint16_t owner, unsigned class_index, struct rs_loan *loan);
/* Fetches the lines that the next loan of a small class will write: they are with the consumer that freed the slot. */
void rs_ring_prefetch_loan(struct rs_ring *ring, unsigned class_index);
/* LOANED(owner) -> FREE. -RINGSIDE_E_STATE when it is not the owner's loan of that generation. */
int rs_ring_abandon(struct rs_ring *ring, uint16_t owner, const struct rs_loan *loan);
/* Writes the 8 delivery words of a loaned slot: the first `count` QUEUED for destinations[], the rest NONE; and readers.
 * With a ticket once per generation: a reader that guessed it may have set its bit since. */
void rs_ring_prepare(struct rs_ring *ring, const struct rs_loan *loan, const uint16_t *destinations,
                     unsigned count, uint64_t readers);
/* LOANED(owner) -> SEALED: the commit, for all routes at once. flags: RS_FLAG_TICKET. 0 or -RINGSIDE_E_STATE. */
int rs_ring_seal(struct rs_ring *ring, uint16_t owner, const struct rs_loan *loan, unsigned flags);
/* The same for a loan that becomes a reply (box.h). */
int rs_ring_seal_reply(struct rs_ring *ring, uint16_t owner, const struct rs_loan *loan);

/* Takeable for destination d: the word is QUEUED(g, d) and the state SEALED(g), read in this order. */
bool rs_ring_takeable(struct rs_ring *ring, uint32_t slot, unsigned delivery, unsigned destination,
                      uint64_t *word);
/* Fetches the lines that a take of that slot touches. Any slot number. */
static inline void rs_ring_prefetch_take(const struct rs_ring *ring, uint32_t slot)
{
    const uint8_t *record = (const uint8_t *)&ring->slots[slot];

    rs_prefetch_write(record);
    rs_prefetch_read(record + RS_CACHE_LINE);
}
/* QUEUED -> HELD by compare-and-swap on the exact value that rs_ring_takeable returned. */
bool rs_ring_take(struct rs_ring *ring, uint32_t slot, unsigned delivery, uint64_t word,
                  uint16_t holder, struct rs_lease *lease);

/* HELD -> DONE, then the free check. -RINGSIDE_E_STATE when the lease is no longer the holder's. */
int rs_ring_release(const struct rs_lease *lease);
/* HELD -> QUEUED with attempts + 1 at the same destination, or DONE when attempts reach `limit` (then returns 1:
 * dead-lettered). A request or a reply is always DONE then: it is delivered at most once.
 * 0: the caller must push the cell. */
int rs_ring_nack(const struct rs_lease *lease, unsigned limit);
/* HELD -> QUEUED at other destinations: the last on its own word, the others on NONE words above it. deliveries[i] is the
 * word of destinations[i], to be pushed by the caller. Returns how many destinations, from the first, have been queued:
 * `count` when the lease is passed on; fewer when no word was left (the lease is still held, the caller copies for the
 * rest); or -RINGSIDE_E_STATE when the lease is no longer the holder's. */
int rs_ring_forward(const struct rs_lease *lease, const uint16_t *destinations, unsigned count,
                    uint8_t *deliveries);
/* QUEUED -> DONE by expiry (then the free check). True when this call did it. */
bool rs_ring_expire(struct rs_ring *ring, uint32_t slot, unsigned delivery, uint64_t word);

/* SEALED -> FREE when nobody needs the slot. Anybody may call it at any time. True when this call freed it. */
bool rs_ring_free_check(struct rs_ring *ring, uint32_t slot);

/* Sets the allocation hint of a slot; harmless when it is not free. */
void rs_ring_mark_free(struct rs_ring *ring, uint32_t slot);
/* After SEALED or LOANED -> FREE: the hint, then the wake of who waits for a slot. */
void rs_ring_announce_free(struct rs_ring *ring, uint32_t slot);
/* Part of the free check: the slot is not read by ticket and will not be. */
bool rs_ring_readers_are_done(struct rs_slot *slot, uint32_t generation);

/* By ticket. `reader` is this process's number; the caller serialises its readers per slot.
 * 0, -RINGSIDE_E_STALE_TICKET, -RINGSIDE_E_FOREIGN_TICKET. */
int rs_ring_ticket_slot(const struct rs_ring *ring, const struct rs_ticket *ticket);
int rs_ring_read_begin(struct rs_ring *ring, unsigned reader, const struct rs_ticket *ticket,
                       uint32_t *generation);
/* By a reader whose bit is on: changes how many reads are left by `by`. A kept message, or one that has none left to take
 * off, stays as it is. 0, -RINGSIDE_E_STALE_TICKET (ended meanwhile), -RINGSIDE_E_LIMIT (more than 255). */
int rs_ring_readers_add(struct rs_ring *ring, unsigned reader, uint32_t slot, int by);
/* counted: the reading succeeded and counts. */
void rs_ring_read_end(struct rs_ring *ring, unsigned reader, uint32_t slot, uint32_t generation,
                      bool counted);
/* Ends the ticket of a message by a reader whose bit is on, and stays on. 0 or -RINGSIDE_E_STALE_TICKET. */
int rs_ring_read_retire(struct rs_ring *ring, unsigned reader, uint32_t slot);
/* Ends a ticket. 0 or -RINGSIDE_E_STALE_TICKET. */
int rs_ring_ticket_free(struct rs_ring *ring, unsigned reader, const struct rs_ticket *ticket);

/* Counts for a client of the ring: exact unless threads of one client race. */
void rs_ring_count(struct rs_ring *ring, uint16_t client, unsigned counter, uint64_t n);

/* Asks the ring's sidecar for an audit. The sidecar clears the bell before it audits; true when it had been rung. */
void rs_ring_bell(struct rs_ring *ring);
bool rs_ring_bell_clear(struct rs_ring *ring);

#endif

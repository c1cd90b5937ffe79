/* SPDX-License-Identifier: Apache-2.0 */
/* Every struct that two processes share: fixed width, no pointers, each offset and size asserted. */
#ifndef RINGSIDE_PROTO_RING_LAYOUT_H
#define RINGSIDE_PROTO_RING_LAYOUT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/atomic.h"

#define RS_LAYOUT_MAJOR 2
#define RS_LAYOUT_MINOR 0
#define RS_LAYOUT_VERSION ((uint32_t)RS_LAYOUT_MAJOR << 16 | RS_LAYOUT_MINOR)
#define RS_MAGIC UINT64_C(0x45444953474e4952) /* "RINGSIDE" read as little-endian bytes */
#define RS_ENDIAN UINT32_C(0x01020304)

#define RS_CACHE_LINE 64
#define RS_SUPERBLOCK_BYTES 4096
#define RS_MAX_CLASSES 8
#define RS_MAX_SLOTS (1u << 20)
#define RS_MAX_CLIENTS 4096      /* numbers 0 (the sidecar) .. 4095 */
#define RS_MAX_DESTINATIONS 256  /* entries of a ring's table; the word has room for 4,095 */
#define RS_MAX_RINGS 256         /* rings that may appear in one inbox; 0 is its own */
#define RS_MAX_DELIVERIES 8
#define RS_MAX_TENSORS 64
#define RS_MAX_RANK 8
#define RS_MAX_READERS 38        /* reader bits of the readers word; 0 is the sidecar's */
#define RS_NO_DESTINATION 4095u
#define RS_REPLY_DESTINATION 4094u /* of a delivery word: a reply, held by its caller from the seal on */
#define RS_BOX_CELLS 64          /* replies that can wait for one client */
#define RS_METHOD_MAX 63         /* bytes of a method's name */
#define RS_NO_READER 255u
#define RS_SLOT_ALIGN 4096
#define RS_DATA_ALIGN 256        /* of a tensor's data; a single tensor is page-aligned */
#define RS_NAME_BYTES 64         /* names of stages, clients and destinations, NUL-terminated */

/* ---- state word: generation 32 | owner 16 | phase 8 | flags 8 ---- */
enum rs_slot_phase { RS_FREE = 0, RS_LOANED = 1, RS_SEALED = 2, RS_QUARANTINED = 3 };
#define RS_FLAG_TICKET 0x01u /* readable by ticket */

static inline uint64_t rs_state(uint32_t generation, uint16_t owner, uint8_t phase, uint8_t flags)
{
    return (uint64_t)generation << 32 | (uint64_t)owner << 16 | (uint64_t)phase << 8 | flags;
}
static inline uint32_t rs_state_generation(uint64_t state)
{
    return (uint32_t)(state >> 32);
}
static inline uint16_t rs_state_owner(uint64_t state)
{
    return (uint16_t)(state >> 16);
}
static inline uint8_t rs_state_phase(uint64_t state)
{
    return (uint8_t)(state >> 8);
}
static inline uint8_t rs_state_flags(uint64_t state)
{
    return (uint8_t)state;
}

/* ---- delivery word: generation 32 | holder 12 | destination 12 | attempts 4 | phase 4 ---- */
enum rs_delivery_phase { RS_NONE = 0, RS_QUEUED = 1, RS_HELD = 2, RS_DONE = 3 };
#define RS_MAX_ATTEMPTS 15u

static inline uint64_t rs_delivery(uint32_t generation, unsigned holder, unsigned destination,
                                   unsigned attempts, unsigned phase)
{
    return (uint64_t)generation << 32 | (uint64_t)(holder & 0xfff) << 20 |
           (uint64_t)(destination & 0xfff) << 8 | (uint64_t)(attempts & 0xf) << 4 | (phase & 0xf);
}
static inline uint32_t rs_delivery_generation(uint64_t word)
{
    return (uint32_t)(word >> 32);
}
static inline unsigned rs_delivery_holder(uint64_t word)
{
    return (unsigned)(word >> 20) & 0xfff;
}
static inline unsigned rs_delivery_destination(uint64_t word)
{
    return (unsigned)(word >> 8) & 0xfff;
}
static inline unsigned rs_delivery_attempts(uint64_t word)
{
    return (unsigned)(word >> 4) & 0xf;
}
static inline unsigned rs_delivery_phase(uint64_t word)
{
    return (unsigned)word & 0xf;
}

/* ---- readers word: generation 16 | left 8 | kept 1 | retired 1 | reader bits 38 ---- */
#define RS_READERS_BITS ((UINT64_C(1) << RS_MAX_READERS) - 1)
#define RS_READERS_RETIRED (UINT64_C(1) << 38)
#define RS_READERS_KEPT (UINT64_C(1) << 39)
#define RS_READERS_LEFT_ONE (UINT64_C(1) << 40)
#define RS_READERS_LEFT_MASK (UINT64_C(0xff) << 40)
#define RS_READERS_LEFT_MAX 255

static inline uint64_t rs_readers(uint32_t generation, unsigned left, bool kept)
{
    return (uint64_t)(generation & 0xffff) << 48 | (uint64_t)(left & 0xff) << 40 |
           (kept ? RS_READERS_KEPT : 0);
}
static inline uint32_t rs_readers_generation(uint64_t word)
{
    return (uint32_t)(word >> 48);
}
static inline unsigned rs_readers_left(uint64_t word)
{
    return (unsigned)(word >> 40) & 0xff;
}

/* ---- inbox cell: full 1 | lap 28 | ring 8 | slot 20 | delivery 3 | spare 4 ---- */
#define RS_CELL_FULL (UINT64_C(1) << 63)
#define RS_LAP_MASK 0x0fffffffu

static inline uint64_t rs_cell(bool full, uint32_t lap, unsigned ring, uint32_t slot,
                               unsigned delivery)
{
    return (full ? RS_CELL_FULL : 0) | (uint64_t)(lap & RS_LAP_MASK) << 35 |
           (uint64_t)(ring & 0xff) << 27 | (uint64_t)(slot & 0xfffff) << 7 |
           (uint64_t)(delivery & 7) << 4;
}
static inline uint32_t rs_cell_lap(uint64_t cell)
{
    return (uint32_t)(cell >> 35) & RS_LAP_MASK;
}
static inline unsigned rs_cell_ring(uint64_t cell)
{
    return (unsigned)(cell >> 27) & 0xff;
}
static inline uint32_t rs_cell_slot(uint64_t cell)
{
    return (uint32_t)(cell >> 7) & 0xfffff;
}
static inline unsigned rs_cell_delivery(uint64_t cell)
{
    return (unsigned)(cell >> 4) & 7;
}

/* ---- wait word: sequence 30 | event armed 1 | futex armed 1 ---- */
#define RS_WAIT_FUTEX 1u
#define RS_WAIT_EVENT 2u
#define RS_WAIT_ARMED (RS_WAIT_FUTEX | RS_WAIT_EVENT)
#define RS_WAIT_STEP 4u

/* ---- overflow word: sequence 31 | set 1 ---- */
#define RS_OVERFLOW_SET 1u
#define RS_OVERFLOW_STEP 2u

/* ---- message header: the words of a slot record; proto/message.c encodes and decodes them ----
 * A word not named in use by the flags of the summary keeps whatever an earlier message left in it. */
#define RS_HEADER_WORDS 22
enum rs_header_word {
    RS_HEADER_SUMMARY = 0,          /* see rs_header_summary; words 0..5 end line 1 of the record */
    RS_HEADER_PUBLISH_NS = 1,       /* CLOCK_MONOTONIC of the producer */
    RS_HEADER_TTL_NS = 2,           /* after publish_ns; 0: none */
    RS_HEADER_OFFSET = 3,           /* of the first tensor's data, bytes from the start of the slot */
    RS_HEADER_SHAPE_0 = 4,          /* of the first tensor */
    RS_HEADER_SHAPE_1 = 5,
    RS_HEADER_SHAPE_2 = 6,          /* shape[2..7] in words 6..11; line 2 */
    RS_HEADER_SEQUENCE = 12,
    RS_HEADER_STREAM_ID = 13,
    RS_HEADER_METADATA_OFFSET = 14, /* bytes from the start of the slot; line 3 */
    RS_HEADER_TRACE_ID = 15,        /* two words */
    RS_HEADER_ORIGIN_TICKET = 17,   /* 0 unless it came from another node */
    RS_HEADER_CALL_ID = 18,         /* 0 unless it is a request or a reply */
    RS_HEADER_CALL = 19,            /* see rs_call_request, rs_call_reply */
    RS_HEADER_METHOD = 20,          /* of a request: its bytes 8 | its offset in the slot 56 */
    RS_HEADER_ADMISSION = 21,       /* of a request: nonce of the caller's entry in the callee's ring */
};
#define RS_HEADER_KIND_MASK 0x0fu /* kind of the metadata */
#define RS_HEADER_LINE2 0x10u     /* words 6..13 are in use */
#define RS_HEADER_LINE3 0x20u     /* words 14..21 are in use */

/* Summary: tensor count 8 | dtype 8 | rank 8 | flags 8 | metadata bytes 32; dtype and rank of the first tensor. */
static inline uint64_t rs_header_summary(unsigned tensor_count, unsigned dtype, unsigned rank,
                                         unsigned flags, uint32_t metadata_bytes)
{
    return (uint64_t)(tensor_count & 0xff) << 56 | (uint64_t)(dtype & 0xff) << 48 |
           (uint64_t)(rank & 0xff) << 40 | (uint64_t)(flags & 0xff) << 32 | metadata_bytes;
}

/* ---- call word. Request: kind 8 | status 8 | flags 8 | first cell 8 | credits 8 | caller 12 | holder 12;
 * reply: kind 8 | status 8 | flags 8 | 0 16 | number 24 ---- */
enum rs_call_kind { RS_CALL_NONE = 0, RS_CALL_REQUEST = 1, RS_CALL_REPLY = 2 };
#define RS_CALL_LAST 0x01u         /* flag of a reply: no other follows */
#define RS_CALL_NUMBER_MASK 0xffffffu
#define RS_CANCEL_WORD 7           /* index of the delivery word of a request that its caller makes DONE */

static inline uint64_t rs_call_request(unsigned first_cell, unsigned credits, unsigned caller,
                                       unsigned holder)
{
    return (uint64_t)RS_CALL_REQUEST << 56 | (uint64_t)(first_cell & 0xff) << 32 |
           (uint64_t)(credits & 0xff) << 24 | (uint64_t)(caller & 0xfff) << 12 | (holder & 0xfff);
}
static inline uint64_t rs_call_reply(unsigned status, unsigned flags, uint32_t number)
{
    return (uint64_t)RS_CALL_REPLY << 56 | (uint64_t)(status & 0xff) << 48 |
           (uint64_t)(flags & 0xff) << 40 | (number & RS_CALL_NUMBER_MASK);
}
static inline unsigned rs_call_kind(uint64_t call)
{
    return (unsigned)(call >> 56);
}
static inline unsigned rs_call_status(uint64_t call)
{
    return (unsigned)(call >> 48) & 0xff;
}
static inline unsigned rs_call_flags(uint64_t call)
{
    return (unsigned)(call >> 40) & 0xff;
}
static inline unsigned rs_call_first_cell(uint64_t call)
{
    return (unsigned)(call >> 32) & 0xff;
}
static inline unsigned rs_call_credits(uint64_t call)
{
    return (unsigned)(call >> 24) & 0xff;
}
static inline unsigned rs_call_caller(uint64_t call)
{
    return (unsigned)(call >> 12) & 0xfff;
}
static inline unsigned rs_call_holder(uint64_t call)
{
    return (unsigned)call & 0xfff;
}
static inline uint32_t rs_call_number(uint64_t call)
{
    return (uint32_t)call & RS_CALL_NUMBER_MASK;
}

/* Descriptors of further tensors stand at the start of the slot's body, as words:
 * rank 8 << 8 | dtype 8, offset, shape[0..7]. */
#define RS_DESCRIPTOR_BYTES 80

/* One slot. `state`, `readers` and `delivery[0..5]` share a line, so a take needs no further one. */
struct rs_slot {
    rs_word state;                       /* see rs_state */
    rs_word readers;                     /* see rs_readers; used only with RS_FLAG_TICKET */
    rs_word delivery[RS_MAX_DELIVERIES]; /* see rs_delivery; [6] and [7] open the next line */
    rs_word header[RS_HEADER_WORDS];     /* written while LOANED, constant while SEALED */
};
static_assert(offsetof(struct rs_slot, state) == 0, "layout");
static_assert(offsetof(struct rs_slot, readers) == 8, "layout");
static_assert(offsetof(struct rs_slot, delivery) == 16, "layout");
static_assert(offsetof(struct rs_slot, header) == 80, "layout");
static_assert(sizeof(struct rs_slot) == 256, "layout");

/* ---- client table ---- */
enum rs_client_phase { RS_CLIENT_UNUSED = 0, RS_CLIENT_ALIVE = 1, RS_CLIENT_DEAD = 2 };
#define RS_CLIENT_NO_LOCK 0x01u /* works through the socket: its byte is not locked */
#define RS_CLIENT_FOREIGN 0x02u /* a worker of another stage, admitted through its sidecar */
#define RS_CLIENT_MOVED 0x04u   /* another process came with its token: lock and pid may be of two */

/* client state word: session 32 | reader 8 | flags 8 | spare 8 | phase 8 */
static inline uint64_t rs_client_state(uint32_t session, unsigned reader, unsigned flags,
                                       unsigned phase)
{
    return (uint64_t)session << 32 | (uint64_t)(reader & 0xff) << 24 |
           (uint64_t)(flags & 0xff) << 16 | (phase & 0xff);
}
static inline uint32_t rs_client_session(uint64_t state)
{
    return (uint32_t)(state >> 32);
}
static inline unsigned rs_client_reader(uint64_t state)
{
    return (unsigned)(state >> 24) & 0xff;
}
static inline unsigned rs_client_flags(uint64_t state)
{
    return (unsigned)(state >> 16) & 0xff;
}
static inline unsigned rs_client_phase(uint64_t state)
{
    return (unsigned)state & 0xff;
}

enum rs_counter {
    RS_SENT, RS_RECEIVED, RS_RELEASED, RS_FORWARDED, RS_FORWARD_COPIES, RS_NACKED, RS_SHARED, RS_READS,
    RS_EXPIRED, RS_DROPPED, RS_DEAD_LETTERED, RS_REQUEUED, RS_SENT_BYTES, RS_OVERFLOWS,
    RS_CALLS, RS_REPLIES, /* of RS_SENT */
    RS_COUNTERS = 16
};

struct rs_client {
    rs_word state;                  /* see rs_client_state */
    rs_word nonce;                  /* random; told on the socket to prove that the memory is shared */
    rs_word pid;                    /* as the sidecar sees it; 0 when it cannot */
    rs_word start_time;             /* of that pid, clock ticks since boot; 0 unknown */
    rs_word attach_ns;              /* CLOCK_MONOTONIC */
    rs_word inheriting;             /* index + 1 of the counter on its way to client 0; 0: none */
    rs_word inherited;              /* what client 0 has of that one when it has arrived */
    rs_word spare;
    rs_word name[RS_NAME_BYTES / 8]; /* NUL-terminated text */
    rs_word counter[RS_COUNTERS];   /* see rs_counter; written by this client alone */
};
static_assert(offsetof(struct rs_client, nonce) == 8, "layout");
static_assert(offsetof(struct rs_client, pid) == 16, "layout");
static_assert(offsetof(struct rs_client, start_time) == 24, "layout");
static_assert(offsetof(struct rs_client, attach_ns) == 32, "layout");
static_assert(offsetof(struct rs_client, inheriting) == 40, "layout");
static_assert(offsetof(struct rs_client, inherited) == 48, "layout");
static_assert(offsetof(struct rs_client, name) == 64, "layout");
static_assert(offsetof(struct rs_client, counter) == 128, "layout");
static_assert(sizeof(struct rs_client) == 256, "layout");

/* ---- destinations of a ring ---- */
enum rs_destination_kind { RS_DEST_UNUSED = 0, RS_DEST_INBOX = 1, RS_DEST_REPLY = 2, RS_DEST_OUTBOX = 3 };

/* destination state word: version 32 | attempts limit 8 | ring number 8 | kind 8 | connected 8 */
static inline uint64_t rs_destination_state(uint32_t version, unsigned attempts, unsigned ring,
                                            unsigned kind, bool connected)
{
    return (uint64_t)version << 32 | (uint64_t)(attempts & 0xff) << 24 |
           (uint64_t)(ring & 0xff) << 16 | (uint64_t)(kind & 0xff) << 8 | (connected ? 1 : 0);
}
static inline unsigned rs_destination_attempts(uint64_t state)
{
    return (unsigned)(state >> 24) & 0xff;
}
static inline unsigned rs_destination_ring(uint64_t state)
{
    return (unsigned)(state >> 16) & 0xff;
}
static inline unsigned rs_destination_kind(uint64_t state)
{
    return (unsigned)(state >> 8) & 0xff;
}
static inline bool rs_destination_connected(uint64_t state)
{
    return (state & 1) != 0;
}

struct rs_destination {
    rs_word state;                   /* see rs_destination_state; written by the ring's sidecar */
    rs_word incarnation[2];          /* of the ring that owns the inbox */
    rs_word address[2];              /* 128-bit hash of the configured address: its identity over restarts */
    rs_word spare[3];
    rs_word name[RS_NAME_BYTES / 8]; /* stage, NUL-terminated */
};
static_assert(offsetof(struct rs_destination, incarnation) == 8, "layout");
static_assert(offsetof(struct rs_destination, address) == 24, "layout");
static_assert(offsetof(struct rs_destination, name) == 64, "layout");
static_assert(sizeof(struct rs_destination) == 128, "layout");

/* ---- inbox ---- */
enum rs_ring_entry_phase { RS_RING_UNUSED = 0, RS_RING_KNOWN = 1, RS_RING_GONE = 2 };

/* A ring whose messages may stand in this inbox; the index is the ring number of the cells. */
struct rs_ring_entry {
    rs_word state;          /* version 32 | sidecar id 16 | spare 8 | phase 8; written by the inbox's sidecar */
    rs_word incarnation[2]; /* of that ring */
    rs_word nonce;          /* told to that ring's sidecar to prove that the memory is shared */
    rs_word name[4];        /* stage, cut to 31 bytes, NUL-terminated */
};
static_assert(offsetof(struct rs_ring_entry, incarnation) == 8, "layout");
static_assert(offsetof(struct rs_ring_entry, nonce) == 24, "layout");
static_assert(offsetof(struct rs_ring_entry, name) == 32, "layout");
static_assert(sizeof(struct rs_ring_entry) == 64, "layout");

struct rs_inbox_shared {
    rs_word head;                 /* hint: next position to take */
    uint8_t pad0[56];
    rs_word tail;                 /* hint: next position to fill */
    uint8_t pad1[56];
    rs_word32 not_empty;          /* wait word of consumers */
    rs_word32 not_full;           /* wait word of producers */
    rs_word32 overflow;           /* queued words may lack a cell; not a hint */
    uint8_t pad2[52];
    rs_word spare[8];
};
static_assert(offsetof(struct rs_inbox_shared, tail) == 64, "layout");
static_assert(offsetof(struct rs_inbox_shared, not_empty) == 128, "layout");
static_assert(offsetof(struct rs_inbox_shared, not_full) == 132, "layout");
static_assert(offsetof(struct rs_inbox_shared, overflow) == 136, "layout");
static_assert(sizeof(struct rs_inbox_shared) == 256, "layout");

/* ---- words of a ring that everybody looks at ---- */
struct rs_ring_shared {
    rs_word32 slot_free; /* wait word: a slot became free */
    rs_word32 bell;      /* 1: somebody asks the sidecar for an audit */
    rs_word32 draining;  /* set by the sidecar: no new loans */
    uint8_t pad[52];
};
static_assert(offsetof(struct rs_ring_shared, bell) == 4, "layout");
static_assert(offsetof(struct rs_ring_shared, draining) == 8, "layout");
static_assert(sizeof(struct rs_ring_shared) == 64, "layout");

/* ---- reply boxes: one per client number, after the slot records ---- */
struct rs_box {
    rs_word32 posted;           /* wait word of the client: a reply came */
    rs_word32 room;             /* wait word of callees: a cell became empty */
    uint8_t pad[56];
    rs_word cell[RS_BOX_CELLS]; /* ticket of a reply, or 0 */
};
static_assert(offsetof(struct rs_box, room) == 4, "layout");
static_assert(offsetof(struct rs_box, cell) == 64, "layout");
static_assert(sizeof(struct rs_box) == 576, "layout");

/* ---- superblock ---- */
struct rs_class_layout {
    uint64_t slot_bytes;   /* multiple of 4,096 */
    uint64_t body_offset;  /* of the class's first slot in the body file */
    uint32_t first_slot;   /* index of that slot */
    uint32_t slots;
    uint64_t bitmap_offset; /* in the control file: ceil(slots / 64) words, then ceil(that / 64) summary words */
};
static_assert(sizeof(struct rs_class_layout) == 32, "layout");

struct rs_superblock {
    uint64_t magic;                 /* RS_MAGIC */
    rs_word32 version;              /* RS_LAYOUT_VERSION; stored last, 0 until the ring is complete */
    uint32_t endian;                /* RS_ENDIAN */
    uint64_t layout_hash;           /* rs_layout_hash() */
    uint64_t control_bytes;         /* size of the control file */
    uint64_t body_bytes;            /* size of the body file */
    uint64_t page_bytes;            /* of the body file */
    uint64_t incarnation[2];        /* random */
    rs_word32 epoch;                /* adoptions */
    uint32_t sidecar_id;            /* 1..65535 */
    uint32_t slot_count;
    uint32_t class_count;
    uint32_t client_count;          /* entries of the client table, the sidecar's included */
    uint32_t inbox_cells;           /* power of two */
    rs_word32 inbox_depth;          /* limit a producer checks before it seals */
    uint32_t destination_count;     /* entries of the table */
    uint64_t clients_offset;
    uint64_t destinations_offset;
    uint64_t shared_offset;         /* struct rs_ring_shared */
    uint64_t inbox_offset;          /* struct rs_inbox_shared, then the ring table, then the cells */
    uint64_t ring_table_offset;
    uint64_t cells_offset;
    uint64_t slots_offset;
    uint64_t features;              /* bits that a reader must understand; none yet */
    char stage[RS_NAME_BYTES];
    struct rs_class_layout classes[RS_MAX_CLASSES];
    uint64_t boxes_offset;          /* struct rs_box of each client number */
    uint8_t pad[3608];
};
static_assert(offsetof(struct rs_superblock, version) == 8, "layout");
static_assert(offsetof(struct rs_superblock, endian) == 12, "layout");
static_assert(offsetof(struct rs_superblock, layout_hash) == 16, "layout");
static_assert(offsetof(struct rs_superblock, control_bytes) == 24, "layout");
static_assert(offsetof(struct rs_superblock, body_bytes) == 32, "layout");
static_assert(offsetof(struct rs_superblock, page_bytes) == 40, "layout");
static_assert(offsetof(struct rs_superblock, incarnation) == 48, "layout");
static_assert(offsetof(struct rs_superblock, epoch) == 64, "layout");
static_assert(offsetof(struct rs_superblock, sidecar_id) == 68, "layout");
static_assert(offsetof(struct rs_superblock, slot_count) == 72, "layout");
static_assert(offsetof(struct rs_superblock, class_count) == 76, "layout");
static_assert(offsetof(struct rs_superblock, client_count) == 80, "layout");
static_assert(offsetof(struct rs_superblock, inbox_cells) == 84, "layout");
static_assert(offsetof(struct rs_superblock, inbox_depth) == 88, "layout");
static_assert(offsetof(struct rs_superblock, destination_count) == 92, "layout");
static_assert(offsetof(struct rs_superblock, clients_offset) == 96, "layout");
static_assert(offsetof(struct rs_superblock, destinations_offset) == 104, "layout");
static_assert(offsetof(struct rs_superblock, shared_offset) == 112, "layout");
static_assert(offsetof(struct rs_superblock, inbox_offset) == 120, "layout");
static_assert(offsetof(struct rs_superblock, ring_table_offset) == 128, "layout");
static_assert(offsetof(struct rs_superblock, cells_offset) == 136, "layout");
static_assert(offsetof(struct rs_superblock, slots_offset) == 144, "layout");
static_assert(offsetof(struct rs_superblock, features) == 152, "layout");
static_assert(offsetof(struct rs_superblock, stage) == 160, "layout");
static_assert(offsetof(struct rs_superblock, classes) == 224, "layout");
static_assert(offsetof(struct rs_superblock, boxes_offset) == 480, "layout");
static_assert(offsetof(struct rs_superblock, pad) == 488, "layout");
static_assert(sizeof(struct rs_superblock) == RS_SUPERBLOCK_BYTES, "layout");


#endif

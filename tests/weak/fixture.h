/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of few slots in ordinary memory, and processes that have it mapped. Laps begin just before
 * they wrap. */
#ifndef RINGSIDE_TESTS_WEAK_FIXTURE_H
#define RINGSIDE_TESTS_WEAK_FIXTURE_H

#include "machine.h"
#include "proto/inbox.h"
#include "proto/repair.h"
#include "proto/ring.h"
#include "proto/wait.h"

#define GENERATION     7u
#define FIRST_LAP      RS_LAP_MASK
#define CLIENT(thread) ((uint16_t)(1 + (thread)))
#define SIDECAR_ID     9
#define DEAD_CLIENT    6
#define CLOSER         WEAK_THREADS /* process with which `check` looks */
#define PROCESSES      (WEAK_THREADS + 1)

enum offset {
    CLIENTS = 4096,
    DESTINATIONS = 6144,
    SHARED_WORDS = 6656,
    INBOX = 6784,
    RING_TABLE = 7040,
    CELLS = 23424,
    BITMAP = 23488,
    SLOTS = 23552,
    BOXES = 24576,
    CONTROL_BYTES = 29184
};

/* Stage 0 has the slots; stage 1 is where its messages may be forwarded to. */
struct process {
    struct rs_ring ring;
    struct rs_inbox inbox; /* of stage 0; ring 0, destination 0 */
    struct rs_inbox next;  /* of stage 1; ring 1, destination 1 */
};

extern uint8_t control[2][CONTROL_BYTES];
extern struct process processes[PROCESSES];

static inline struct rs_slot *slot_at(uint32_t slot)
{
    return (struct rs_slot *)(control[0] + SLOTS) + slot;
}

static inline struct rs_inbox_shared *inbox_words(unsigned stage)
{
    return (struct rs_inbox_shared *)(control[stage] + INBOX);
}

static inline rs_word *cell_word(unsigned stage, unsigned index)
{
    return (rs_word *)(control[stage] + CELLS) + index;
}

static inline uint64_t first_position(const struct rs_inbox *inbox)
{
    return (uint64_t)FIRST_LAP << inbox->lap_shift;
}

/* All slots FREE with their bits on, inboxes empty, everybody has everything mapped. */
void format(uint32_t slots, uint32_t cells, uint32_t depth);
void set_bits(bool on);
/* Of the first inbox. */
void put_delivery(uint32_t slot, unsigned index, uint16_t holder, unsigned phase);
void put_state(uint32_t slot, uint16_t owner, unsigned phase, unsigned flags);
/* A message as it stands after its seal: the first word in that phase, the others NONE. */
void put_message(uint32_t slot, uint16_t holder, unsigned phase);
/* A full cell in the first lap, and the tail behind it. */
void put_cell(unsigned index, unsigned ring, uint32_t slot);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of few slots in ordinary memory, and processes that have it mapped. */
#include "fixture.h"

#include <string.h>

_Alignas(64) uint8_t control[2][CONTROL_BYTES];
struct process processes[PROCESSES];

static void name_words(void)
{
    static const char *const cells[] = {"cell[%u]", "next cell[%u]"};
    struct rs_ring_shared *shared = (struct rs_ring_shared *)(control[0] + SHARED_WORDS);

    for (unsigned i = 0; i < 3; i++) {
        static const char *const deliveries[] = {"slot 0 delivery[%u]", "slot 1 delivery[%u]",
                                                 "slot 2 delivery[%u]"};
        weak_name(&slot_at(i)->state, "slot %u state", i);
        weak_name(&slot_at(i)->readers, "slot %u readers", i);
        weak_name(&slot_at(i)->header[0], "slot %u header", i);
        for (unsigned j = 0; j < RS_MAX_DELIVERIES; j++)
            weak_name(&slot_at(i)->delivery[j], deliveries[i], j);
    }
    for (unsigned i = 0; i < 4; i++)
        weak_name(cell_word(i / 2, i % 2), cells[i / 2], i % 2);
    weak_name(&inbox_words(0)->head, "head", 0);
    weak_name(&inbox_words(0)->tail, "tail", 0);
    weak_name(&inbox_words(0)->not_empty, "not_empty", 0);
    weak_name(&inbox_words(0)->not_full, "not_full", 0);
    weak_name(&inbox_words(0)->overflow, "overflow", 0);
    weak_name(&shared->slot_free, "slot_free", 0);
    weak_name(&shared->bell, "bell", 0);
    weak_name(control[0] + BITMAP, "bitmap", 0);
    weak_name(control[0] + BITMAP + 8, "summary", 0);
}

static void map(struct rs_ring *ring, unsigned stage, uint16_t client, uint32_t slots,
                uint32_t cells, uint32_t depth)
{
    uint8_t *base = control[stage];

    memset(ring, 0, sizeof *ring);
    ring->layout.sidecar_id = SIDECAR_ID;
    ring->layout.slot_count = slots;
    ring->layout.class_count = 1;
    ring->layout.client_count = 8;
    ring->layout.destination_count = 4;
    ring->layout.inbox_cells = cells;
    rs_store_relaxed(&ring->layout.inbox_depth, depth);
    ring->layout.inbox_offset = INBOX;
    ring->layout.ring_table_offset = RING_TABLE;
    ring->layout.cells_offset = CELLS;
    ring->layout.classes[0] =
        (struct rs_class_layout){.slot_bytes = 4096, .slots = slots, .bitmap_offset = BITMAP};
    ring->control = base;
    ring->slots = (struct rs_slot *)(base + SLOTS);
    ring->clients = (struct rs_client *)(base + CLIENTS);
    ring->destinations = (struct rs_destination *)(base + DESTINATIONS);
    ring->shared = (struct rs_ring_shared *)(base + SHARED_WORDS);
    ring->boxes = (struct rs_box *)(base + BOXES);
    ring->bell_fd = ring->space_fd = -1;
    ring->client = client;
    ring->reader = (uint8_t)client;
}

void set_bits(bool on)
{
    rs_word *words = (rs_word *)(control[0] + BITMAP);
    uint64_t slots = processes[0].ring.layout.slot_count;

    rs_store_relaxed(&words[0], on ? (UINT64_C(1) << slots) - 1 : 0);
    rs_store_relaxed(&words[1], on ? 1 : 0);
}

void put_delivery(uint32_t slot, unsigned index, uint16_t holder, unsigned phase)
{
    rs_store_relaxed(&slot_at(slot)->delivery[index], rs_delivery(GENERATION, holder, 0, 0, phase));
}

void format(uint32_t slots, uint32_t cells, uint32_t depth)
{
    memset(control, 0, sizeof control);
    for (unsigned i = 0; i < PROCESSES; i++) {
        struct process *process = &processes[i];
        struct rs_ring second;

        map(&process->ring, 0, CLIENT(i), slots, cells, depth);
        map(&second, 1, CLIENT(i), 0, cells, depth);
        rs_inbox_init(&process->inbox, &process->ring, -1);
        rs_inbox_init(&process->next, &second, -1);
        rs_inbox_admit(&process->inbox, 0, &process->ring, 0, CLIENT(i));
        rs_inbox_admit(&process->next, 1, &process->ring, 1, CLIENT(i));
    }
    for (unsigned stage = 0; stage < 2; stage++) {
        rs_store_relaxed(&inbox_words(stage)->head, first_position(&processes[0].inbox));
        rs_store_relaxed(&inbox_words(stage)->tail, first_position(&processes[0].inbox));
        for (unsigned i = 0; i < cells; i++)
            rs_store_relaxed(cell_word(stage, i), rs_cell(false, FIRST_LAP, 0, 0, 0));
    }
    for (uint32_t slot = 0; slot < slots; slot++) {
        put_state(slot, 0, RS_FREE, 0);
        for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++)
            put_delivery(slot, i, 0, RS_DONE);
        weak_body_write(slot, GENERATION);
    }
    set_bits(true);
    name_words();
}

void put_state(uint32_t slot, uint16_t owner, unsigned phase, unsigned flags)
{
    rs_store_relaxed(&slot_at(slot)->state,
                     rs_state(GENERATION, owner, (uint8_t)phase, (uint8_t)flags));
}

void put_message(uint32_t slot, uint16_t holder, unsigned phase)
{
    put_state(slot, 0, RS_SEALED, 0);
    rs_store_relaxed(&slot_at(slot)->header[0], GENERATION);
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++)
        put_delivery(slot, i, 0, RS_NONE);
    put_delivery(slot, 0, holder, phase);
}

void put_cell(unsigned index, unsigned ring, uint32_t slot)
{
    rs_store_relaxed(cell_word(0, index), rs_cell(true, FIRST_LAP, ring, slot, 0));
    rs_store_relaxed(&inbox_words(0)->tail, first_position(&processes[0].inbox) + index + 1);
}

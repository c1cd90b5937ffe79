/* SPDX-License-Identifier: Apache-2.0 */
/* A small ring in two memfds, mapped as its sidecar does, for tests of slots, inboxes and repair. */
#ifndef RINGSIDE_TESTS_SLOTS_FIXTURE_H
#define RINGSIDE_TESTS_SLOTS_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/inbox.h"
#include "proto/layout.h"
#include "proto/repair.h"
#include "proto/wait.h"

#define FIXTURE_STAGE 1 /* destination index of the own inbox */

struct ring_fixture {
    struct rs_geometry geometry;
    int control_fd;
    int body_fd;
    struct rs_ring ring;
    struct rs_inbox inbox;   /* ring number 0 is the own ring; destination FIXTURE_STAGE */
    struct rs_repair repair;
};

static inline struct rs_geometry fixture_geometry(uint32_t slots, uint32_t cells)
{
    return (struct rs_geometry){
        .stage = "fixture",
        .classes = {{4096, slots}, {65536, 2}},
        .class_count = 2,
        .client_count = 64,
        .inbox_cells = cells,
        .inbox_depth = cells,
        .sidecar_id = 7,
        .page_bytes = 4096,
        .incarnation = {0x1111222233334444, 0x5555666677778888},
    };
}

static inline void ring_fixture_init(struct ring_fixture *fixture, uint32_t slots, uint32_t cells)
{
    struct rs_superblock plan;
    const char *why;

    memset(fixture, 0, sizeof *fixture);
    fixture->geometry = fixture_geometry(slots, cells);
    assert_int_equal(rs_layout_plan(&plan, &fixture->geometry), 0);
    fixture->control_fd = memfd_create("control", MFD_CLOEXEC);
    fixture->body_fd = memfd_create("body", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fixture->control_fd, (off_t)plan.control_bytes), 0);
    assert_int_equal(ftruncate(fixture->body_fd, (off_t)plan.body_bytes), 0);
    void *control = mmap(NULL, plan.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                         fixture->control_fd, 0);
    assert_ptr_not_equal(control, MAP_FAILED);
    rs_layout_format(control, &plan);
    munmap(control, plan.control_bytes);
    assert_int_equal(rs_ring_map(&fixture->ring, fixture->control_fd, fixture->body_fd, true, &why), 0);
    rs_store_relaxed(&fixture->ring.destinations[FIXTURE_STAGE].state,
                     rs_destination_state(1, 3, 0, RS_DEST_INBOX, true));
    rs_inbox_init(&fixture->inbox, &fixture->ring, -1);
    rs_store_relaxed(&fixture->inbox.table[0].state, RS_RING_KNOWN);
    rs_inbox_admit(&fixture->inbox, 0, &fixture->ring, FIXTURE_STAGE, 5);
    assert_int_equal(rs_repair_init(&fixture->repair, &fixture->ring), 0);
    fixture->repair.inboxes[FIXTURE_STAGE] = &fixture->inbox;
    fixture->repair.own = &fixture->inbox;
}

static inline void ring_fixture_finish(struct ring_fixture *fixture)
{
    rs_repair_finish(&fixture->repair);
    rs_ring_unmap(&fixture->ring);
    close(fixture->control_fd);
    close(fixture->body_fd);
}

/* Loans and seals one message for the own inbox without pushing its cell: what a producer that died there leaves. */
static inline struct rs_loan fixture_seal(struct ring_fixture *fixture, uint16_t owner)
{
    struct rs_loan loan;
    uint16_t destination = FIXTURE_STAGE;

    assert_int_equal(rs_ring_loan(&fixture->ring, owner, 0, &loan), 0);
    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&fixture->ring.slots[loan.slot].header[i], 0);
    rs_ring_prepare(&fixture->ring, &loan, &destination, 1, 0);
    assert_int_equal(rs_ring_seal(&fixture->ring, owner, &loan, 0), 0);
    return loan;
}

static inline struct rs_loan fixture_send(struct ring_fixture *fixture, uint16_t owner)
{
    struct rs_loan loan = fixture_seal(fixture, owner);

    assert_int_equal(rs_inbox_push(&fixture->inbox, 0, loan.slot, 0), 0);
    return loan;
}

static inline unsigned fixture_phase(struct ring_fixture *fixture, uint32_t slot)
{
    return rs_state_phase(rs_load_acquire(&fixture->ring.slots[slot].state));
}

static inline void fixture_audit(struct ring_fixture *fixture, int64_t now_ns)
{
    uint32_t cursor = 0;

    while (!rs_repair_audit(&fixture->repair, now_ns, &cursor, 64))
        ;
}

static inline void fixture_sweep(struct ring_fixture *fixture, uint16_t client, unsigned reader)
{
    uint32_t cursor = 0;

    while (!rs_repair_sweep(&fixture->repair, client, reader, &cursor, 7))
        ;
}

static inline uint32_t fixture_count(struct ring_fixture *fixture, unsigned phase)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < fixture->ring.layout.slot_count; i++)
        count += fixture_phase(fixture, i) == phase;
    return count;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Two rings whose inboxes know each other, for two processes that send to each other. */
#ifndef RINGSIDE_TESTS_STRESS_SIDES_H
#define RINGSIDE_TESTS_STRESS_SIDES_H

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/inbox.h"
#include "proto/layout.h"
#include "proto/wait.h"

#define STAGE 1 /* destination of the other side's inbox */

static struct side {
    struct rs_ring ring;   /* its own, from which it sends */
    struct rs_inbox inbox; /* its own */
    int control_fd, body_fd, event_fd;
} sides[2];

static uint64_t seed;

/* None, few or many turns: what lies between two steps must hit every window of the other side. */
static void delay(void)
{
    static const unsigned longest[] = {1, 1, 1, 1, 20, 20, 60, 400};

    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    for (unsigned turns = (unsigned)(seed >> 32) % longest[(seed >> 20) % 8]; turns > 0; turns--)
        rs_pause();
}

static void make(struct side *side, unsigned number, uint32_t slots, uint32_t depth)
{
    struct rs_geometry geometry = {
        .stage = "wake",
        .classes = {{4096, slots}},
        .class_count = 1,
        .client_count = 8,
        .inbox_cells = 8,
        .inbox_depth = depth,
        .sidecar_id = number + 1,
        .page_bytes = 4096,
        .incarnation = {number + 1, 2},
    };
    struct rs_superblock plan;

    RS_REQUIRE(rs_layout_plan(&plan, &geometry) == 0);
    side->control_fd = memfd_create("control", MFD_CLOEXEC);
    side->body_fd = memfd_create("body", MFD_CLOEXEC);
    side->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    RS_REQUIRE(ftruncate(side->control_fd, (off_t)plan.control_bytes) == 0 &&
               ftruncate(side->body_fd, (off_t)plan.body_bytes) == 0 && side->event_fd >= 0);
    void *control =
        mmap(NULL, plan.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, side->control_fd, 0);
    RS_REQUIRE(control != MAP_FAILED);
    rs_layout_format(control, &plan);
    munmap(control, plan.control_bytes);
}

/* Number 1 of the other's ring in each inbox; client 1 everywhere. */
static void map_both(void)
{
    const char *why;

    for (unsigned i = 0; i < 2; i++) {
        RS_REQUIRE(rs_ring_map(&sides[i].ring, sides[i].control_fd, sides[i].body_fd, true, &why) ==
                   0);
        rs_inbox_init(&sides[i].inbox, &sides[i].ring, sides[i].event_fd);
    }
    for (unsigned i = 0; i < 2; i++) {
        rs_store_relaxed(&sides[i].inbox.table[1].state, RS_RING_KNOWN);
        rs_inbox_admit(&sides[i].inbox, 1, &sides[1 - i].ring, STAGE, 1);
    }
}

#endif

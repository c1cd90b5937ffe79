/* SPDX-License-Identifier: Apache-2.0 */
/* A small ring whose control file strangers write to, mapped between pages that nobody may touch.
 */
#ifndef RINGSIDE_TESTS_FUZZ_RING_H
#define RINGSIDE_TESTS_FUZZ_RING_H

#include <sys/mman.h>
#include <unistd.h>

#include "proto/inbox.h"
#include "proto/layout.h"
#include "proto/repair.h"
#include "tests/fuzz/fuzz.h"

#define STAGE      1 /* destination of the own inbox */
#define GUARD      4096
#define MAPPED_MAX 16

/* The linker leads mmap and munmap here (--wrap): an access beyond a mapped file ends the process.
 */
void *__real_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t bytes);

static void *mapped[MAPPED_MAX]; /* what lies between guards */

static size_t whole_pages(size_t bytes)
{
    return (bytes + GUARD - 1) / GUARD * GUARD;
}

void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset)
{
    unsigned i = 0;

    while (i < MAPPED_MAX && mapped[i] != NULL)
        i++;
    if (at != NULL || fd < 0 || i == MAPPED_MAX)
        return __real_mmap(at, bytes, access, flags, fd, offset);
    uint8_t *room = __real_mmap(NULL, whole_pages(bytes) + 2 * GUARD, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    mapped[i] = __real_mmap(room + GUARD, bytes, access, flags | MAP_FIXED, fd, offset);
    CHECK(mapped[i] == room + GUARD);
    return mapped[i];
}

int __wrap_munmap(void *at, size_t bytes)
{
    for (unsigned i = 0; at != NULL && i < MAPPED_MAX; i++) {
        if (mapped[i] == at) {
            mapped[i] = NULL;
            return __real_munmap((uint8_t *)at - GUARD, whole_pages(bytes) + 2 * GUARD);
        }
    }
    return __real_munmap(at, bytes);
}

struct fuzzed {
    struct rs_ring ring;
    struct rs_inbox inbox; /* ring number 0 is the own ring */
    struct rs_repair repair;
    struct rs_superblock plan;
    uint8_t *fresh; /* content of a new control file, made once */
    int control_fd;
    int body_fd;
};

static inline void fuzzed_begin(struct fuzzed *fuzzed)
{
    static const struct rs_geometry geometry = {.stage = "fuzz",
                                                .classes = {{4096, 5}, {65536, 2}},
                                                .class_count = 2,
                                                .client_count = 4,
                                                .inbox_cells = 8,
                                                .inbox_depth = 8,
                                                .sidecar_id = 7,
                                                .page_bytes = 4096,
                                                .incarnation = {1, 2}};
    const char *why;

    if (fuzzed->fresh == NULL) {
        CHECK(rs_layout_plan(&fuzzed->plan, &geometry) == 0);
        fuzzed->control_fd = memfd_create("control", MFD_CLOEXEC);
        fuzzed->body_fd = memfd_create("body", MFD_CLOEXEC);
        CHECK(ftruncate(fuzzed->control_fd, (off_t)fuzzed->plan.control_bytes) == 0);
        CHECK(ftruncate(fuzzed->body_fd, (off_t)fuzzed->plan.body_bytes) == 0);
        fuzzed->fresh = __real_mmap(NULL, fuzzed->plan.control_bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        rs_layout_format(fuzzed->fresh, &fuzzed->plan);
        struct rs_slot *slots = (struct rs_slot *)(fuzzed->fresh + fuzzed->plan.slots_offset);
        for (uint32_t i = 0; i < fuzzed->plan.slot_count; i++)
            rs_store_relaxed(&slots[i].state, rs_state(i, 0, RS_FREE, 0));
    }
    CHECK(pwrite(fuzzed->control_fd, fuzzed->fresh, fuzzed->plan.control_bytes, 0) ==
          (ssize_t)fuzzed->plan.control_bytes);
    CHECK(rs_ring_map(&fuzzed->ring, fuzzed->control_fd, fuzzed->body_fd, true, &why) == 0);
    rs_inbox_init(&fuzzed->inbox, &fuzzed->ring, -1);
    rs_store_relaxed(&fuzzed->inbox.table[0].state, RS_RING_KNOWN);
    rs_inbox_admit(&fuzzed->inbox, 0, &fuzzed->ring, STAGE, 1);
    CHECK(rs_repair_init(&fuzzed->repair, &fuzzed->ring) == 0);
    fuzzed->repair.inboxes[STAGE] = fuzzed->repair.own = &fuzzed->inbox;
}

static inline void fuzzed_end(struct fuzzed *fuzzed)
{
    rs_repair_finish(&fuzzed->repair);
    rs_ring_unmap(&fuzzed->ring);
}

static inline void fuzzed_audit(struct fuzzed *fuzzed, int64_t now_ns)
{
    uint32_t cursor = 0;

    rs_ring_bell_clear(&fuzzed->ring);
    rs_repair_hints(&fuzzed->repair);
    while (!rs_repair_audit(&fuzzed->repair, now_ns, &cursor, 3))
        ;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The control and body file of the own ring: creation, page size, NUMA, memory lock, pre-fault, adoption. */
#ifndef RINGSIDE_PROXY_RING_FILES_H
#define RINGSIDE_PROXY_RING_FILES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "proto/ring.h"

struct ring_files {
    char control_path[PATH_MAX]; /* <control_dir>/<stage>.control */
    char body_path[PATH_MAX];    /* <body_dir>/<stage>.body, or a name of its own on a shared hugetlbfs */
    int control_fd;              /* own description; holds the lock of byte 0 (owner) to the end; never passed on */
    int body_fd;                 /* read-write; byte 0 is locked as well */
    bool adopted;                /* an earlier sidecar's ring was taken over */
    bool numa_degraded;          /* `numa` is worth a warning */
    bool lock_degraded;          /* `lock` is worth a warning */
    uint64_t page_bytes;
    char pages[256];             /* which page size was taken and why, for people */
    char numa[160];
    char lock[256];
    char found[320];             /* what lay there and was made anew, and why: worth a warning; empty: nothing */
};

/* Blocking; runs on a worker thread before the loop serves, never on the loop. Creates or adopts the ring, pre-faults it in
 * parallel under a SIGBUS guard, and maps it into *ring. On error writes what is wrong, with bytes needed and available,
 * and what to do. -RINGSIDE_E_IN_USE when a living sidecar owns the ring. Of an adopted ring nothing but the inbox's depth
 * is changed: the rest is rs_repair_adopt's. */
int ring_files_open(struct ring_files *files, struct rs_ring *ring, const struct rs_config *config,
                    char *error, size_t error_bytes);
/* A fresh description of the control file; with byte >= 0 an OFD write lock on that byte. Returns the descriptor,
 * -RINGSIDE_E_IN_USE when another description has the byte, or -errno. */
int ring_files_control_fd(const struct ring_files *files, int byte);
/* A fresh description of the body file, read-only unless `writable`. */
int ring_files_body_fd(const struct ring_files *files, bool writable);
/* Whether the byte is locked by anybody else's description (a living client). */
bool ring_files_byte_locked(const struct ring_files *files, int byte);
/* Whether a ring's file of that many bytes was truncated, or lost pages to a hole. */
bool ring_file_is_cut(int fd, uint64_t bytes);
/* Whether the ring lost memory since it was mapped: somebody truncated a file or a page could not be had. */
bool ring_files_damaged(const struct rs_ring *ring);
/* Unmaps and closes; with remove the files are unlinked first. Accepts what ring_files_open left after an error. */
void ring_files_close(struct ring_files *files, struct rs_ring *ring, bool remove);

#endif

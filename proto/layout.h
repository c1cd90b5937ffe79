/* SPDX-License-Identifier: Apache-2.0 */
/* Plans, formats and validates the control file of a ring. */
#ifndef RINGSIDE_PROTO_LAYOUT_H
#define RINGSIDE_PROTO_LAYOUT_H

#include "proto/ring_layout.h"

struct rs_class_spec {
    uint64_t slot_bytes; /* multiple of 4,096 */
    uint32_t slots;
};

/* What a stage's config decides about its ring. */
struct rs_geometry {
    const char *stage;
    struct rs_class_spec classes[RS_MAX_CLASSES]; /* ascending slot_bytes */
    uint32_t class_count;
    uint32_t client_count; /* the sidecar included: clients.max + 1 */
    uint32_t inbox_cells;  /* power of two */
    uint32_t inbox_depth;
    uint32_t sidecar_id;   /* 1..65535 */
    uint64_t page_bytes;   /* of the body file */
    uint64_t incarnation[2];
};

/* Hash over every shared offset and size; differs when any of them differs. */
uint64_t rs_layout_hash(void);

/* Fills *plan (a private superblock, version 0) with all offsets and file sizes.
 * 0 or -RINGSIDE_E_INVALID when a number is out of range or a product overflows. */
int rs_layout_plan(struct rs_superblock *plan, const struct rs_geometry *geometry);

/* Writes a fresh ring into a zeroed control mapping of plan->control_bytes: every slot FREE with a random generation,
 * cells EMPTY, bitmaps full; the version is stored last with release. `random` gives `slot_count` words or is NULL
 * to take them from getrandom. */
void rs_layout_format(void *control, const struct rs_superblock *plan);

/* Copies the superblock once and validates the copy against the sizes of the two files (fstat). On error *why (never
 * NULL) points at static text that says what is wrong. 0, -RINGSIDE_E_VERSION (with the reader's way out in *why) or
 * -RINGSIDE_E_CORRUPT. */
int rs_layout_read(struct rs_superblock *copy, const void *control, uint64_t control_file_bytes,
                   uint64_t body_file_bytes, const char **why);

#endif

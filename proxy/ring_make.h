/* SPDX-License-Identifier: Apache-2.0 */
/* A ring made from nothing: the page size chosen, memory proved to be there, the control file
 * formatted. */
#ifndef RINGSIDE_PROXY_RING_MAKE_H
#define RINGSIDE_PROXY_RING_MAKE_H

#include "proto/layout.h"
#include "proxy/pages.h"
#include "proxy/ring_dir.h"
#include "proxy/ring_files.h"

/* What goes through the steps of ring_files_open. */
struct ring_opening {
    struct ring_files *files;
    struct rs_ring *ring;
    const struct rs_config *config;
    struct startup_error error;
    struct ring_access access;
    int control_dir; /* descriptor */
};

/* What the config decides, for pages of that size; incarnation and id are left to the caller. */
void ring_geometry(struct rs_geometry *geometry, const struct rs_config *config,
                   uint64_t page_bytes);

/* The id that "auto" means for a ring: 1..65535. */
uint16_t ring_auto_id(const uint64_t incarnation[2]);

/* Sets body_path for a place, and opens its directory: a descriptor of the caller's or a negative
 * error. */
int ring_body_place(struct ring_opening *opening, const struct pages_place *place);

/*
 * Fills the empty control file in files->control_fd, whose byte 0 is locked, and makes the body
 * file beside it. Sets body_fd, body_path, page_bytes, pages and numa. On error the body file is
 * gone and the control file's version is 0.
 */
int ring_make(struct ring_opening *opening);

#endif

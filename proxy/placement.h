/* SPDX-License-Identifier: Apache-2.0 */
/* Which NUMA node the bodies lie on. */
#ifndef RINGSIDE_PROXY_PLACEMENT_H
#define RINGSIDE_PROXY_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct placement {
    int node;       /* that was asked for and taken by the kernel, or -1 */
    bool strict;    /* no other node may help out */
    bool degraded;  /* what was asked for could not be had: worth one warning */
    char text[160]; /* for people */
};

/*
 * Sets the policy of a shared mapping before its first page is touched; it stays with the file.
 * `wanted` as in ring.numa: auto prefers the node that the caller runs on where there are several;
 * a number binds strictly. Never fails: what cannot be had is told in `text`.
 */
void placement_bind(struct placement *placement, int wanted, void *base, uint64_t bytes);

/* After the pages are there: looks where they really are, and corrects what `placement` says. */
void placement_verify(struct placement *placement, const void *base, uint64_t bytes);

/* Free bytes of a node, or -1 when unknown. */
int64_t placement_free_bytes(int node);

#endif

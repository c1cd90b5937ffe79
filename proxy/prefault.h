/* SPDX-License-Identifier: Apache-2.0 */
/* Every page of a mapping present before anybody relies on it, and kept in memory where that is
 * allowed. */
#ifndef RINGSIDE_PROXY_PREFAULT_H
#define RINGSIDE_PROXY_PREFAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "proxy/startup_error.h"

/*
 * Makes every page of a shared, writable mapping present without changing a byte of it: in
 * parallel, in chunks, under a SIGBUS guard. Blocking. 0, -ENOSPC (a page cannot be had) or -errno.
 */
int prefault(void *base, uint64_t bytes, uint64_t page_bytes);

/*
 * Locks a mapping in memory as `ring.lock` wants it. Writes to `text` (for people) what became of
 * it; *degraded is set when `auto` had to do without. Huge pages need no lock. 0, or with `require`
 * a negative error that names limit and need.
 */
int memory_lock(void *base, uint64_t bytes, uint64_t page_bytes, enum rs_config_lock wanted,
                char *text, size_t text_bytes, bool *degraded, const struct startup_error *error);

#endif

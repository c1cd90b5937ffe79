/* SPDX-License-Identifier: Apache-2.0 */
/* SIGBUS guard: a shared file that was truncated or whose page cannot be had ends the ring, not the process. */
#ifndef RINGSIDE_PROTO_GUARD_H
#define RINGSIDE_PROTO_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* From now on a SIGBUS inside [base, base + bytes) replaces the page by private zeroes and marks the range; any other
 * SIGBUS goes to the handler that was there before. Lock-free for the handler; at most 1,024 ranges. Sets the handler
 * again when somebody else replaced it. 0, -ENOSPC or -errno. Any thread. */
int rs_guard_add(void *base, size_t bytes);
void rs_guard_remove(void *base);
/* Whether a fault happened in that range since rs_guard_add. */
bool rs_guard_hit(const void *base);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The copy of a body into the ring, for a reader on another core. */
#ifndef RINGSIDE_PROTO_COPY_H
#define RINGSIDE_PROTO_COPY_H

#include <stdint.h>

#define RS_COPY_STREAMED_BYTES (8u << 20) /* from here on past the caches */

/* As memcpy: the two do not overlap, any alignment, no error. From RS_COPY_STREAMED_BYTES on, x86-64 writes past its caches: memcpy
 * fetches each line of the destination before it overwrites it, most often from the cache of the core that read the last
 * body there, and leaves it modified where the next reader has to fetch it from. On a Zen 5 the way through 8 to 16 MiB, copied here
 * and read there, took 0.6 to 1 of memcpy's time by streaming stores, and never more; below, two threads of one core, which share
 * its caches, lose by them what others gain. The stores are complete when it returns: what publishes the body orders them. */
void rs_copy(void *restrict to, const void *restrict from, uint64_t bytes);

#endif

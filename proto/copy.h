/* SPDX-License-Identifier: Apache-2.0 */
/* The copy of a body into the ring, for a reader on another core. */
#ifndef RINGSIDE_PROTO_COPY_H
#define RINGSIDE_PROTO_COPY_H

#include <stdint.h>

#define RS_COPY_STREAMED_BYTES (1u << 20) /* from here on past the caches */

/* As memcpy: the two do not overlap, any alignment, no error. From RS_COPY_STREAMED_BYTES on, x86-64 writes past its caches. memcpy
 * fetches each line of the destination before it overwrites it, most often from the cache of the core that read the last
 * body there, and leaves it modified where the next reader has to fetch it from; a large body has by then pushed out its
 * own source as well. Streaming stores do neither: on a Zen 5 the copy of 1 MiB that another core reads took a quarter of memcpy's time,
 * that of 16 MiB between a half and the same, and the reader was as fast or faster. Below 1 MiB both cost the same.
 * The stores are complete when it returns, so that whatever publishes the body orders them as it orders others. */
void rs_copy(void *restrict to, const void *restrict from, uint64_t bytes);

#endif

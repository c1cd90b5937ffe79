/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the ring now and then: audits, bells, how long things are held, whether its files are
 * whole. */
#ifndef RINGSIDE_PROXY_WATCH_H
#define RINGSIDE_PROXY_WATCH_H

#include <stdint.h>

struct proxy;

#define WATCH_LOAN    8u /* index of a slot's loan, beside its deliveries 0..7 */
#define WATCH_READING 9u /* of its readers */

int watch_open(struct proxy *proxy);
void watch_close(struct proxy *proxy); /* handles; memory goes with watch_destroy, after the loop */
void watch_destroy(struct proxy *proxy);

/* How long `word` has been seen as it is at slot and index; 0 when it is news. */
uint64_t watch_age_ns(const struct proxy *proxy, uint32_t slot, unsigned index, uint64_t word);
/* What stands for a slot's readers in watch_age_ns. */
uint64_t watch_reading_word(uint64_t readers);

#endif

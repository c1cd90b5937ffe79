/* SPDX-License-Identifier: Apache-2.0 */
/* Durations that were measured, and what is said of them. */
#ifndef RINGSIDE_CLI_SAMPLE_H
#define RINGSIDE_CLI_SAMPLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Begins zeroed. */
struct sample {
    uint64_t *values_ns; /* owned, `count` of them */
    size_t count;
    size_t room;
    bool sorted; /* values_ns is in ascending order */
};

/* Makes room, so that the next `count` sample_add allocate nothing. Ends the process without
 * memory. */
void sample_reserve(struct sample *sample, size_t count);
void sample_add(struct sample *sample, uint64_t value_ns);
void sample_finish(struct sample *sample);

/* The smallest value that at least `percent` (0..100) of all are not above; 0 when there is none.
 */
uint64_t sample_percentile(struct sample *sample, double percent);

/* "min 10us, p50 12us, p99 40us, max 41us", without a line's end. */
void sample_print(struct sample *sample);
/* {"min_ns", "p50_ns", "p99_ns", "max_ns"}, or empty without values. */
json_t *sample_json(struct sample *sample);

#endif

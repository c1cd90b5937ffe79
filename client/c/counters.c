/* SPDX-License-Identifier: Apache-2.0 */
/* What this client did, as its entry in the ring counts it. */
#include "client/c/private.h"

#include <string.h>

_Static_assert(sizeof(struct ringside_counters) == 14 * sizeof(uint64_t),
               "in the order of rs_counter");
_Static_assert(offsetof(struct ringside_counters, overflows) == RS_OVERFLOWS * sizeof(uint64_t),
               "in the order of rs_counter");

int ringside_counters(struct ringside *connection, struct ringside_counters *counters)
{
    struct rs_ring *own = &connection->own.ring;
    uint64_t values[RS_COUNTERS];

    if (is_down(connection))
        return fail_down(connection);
    for (unsigned i = 0; i < RS_COUNTERS; i++)
        values[i] = rs_load_relaxed(&own->clients[own->client].counter[i]);
    memcpy(counters, values, sizeof *counters);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The stage's routes resolved to entries of the ring's destination table. */
#ifndef RINGSIDE_PROXY_ROUTES_H
#define RINGSIDE_PROXY_ROUTES_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "proto/ring.h"

struct route {
    const struct rs_config_route *config;
    uint16_t
        destinations[RS_CONFIG_TARGETS_MAX]; /* config->to_count indexes of the destination table */
};

struct routes {
    struct route *routes; /* owned, `count` of them, in the order of the config */
    uint32_t count;
    char paths[RS_MAX_DESTINATIONS]
              [RS_CONFIG_SOCKET_PATH_BYTES]; /* address by index; empty: not ours now */
    uint32_t destination_count;              /* indexes in use are below it */
    uint16_t self; /* index that leads to the own inbox, or RS_NO_DESTINATION */
};

/*
 * Gives each distinct address an entry of the ring's destination table: the one it had before an
 * adoption, else the next free one. The route to the own socket is connected at once, with ring
 * number 0; others are set unconnected. 0, -RINGSIDE_E_LIMIT (more addresses than entries) or
 * -ENOMEM.
 */
int routes_init(struct routes *routes, const struct rs_config *config, struct rs_ring *ring);
void routes_finish(struct routes *routes);

/* NULL when there is no such route. */
const struct route *routes_find(const struct routes *routes, const char *name);

/*
 * Says whether destination `index` leads to a reachable inbox: `ring_number` is the own ring's
 * number there, `incarnation` that of the ring that owns the inbox, `stage` its name (both may be
 * NULL: left as they are).
 */
void routes_set_connected(struct rs_ring *ring, unsigned index, bool connected,
                          unsigned ring_number, const uint64_t incarnation[2], const char *stage);

/* The identity of an address over restarts. */
void routes_address_hash(const char *path, uint64_t hash[2]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Destination table entries for the addresses of the config's routes. */
#include "proxy/routes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/err.h"

/* FNV-1a, twice with different starts: an identity, not a defence. */
void routes_address_hash(const char *path, uint64_t hash[2])
{
    hash[0] = UINT64_C(0xcbf29ce484222325);
    hash[1] = UINT64_C(0x6c62272e07bb0142);
    for (; *path != '\0'; path++) {
        for (int i = 0; i < 2; i++)
            hash[i] = (hash[i] ^ (uint8_t)*path) * UINT64_C(0x100000001b3);
    }
    hash[1] |= 1; /* never the zeroes of an unused entry */
}

static void store_name(struct rs_destination *entry, const char *name)
{
    uint64_t words[RS_NAME_BYTES / 8] = {0};
    size_t bytes = strnlen(name, RS_NAME_BYTES - 1);

    memcpy(words, name, bytes);
    for (unsigned i = 0; i < RS_NAME_BYTES / 8; i++)
        rs_store_relaxed(&entry->name[i], words[i]);
}

static void store_state(struct rs_destination *entry, unsigned attempts, unsigned ring_number,
                        bool connected)
{
    uint32_t version = (uint32_t)(rs_load_relaxed(&entry->state) >> 32) + 1;

    rs_store_release(&entry->state, rs_destination_state(version, attempts, ring_number,
                                                         RS_DEST_INBOX, connected));
}

void routes_set_connected(struct rs_ring *ring, unsigned index, bool connected,
                          unsigned ring_number, const uint64_t incarnation[2], const char *stage)
{
    struct rs_destination *entry = &ring->destinations[index];
    unsigned attempts = rs_destination_attempts(rs_load_relaxed(&entry->state));

    for (unsigned i = 0; incarnation != NULL && i < 2; i++)
        rs_store_relaxed(&entry->incarnation[i], incarnation[i]);
    if (stage != NULL)
        store_name(entry, stage);
    store_state(entry, attempts, ring_number, connected);
}

static bool entry_is(const struct rs_destination *entry, const uint64_t hash[2])
{
    return rs_destination_kind(rs_load_acquire(&entry->state)) != RS_DEST_UNUSED &&
           rs_load_relaxed(&entry->address[0]) == hash[0] &&
           rs_load_relaxed(&entry->address[1]) == hash[1];
}

/* Entries of earlier configs stay: their messages may still be queued. */
static int find_entry(struct rs_ring *ring, const char *path)
{
    uint32_t count = ring->layout.destination_count;
    uint64_t hash[2];
    int unused = -RINGSIDE_E_LIMIT;

    routes_address_hash(path, hash);
    for (uint32_t i = 0; i < count; i++) {
        struct rs_destination *entry = &ring->destinations[i];
        if (entry_is(entry, hash))
            return (int)i;
        if (unused < 0 && rs_destination_kind(rs_load_acquire(&entry->state)) == RS_DEST_UNUSED)
            unused = (int)i;
    }
    for (int i = 0; unused >= 0 && i < 2; i++)
        rs_store_relaxed(&ring->destinations[unused].address[i], hash[i]);
    return unused;
}

/* A destination that several routes share is as patient as the most patient of them. */
static unsigned most_attempts(const struct rs_config *config, const char *path)
{
    unsigned attempts = 1;

    for (uint32_t i = 0; i < config->route_count; i++) {
        for (uint32_t j = 0; j < config->routes[i].to_count; j++) {
            if (strcmp(config->routes[i].to[j], path) == 0 && config->routes[i].attempts > attempts)
                attempts = config->routes[i].attempts;
        }
    }
    return attempts;
}

static int resolve(struct routes *routes, const struct rs_config *config, struct rs_ring *ring,
                   const char *path)
{
    bool is_self = strcmp(path, config->socket.path) == 0;
    int index = find_entry(ring, path);

    if (index < 0 || routes->paths[index][0] != '\0')
        return index;
    strcpy(routes->paths[index], path);
    if ((uint32_t)index >= routes->destination_count)
        routes->destination_count = (uint32_t)index + 1;
    struct rs_destination *entry = &ring->destinations[index];
    if (is_self)
        routes->self = (uint16_t)index;
    store_state(entry, most_attempts(config, path),
                rs_destination_ring(rs_load_relaxed(&entry->state)), false);
    if (is_self)
        routes_set_connected(ring, (unsigned)index, true, 0, ring->layout.incarnation,
                             config->stage);
    return index;
}

int routes_init(struct routes *routes, const struct rs_config *config, struct rs_ring *ring)
{
    memset(routes, 0, sizeof *routes);
    routes->self = RS_NO_DESTINATION;
    routes->routes = calloc(config->route_count + 1, sizeof *routes->routes);
    if (routes->routes == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < config->route_count; i++) {
        struct route *route = &routes->routes[i];
        route->config = &config->routes[i];
        for (uint32_t j = 0; j < route->config->to_count; j++) {
            int index = resolve(routes, config, ring, route->config->to[j]);
            if (index < 0) {
                routes_finish(routes);
                return index;
            }
            route->destinations[j] = (uint16_t)index;
        }
        routes->count++;
    }
    return 0;
}

void routes_finish(struct routes *routes)
{
    if (routes == NULL)
        return;
    free(routes->routes);
    routes->routes = NULL;
    routes->count = 0;
}

const struct route *routes_find(const struct routes *routes, const char *name)
{
    for (uint32_t i = 0; i < routes->count; i++) {
        if (strcmp(routes->routes[i].config->name, name) == 0)
            return &routes->routes[i];
    }
    return NULL;
}

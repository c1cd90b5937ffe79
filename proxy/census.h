/* SPDX-License-Identifier: Apache-2.0 */
/* What the slots of the own ring are in, counted in slices so that no turn of the loop is long. */
#ifndef RINGSIDE_PROXY_CENSUS_H
#define RINGSIDE_PROXY_CENSUS_H

#include <stdint.h>

#include "proto/ring_layout.h"

struct proxy;

struct census_class {
    uint32_t free, loaned, sealed, quarantined; /* slots */
};

struct census_client {
    uint32_t loans, leases;
    uint64_t oldest_lease_ns; /* as far as watch.c has seen */
};

struct census {
    uint32_t waiting;      /* deliveries queued in the own ring, wherever they lead */
    uint32_t waiting_here; /* of these, those for the own inbox */
    uint32_t loaned;       /* slots */
    uint32_t leased;       /* deliveries held */
    uint32_t reading;      /* slots with readers */
    uint32_t kept;         /* other sealed slots: readable by ticket */
    uint32_t arrived;      /* messages of other rings that cells of the own inbox name */
    struct census_class classes[RS_MAX_CLASSES];
    struct census_client *clients; /* by number, below clients_end() */
};

/* Counts while others work: what moves meanwhile may be counted once, twice or not. */
typedef void census_cb(struct proxy *proxy, const struct census *census, void *data);

/* Belongs to who asks, until it is answered or forgotten. */
struct census_request {
    struct census_request *next;
    census_cb *done; /* NULL: not asked */
    void *data;
};

/* Needs proxy->clients only when asked. 0 or -ENOMEM. */
int census_open(struct proxy *proxy);
/* Requests that are left are not answered. Memory goes with census_destroy, after the loop. */
void census_close(struct proxy *proxy);
void census_destroy(struct proxy *proxy);

/* done(proxy, census, data) runs once: at once where the ring is small, else in a later turn. */
void census_ask(struct proxy *proxy, struct census_request *request, census_cb *done, void *data);
void census_forget(struct proxy *proxy, struct census_request *request);

/* Counts all in one go, for the end. The pointer is valid until the next call or census_destroy. */
const struct census *census_now(struct proxy *proxy);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over slots and cells serves all who asked before it began. */
#include "proxy/census.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "proxy/proxy.h"
#include "proxy/watch.h"

#define SLICE_NS    500000 /* per turn of the loop */
#define SLICE_ITEMS 256    /* slots or cells between two looks at the clock */

struct counter {
    uv_idle_t idle; /* active while a pass is under way */
    struct census census;
    uint32_t slot, cell;                 /* where the pass goes on */
    struct census_request *first, **end; /* for the next pass, oldest first */
    struct census_request *served;       /* by this pass */
    bool closed;
};

/* ---- counting ---- */

static void see_lease(struct proxy *proxy, struct census *census, unsigned number, uint64_t age_ns)
{
    if (number >= clients_end(proxy))
        return;
    struct census_client *client = &census->clients[number];
    client->leases++;
    if (age_ns > client->oldest_lease_ns)
        client->oldest_lease_ns = age_ns;
}

static void count_readers(struct proxy *proxy, struct census *census, uint32_t slot,
                          uint64_t readers)
{
    uint64_t age_ns = watch_age_ns(proxy, slot, WATCH_READING, watch_reading_word(readers));

    for (uint64_t bits = readers & RS_READERS_BITS; bits != 0; bits &= bits - 1) {
        int number = clients_by_reader(proxy, (unsigned)__builtin_ctzll(bits));
        if (number >= 0)
            see_lease(proxy, census, (unsigned)number, age_ns);
    }
}

static void count_message(struct proxy *proxy, struct census *census, uint32_t slot, uint64_t state)
{
    struct rs_slot *record = &proxy->ring.slots[slot];
    uint32_t queued = 0, held = 0;

    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_acquire(&record->delivery[i]);
        if (rs_delivery_generation(word) != rs_state_generation(state))
            continue;
        if (rs_delivery_phase(word) == RS_QUEUED) {
            queued++;
            census->waiting_here += rs_delivery_destination(word) == proxy->routes.self;
        } else if (rs_delivery_phase(word) == RS_HELD) {
            held++;
            see_lease(proxy, census, rs_delivery_holder(word), watch_age_ns(proxy, slot, i, word));
        }
    }
    uint64_t readers = rs_load_acquire(&record->readers);
    bool read = (rs_state_flags(state) & RS_FLAG_TICKET) != 0 && (readers & RS_READERS_BITS) != 0;
    if (read)
        count_readers(proxy, census, slot, readers);
    census->waiting += queued;
    census->leased += held;
    census->reading += read;
    census->kept += queued + held == 0 && !read;
}

static void count_slot(struct proxy *proxy, struct census *census, uint32_t slot)
{
    uint64_t state = rs_load_acquire(&proxy->ring.slots[slot].state);
    struct census_class *class = &census->classes[rs_ring_class_of(&proxy->ring, slot)];
    unsigned phase = rs_state_phase(state);

    class->free += phase == RS_FREE;
    class->loaned += phase == RS_LOANED;
    class->sealed += phase == RS_SEALED;
    class->quarantined += phase == RS_QUARANTINED;
    census->loaned += phase == RS_LOANED;
    if (phase == RS_LOANED && rs_state_owner(state) < clients_end(proxy))
        census->clients[rs_state_owner(state)].loans++;
    if (phase == RS_SEALED)
        count_message(proxy, census, slot, state);
}

/* A cell outlives its message when that expired or was dropped; only the word tells. */
static void count_cell(struct proxy *proxy, struct census *census, uint32_t index)
{
    struct rs_inbox *inbox = &proxy->inbox;
    uint64_t cell = rs_load_acquire(&inbox->cells[index]), word;
    unsigned number = rs_cell_ring(cell);

    if ((cell & RS_CELL_FULL) == 0 || number == 0)
        return;
    struct rs_ring *ring = rs_load_acquire(&inbox->rings[number]);
    census->arrived +=
        ring == NULL || rs_ring_takeable(ring, rs_cell_slot(cell), rs_cell_delivery(cell),
                                         inbox->destination[number], &word);
}

static void begin(struct proxy *proxy)
{
    struct counter *counter = proxy->counter;
    struct census_client *clients = counter->census.clients;

    memset(clients, 0, clients_end(proxy) * sizeof *clients);
    counter->census = (struct census){.clients = clients};
    counter->slot = counter->cell = 0;
}

/* One slice. True when the pass is complete. */
static bool go_on(struct proxy *proxy)
{
    struct counter *counter = proxy->counter;
    uint32_t slots = proxy->ring.layout.slot_count, cells = proxy->inbox.cell_count;

    for (uint32_t i = 0; i < SLICE_ITEMS && counter->slot < slots; i++)
        count_slot(proxy, &counter->census, counter->slot++);
    for (uint32_t i = 0; i < SLICE_ITEMS && counter->slot == slots && counter->cell < cells; i++)
        count_cell(proxy, &counter->census, counter->cell++);
    return counter->slot == slots && counter->cell == cells;
}

const struct census *census_now(struct proxy *proxy)
{
    begin(proxy);
    while (!go_on(proxy))
        ;
    return &proxy->counter->census;
}

/* ---- requests ---- */

static void answer(struct proxy *proxy)
{
    struct counter *counter = proxy->counter;
    struct census_request *request;

    while (!counter->closed && (request = counter->served) != NULL) {
        census_cb *done = request->done;
        counter->served = request->next;
        request->done = NULL;
        done(proxy, &counter->census, request->data);
    }
}

static void work(struct proxy *proxy)
{
    struct counter *counter = proxy->counter;
    uint64_t end = uv_hrtime() + SLICE_NS;

    do {
        if (counter->served == NULL) {
            if (counter->first == NULL) {
                uv_idle_stop(&counter->idle);
                return;
            }
            counter->served = counter->first;
            counter->first = NULL;
            counter->end = &counter->first;
            begin(proxy);
        }
        if (go_on(proxy))
            answer(proxy);
    } while (!counter->closed && uv_hrtime() < end);
}

static void on_idle(uv_idle_t *idle)
{
    work(idle->data);
}

void census_ask(struct proxy *proxy, struct census_request *request, census_cb *done, void *data)
{
    struct counter *counter = proxy->counter;

    *request = (struct census_request){.done = done, .data = data};
    if (counter->closed)
        return;
    *counter->end = request;
    counter->end = &request->next;
    if (uv_is_active((uv_handle_t *)&counter->idle))
        return;
    uv_idle_start(&counter->idle, on_idle);
    work(proxy);
}

static bool unlink_from(struct census_request **link, const struct census_request *request)
{
    for (; *link != NULL; link = &(*link)->next) {
        if (*link == request) {
            *link = request->next;
            return true;
        }
    }
    return false;
}

void census_forget(struct proxy *proxy, struct census_request *request)
{
    struct counter *counter = proxy->counter;

    if (request->done == NULL)
        return;
    request->done = NULL;
    if (unlink_from(&counter->served, request))
        return;
    unlink_from(&counter->first, request);
    for (counter->end = &counter->first; *counter->end != NULL;)
        counter->end = &(*counter->end)->next;
}

/* ---- life ---- */

int census_open(struct proxy *proxy)
{
    struct counter *counter = calloc(1, sizeof *counter);

    if (counter == NULL)
        return -ENOMEM;
    counter->census.clients =
        calloc(proxy->ring.layout.client_count, sizeof *counter->census.clients);
    if (counter->census.clients == NULL) {
        free(counter);
        return -ENOMEM;
    }
    counter->end = &counter->first;
    uv_idle_init(&proxy->loop, &counter->idle);
    counter->idle.data = proxy;
    proxy->counter = counter;
    return 0;
}

void census_close(struct proxy *proxy)
{
    struct counter *counter = proxy->counter;

    if (counter == NULL || counter->closed)
        return;
    counter->closed = true;
    uv_close((uv_handle_t *)&counter->idle, NULL);
}

void census_destroy(struct proxy *proxy)
{
    if (proxy->counter == NULL)
        return;
    free(proxy->counter->census.clients);
    free(proxy->counter);
    proxy->counter = NULL;
}

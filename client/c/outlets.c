/* SPDX-License-Identifier: Apache-2.0 */
/* Inboxes that the routes lead to: opened through the sidecar when first needed, kept while messages go there. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define RETRY_NS INT64_C(20000000) /* between two calls for the same inbox */

void outlet_destroy(struct outlet *outlet)
{
    if (outlet == NULL)
        return;
    int fds[] = {outlet->control_fd, outlet->event_fd};

    ring_unmap(&outlet->ring);
    rs_fd_close(fds, 2);
    free(outlet);
}

void outlet_disown(struct outlet *outlet, bool still)
{
    if (outlet == NULL)
        return;
    int fds[] = {outlet->control_fd, outlet->event_fd};

    rs_fd_close(fds, 2);
    outlet->control_fd = outlet->event_fd = -1;
    if (still)
        ring_disown(&outlet->ring);
}

/* ---- who may be judged there ----
 * Cells of a ring are judged by the ring that was admitted under their number. When the number comes to mean another
 * ring, its cells would be taken for stale and cleared: so each admission holds for one state of the inbox's entry. */

static bool bind_number(struct outlet *outlet, unsigned number, struct rs_ring *ring,
                        uint16_t destination)
{
    const struct rs_ring_entry *entry = &outlet->inbox.table[number];
    uint64_t state = rs_load_acquire(&entry->state);

    if (!entry_names(entry, state, ring))
        return false;
    if (rs_load_relaxed(&outlet->inbox.rings[number]) != ring) {
        rs_inbox_forget(&outlet->inbox, number);
        rs_inbox_admit(&outlet->inbox, number, ring, destination, ring->client);
    }
    rs_store_relaxed(&outlet->bound[number], state);
    return true;
}

static void unbind_number(struct outlet *outlet, unsigned number)
{
    rs_inbox_forget(&outlet->inbox, number);
    rs_store_relaxed(&outlet->bound[number], 0);
}

bool outlet_guests_hold(const struct outlet *outlet)
{
    for (unsigned word = 0; word < RS_MAX_RINGS / 64; word++) {
        for (uint64_t bits = rs_load_relaxed(&outlet->guest_bits[word]); bits != 0; bits &= bits - 1) {
            if (!outlet_holds(outlet, word * 64 + (unsigned)__builtin_ctzll(bits)))
                return false;
        }
    }
    return true;
}

/* Looks at each admission again, and ends those that do not hold. The lock is held. */
static void bind_again(struct outlet *outlet)
{
    uint64_t bits[RS_MAX_RINGS / 64] = {0};
    uint32_t guests = 0;

    for (unsigned number = 0; number < RS_MAX_RINGS; number++) {
        struct rs_ring *ring = rs_load_relaxed(&outlet->inbox.rings[number]);

        if (ring != NULL && !bind_number(outlet, number, ring, outlet->inbox.destination[number])) {
            unbind_number(outlet, number);
        } else if (ring != NULL && number != rs_load_relaxed(&outlet->number)) {
            bits[number / 64] |= UINT64_C(1) << number % 64;
            guests++;
        }
    }
    for (unsigned word = 0; word < RS_MAX_RINGS / 64; word++)
        rs_store_relaxed(&outlet->guest_bits[word], bits[word]);
    rs_store_relaxed(&outlet->guests, guests);
}

bool outlet_admit_guest(struct ringside *connection, struct outlet *outlet, unsigned number,
                        struct rs_ring *ring, uint16_t destination)
{
    if (rs_load_relaxed(&outlet->inbox.rings[number]) == ring && outlet_holds(outlet, number))
        return true;
    pthread_mutex_lock(&connection->lock);
    bool admitted = bind_number(outlet, number, ring, destination);
    bind_again(outlet);
    pthread_mutex_unlock(&connection->lock);
    return admitted;
}

/* ---- open and renew ---- */

static bool is_inbox_of(const struct rs_destination *entry, const struct outlet *outlet)
{
    return rs_load_relaxed(&entry->incarnation[0]) == outlet->ring.layout.incarnation[0] &&
           rs_load_relaxed(&entry->incarnation[1]) == outlet->ring.layout.incarnation[1];
}

/* Makes messages of the own ring judgeable in that inbox, under the number that it has there now. */
static bool admit_own(struct ringside *connection, struct outlet *outlet, unsigned destination,
                      unsigned number)
{
    unsigned before = rs_load_relaxed(&outlet->number);

    if (before != number)
        unbind_number(outlet, before);
    rs_store_relaxed(&outlet->number, number);
    return bind_number(outlet, number, &connection->own.ring, (uint16_t)destination);
}

static int fail_unconnected(const struct ringside *connection, unsigned destination)
{
    return fail(connection, -RINGSIDE_E_UNAVAILABLE,
                "the next stage (destination %u) is not connected yet", destination);
}

static int ask_outlet(struct ringside *connection, unsigned destination,
                      Ringside__V1__OpenResponse **answer)
{
    Ringside__V1__OpenRequest request = RINGSIDE__V1__OPEN_REQUEST__INIT;

    request.target_case = RINGSIDE__V1__OPEN_REQUEST__TARGET_DESTINATION;
    request.destination = destination;
    return call_open(connection, &request, answer);
}

/* The owner's sidecar may have restarted: then its eventfd is another one. It takes the old one's number. */
static void renew_event(struct ringside *connection, unsigned destination, struct outlet *outlet)
{
    Ringside__V1__OpenResponse *answer = NULL;
    int rc = ask_outlet(connection, destination, &answer);
    int event_fd = rc < 0 ? -1
                          : link_take_fd(connection, answer->n_descriptors, answer->descriptors,
                                         RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT);

    if (event_fd >= 0 && outlet->event_fd >= 0) {
        (void)dup3(event_fd, outlet->event_fd, O_CLOEXEC);
        close(event_fd);
    } else if (event_fd >= 0) {
        outlet->event_fd = event_fd;
        outlet->inbox.event_fd = event_fd;
    }
    free_open(connection, answer);
}

static int open_outlet(struct ringside *connection, unsigned destination, struct outlet **opened)
{
    Ringside__V1__OpenResponse *answer = NULL;
    uint64_t state = rs_load_acquire(&connection->own.ring.destinations[destination].state);
    struct outlet *outlet = calloc(1, sizeof *outlet);

    if (outlet == NULL)
        return fail_with(connection, -ENOMEM, "out of memory");
    outlet->control_fd = outlet->event_fd = -1;
    int rc = ask_outlet(connection, destination, &answer);
    if (rc == 0) {
        size_t count = answer->n_descriptors;

        outlet->control_fd = link_take_fd(connection, count, answer->descriptors,
                                          RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE);
        outlet->event_fd = link_take_fd(connection, count, answer->descriptors,
                                        RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT);
        if (outlet->control_fd < 0 || answer->ring_number >= RS_MAX_RINGS)
            rc = fail_with(connection, -RINGSIDE_E_PROTOCOL,
                           "the sidecar passed no inbox for the route");
        else
            rc = ring_map(connection, &outlet->ring, outlet->control_fd, -1, false, answer->ring);
    }
    if (rc == 0) {
        rs_inbox_init(&outlet->inbox, &outlet->ring, outlet->event_fd);
        RS_FAILPOINT(outlet_opened);
        rs_store_relaxed(&outlet->state, state);
        rs_store_relaxed(&outlet->number, answer->ring_number);
        if (!admit_own(connection, outlet, destination, answer->ring_number))
            rc = fail_unconnected(connection, destination);
    }
    if (rc == 0)
        *opened = outlet;
    else
        outlet_destroy(outlet);
    free_open(connection, answer);
    return rc;
}

/* The destination's state or the inbox's table changed, or it was never opened. The lock is held. */
static int renew_outlet(struct ringside *connection, unsigned destination, struct outlet **outlet)
{
    struct rs_destination *entry = &connection->own.ring.destinations[destination];
    struct outlet *old = rs_load_relaxed(&connection->outlets[destination]);
    uint64_t state = rs_load_acquire(&entry->state);
    int64_t now_ns = rs_now_ns();

    if (old != NULL && is_inbox_of(entry, old)) {
        /* Its sidecar may be away; its memory and its workers are not. */
        unsigned number = rs_destination_connected(state) ? rs_destination_ring(state)
                                                          : rs_load_relaxed(&old->number);
        bool admitted = admit_own(connection, old, destination, number);

        bind_again(old);
        if (state != rs_load_relaxed(&old->state) && rs_destination_connected(state) &&
            connection->linked)
            renew_event(connection, destination, old);
        rs_store_release(&old->state, state);
        *outlet = old;
        return admitted ? 0 : fail_unconnected(connection, destination);
    }
    /* A sidecar that was away may be back; when it is not, that is known at once. */
    if (connection->linked && now_ns < connection->outlet_retry_ns[destination])
        return fail_unconnected(connection, destination);
    connection->outlet_retry_ns[destination] = now_ns + RETRY_NS;
    int rc = open_outlet(connection, destination, outlet);
    if (rc < 0)
        return rc;
    rs_store_release(&connection->outlets[destination], *outlet);
    if (old != NULL) {
        old->next = connection->retired_outlets;
        connection->retired_outlets = old;
    }
    return 0;
}

int outlet_get(struct ringside *connection, unsigned destination, struct outlet **outlet)
{
    *outlet = outlet_at_hand(connection, destination);
    if (*outlet != NULL)
        return 0;
    pthread_mutex_lock(&connection->lock);
    int rc = renew_outlet(connection, destination, outlet);
    pthread_mutex_unlock(&connection->lock);
    return rc;
}

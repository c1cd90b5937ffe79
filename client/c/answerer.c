/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of the stages that routes lead to: opened through the sidecar before the first call to a stage, for its replies, and
 * before the first reading of one of its tickets, once more with a reader number. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <stdlib.h>

#define RETRY_NS INT64_C(20000000) /* between two calls for the same ring */

static bool leads_to(const struct rs_destination *entry, const struct rs_ring *ring)
{
    return rs_load_relaxed(&entry->incarnation[0]) == ring->layout.incarnation[0] &&
           rs_load_relaxed(&entry->incarnation[1]) == ring->layout.incarnation[1];
}

static int open_far(struct ringside *connection, const struct far_rings *far, unsigned destination,
                    uint64_t state, struct peer **opened)
{
    const struct rs_destination *entry = &connection->own.ring.destinations[destination];
    Ringside__V1__OpenRequest request = RINGSIDE__V1__OPEN_REQUEST__INIT;
    Ringside__V1__OpenResponse *answer = NULL;
    struct peer *peer = calloc(1, sizeof *peer);

    if (peer == NULL)
        return fail_with(connection, -ENOMEM, "out of memory");
    peer->control_fd = peer->bell_fd = peer->event_fd = -1;
    if (far == &connection->answerers) {
        request.target_case = RINGSIDE__V1__OPEN_REQUEST__TARGET_REPLY;
        request.reply = destination;
    } else {
        request.target_case = RINGSIDE__V1__OPEN_REQUEST__TARGET_TICKETS;
        request.tickets = destination;
    }
    int rc = call_open(connection, &request, &answer);
    if (rc == 0)
        rc = peer_map(connection, peer, answer->ring, answer->n_descriptors, answer->descriptors,
                      false);
    if (rc == 0 && !leads_to(entry, &peer->ring))
        rc = fail_with(connection, -RINGSIDE_E_UNAVAILABLE,
                       "the stage of the ring came back with a new one meanwhile; try again");
    if (rc == 0) {
        peer->destination = RS_NO_DESTINATION;
        rs_store_relaxed(&peer->entry_state, state);
        RS_FAILPOINT(answerer_opened);
        *opened = peer;
    } else {
        peer_unmap(peer);
        free(peer);
    }
    free_open(connection, answer);
    return rc;
}

/* The destination's state changed, or its ring was never opened. The lock is held. */
static int renew(struct ringside *connection, struct far_rings *far, unsigned destination,
                 struct peer **ring)
{
    struct rs_destination *entry = &connection->own.ring.destinations[destination];
    struct peer *old = rs_load_relaxed(&far->rings[destination]);
    uint64_t state = rs_load_acquire(&entry->state);
    int64_t now_ns = rs_now_ns();

    if (old != NULL && leads_to(entry, &old->ring)) {
        /* Its sidecar may be away; its memory and its workers are not. */
        rs_store_relaxed(&old->entry_state, state);
        *ring = old;
        return 0;
    }
    /* A sidecar that was away may be back; when it is not, that is known at once. */
    if (connection->linked && now_ns < far->retry_ns[destination])
        return fail(connection, -RINGSIDE_E_UNAVAILABLE,
                    "the next stage (destination %u) is not connected yet", destination);
    far->retry_ns[destination] = now_ns + RETRY_NS;
    int rc = open_far(connection, far, destination, state, ring);
    if (rc < 0)
        return rc;
    rs_store_release(&far->rings[destination], *ring);
    if (old != NULL)
        peer_retire(connection, old);
    return 0;
}

static int look(struct ringside *connection, struct far_rings *far, unsigned destination,
                struct peer **ring)
{
    pthread_mutex_lock(&connection->lock);
    int rc = renew(connection, far, destination, ring);
    pthread_mutex_unlock(&connection->lock);
    return rc;
}

int answerer_get(struct ringside *connection, const struct route *route, int64_t timeout_ns,
                 struct peer **answerer)
{
    bool blocks = route->when_full == RINGSIDE__V1__ROUTE__WHEN_FULL__BLOCK && timeout_ns != 0;
    int64_t deadline_ns = deadline_after(timeout_ns);

    for (;;) {
        int rc = look(connection, &connection->answerers, route->destinations[0], answerer);

        if (rc != -RINGSIDE_E_UNAVAILABLE || !blocks)
            return rc;
        if (is_down(connection))
            return fail_down(connection);
        int64_t left_ns = time_left(deadline_ns);
        if (left_ns == 0)
            return fail(connection, -RINGSIDE_E_TIMEOUT, "%s", ringside_explain(connection));
        pause_for(left_ns < 0 || left_ns > RETRY_NS ? RETRY_NS : left_ns);
    }
}

/* ---- by ticket ---- */

/* *ring stays NULL when the ticket is of another ring. A text form names its ring, and the destination's entry tells which
 * that is; for a bare ticket the ring's inbox, which is mapped, tells the id. */
static int look_for_ticket(struct ringside *connection, unsigned destination,
                           const struct rs_ticket *ticket, struct peer **ring)
{
    const struct rs_destination *entry = &connection->own.ring.destinations[destination];
    struct outlet *outlet;
    struct peer *far;
    int rc = 0;

    if (destination == connection->own.destination)
        return 0;
    if (ticket->has_text) {
        if ((uint32_t)rs_load_relaxed(&entry->incarnation[0]) != ticket->incarnation)
            return 0;
    } else {
        rc = outlet_get(connection, destination, &outlet);
        if (rc < 0 || outlet->ring.layout.sidecar_id != ticket->sidecar_id)
            return rc;
    }
    rc = look(connection, &connection->ticketed, destination, &far);
    if (rc == 0 && rs_ring_ticket_slot(&far->ring, ticket) != -RINGSIDE_E_FOREIGN_TICKET)
        *ring = far;
    return rc;
}

int ticketed_find(struct ringside *connection, const struct rs_ticket *ticket, struct peer **ring)
{
    struct settings *settings = settings_of(connection);
    int rc = 0;

    *ring = NULL;
    for (unsigned i = 0; i < settings->route_count; i++) {
        const struct route *route = &settings->routes[i];

        for (unsigned j = 0; j < route->destination_count; j++) {
            int one = look_for_ticket(connection, route->destinations[j], ticket, ring);

            if (*ring != NULL)
                return 0;
            if (one < 0)
                rc = one;
        }
    }
    return rc;
}

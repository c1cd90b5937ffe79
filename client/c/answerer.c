/* SPDX-License-Identifier: Apache-2.0 */
/* Rings in which replies are held: opened through the sidecar before the first call to a stage. */
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

static int open_answerer(struct ringside *connection, unsigned destination, uint64_t state,
                         struct peer **opened)
{
    const struct rs_destination *entry = &connection->own.ring.destinations[destination];
    Ringside__V1__OpenRequest request = RINGSIDE__V1__OPEN_REQUEST__INIT;
    Ringside__V1__OpenResponse *answer = NULL;
    struct peer *peer = calloc(1, sizeof *peer);

    if (peer == NULL)
        return fail_with(connection, -ENOMEM, "out of memory");
    peer->control_fd = peer->bell_fd = peer->event_fd = -1;
    request.target_case = RINGSIDE__V1__OPEN_REQUEST__TARGET_REPLY;
    request.reply = destination;
    int rc = call_open(connection, &request, &answer);
    if (rc == 0)
        rc = peer_map(connection, peer, answer->ring, answer->n_descriptors, answer->descriptors,
                      false);
    if (rc == 0 && !leads_to(entry, &peer->ring))
        rc = fail_with(connection, -RINGSIDE_E_UNAVAILABLE,
                       "the stage that is called came back with a new ring meanwhile; try again");
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

/* The destination's state changed, or it was never called. The lock is held. */
static int renew_answerer(struct ringside *connection, unsigned destination, struct peer **answerer)
{
    struct rs_destination *entry = &connection->own.ring.destinations[destination];
    struct peer *old = rs_load_relaxed(&connection->answerers[destination]);
    uint64_t state = rs_load_acquire(&entry->state);
    int64_t now_ns = rs_now_ns();

    if (old != NULL && leads_to(entry, &old->ring)) {
        /* Its sidecar may be away; its memory and its workers are not. */
        rs_store_relaxed(&old->entry_state, state);
        *answerer = old;
        return 0;
    }
    if (now_ns < connection->answerer_retry_ns[destination] && !connection->linked)
        return link_fail_away(connection, "the stage that is called is not connected");
    if (now_ns < connection->answerer_retry_ns[destination])
        return fail(connection, -RINGSIDE_E_UNAVAILABLE,
                    "the stage that is called (destination %u) is not connected yet", destination);
    connection->answerer_retry_ns[destination] = now_ns + RETRY_NS;
    int rc = open_answerer(connection, destination, state, answerer);
    if (rc < 0)
        return rc;
    rs_store_release(&connection->answerers[destination], *answerer);
    if (old != NULL)
        peer_retire(connection, old);
    return 0;
}

static int look(struct ringside *connection, unsigned destination, struct peer **answerer)
{
    pthread_mutex_lock(&connection->lock);
    int rc = renew_answerer(connection, destination, answerer);
    pthread_mutex_unlock(&connection->lock);
    return rc;
}

int answerer_get(struct ringside *connection, const struct route *route, int64_t timeout_ns,
                 struct peer **answerer)
{
    bool blocks = route->when_full == RINGSIDE__V1__ROUTE__WHEN_FULL__BLOCK && timeout_ns != 0;
    int64_t deadline_ns = deadline_after(timeout_ns);

    for (;;) {
        int rc = look(connection, route->destinations[0], answerer);

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

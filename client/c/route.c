/* SPDX-License-Identifier: Apache-2.0 */
/* Routes: found by name, and room in each of their inboxes before a message is published. */
#include "client/c/private.h"

#include <time.h>

#define SPINS_PER_CLOCK 16                /* looks between two readings of the clock */
#define CONNECT_POLL_NS INT64_C(10000000) /* while the next stage is not connected */

/* For names of a few letters, which strcmp is not made for. */
static inline bool same_name(const char *one, const char *other)
{
    while (*one == *other && *one != '\0') {
        one++;
        other++;
    }
    return *one == *other;
}

int route_find(struct ringside *connection, const char *name, const struct route **route)
{
    struct settings *settings = settings_of(connection);

    for (unsigned i = 0; name != NULL && i < settings->route_count; i++) {
        if (same_name(settings->routes[i].name, name)) {
            *route = &settings->routes[i];
            return 0;
        }
    }
    return fail(connection, -RINGSIDE_E_NO_ROUTE,
                "the stage \"%s\" has no route \"%s\" (routes in its config)",
                ringside_stage(connection), name != NULL ? name : "(null)");
}

/* The first inbox of the route that cannot take a message now, or NULL; *error says why. */
SELDOM static struct outlet *find_obstacle(struct ringside *connection, struct outgoing *outgoing,
                                    int *error)
{
    for (unsigned i = 0; i < outgoing->route->destination_count; i++) {
        *error = outlet_get(connection, outgoing->route->destinations[i], &outgoing->outlets[i]);
        if (*error < 0)
            return NULL;
        if (!rs_inbox_has_room(&outgoing->outlets[i]->inbox)) {
            *error = -RINGSIDE_E_FULL;
            return outgoing->outlets[i];
        }
    }
    *error = 0;
    return NULL;
}

/* Makes room in every full inbox of the route at the cost of the oldest message of the own ring there. */
SELDOM static int drop_oldest(struct ringside *connection, struct outgoing *outgoing)
{
    struct rs_ring *own = &connection->own.ring;

    for (unsigned i = 0; i < outgoing->route->destination_count; i++) {
        struct outlet *outlet;
        int rc = outlet_get(connection, outgoing->route->destinations[i], &outlet);

        if (rc < 0)
            return rc;
        outgoing->outlets[i] = outlet;
        if (rs_inbox_has_room(&outlet->inbox))
            continue;
        if (!rs_inbox_drop_oldest(&outlet->inbox, rs_load_relaxed(&outlet->number)))
            return -RINGSIDE_E_FULL;
        rs_ring_count(own, own->client, RS_DROPPED, 1);
    }
    return 0;
}

SELDOM static int fail_route(struct ringside *connection, const struct outgoing *outgoing, int error)
{
    return fail(connection, error, "an inbox of route \"%s\" is full: its consumers are slower",
                outgoing->route->name);
}

void pause_for(int64_t time_ns)
{
    struct timespec time = {time_ns / 1000000000, time_ns % 1000000000};

    nanosleep(&time, NULL);
}

static void wait_for_room(struct ringside *connection, struct outlet *full, int64_t left_ns,
                          int64_t spin_ns)
{
    rs_word32 *not_full = &full->inbox.shared->not_full;
    int64_t spin_until_ns = rs_now_ns() + spin_ns;

    for (unsigned spins = 1;; spins++) {
        if (rs_inbox_has_room(&full->inbox))
            return;
        if (spins % SPINS_PER_CLOCK == 0 && rs_now_ns() >= spin_until_ns)
            break;
        rs_pause();
    }
    uint32_t armed = rs_wait_arm(not_full, RS_WAIT_FUTEX);
    if (rs_inbox_has_room(&full->inbox))
        return;
    link_tend(connection, left_ns < 0 || left_ns > CALL_TIMEOUT_NS);
    rs_wait_sleep(not_full, armed, left_ns);
}

SELDOM static int reserve_slowly(struct ringside *connection, struct outgoing *outgoing,
                          int64_t timeout_ns)
{
    int64_t deadline_ns = deadline_after(timeout_ns);
    int64_t spin_ns = settings_of(connection)->spin_ns;

    for (;;) {
        int error;
        struct outlet *full = find_obstacle(connection, outgoing, &error);

        if (error == 0)
            return 0;
        if (error != -RINGSIDE_E_FULL && error != -RINGSIDE_E_UNAVAILABLE)
            return error;
        int64_t left_ns = time_left(deadline_ns);
        if (left_ns == 0 && full != NULL)
            return fail_route(connection, outgoing, -RINGSIDE_E_TIMEOUT);
        if (left_ns == 0)
            return fail(connection, -RINGSIDE_E_TIMEOUT, "%s", ringside_explain(connection));
        if (full != NULL) {
            wait_for_room(connection, full, left_ns, left_ns < 0 || left_ns > spin_ns ? spin_ns : 0);
        } else {
            /* Nothing to sleep on: the sidecar connects the stages. */
            link_tend(connection, left_ns < 0 || left_ns > CALL_TIMEOUT_NS);
            pause_for(left_ns < 0 || left_ns > CONNECT_POLL_NS ? CONNECT_POLL_NS : left_ns);
        }
        if (is_down(connection))
            return fail_down(connection);
    }
}

/* An inbox of the route is full or has to be opened. */
SELDOM static int reserve_by_policy(struct ringside *connection, struct outgoing *outgoing,
                                    int64_t timeout_ns)
{
    int error;

    (void)find_obstacle(connection, outgoing, &error);
    if (error == 0)
        return 0;
    switch (outgoing->route->when_full) {
    case RINGSIDE__V1__ROUTE__WHEN_FULL__BLOCK:
        if (timeout_ns != 0)
            error = reserve_slowly(connection, outgoing, timeout_ns);
        break;
    case RINGSIDE__V1__ROUTE__WHEN_FULL__DROP_OLDEST:
        if (error == -RINGSIDE_E_FULL)
            error = drop_oldest(connection, outgoing);
        break;
    default:
        break;
    }
    return error == -RINGSIDE_E_FULL ? fail_route(connection, outgoing, error) : error;
}

int outgoing_reserve(struct ringside *connection, struct outgoing *outgoing, int64_t timeout_ns)
{
    for (unsigned i = 0; i < outgoing->route->destination_count; i++) {
        struct outlet *outlet = outlet_at_hand(connection, outgoing->route->destinations[i]);

        if (outlet == NULL || !rs_inbox_has_room(&outlet->inbox))
            return reserve_by_policy(connection, outgoing, timeout_ns);
        outgoing->outlets[i] = outlet;
    }
    return 0;
}

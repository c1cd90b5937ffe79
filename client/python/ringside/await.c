/* SPDX-License-Identifier: Apache-2.0 */
/* A Call's replies, waited for one at a time. */
#include "client/python/ringside/core.h"

struct awaiting {
    struct core_call waiting; /* first */
    struct core_pending *pending;
    int error; /* with CORE_OVER; 0: it was cancelled */
};

static int run_next(struct core_call *call, int64_t timeout_ns)
{
    struct awaiting *awaiting = (struct awaiting *)call;
    struct core_pending *pending = awaiting->pending;
    int *error = &awaiting->error;
    struct ringside *ringside = call->connection->ringside;

    *error = 0;
    if (atomic_load(&pending->is_unwanted)) {
        (void)ringside_call_cancel(ringside, &pending->call);
        return CORE_OVER;
    }
    *error = ringside_call_wait(ringside, &pending->call, &call->box->message, timeout_ns);
    /* The end of the call is no reason to try again, whatever its error. */
    return *error < 0 && !pending->call.open ? CORE_OVER : *error;
}

static void raise_failure(const struct awaiting *awaiting, int rc)
{
    struct core_connection *connection = awaiting->waiting.connection;

    if (rc == CORE_OVER && awaiting->error == 0)
        core_raise_own(connection->state, RINGSIDE_ECANCELLED, "the call was cancelled");
    else if (rc == CORE_OVER)
        core_raise_status(connection->state, connection->ringside, awaiting->error,
                          awaiting->pending->call.status);
    else
        core_raise(connection->state, connection->ringside, rc);
}

struct core_lease *core_pending_next(struct core_pending *pending, int64_t timeout_ns)
{
    struct core_connection *connection = pending->connection;
    struct awaiting awaiting = {.waiting = {.connection = connection, .run = run_next},
                                .pending = pending};
    struct core_lease *reply = pending->reply;
    int rc;

    pending->reply = NULL;
    if (reply || !pending->open)
        return reply;
    if (core_pending_usable(pending) < 0)
        return NULL;
    awaiting.waiting.box = core_box_take(connection);
    if (!awaiting.waiting.box)
        return NULL;
    pending->busy = true;
    rc = core_wait(&awaiting.waiting, timeout_ns);
    pending->busy = false;
    if (rc < 0) {
        core_box_give(connection, awaiting.waiting.box);
        if (rc == -RINGSIDE_ETIMEOUT)
            return NULL;
        raise_failure(&awaiting, rc);
        core_pending_cancel(pending);
        return NULL;
    }
    if (rc == 0)
        core_pending_close(pending);
    reply = core_lease_create(connection, connection->state->message_type, awaiting.waiting.box);
    if (reply)
        reply->is_reply = true;
    if (reply && core_usable(connection) < 0)
        Py_CLEAR(reply); /* closed while it waited */
    return reply;
}

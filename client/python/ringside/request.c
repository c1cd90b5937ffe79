/* SPDX-License-Identifier: Apache-2.0 */
/* A Call's request: room for its replies, its copy into a slot, and its sending. */
#include "client/python/ringside/core.h"

#include <time.h>

#define FIRST_PAUSE_NS 50000
#define LAST_PAUSE_NS  1000000

/* Of one step. */
struct step {
    struct core_call waiting; /* first */
    struct core_pending *pending;
};

static struct core_pending *pending_of(struct core_call *call)
{
    return ((struct step *)call)->pending;
}

/* A slot that was loaned here is abandoned. */
void core_pending_drop(struct core_pending *pending)
{
    Py_CLEAR(pending->data);
    Py_CLEAR(pending->metadata);
    Py_CLEAR(pending->trace);
    if (pending->slot)
        core_options_finish(&pending->options);
    Py_CLEAR(pending->slot);
}

static bool try_reserve(struct core_connection *connection, uint32_t credits)
{
    if (atomic_fetch_add(&connection->awaited, credits) + credits <= CORE_MOST_AWAITED)
        return true;
    atomic_fetch_sub(&connection->awaited, credits);
    return false;
}

static int run_reserve(struct core_call *call, int64_t timeout_ns)
{
    int64_t deadline_ns = core_deadline(timeout_ns);
    struct timespec pause = {.tv_nsec = FIRST_PAUSE_NS};

    while (!try_reserve(call->connection, pending_of(call)->credits)) {
        if (core_left(deadline_ns) == 0)
            return timeout_ns == 0 ? -RINGSIDE_EFULL : -RINGSIDE_ETIMEOUT;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LAST_PAUSE_NS)
            pause.tv_nsec *= 2;
    }
    return 0;
}

/* First, before anything is copied: room for its replies, which other calls leave as they end. */
int core_pending_reserve(struct core_pending *pending, int64_t wait_ns)
{
    struct core_connection *connection = pending->connection;
    struct step step = {.waiting = {.connection = connection, .run = run_reserve},
                        .pending = pending};
    int rc = pending->has_room ? 0 : core_wait(&step.waiting, wait_ns);

    if (rc >= 0) {
        pending->has_room = true;
        return core_usable(connection);
    }
    if (rc != CORE_RAISED)
        core_raise_own(connection->state, rc,
                       "this connection awaits %d replies already (calls in flight x credits), and "
                       "too few of them came",
                       CORE_MOST_AWAITED);
    return -1;
}

int core_pending_load(struct core_pending *pending, int64_t wait_ns)
{
    if (pending->slot)
        return 0;
    pending->slot =
        core_load(pending->connection, pending->data, pending->metadata, pending->trace,
                  (uint32_t)strlen(pending->method) + 8, wait_ns, NULL, &pending->options);
    if (!pending->slot)
        return -1;
    pending->options.options.credits = pending->credits;
    return 0;
}

static int run_send(struct core_call *call, int64_t timeout_ns)
{
    struct core_pending *pending = pending_of(call);
    int64_t left_ns = core_left(pending->deadline_ns);

    pending->late = left_ns == 0;
    if (pending->late)
        return -RINGSIDE_ETIMEOUT;
    call->options->timeout_ns = timeout_ns;
    call->options->ttl_ns = left_ns < 0 ? 0 : (uint64_t)left_ns;
    return ringside_call(call->connection->ringside, &call->box->slot, call->route, pending->method,
                         call->options, &pending->call);
}

int core_pending_send(struct core_pending *pending, int64_t wait_ns)
{
    struct core_connection *connection = pending->connection;
    struct core_lease *slot = pending->slot;
    struct step step = {.waiting = {.connection = connection,
                                    .run = run_send,
                                    .route = pending->route,
                                    .box = slot->box,
                                    .options = &pending->options.options},
                        .pending = pending};
    int rc;

    if (core_lease_held(slot) < 0 || core_usable(connection) < 0)
        return -1;
    slot->phase = CORE_BUSY;
    rc = core_wait(&step.waiting, wait_ns);
    slot->phase = CORE_HELD;
    if (rc >= 0 || rc == -RINGSIDE_ESTATE)
        core_lease_ended(slot);
    if (rc >= 0) {
        core_pending_open(pending);
        core_pending_drop(pending);
        return core_usable(connection); /* closed while it waited: who drops it cancels it */
    }
    if (pending->late && rc != CORE_RAISED)
        core_raise_own(connection->state, RINGSIDE_ETIMEOUT,
                       "the call's time was over before it could be sent");
    else
        core_raise(connection->state, connection->ringside, rc);
    if (connection->closed && slot->phase == CORE_HELD)
        core_lease_end(slot, CORE_ABANDON);
    return -1;
}

/* "ROUTE.METHOD": a route may have dots. */
static int split(struct core_pending *pending, PyObject *target)
{
    const char *text = PyUnicode_Check(target) ? PyUnicode_AsUTF8(target) : NULL;
    const char *dot = text ? strrchr(text, '.') : NULL;
    size_t bytes = dot ? (size_t)(dot - text) : 0, method_bytes = dot ? strlen(dot + 1) : 0;

    if (PyErr_Occurred())
        return -1;
    if (bytes == 0 || bytes >= sizeof(pending->route) || method_bytes == 0 ||
        method_bytes >= sizeof(pending->method)) {
        core_raise_own(pending->connection->state, RINGSIDE_EINVALID,
                       "the target is %R; it is \"ROUTE.METHOD\": a route of this stage, and a "
                       "method (1..63 bytes) of the stage that it leads to",
                       target);
        return -1;
    }
    memcpy(pending->route, text, bytes); /* the rest is 0 */
    memcpy(pending->method, dot + 1, method_bytes);
    return 0;
}

static int set_deadline(struct core_pending *pending, PyObject *timeout)
{
    int64_t timeout_ns;

    if (core_timeout(timeout, &timeout_ns) < 0)
        return -1;
    if (timeout_ns == 0) {
        core_raise_own(pending->connection->state, RINGSIDE_EINVALID,
                       "timeout is 0; a call takes more than 0 seconds (None: for ever)");
        return -1;
    }
    pending->deadline_ns = core_deadline(timeout_ns);
    return 0;
}

struct core_pending *core_pending_create(struct core_connection *connection, PyObject **values,
                                         uint32_t credits)
{
    PyTypeObject *type = connection->state->call_type;
    struct core_pending *pending = (struct core_pending *)type->tp_alloc(type, 0);

    if (!pending)
        return NULL;
    Py_INCREF(connection);
    pending->connection = connection;
    pending->credits = credits;
    Py_XINCREF(values[1]);
    pending->data = values[1];
    Py_XINCREF(values[2]);
    pending->metadata = values[2];
    Py_XINCREF(values[4]);
    pending->trace = values[4];
    if (split(pending, values[0]) < 0 || set_deadline(pending, values[3]) < 0)
        Py_CLEAR(pending);
    return pending;
}

int core_pending_start(struct core_pending *pending)
{
    return core_pending_reserve(pending, core_left(pending->deadline_ns)) < 0 ||
                   core_pending_load(pending, core_left(pending->deadline_ns)) < 0
               ? -1
               : core_pending_send(pending, core_left(pending->deadline_ns));
}

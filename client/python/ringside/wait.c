/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting without the GIL, in slices so that Ctrl-C and close() are seen; and the real end of a connection. */
#include "client/python/ringside/core.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#define SLICE_NS ((int64_t)100 * 1000 * 1000)

static unsigned forks; /* written only in a child that has one thread */

static void count_fork(void)
{
    forks++;
}

unsigned core_forks(void)
{
    return forks;
}

int core_watch_forks(void)
{
    static bool watching; /* guarded by the GIL; a process needs the handler once */

    if (watching)
        return 0;
    if (pthread_atfork(NULL, NULL, count_fork)) {
        PyErr_NoMemory();
        return -1;
    }
    watching = true;
    return 0;
}

int64_t core_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t core_deadline(int64_t timeout_ns)
{
    int64_t now_ns;

    if (timeout_ns <= 0)
        return timeout_ns;
    now_ns = core_now_ns();
    return timeout_ns > INT64_MAX - now_ns ? RINGSIDE_FOREVER : now_ns + timeout_ns;
}

int64_t core_left(int64_t deadline_ns)
{
    int64_t left_ns;

    if (deadline_ns <= 0)
        return deadline_ns;
    left_ns = deadline_ns - core_now_ns();
    return left_ns > 0 ? left_ns : 0;
}

int core_usable(struct core_connection *connection)
{
    if (connection->forks != forks) {
        core_raise_own(connection->state, RINGSIDE_EFORKED,
                       "this connection belongs to the parent process, whose memory is not mapped "
                       "here; call ringside.connect() in the child");
        return -1;
    }
    if (connection->closed) {
        core_raise_own(connection->state, RINGSIDE_ESTATE,
                       "the connection is closed; call ringside.connect() again");
        return -1;
    }
    return 0;
}

static int run_unlocked(struct core_call *call, int64_t slice_ns)
{
    int rc;

    call->connection->waiting++;
    Py_BEGIN_ALLOW_THREADS
    rc = call->run(call, slice_ns);
    Py_END_ALLOW_THREADS
    call->connection->waiting--;
    return rc;
}

static bool is_unwanted(struct core_call *call)
{
    if (!call->request ||
        ringside_cancelled(call->connection->ringside, &call->request->box->message) != 1)
        return false;
    core_raise_own(call->connection->state, RINGSIDE_ECANCELLED,
                   "nobody waits for replies to this call any more: release it");
    return true;
}

int core_wait(struct core_call *call, int64_t timeout_ns)
{
    int rc = call->run(call, 0);
    int64_t deadline_ns;

    /* Unavailable: a stage that is not connected yet, for which a route that blocks waits. */
    if ((rc != -RINGSIDE_ETIMEOUT && rc != -RINGSIDE_EFULL && rc != -RINGSIDE_EUNAVAILABLE) ||
        timeout_ns == 0)
        return rc;
    for (deadline_ns = core_deadline(timeout_ns);;) {
        int64_t left_ns = core_left(deadline_ns);

        rc = run_unlocked(call, left_ns < 0 || left_ns > SLICE_NS ? SLICE_NS : left_ns);
        if (rc < 0 && call->connection->closed) {
            core_maybe_close(call->connection);
            core_usable(call->connection);
            return CORE_RAISED;
        }
        if (rc != -RINGSIDE_ETIMEOUT && rc != -EINTR)
            return rc;
        if (PyErr_CheckSignals() < 0 || is_unwanted(call))
            return CORE_RAISED;
        if (core_left(deadline_ns) == 0)
            return -RINGSIDE_ETIMEOUT;
    }
}

void core_maybe_close(struct core_connection *connection)
{
    struct ringside *ringside = connection->ringside;

    if (!connection->closed || connection->waiting || connection->leases || !ringside)
        return;
    connection->ringside = NULL;
    if (connection->forks != forks)
        return; /* the parent's: its mappings are absent here, so there is nothing to undo */
    Py_BEGIN_ALLOW_THREADS
    ringside_close(ringside);
    Py_END_ALLOW_THREADS
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-faulting in parallel, and the memory lock. */
#include "proxy/prefault.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/atomic.h"
#include "proto/err.h"
#include "proto/guard.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { THREADS_MAX = 8, SMALL_PAGE = 4096 };
/* One call on all of a large ring holds locks of the kernel for minutes and starves the neighbours.
 */
/* A thread in the kernel pays its share of a processor only when it comes back: large chunks would let the event loop,
 * which has the same quota, wait for seconds. */
static const uint64_t chunk_max_bytes = UINT64_C(4) << 20;

struct prefault {
    uint8_t *base;        /* of the mapping */
    uint64_t bytes;       /* of the mapping */
    uint64_t page_bytes;  /* of the mapping */
    uint64_t chunk_bytes; /* multiple of page_bytes */
    rs_word next;         /* offset of the chunk that is taken next */
    rs_word error;        /* positive errno, the first one that a thread met; 0 */
};

/* For kernels that cannot populate: adding nothing to a word writes the page and changes nothing.
 */
static int touch(const struct prefault *work, uint64_t offset, uint64_t bytes)
{
    for (uint64_t at = offset; at < offset + bytes; at += work->page_bytes)
        rs_fetch_or_seq_cst((rs_word *)(void *)(work->base + at), 0);
    return rs_guard_hit(work->base) ? ENOSPC : 0;
}

static int populate(const struct prefault *work, uint64_t offset, uint64_t bytes)
{
    while (madvise(work->base + offset, (size_t)bytes, MADV_POPULATE_WRITE) < 0) {
        if (errno == EINVAL)
            return touch(work, offset, bytes);
        if (errno == EFAULT || errno == ENOMEM) /* a touch would have been a SIGBUS */
            return ENOSPC;
        if (errno != EINTR && errno != EAGAIN)
            return errno;
    }
    return 0;
}

static void *run(void *argument)
{
    struct prefault *work = argument;

    while (rs_load_relaxed(&work->error) == 0) {
        uint64_t offset = rs_fetch_add_relaxed(&work->next, work->chunk_bytes);

        if (offset >= work->bytes)
            break;
        uint64_t left = work->bytes - offset;
        int error = populate(work, offset, left < work->chunk_bytes ? left : work->chunk_bytes);
        if (error != 0)
            rs_store_relaxed(&work->error, (uint64_t)error);
    }
    return NULL;
}

static unsigned online_cpus(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                             : (int)sysconf(_SC_NPROCESSORS_ONLN);

    return count < 1 ? 1 : count > THREADS_MAX ? THREADS_MAX : (unsigned)count;
}

int prefault(void *base, uint64_t bytes, uint64_t page_bytes)
{
    struct prefault work = {.base = base, .bytes = bytes, .page_bytes = page_bytes};
    pthread_t threads[THREADS_MAX];
    unsigned wanted = online_cpus(), started = 0;
    uint64_t share = (bytes / wanted + page_bytes - 1) / page_bytes * page_bytes;

    work.chunk_bytes = share < chunk_max_bytes ? share : chunk_max_bytes;
    if (work.chunk_bytes < page_bytes)
        work.chunk_bytes = page_bytes;
    int rc = rs_guard_add(base, (size_t)bytes);
    if (rc < 0)
        return rc;
    /* This thread works as well, so that none that can be started is a slow start, not a failed
     * one. */
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, run, &work) == 0)
        started++;
    run(&work);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    rs_guard_remove(base);
    return -(int)rs_load_relaxed(&work.error);
}

static int lock_chunks(uint8_t *base, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += chunk_max_bytes) {
        uint64_t part = bytes - at < chunk_max_bytes ? bytes - at : chunk_max_bytes;

        if (mlock(base + at, (size_t)part) < 0) {
            int error = -errno;

            munlock(base, (size_t)(at + part));
            return error;
        }
    }
    return 0;
}

int memory_lock(void *base, uint64_t bytes, uint64_t page_bytes, enum rs_config_lock wanted,
                char *text, size_t text_bytes, bool *degraded, const struct startup_error *error)
{
    struct rlimit limit = {0};

    *degraded = false;
    if (wanted == RS_CONFIG_LOCK_OFF || page_bytes > SMALL_PAGE) {
        snprintf(text, text_bytes, "%s",
                 page_bytes > SMALL_PAGE ? "not needed: huge pages are never swapped" : "off");
        return 0;
    }
    /* The kernel knows best whether the limit, what is locked already and CAP_IPC_LOCK allow it. */
    int rc = lock_chunks(base, bytes);
    if (rc == 0) {
        snprintf(text, text_bytes, "locked in memory: %llu bytes", (unsigned long long)bytes);
        return 0;
    }
    getrlimit(RLIMIT_MEMLOCK, &limit);
    snprintf(text, text_bytes,
             "not locked (%s): needs %llu bytes, the memlock limit is %llu; raise it (ulimit -l, "
             "LimitMEMLOCK=) or grant CAP_IPC_LOCK",
             rs_error_name(rc), (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
    *degraded = true;
    if (wanted == RS_CONFIG_LOCK_REQUIRE)
        return startup_fail(error, rc,
                            "ring.lock is \"require\" but the body is %s, or set "
                            "ring.lock to \"auto\"",
                            text);
    return 0;
}

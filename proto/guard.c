/* SPDX-License-Identifier: Apache-2.0 */
/* SIGBUS guard: a table of mapped ranges that the signal handler reads without a lock. */
#include "proto/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/atomic.h"

enum { RANGES_MAX = 1024, PASS_MAX = 8 /* faults in a row at one address that an earlier handler gets */ };

struct range {
    rs_word base;  /* address; 0: unused. Stored after `bytes` with release */
    rs_word bytes; /* length of the range */
    rs_word hits;  /* faults since it was added */
};

static struct range ranges[RANGES_MAX];
static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER;      /* writers of `ranges`; never the handler */
static rs_word faults;              /* in all ranges, ever: 0 spares the search */
static struct sigaction earlier[2]; /* handlers found in place of ours: the newest and one before */
static rs_word32 newest;            /* index in `earlier` */
/* Inside pass_on: the earlier handler may call ours. No model that allocates at the first access.
 */
static _Thread_local int passing __attribute__((tls_model("initial-exec")));
static _Thread_local const void *passed_address __attribute__((tls_model("initial-exec")));
static _Thread_local int passed_times __attribute__((tls_model("initial-exec")));

/* What a hugetlbfs mapping can be cut at is its own page, so larger sizes are tried in turn. */
static const uint64_t cut_bytes[] = {UINT64_C(1) << 21, UINT64_C(1) << 30};

static bool put_zeroes(uint64_t start, uint64_t bytes)
{
    return mmap((void *)(uintptr_t)start, (size_t)bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

/* Puts private zeroes under the address. False when nothing could be mapped there. */
static bool replace_page(uint64_t address, uint64_t base, uint64_t bytes)
{
    uint64_t small = (uint64_t)sysconf(_SC_PAGESIZE);

    if (put_zeroes(address & ~(small - 1), small))
        return true;
    for (size_t i = 0; i < sizeof(cut_bytes) / sizeof(cut_bytes[0]); i++) {
        uint64_t start = address & ~(cut_bytes[i] - 1);

        /* A range that is not made of such pages must not lose its neighbours. */
        if (start >= base && cut_bytes[i] <= bytes - (start - base) &&
            put_zeroes(start, cut_bytes[i]))
            return true;
    }
    return false;
}

static bool guarded(uint64_t address)
{
    for (size_t i = 0; i < RANGES_MAX; i++) {
        struct range *range = &ranges[i];
        uint64_t base = rs_load_acquire(&range->base);
        uint64_t bytes = rs_load_acquire(&range->bytes);

        /* Loading base twice keeps out a length that belongs to the entry's next range. */
        if (base == 0 || address < base || address - base >= bytes ||
            rs_load_acquire(&range->base) != base)
            continue;
        rs_fetch_add_relaxed(&range->hits, 1);
        rs_fetch_add_relaxed(&faults, 1);
        return replace_page(address, base, bytes);
    }
    return false;
}

/* Whether the same fault comes again and again: the earlier handler returns, and perhaps puts ours back. */
static bool repeats(const siginfo_t *info)
{
    if (info->si_code <= 0)
        return false;
    passed_times = info->si_addr == passed_address ? passed_times + 1 : 0;
    passed_address = info->si_addr;
    return passed_times > PASS_MAX;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    const struct sigaction *previous = &earlier[rs_load_acquire(&newest)];

    if (repeats(info)) {
        signal(number, SIG_DFL);
    } else if (!passing && (previous->sa_flags & SA_SIGINFO)) {
        passing = 1;
        previous->sa_sigaction(number, info, context);
        passing = 0;
    } else if (previous->sa_handler == SIG_IGN && info->si_code <= 0) {
        return; /* sent by a process to one that ignores it; a true fault is never ignored */
    } else if (passing || previous->sa_handler == SIG_DFL || previous->sa_handler == SIG_IGN) {
        signal(number, SIG_DFL);
        raise(number); /* blocked here: delivered on return, like the fault that repeats */
    } else {
        passing = 1;
        previous->sa_handler(number);
        passing = 0;
    }
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    int saved = errno;

    /* si_code <= 0: sent by kill, and si_addr is no address. */
    if (info->si_code <= 0 || !guarded((uint64_t)(uintptr_t)info->si_addr))
        pass_on(number, info, context);
    errno = saved;
}

/* Done at each addition: others (crash reporters, test frameworks) set handlers of their own. */
static int install(void)
{
    struct sigaction action = {.sa_sigaction = on_sigbus,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    struct sigaction current;
    uint32_t next = 1 - rs_load_relaxed(&newest);

    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &current) < 0)
        return -errno;
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_sigbus)
        return 0;
    earlier[next] = current;
    rs_store_release(&newest, next); /* before the handler that reads it can run */
    return sigaction(SIGBUS, &action, NULL) < 0 ? -errno : 0;
}

int rs_guard_add(void *base, size_t bytes)
{
    if (!base || bytes == 0)
        return -EINVAL;
    pthread_mutex_lock(&lock);
    int error = install();
    size_t i = 0;

    while (error == 0 && i < RANGES_MAX && rs_load_relaxed(&ranges[i].base) != 0)
        i++;
    if (error == 0 && i == RANGES_MAX)
        error = -ENOSPC;
    if (error == 0) {
        rs_store_relaxed(&ranges[i].hits, 0);
        rs_store_release(&ranges[i].bytes, bytes);
        rs_store_release(&ranges[i].base, (uint64_t)(uintptr_t)base);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static struct range *find(const void *base)
{
    for (size_t i = 0; base && i < RANGES_MAX; i++) {
        if (rs_load_acquire(&ranges[i].base) == (uint64_t)(uintptr_t)base)
            return &ranges[i];
    }
    return NULL;
}

void rs_guard_remove(void *base)
{
    pthread_mutex_lock(&lock);
    struct range *range = find(base);

    if (range)
        rs_store_release(&range->base, 0);
    pthread_mutex_unlock(&lock);
}

bool rs_guard_hit(const void *base)
{
    if (rs_load_relaxed(&faults) == 0)
        return false;
    struct range *range = find(base);

    return range && rs_load_acquire(&range->hits) != 0;
}

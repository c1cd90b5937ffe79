/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine itself can do: a cache line, a futex, a socket and a copy. */
#include "tests/bench/bench.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COPY_BYTES   (16u << 20)
#define COPY_TARGETS 16
#define ECHO_BYTES   64

/* ---- one cache line, back and forth ---- */

/* `pause` is a literal at each call: a branch in the spin would be part of what is measured. */
static inline __attribute__((always_inline)) int cacheline_round(struct bench *bench, int side,
                                                                 uint64_t *sequence, bool pause)
{
    _Atomic uint64_t *line = &bench->word[0];
    *sequence += 2;
    if (side == 0)
        atomic_store(line, *sequence - 1);
    while (atomic_load(line) != *sequence - (side == 1))
        if (pause)
            bench_relax();
    if (side == 1)
        atomic_store(line, *sequence);
    return 0;
}

int bench_cacheline_round(struct bench *bench, int side, void *sequence)
{
    return cacheline_round(bench, side, sequence, false);
}

int bench_cacheline_pause_round(struct bench *bench, int side, void *sequence)
{
    return cacheline_round(bench, side, sequence, true);
}

/* ---- FUTEX_WAKE and FUTEX_WAIT between processes; each side has a word on its own line.
 * Back to back, both sides may stay just awake enough that no wait ever sleeps (0.4 µs a round) or
 * not (40 µs). With a pause before each round the waiter has surely gone to sleep. ---- */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
    return syscall(__NR_futex, word, operation, value, NULL, NULL, 0);
}

int bench_futex_round(struct bench *bench, int side, void *ctx)
{
    uint32_t *turn = ctx;
    _Atomic uint32_t *mine = (_Atomic uint32_t *)&bench->word[side ? BENCH_LINE / 8 : 0];
    _Atomic uint32_t *theirs = (_Atomic uint32_t *)&bench->word[side ? 0 : BENCH_LINE / 8];
    ++*turn;
    if (side == 0) {
        atomic_store(theirs, *turn);
        futex(theirs, FUTEX_WAKE, 1);
    }
    while (atomic_load(mine) != *turn)
        futex(mine, FUTEX_WAIT, *turn - 1);
    if (side == 1) {
        atomic_store(theirs, *turn);
        futex(theirs, FUTEX_WAKE, 1);
    }
    return 0;
}

/* ---- a small message echoed over a UNIX stream socket, blocking ---- */

int bench_uds_round(struct bench *bench, int side, void *ctx)
{
    int fd = *(int *)ctx;
    char message[ECHO_BYTES] = {1};
    if (side == 0 && write(fd, message, sizeof(message)) != ECHO_BYTES)
        return bench_fail(bench, "write: %s", strerror(errno));
    if (recv(fd, message, sizeof(message), MSG_WAITALL) != ECHO_BYTES)
        return bench_fail(bench, "recv: %s", strerror(errno));
    if (side == 1 && write(fd, message, sizeof(message)) != ECHO_BYTES)
        return bench_fail(bench, "write: %s", strerror(errno));
    return 0;
}

/* ---- 16 MiB by memcpy, from one source to one or many destinations ---- */

static int memcpy_side(struct bench *bench, int side, void *arg)
{
    (void)side;
    uint32_t targets = *(const uint32_t *)arg, copies = bench_scaled(bench, 16 * COPY_TARGETS);
    char *source = malloc(COPY_BYTES), *target[COPY_TARGETS];
    if (!source)
        return bench_fail(bench, "no memory for %u bytes", COPY_BYTES);
    memset(source, 1, COPY_BYTES);
    for (uint32_t i = 0; i < targets; i++) {
        target[i] = malloc(COPY_BYTES);
        if (!target[i])
            return bench_fail(bench, "no memory for %u targets of %u bytes", targets, COPY_BYTES);
        memset(target[i], 2, COPY_BYTES); /* its pages are there; the cache keeps the last ones */
    }
    for (uint32_t i = 0; i < copies; i++) {
        uint64_t start = bench_ticks();
        memcpy(target[i % targets], source, COPY_BYTES);
        bench->batch_ns[i] = (double)(bench_ticks() - start) * bench->ns_per_tick;
        __asm__ volatile("" : : "r"(target[i % targets]) : "memory"); /* the copy is used */
    }
    bench->batches = copies;
    for (uint32_t i = 0; i < targets; i++)
        free(target[i]);
    free(source);
    return 0;
}

static int bench_memcpy(struct bench *bench, uint32_t targets, double *out)
{
    int rc = bench_fork(bench, 1, memcpy_side, &targets);
    out[0] = bench_batch_p50(bench) / 1e6;
    return rc;
}

int bench_memcpy_warm(struct bench *bench, double *out)
{
    return bench_memcpy(bench, 1, out);
}

int bench_memcpy_cold(struct bench *bench, double *out)
{
    return bench_memcpy(bench, COPY_TARGETS, out);
}

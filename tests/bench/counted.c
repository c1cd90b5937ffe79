/* SPDX-License-Identifier: Apache-2.0 */
/* What a hand-off must not cost: system calls, allocations and, in busy mode, context switches. */
#include "tests/bench/link.h"

#include <string.h>

#define BUSY_PER_S 120

static int start_counters(struct bench *bench)
{
    if (bench_mallocs_watch(true) < 0)
        return bench_skip(bench, "the allocator cannot be counted here");
    int rc = bench_syscalls_watch();
    return rc < 0 ? bench_skip(bench, "no seccomp filter: %s", strerror(-rc)) : 0;
}

/* After the warm-up: all system calls and allocations of this side's process, per million
 * hand-offs. */
static int counted(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    uint32_t rounds = bench_scaled(bench, 500000);
    struct link link;
    int rc = link_open(bench, experiment, side, &link);

    if (rc == 0)
        rc = bench_rounds(bench, side, &experiment->plan, link_round, &link);
    if (rc == 0)
        rc = start_counters(bench);
    if (rc != 0)
        return rc;
    bench_meet(bench); /* both watch */
    uint64_t calls = bench_syscalls_seen(), mallocs = bench_mallocs_seen();
    for (uint32_t i = 0; i < rounds && rc == 0; i++)
        rc = link_round(bench, side, &link);
    calls = bench_syscalls_seen() - calls;
    mallocs = bench_mallocs_seen() - mallocs;
    bench->value[2 * side] = (double)calls * 1e6 / (2.0 * rounds); /* a round is two hand-offs */
    bench->value[2 * side + 1] = (double)mallocs * 1e6 / (2.0 * rounds);
    if (rc == 0)
        bench_meet(bench);
    return rc; /* the exit of the process closes the link */
}

/* "While the other side is awake" is what spin_us makes sure of: the kernel or the host may take a
 * core away for longer than the default 50 us, and to sleep then is right. */
int bench_counts(struct bench *bench, double *out)
{
    struct experiment experiment = {.bytes = 64,
                                    .plan = {.warmup = 50000, .batches = 1, .per_batch = 1}};
    int rc = link_run(bench, &experiment, counted, NULL, "\"spin_us\": 1000000");

    out[0] = bench->value[0] + bench->value[2];
    out[1] = bench->value[1] + bench->value[3];
    return rc;
}

/* Side 0 asks 120 times a second, side 1 answers. */
static int paced(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    uint32_t requests = bench_scaled(bench, 5 * BUSY_PER_S);
    struct link link;
    int rc = link_open(bench, experiment, side, &link);

    if (rc == 0)
        rc = bench_rounds(bench, side, &experiment->plan, link_round, &link);
    if (rc == 0)
        bench_meet(bench);
    uint64_t switches = bench_voluntary_switches(), start = bench_now_ns();
    for (uint32_t i = 0; i < requests && rc == 0; i++) {
        while (side == 0 && bench_now_ns() - start < i * (1000000000ull / BUSY_PER_S))
            bench_relax();
        rc = link_round(bench, side, &link);
    }
    double seconds = (double)(bench_now_ns() - start) / 1e9;
    bench->value[side] = (double)(bench_voluntary_switches() - switches) / seconds;
    if (rc == 0)
        bench_meet(bench);
    link_close(&link);
    return rc;
}

/* Busy mode: the receive spins for longer than the 8.3 ms between two requests. */
int bench_busy(struct bench *bench, double *out)
{
    struct experiment experiment = {.bytes = 64,
                                    .plan = {.warmup = 1000, .batches = 1, .per_batch = 1}};
    int rc = link_run(bench, &experiment, paced, NULL, "\"spin_us\": 20000");

    out[0] = bench->value[0] + bench->value[1];
    return rc;
}

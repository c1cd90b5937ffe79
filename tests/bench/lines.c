/* SPDX-License-Identifier: Apache-2.0 */
/* What one more cache line costs, and what the calls of a hand-off cost when no line moves: to
 * explain the figures. */
#include "tests/bench/link.h"

#include <sys/mman.h>

#define MORE_LINES 8
#define PAGE_WORDS \
    512 /* each line lies in a page of its own, as in the rings, where no prefetcher guesses it */

/* How the other side uses the further lines of a message, after it saw the flag. */
enum use {
    NONE,    /* there are none */
    READ,    /* loads that do not wait for each other */
    CHAINED, /* each load's address comes from the one before */
    LOCKED,  /* a compare-and-swap on each, as on a word that both sides own in turn */
    USES
};

struct lines {
    _Atomic uint64_t word[(MORE_LINES + 1) * PAGE_WORDS];
};

struct trial {
    struct lines *lines; /* shared */
    uint64_t sequence;
    uint64_t sum; /* so that the loads are not left out */
};

/* Line 0 is the flag; the others are in no order. */
static inline _Atomic uint64_t *line(struct lines *lines, uint64_t index)
{
    static const uint16_t at[MORE_LINES + 1] = {
        0 * PAGE_WORDS + 8 * 3,  5 * PAGE_WORDS + 8 * 31, 2 * PAGE_WORDS + 8 * 50,
        7 * PAGE_WORDS + 8 * 12, 1 * PAGE_WORDS + 8 * 40, 8 * PAGE_WORDS + 8 * 21,
        4 * PAGE_WORDS + 8 * 60, 6 * PAGE_WORDS + 8 * 6,  3 * PAGE_WORDS + 8 * 17};

    return &lines->word[at[index]];
}

/* `use` is a literal at each call. The lines are written first, the flag last. */
static inline __attribute__((always_inline)) void give(struct lines *lines, enum use use,
                                                       uint64_t sequence)
{
    for (uint64_t i = 1; i <= MORE_LINES && use != NONE; i++) {
        if (use == LOCKED)
            atomic_fetch_add(line(lines, i), 1);
        else
            atomic_store_explicit(line(lines, i), use == CHAINED ? i % MORE_LINES + 1 : sequence,
                                  memory_order_relaxed);
    }
    atomic_store_explicit(line(lines, 0), sequence, memory_order_release);
}

static inline __attribute__((always_inline)) uint64_t take(struct lines *lines, enum use use,
                                                           uint64_t sequence)
{
    uint64_t sum = 0, at = 1;

    while (atomic_load_explicit(line(lines, 0), memory_order_acquire) != sequence)
        bench_relax(); /* as a receive does */
    for (uint64_t i = 1; i <= MORE_LINES && use != NONE; i++) {
        if (use == CHAINED)
            at = atomic_load_explicit(line(lines, at), memory_order_relaxed);
        else if (use == LOCKED)
            sum += atomic_fetch_add(line(lines, i), 1);
        else
            sum += atomic_load_explicit(line(lines, i), memory_order_relaxed);
    }
    return sum + at;
}

static inline __attribute__((always_inline)) int lines_round(struct trial *trial, int side,
                                                             enum use use)
{
    trial->sequence += 2;
    if (side == 0)
        give(trial->lines, use, trial->sequence - 1);
    trial->sum += take(trial->lines, use, trial->sequence - (side == 1));
    if (side == 1)
        give(trial->lines, use, trial->sequence);
    return 0;
}

#define ROUND(name, use)                                        \
    static int name(struct bench *bench, int side, void *trial) \
    {                                                           \
        (void)bench;                                            \
        return lines_round(trial, side, use);                   \
    }
ROUND(round_none, NONE)
ROUND(round_read, READ)
ROUND(round_chained, CHAINED)
ROUND(round_locked, LOCKED)

static int lines_side(struct bench *bench, int side, void *lines)
{
    static bench_round *const rounds[USES] = {round_none, round_read, round_chained, round_locked};
    struct bench_plan plan = {
        .warmup = 100000, .batches = bench_scaled(bench, 300), .per_batch = 1000};
    struct trial trial = {.lines = lines};

    for (int use = 0; use < USES; use++) {
        if (bench_rounds(bench, side, &plan, rounds[use], &trial) < 0)
            return -1;
        if (side == 0)
            bench->value[use] = bench_batch_p50(bench) / 2;
        bench_meet(bench);
    }
    return trial.sum == 1 ? -1 : 0;
}

int bench_lines(struct bench *bench, double *out)
{
    struct lines *lines =
        mmap(NULL, sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (lines == MAP_FAILED)
        return bench_fail(bench, "no memory");
    int rc = bench_fork(bench, 2, lines_side, lines);
    munmap(lines, sizeof *lines);
    for (int use = READ; use < USES; use++)
        out[use - 1] = (bench->value[use] - bench->value[NONE]) / MORE_LINES;
    return rc;
}

/* Both ends in one process: the same calls, and every line stays where it is. */
static int alone_side(struct bench *bench, int side, void *arg)
{
    uint32_t batches = bench_scaled(bench, 500), per_batch = 1000;
    struct link from, to;
    int rc = link_open(bench, arg, 0, &from);

    (void)side;
    if (rc == 0)
        rc = link_open(bench, arg, 1, &to);
    for (uint32_t batch = 0; batch < batches + 20 && rc == 0; batch++) {
        uint64_t start = bench_ticks();
        for (uint32_t i = 0; i < per_batch && rc == 0; i++) {
            from.mark = ++to.mark;
            rc = link_send(bench, &from) < 0 ? -1 : link_receive(bench, &to);
        }
        bench->batch_ns[batch < 20 ? 0 : batch - 20] =
            (double)(bench_ticks() - start) * bench->ns_per_tick / per_batch;
    }
    bench->batches = batches;
    return rc;
}

int bench_handoff_alone(struct bench *bench, double *out)
{
    struct experiment experiment = {.bytes = 64};
    int rc = bench_stages_start(bench, &experiment.stages, NULL, NULL);

    if (rc == 0)
        rc = bench_fork(bench, 1, alone_side, &experiment);
    bench_stages_stop(&experiment.stages);
    if (rc == 0)
        out[0] = bench_batch_p50(bench);
    return rc;
}

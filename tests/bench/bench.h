/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of the benches: two pinned processes, one shared mapping, clocks and counters. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define BENCH_SKIP        1 /* a measurement's return: not possible here, `reason` says why */
#define BENCH_OUT_MAX     6 /* values that one measurement may give */
#define BENCH_BATCHES_MAX 4096
#define BENCH_SINGLES_MAX (1u << 20)
#define BENCH_LINE        128 /* bytes between words that must not share (or prefetch) a line */
#define BENCH_PAUSE_US    200 /* before a wake: longer than a receive spins by default */
#define BENCH_DEADLINE_S  30  /* no measurement may take longer */

/* How much of it: `singles` rounds are stamped one by one, `batches` are stamped as a whole. */
struct bench_plan {
    uint32_t warmup;    /* rounds that nobody times */
    uint32_t batches;   /* at most BENCH_BATCHES_MAX */
    uint32_t per_batch; /* rounds in a batch */
    uint32_t singles;   /* rounds, at most BENCH_SINGLES_MAX */
    uint32_t pause_us;  /* before each single, untimed: long enough for side 1 to fall asleep */
};

/* One per program, in a shared anonymous mapping: all sides of a measurement see it. */
struct bench {
    bool quick;                          /* a tenth of the rounds */
    bool patient;                        /* an interrupt waits until the sides are done */
    int cpu[2];                          /* where side 0 and side 1 run; -1: there is none */
    double ns_per_tick;                  /* of bench_ticks() */
    char reason[256];                    /* why it was skipped or failed */
    double value[BENCH_OUT_MAX];         /* for sides to hand results to the parent */
    uint32_t batches;                    /* valid in batch_ns */
    uint32_t singles;                    /* valid in single_ns */
    double batch_ns[BENCH_BATCHES_MAX];  /* mean ns of a round, per batch */
    double single_ns[BENCH_SINGLES_MAX]; /* ns of a round */
    _Alignas(BENCH_LINE) _Atomic uint32_t arrived; /* sides that came to the barrier, ever */
    _Alignas(BENCH_LINE) _Atomic uint64_t word[2 * BENCH_LINE / 8]; /* scratch: two lines apart */
};

/* A side of a measurement, in its own process: 0, BENCH_SKIP or -1 (by bench_skip, bench_fail). */
typedef int bench_side(struct bench *bench, int side, void *arg);
/* One round: side 0 sends and waits for the answer, side 1 waits and answers. < 0 ends the side. */
typedef int bench_round(struct bench *bench, int side, void *ctx);

struct bench *bench_create(bool quick, const int cpu[2]); /* NULL: out of memory */
void bench_destroy(struct bench *bench);
bool bench_interrupted(
    void); /* by SIGINT or SIGTERM: sides are ended, bench_fork fails from now on */
int bench_fail(struct bench *bench, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* returns -1 */
int bench_skip(struct bench *bench, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* returns BENCH_SKIP */

/* Forks `sides` (1 or 2) processes, each pinned to its core, and waits for all. The first failure
 * ends the others. Returns 0, BENCH_SKIP or -1 with `reason`. */
int bench_fork(struct bench *bench, int sides, bench_side *run, void *arg);
void bench_pin(struct bench *bench, int side); /* the calling thread to the side's core */
void bench_meet(struct bench *bench);          /* two sides wait for each other, spinning */

/* A child program whose output goes to a file (NULL: nowhere), told to end when we do. Returns its
 * pid or -errno. */
pid_t bench_spawn(char *const argv[], const char *log);
void bench_end(pid_t pid); /* TERM, TERM after 1 s, KILL after 5 s; pid <= 0 is nothing */

double bench_percentile(double *values, uint32_t count, double percent); /* sorts; NAN if empty */
double bench_batch_p50(struct bench *bench);
double bench_single_percentile(struct bench *bench, double percent);
uint32_t bench_scaled(const struct bench *bench, uint32_t rounds); /* fewer when quick, never 0 */

static inline uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The cheapest clock: a stamp between two rounds must not show in a round of 200 ns. */
static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#else
    return bench_now_ns();
#endif
}

/* In a spin: tells the core that it waits. */
static inline void bench_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Lets time pass without a system call, a sleep or a yield. Returns the ticks at its end. */
static inline uint64_t bench_spin_us(uint32_t us)
{
    uint64_t end_ns = bench_now_ns() + us * 1000ull;
    while (bench_now_ns() < end_ns)
        ;
    return bench_ticks();
}

/* Mean nanoseconds of some rounds, or -1. Inlined, so that `round` is. */
static inline __attribute__((always_inline)) double bench_mean(struct bench *bench, int side,
                                                               uint32_t rounds, bench_round *round,
                                                               void *ctx)
{
    uint64_t start = bench_ticks();
    for (uint32_t i = 0; i < rounds; i++)
        if (round(bench, side, ctx) < 0)
            return -1;
    return (double)(bench_ticks() - start) * bench->ns_per_tick / (double)rounds;
}

/* Both sides call it with the same plan; only side 0 keeps time. Inlined, so that `round` is. */
static inline __attribute__((always_inline)) int bench_rounds(struct bench *bench, int side,
                                                              const struct bench_plan *plan,
                                                              bench_round *round, void *ctx)
{
    bench_meet(bench);
    for (uint32_t i = 0; i < plan->warmup; i++)
        if (round(bench, side, ctx) < 0)
            return -1;
    for (uint32_t batch = 0; batch < plan->batches; batch++) {
        double ns = bench_mean(bench, side, plan->per_batch, round, ctx);
        if (ns < 0)
            return -1;
        if (side == 0)
            bench->batch_ns[batch] = ns;
    }
    uint64_t last = bench_ticks();
    for (uint32_t i = 0; i < plan->singles; i++) {
        if (side == 0 && plan->pause_us)
            last = bench_spin_us(plan->pause_us);
        if (round(bench, side, ctx) < 0)
            return -1;
        uint64_t now = bench_ticks();
        if (side == 0)
            bench->single_ns[i] = (double)(now - last) * bench->ns_per_tick;
        last = now;
    }
    if (side == 0) {
        bench->batches = plan->batches;
        bench->singles = plan->singles;
    }
    return 0;
}

/* What bounds a hand-off (limits.c). ctx: a uint64_t, a uint64_t, a uint32_t, each 0 at first on
 * both sides; the side's end of a socket pair, an int. */
bench_round bench_cacheline_round, bench_cacheline_pause_round, bench_futex_round, bench_uds_round;

/* ---- counters (count.c): of the calling process, all its threads ---- */

/* From here on every system call of this process is counted, and still done. Cannot be undone: call
 * it in a side after its warm-up. Afterwards no thread may start or end (glibc blocks SIGSYS there,
 * which the kernel answers with death) and a changed signal mask is lost.
 * Returns 0 or -errno (-ENOTSUP: not on this architecture). */
int bench_syscalls_watch(void);
uint64_t bench_syscalls_seen(void);
/* malloc, calloc, realloc and the aligned ones, by whoever in this process. Returns 0 or -ENOTSUP
 * (a sanitizer has the allocator). */
int bench_mallocs_watch(bool on);
uint64_t bench_mallocs_seen(void);
uint64_t bench_voluntary_switches(void);       /* context switches of this process so far */
int bench_counters_check(struct bench *bench); /* the counters count: 0, BENCH_SKIP or -1 */

/* ---- measurements: fill out[] in the order of their names in main.c ---- */

int bench_memcpy_warm(struct bench *bench, double *out);
int bench_memcpy_cold(struct bench *bench, double *out);
int bench_copy(struct bench *bench, double *out);
int bench_iceoryx(struct bench *bench, double *out);
int bench_awake(struct bench *bench, double *out);
int bench_handoff_sizes(struct bench *bench, double *out);
int bench_handoff_cold(struct bench *bench, double *out);
int bench_wake(struct bench *bench, double *out);
int bench_control(struct bench *bench, double *out);
int bench_counts(struct bench *bench, double *out);
int bench_busy(struct bench *bench, double *out);
int bench_lines(struct bench *bench, double *out);
int bench_handoff_alone(struct bench *bench, double *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Our blocked receive beside a bare futex: both sides sleep until they are woken. */
#include "tests/bench/link.h"

#define SAMPLES 2000
#define WARM_UP 100

/* In turns. Before each round side 0 lets so much time pass that side 1 surely sleeps. */
static int wake_rounds(struct bench *bench, int side, struct link *link)
{
    uint32_t samples = bench_scaled(bench, SAMPLES), turn = 0;

    bench_meet(bench);
    for (uint32_t i = 0; i < 2 * (WARM_UP + samples); i++) {
        uint64_t start = side == 0 ? bench_spin_us(BENCH_PAUSE_US) : 0;
        int rc = i % 2 == 0 ? bench_futex_round(bench, side, &turn) : link_round(bench, side, link);

        if (rc < 0)
            return -1;
        double ns = (double)(bench_ticks() - start) * bench->ns_per_tick;
        if (side == 0)
            bench->single_ns[i % 2 * samples + (i < 2 * WARM_UP ? 0 : i / 2 - WARM_UP)] = ns;
    }
    for (int k = 0; k < 2 && side == 0; k++)
        bench->value[k] = bench_percentile(&bench->single_ns[(uint32_t)k * samples], samples, 50);
    return 0;
}

static int wake_side(struct bench *bench, int side, void *experiment)
{
    struct link link;
    int rc = link_open(bench, experiment, side, &link);

    if (rc == 0)
        rc = wake_rounds(bench, side, &link);
    if (rc == 0)
        bench_meet(bench);
    link_close(&link);
    return rc;
}

/* No spin: with the default the answer would find side 0 awake, and only one of the two wake-ups
 * that the futex's round trip has would be left in ours. */
int bench_wake(struct bench *bench, double *out)
{
    struct experiment experiment = {.bytes = 64};
    int rc = link_run(bench, &experiment, wake_side, NULL, "\"spin_us\": 0");

    out[0] = bench->value[0];
    out[1] = bench->value[1];
    return rc;
}

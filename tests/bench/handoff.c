/* SPDX-License-Identifier: Apache-2.0 */
/* Ringside's hand-off between two processes: there and back, large, cold, streaming and blocked. */
#include "tests/bench/link.h"

#define COLD_SLOTS 4096 /* of the ring; all but one are held, and the next loan takes that one */

static int ping_pong(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    struct link link;
    int rc = link_open(bench, experiment, side, &link);

    if (rc == 0)
        rc = bench_rounds(bench, side, &experiment->plan, link_round, &link);
    if (rc == 0)
        bench_meet(bench);
    link_close(&link);
    return rc;
}

int bench_handoff(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64,
        .plan = {.warmup = 50000,
                 .batches = bench_scaled(bench, 1000),
                 .per_batch = 1000,
                 .singles = bench_scaled(bench, 500000)},
    };
    int rc = link_run(bench, &experiment, ping_pong, NULL, NULL);

    if (rc == 0) {
        out[0] = bench_batch_p50(bench) / 2;
        out[1] = bench_single_percentile(bench, 99.9) / 2;
    }
    return rc;
}

/* 64 B and 256 MiB by the same processes in the same rings, so that only the size differs. */
static int sizes(struct bench *bench, int side, void *arg)
{
    static const int64_t bytes[2] = {64, 256 * MIB};
    struct experiment *experiment = arg;
    struct link link;
    int rc = link_open(bench, experiment, side, &link);

    for (int i = 0; i < 2 && rc == 0; i++) {
        link.tensor.shape[0] = bytes[i];
        rc = bench_rounds(bench, side, &experiment->plan, link_round, &link);
        if (rc == 0 && side == 0)
            bench->value[i] = bench_batch_p50(bench) / 2;
        bench_meet(bench);
    }
    link_close(&link);
    return rc;
}

int bench_handoff_sizes(struct bench *bench, double *out)
{
    static const char ring[] = "\"classes\": [{\"slot_bytes\": \"256Ki\", \"slots\": 64},"
                               " {\"slot_bytes\": \"256Mi\", \"slots\": 2}]";
    struct experiment experiment = {
        .bytes = 64,
        .plan = {.warmup = 20000, .batches = bench_scaled(bench, 500), .per_batch = 1000},
    };
    int rc = link_run(bench, &experiment, sizes, ring, NULL);

    out[0] = bench->value[0];
    out[1] = bench->value[1];
    return rc;
}

/* All slots but one are loaned before it starts. Each round loans the free one and sends the one loaned longest ago,
 * so that every slot of the ring has its turn, and none is warm when it comes. */
int bench_handoff_cold(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64,
        .held_count = COLD_SLOTS - 1,
        .plan = {.warmup = COLD_SLOTS, .batches = bench_scaled(bench, 300), .per_batch = 1000},
    };
    int rc = link_run(bench, &experiment, ping_pong,
                      "\"classes\": [{\"slot_bytes\": \"4Ki\", \"slots\": 4096}]", NULL);

    if (rc == 0)
        out[0] = bench_batch_p50(bench) / 2;
    return rc;
}

/* Side 0 sends as fast as it can, side 1 receives as fast as it can. */
static int stream_batch(struct bench *bench, int side, struct link *link, uint32_t messages)
{
    int rc = 0;

    for (uint32_t i = 0; i < messages && rc == 0; i++) {
        link->mark++;
        rc = side == 0 ? link_send(bench, link) : link_receive(bench, link);
    }
    return rc;
}

static int stream(struct bench *bench, int side, void *arg)
{
    const struct bench_plan *plan = &((struct experiment *)arg)->plan;
    struct link link;
    int rc = link_open(bench, arg, side, &link);

    for (uint32_t batch = 0; batch < plan->batches && rc == 0; batch++) {
        bench_meet(bench);
        uint64_t start = bench_ticks();
        rc = stream_batch(bench, side, &link, plan->per_batch);
        if (side == 1) /* from the start of both to the last release */
            bench->batch_ns[batch] =
                (double)(bench_ticks() - start) * bench->ns_per_tick / plan->per_batch;
    }
    if (rc == 0)
        bench_meet(bench);
    if (side == 1)
        bench->batches = plan->batches;
    link_close(&link);
    return rc;
}

int bench_stream(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64,
        .plan = {.batches = bench_scaled(bench, 100), .per_batch = 20000},
    };
    int rc = link_run(bench, &experiment, stream, NULL, NULL);

    if (rc == 0)
        out[0] = 1e9 / bench_batch_p50(bench);
    return rc;
}

/* Our blocked receive, as the bare futex is measured: with the default spin the answer would find side 0 awake, and
 * only one of the two wake-ups would be left in the round trip. */
int bench_wake(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64,
        .plan = {.warmup = 100, .singles = bench_scaled(bench, 2000), .pause_us = BENCH_PAUSE_US},
    };
    int rc = link_run(bench, &experiment, ping_pong, NULL, "\"spin_us\": 0");

    if (rc == 0)
        out[0] = bench_single_percentile(bench, 50);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Ringside's hand-off between two processes that spin: there and back, streaming, large and cold.
 */
#include "tests/bench/link.h"

#define COLD_SLOTS 4096 /* of the ring; all but one are held, and the next loan takes that one */

/* ---- awake: the cache line, the hand-off, the call and the stream in slices of a few ms, because
 * the cores of a virtual machine move near and far within a second and all shall see the same share
 * of both ---- */

#define SLICES   400
#define WARM_UP  20 /* slices */
#define ROUNDS   1000
#define STREAMED 5000

enum { CACHELINE, CACHELINE_PAUSE, HANDOFF, CALL, TICKET, SERIES };

/* Side 0 sends as fast as it can, side 1 receives as fast as it can. */
static int stream_round(struct bench *bench, int side, void *ctx)
{
    struct link *link = ctx;

    link->mark++;
    return side == 0 ? link_send(bench, link) : link_receive(bench, link);
}

static int awake_slice(struct bench *bench, int side, struct link *link, uint64_t *sequence,
                       double ns[SERIES])
{
    bench_meet(bench);
    ns[CACHELINE] = bench_mean(bench, side, ROUNDS, bench_cacheline_round, sequence);
    ns[CACHELINE_PAUSE] = bench_mean(bench, side, ROUNDS, bench_cacheline_pause_round, sequence);
    bench_meet(bench);
    ns[HANDOFF] = bench_mean(bench, side, ROUNDS, link_round, link);
    if (ns[HANDOFF] < 0)
        return -1;
    bench_meet(bench);
    ns[CALL] = bench_mean(bench, side, ROUNDS, link_call_round, link);
    if (ns[CALL] < 0)
        return -1;
    bench_meet(bench);
    ns[TICKET] = bench_mean(bench, side, STREAMED, stream_round, link);
    return ns[TICKET] < 0 ? -1 : 0;
}

static int awake_slices(struct bench *bench, int side, struct link *link)
{
    static double taken[SERIES][SLICES];
    uint32_t slices = bench_scaled(bench, SLICES);
    uint64_t sequence = 0;

    for (uint32_t i = 0; i < WARM_UP + slices; i++) {
        double ns[SERIES];

        if (awake_slice(bench, side, link, &sequence, ns) < 0)
            return -1;
        for (int k = 0; k < SERIES; k++)
            taken[k][i < WARM_UP ? 0 : i - WARM_UP] = ns[k];
    }
    for (int k = 0; k < SERIES; k++) {
        if (side ==
            (k ==
             TICKET)) /* a ticket's time is its receiver's, from the start to the last release */
            bench->value[k] = bench_percentile(taken[k], slices, 50);
    }
    return 0;
}

static int awake_side(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    struct link link;
    int rc = link_open(bench, experiment, side, &link);

    if (rc == 0)
        rc = awake_slices(bench, side, &link);
    if (rc == 0)
        rc = bench_rounds(bench, side, &experiment->plan, link_round, &link);
    if (rc == 0)
        bench_meet(bench);
    link_close(&link);
    return rc;
}

int bench_awake(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64, .plan = {.warmup = 1000, .singles = bench_scaled(bench, 500000)}};
    int rc = link_run(bench, &experiment, awake_side, NULL, NULL);

    out[0] = bench->value[CACHELINE] / 2;
    out[1] = bench->value[CACHELINE_PAUSE] / 2;
    out[2] = bench->value[HANDOFF] / 2;
    out[3] = bench_single_percentile(bench, 99.9) / 2;
    out[4] = 1e9 / bench->value[TICKET];
    out[5] = bench->value[CALL];
    return rc;
}

/* ---- 64 B and 256 MiB by the same processes in the same rings, in turns, so that only the size
 * differs ---- */

#define SIZES 2

static int sizes_side(struct bench *bench, int side, void *arg)
{
    static const int64_t bytes[SIZES] = {64, 256 * MIB};
    static double taken[SIZES][SLICES];
    uint32_t slices = bench_scaled(bench, SLICES);
    struct link link;
    int rc = link_open(bench, arg, side, &link);

    for (uint32_t i = 0; i < SIZES * (WARM_UP + slices) && rc == 0; i++) {
        uint32_t slice = i / SIZES;

        link.tensor.shape[0] = bytes[i % SIZES];
        bench_meet(bench);
        double ns = bench_mean(bench, side, ROUNDS, link_round, &link);
        taken[i % SIZES][slice < WARM_UP ? 0 : slice - WARM_UP] = ns;
        rc = ns < 0 ? -1 : 0;
    }
    for (int k = 0; k < SIZES && side == 0; k++)
        bench->value[k] = bench_percentile(taken[k], slices, 50) / 2;
    if (rc == 0)
        bench_meet(bench);
    link_close(&link);
    return rc;
}

int bench_handoff_sizes(struct bench *bench, double *out)
{
    static const char ring[] = "\"classes\": [{\"slot_bytes\": \"256Ki\", \"slots\": 64},"
                               " {\"slot_bytes\": \"256Mi\", \"slots\": 2}]";
    struct experiment experiment = {.bytes = 64};
    int rc = link_run(bench, &experiment, sizes_side, ring, NULL);

    out[0] = bench->value[0];
    out[1] = bench->value[1];
    return rc;
}

/* ---- cold ---- */

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

/* All slots but one are loaned before it starts. Each round loans the free one and sends the one
 * loaned longest ago, so that every slot of the ring has its turn, and none is warm when it comes.
 */
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

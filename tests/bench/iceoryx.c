/* SPDX-License-Identifier: Apache-2.0 */
/* The same hand-off over iceoryx's C binding: loan, write, publish; take, read, release. */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "iceoryx_binding_c/log.h"
#include "iceoryx_binding_c/publisher.h"
#include "iceoryx_binding_c/runtime.h"
#include "iceoryx_binding_c/subscriber.h"

#define PAYLOAD_BYTES 64

struct link {
    iox_pub_t publisher;
    iox_sub_t subscriber;
    uint8_t mark; /* what the next payload begins and ends with */
};

static int publish(struct bench *bench, struct link *link)
{
    void *payload;
    if (iox_pub_loan_chunk(link->publisher, &payload, PAYLOAD_BYTES) != AllocationResult_SUCCESS)
        return bench_fail(bench, "iceoryx has no chunk to loan");
    ((volatile uint8_t *)payload)[0] = link->mark;
    ((volatile uint8_t *)payload)[PAYLOAD_BYTES - 1] = link->mark;
    iox_pub_publish_chunk(link->publisher, payload);
    return 0;
}

static int take(struct bench *bench, struct link *link)
{
    const void *payload;
    enum iox_ChunkReceiveResult result;
    do
        result = iox_sub_take_chunk(link->subscriber, &payload);
    while (result == ChunkReceiveResult_NO_CHUNK_AVAILABLE);
    if (result != ChunkReceiveResult_SUCCESS)
        return bench_fail(bench, "iceoryx take failed: %d", (int)result);
    uint8_t first = ((const volatile uint8_t *)payload)[0];
    uint8_t last = ((const volatile uint8_t *)payload)[PAYLOAD_BYTES - 1];
    iox_sub_release_chunk(link->subscriber, payload);
    if (first != link->mark || last != link->mark)
        return bench_fail(bench, "iceoryx: wrong bytes");
    return 0;
}

static int iceoryx_round(struct bench *bench, int side, void *ctx)
{
    struct link *link = ctx;
    link->mark++;
    if (side == 0)
        return publish(bench, link) < 0 ? -1 : take(bench, link);
    return take(bench, link) < 0 ? -1 : publish(bench, link);
}

static int iceoryx_side(struct bench *bench, int side, void *arg)
{
    (void)arg;
    static const char *const direction[2] = {"there", "back"};
    struct bench_plan plan = {
        .warmup = 50000, .batches = bench_scaled(bench, 1000), .per_batch = 500};
    struct link link = {0};
    iox_pub_storage_t publisher;
    iox_sub_storage_t subscriber;
    iox_pub_options_t publisher_options;
    iox_sub_options_t subscriber_options;
    char name[64], run[16];
    /* No pid in the name, or killed runs would fill /tmp; one in the service, or two runs could
     * meet. */
    snprintf(name, sizeof(name), "ringside-bench-%d", side);
    snprintf(run, sizeof(run), "%d", (int)getppid());
    iox_set_loglevel(Iceoryx_LogLevel_Error);
    iox_runtime_init(name); /* waits for iox-roudi */
    iox_pub_options_init(&publisher_options);
    iox_sub_options_init(&subscriber_options);
    link.publisher =
        iox_pub_init(&publisher, "ringside-bench", run, direction[side], &publisher_options);
    link.subscriber =
        iox_sub_init(&subscriber, "ringside-bench", run, direction[1 - side], &subscriber_options);
    while (iox_sub_get_subscription_state(link.subscriber) != SubscribeState_SUBSCRIBED ||
           !iox_pub_has_subscribers(link.publisher))
        usleep(1000);
    int rc = bench_rounds(bench, side, &plan, iceoryx_round, &link);
    if (rc == 0) { /* one after the other: at the same time it hung once, with a tracer attached */
        bench_meet(bench);
        if (side == 0)
            bench_meet(bench);
    }
    iox_sub_deinit(link.subscriber);
    iox_pub_deinit(link.publisher);
    iox_runtime_shutdown();
    if (rc == 0 && side == 1)
        bench_meet(bench);
    return rc;
}

int bench_iceoryx(struct bench *bench, double *out)
{
    char *const argv[] = {"iox-roudi", "--kill-delay", "1", NULL};
    pid_t roudi = bench_spawn(argv, NULL);
    if (roudi < 0)
        return bench_skip(bench, "cannot start iox-roudi (package iceoryx): %s",
                          strerror((int)-roudi));
    usleep(300 * 1000); /* it ends at once if it finds another's lock */
    if (waitpid(roudi, NULL, WNOHANG) != 0)
        return bench_fail(bench, "iox-roudi ended at once: does another one run?");
    bench->patient = true; /* iox-roudi aborts, and leaves its segments, if a client just died */
    int rc = bench_fork(bench, 2, iceoryx_side, NULL);
    bench->patient = false;
    bench_end(roudi);
    out[0] = bench_batch_p50(bench) / 2;
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Ringside's own measurements in C: loan, write, send; receive, validate, read, release; through two real sidecars. */
#include "tests/bench/stages.h"

#include <stdlib.h>
#include <string.h>

#include "proto/control.pb-c.h"
#include "proto/ttrpc_client.h"

#define MIB (INT64_C(1) << 20)
#define WAIT_NS INT64_C(10000000000)
#define COLD_SLOTS 4096

/* One side of a hand-off. */
struct link {
    struct ringside *rs;
    struct ringside_tensor tensor;
    uint8_t mark;                     /* what the next payload begins and ends with */
    struct ringside_slot slot;
    struct ringside_message message;
    struct ringside_slot *held;       /* cold: every slot of the ring, loaned, sent in turn */
    uint32_t turn;
};

struct experiment {
    struct bench_stages stages;
    struct bench_plan plan;
    int64_t bytes;
    bool cold;
    bench_side *side; /* NULL: the ping-pong */
};

static int explain(struct bench *bench, struct link *link, const char *what)
{
    return bench_fail(bench, "%s: %s", what, ringside_explain(link->rs));
}

static int loan(struct bench *bench, struct link *link, struct ringside_slot *slot)
{
    if (ringside_loan(link->rs, &link->tensor, 1, 0, WAIT_NS, slot) < 0)
        return explain(bench, link, "loan");
    return 0;
}

static int send_one(struct bench *bench, struct link *link)
{
    static const struct ringside_options options = {.timeout_ns = WAIT_NS};
    struct ringside_slot *slot = link->held ? &link->held[link->turn] : &link->slot;

    if (link->held == NULL && loan(bench, link, slot) < 0)
        return -1;
    volatile uint8_t *data = slot->tensors[0].data;
    data[0] = link->mark;
    data[slot->tensors[0].bytes - 1] = link->mark;
    if (ringside_send(link->rs, slot, "other", &options) < 0)
        return explain(bench, link, "send");
    return 0;
}

static int receive_one(struct bench *bench, struct link *link)
{
    struct ringside_message *message = &link->message;

    if (ringside_receive(link->rs, message, WAIT_NS) < 0)
        return explain(bench, link, "receive");
    const volatile uint8_t *data = message->tensors[0].data;
    uint8_t first = data[0], last = data[message->tensors[0].bytes - 1];
    if (ringside_release(link->rs, message) < 0)
        return explain(bench, link, "release");
    if (first != link->mark || last != link->mark)
        return bench_fail(bench, "wrong bytes");
    return 0;
}

static int round_trip(struct bench *bench, int side, void *ctx)
{
    struct link *link = ctx;

    link->mark++;
    int rc = side == 0 ? send_one(bench, link) : receive_one(bench, link);
    if (rc == 0)
        rc = side == 0 ? receive_one(bench, link) : send_one(bench, link);
    /* Cold: the slot that was sent is free again, the only free one; it comes last in the next turn. */
    if (rc == 0 && link->held != NULL) {
        rc = loan(bench, link, &link->held[link->turn]);
        link->turn = (link->turn + 1) % (COLD_SLOTS - 1);
    }
    return rc;
}

static int open_link(struct bench *bench, const struct experiment *experiment, int side, struct link *link)
{
    memset(link, 0, sizeof *link);
    link->rs = bench_stages_connect(bench, &experiment->stages, side);
    if (link->rs == NULL)
        return -1;
    link->tensor = (struct ringside_tensor){
        .dtype = RINGSIDE_UINT8, .rank = 1, .shape = {experiment->bytes}};
    if (!experiment->cold)
        return 0;
    link->held = calloc(COLD_SLOTS, sizeof *link->held);
    for (uint32_t i = 0; i < COLD_SLOTS - 1; i++) {
        if (loan(bench, link, &link->held[i]) < 0)
            return -1;
    }
    return 0;
}

static int ping_pong(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    struct link link;

    if (open_link(bench, experiment, side, &link) < 0)
        return -1;
    int rc = bench_rounds(bench, side, &experiment->plan, round_trip, &link);
    if (rc == 0)
        bench_meet(bench);
    ringside_close(link.rs);
    return rc;
}

static int run(struct bench *bench, struct experiment *experiment, const char *ring, const char *clients)
{
    int rc = bench_stages_start(bench, &experiment->stages, ring, clients);

    if (rc == 0)
        rc = bench_fork(bench, 2, experiment->side ? experiment->side : ping_pong, experiment);
    bench_stages_stop(&experiment->stages);
    return rc;
}

int bench_handoff(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64,
        .plan = {.warmup = 50000, .batches = bench_scaled(bench, 1000), .per_batch = 1000,
                 .singles = bench_scaled(bench, 500000)},
    };
    int rc = run(bench, &experiment, NULL, NULL);

    if (rc == 0) {
        out[0] = bench_batch_p50(bench) / 2;
        out[1] = bench_single_percentile(bench, 99.9) / 2;
    }
    return rc;
}

/* 64 B and 256 MiB in the same rings, so that only the size differs. */
int bench_handoff_sizes(struct bench *bench, double *out)
{
    static const char ring[] = "\"classes\": [{\"slot_bytes\": \"4Ki\", \"slots\": 16},"
                               " {\"slot_bytes\": \"256Mi\", \"slots\": 2}]";
    static const int64_t bytes[2] = {64, 256 * MIB};
    int rc = 0;

    for (int i = 0; i < 2 && rc == 0; i++) {
        struct experiment experiment = {
            .bytes = bytes[i],
            .plan = {.warmup = 20000, .batches = bench_scaled(bench, 500), .per_batch = 1000},
        };

        rc = run(bench, &experiment, ring, NULL);
        if (rc == 0)
            out[i] = bench_batch_p50(bench) / 2;
    }
    return rc;
}

int bench_handoff_cold(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64,
        .cold = true,
        .plan = {.warmup = COLD_SLOTS, .batches = bench_scaled(bench, 300), .per_batch = 1000},
    };
    int rc = run(bench, &experiment, "\"classes\": [{\"slot_bytes\": \"4Ki\", \"slots\": 4096}]", NULL);

    if (rc == 0)
        out[0] = bench_batch_p50(bench) / 2;
    return rc;
}

/* Side 0 sends as fast as it can, side 1 receives as fast as it can. */
static int stream(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    uint32_t messages = experiment->plan.per_batch;
    struct link link;

    if (open_link(bench, experiment, side, &link) < 0)
        return -1;
    for (uint32_t batch = 0; batch < experiment->plan.batches; batch++) {
        bench_meet(bench);
        uint64_t start = bench_now_ns();
        for (uint32_t i = 0; i < messages; i++) {
            link.mark++;
            if ((side == 0 ? send_one(bench, &link) : receive_one(bench, &link)) < 0)
                return -1;
        }
        if (side == 1)
            bench->batch_ns[batch] = (double)(bench_now_ns() - start) / messages;
    }
    bench_meet(bench);
    ringside_close(link.rs);
    if (side == 1)
        bench->batches = experiment->plan.batches;
    return 0;
}

int bench_stream(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64,
        .side = stream,
        .plan = {.batches = bench_scaled(bench, 100), .per_batch = 20000},
    };
    int rc = run(bench, &experiment, NULL, NULL);

    if (rc == 0)
        out[0] = 1e9 / bench_batch_p50(bench);
    return rc;
}

/* Our blocked receive against a bare futex: nobody spins. */
int bench_wake(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64,
        .plan = {.warmup = 100, .singles = bench_scaled(bench, 5000), .pause_us = BENCH_PAUSE_US},
    };
    int rc = run(bench, &experiment, NULL, "\"spin_us\": 0");

    if (rc == 0)
        out[0] = bench_single_percentile(bench, 50);
    return rc;
}

/* After the warm-up: system calls and allocations of both sides, per million hand-offs. */
static int counted(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    struct link link;

    if (open_link(bench, experiment, side, &link) < 0)
        return -1;
    int rc = bench_rounds(bench, side, &experiment->plan, round_trip, &link);
    bench_meet(bench);
    if (rc == 0 && bench_mallocs_watch(true) < 0)
        return bench_skip(bench, "the allocator cannot be counted here");
    uint64_t mallocs = bench_mallocs_seen();
    if (rc == 0 && bench_syscalls_watch() < 0)
        return bench_skip(bench, "system calls can be counted on x86-64 only");
    bench_meet(bench);
    uint64_t calls = bench_syscalls_seen();
    uint32_t rounds = bench_scaled(bench, 1000000);
    for (uint32_t i = 0; i < rounds && rc == 0; i++)
        rc = round_trip(bench, side, &link);
    double handoffs = 2.0 * rounds; /* one each way */
    bench->value[2 * side] = (double)(bench_syscalls_seen() - calls) / handoffs * 1e6;
    bench->value[2 * side + 1] = (double)(bench_mallocs_seen() - mallocs) / handoffs * 1e6;
    bench_meet(bench);
    return rc;
}

int bench_counts(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64, .side = counted, .plan = {.warmup = 50000, .batches = 1, .per_batch = 1}};
    int rc = run(bench, &experiment, NULL, "\"spin_us\": 1000000");

    out[0] = bench->value[0] + bench->value[2];
    out[1] = bench->value[1] + bench->value[3];
    return rc;
}

/* Busy mode: both spin for longer than the pause between requests, so nobody sleeps. */
static int paced(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    uint32_t requests = bench_scaled(bench, 1200);
    struct link link;

    if (open_link(bench, experiment, side, &link) < 0)
        return -1;
    int rc = bench_rounds(bench, side, &experiment->plan, round_trip, &link);
    bench_meet(bench);
    uint64_t switches = bench_voluntary_switches(), start = bench_now_ns();
    for (uint32_t i = 0; i < requests && rc == 0; i++) {
        while (side == 0 && bench_now_ns() - start < i * (1000000000ull / 120))
            bench_relax();
        rc = round_trip(bench, side, &link);
    }
    double seconds = (double)(bench_now_ns() - start) / 1e9;
    bench->value[side] = (double)(bench_voluntary_switches() - switches) / seconds;
    bench_meet(bench);
    ringside_close(link.rs);
    return rc;
}

int bench_busy(struct bench *bench, double *out)
{
    struct experiment experiment = {
        .bytes = 64, .side = paced, .plan = {.warmup = 1000, .batches = 1, .per_batch = 1}};
    int rc = run(bench, &experiment, NULL, "\"spin_us\": 20000");

    out[0] = bench->value[0] + bench->value[1];
    return rc;
}

/* ---- the control socket ---- */

static int control_call(struct bench *bench, struct rs_ttrpc_client *client, const char *method,
                        const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                        ProtobufCMessage **response)
{
    char text[256];
    size_t fd_count = 0;

    if (rs_ttrpc_call(client, "ringside.v1.Control", method, request, type, response, NULL, &fd_count,
                      WAIT_NS, text, sizeof text) < 0)
        return bench_fail(bench, "%s: %s", method, text);
    return 0;
}

/* A loan and its return: two calls, each with one atomic step. */
static int loan_and_abandon(struct bench *bench, struct rs_ttrpc_client *client, double *ns)
{
    int64_t extent = 64, *shape = &extent;
    Ringside__V1__Tensor tensor = RINGSIDE__V1__TENSOR__INIT, *tensors = &tensor;
    Ringside__V1__LoanRequest loan_request = RINGSIDE__V1__LOAN_REQUEST__INIT;
    Ringside__V1__LeaseRequest lease = RINGSIDE__V1__LEASE_REQUEST__INIT;
    ProtobufCMessage *response;

    tensor.dtype = RINGSIDE__V1__DTYPE__UINT8;
    tensor.n_shape = 1;
    tensor.shape = shape;
    loan_request.n_tensors = 1;
    loan_request.tensors = &tensors;
    uint64_t start = bench_now_ns();
    if (control_call(bench, client, "Loan", &loan_request.base, &ringside__v1__loan_response__descriptor,
                     &response) < 0)
        return -1;
    uint64_t middle = bench_now_ns();
    lease.lease = ((Ringside__V1__LoanResponse *)response)->lease;
    ns[0] = (double)(middle - start);
    ProtobufCMessage *empty;
    start = bench_now_ns();
    int rc = control_call(bench, client, "Abandon", &lease.base, &ringside__v1__empty__descriptor, &empty);
    ns[1] = (double)(bench_now_ns() - start);
    protobuf_c_message_free_unpacked(response, NULL);
    if (rc == 0)
        protobuf_c_message_free_unpacked(empty, NULL);
    return rc;
}

static int control_side(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    struct rs_ttrpc_client client;
    Ringside__V1__AttachRequest attach = RINGSIDE__V1__ATTACH_REQUEST__INIT;
    ProtobufCMessage *response;
    char text[256];
    uint32_t pairs = bench_scaled(bench, 10000);

    (void)side;
    if (rs_ttrpc_client_connect(&client, experiment->stages.socket[0], WAIT_NS, text, sizeof text) < 0)
        return bench_fail(bench, "%s", text);
    if (control_call(bench, &client, "Attach", &attach.base, &ringside__v1__attach_response__descriptor,
                     &response) < 0)
        return -1;
    protobuf_c_message_free_unpacked(response, NULL);
    for (uint32_t i = 0; i < pairs; i++) {
        if (loan_and_abandon(bench, &client, &bench->single_ns[2 * i]) < 0)
            return -1;
    }
    bench->singles = 2 * pairs;
    rs_ttrpc_client_finish(&client);
    return 0;
}

int bench_control(struct bench *bench, double *out)
{
    struct experiment experiment = {.bytes = 64};
    int rc = bench_stages_start(bench, &experiment.stages, NULL, NULL);

    if (rc == 0)
        rc = bench_fork(bench, 1, control_side, &experiment);
    bench_stages_stop(&experiment.stages);
    if (rc == 0)
        out[0] = bench_single_percentile(bench, 50);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A unary call of the control socket that does one atomic step, beside 64 B echoed over a socket;
 * between two cores. */
#include "tests/bench/link.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/control.pb-c.h"
#include "proto/ttrpc_client.h"

#define PAIRS   5000 /* of calls */
#define WARM_UP 500

struct control {
    struct bench_stages stages;
    int echo[2]; /* a socket pair */
};

static int call(struct bench *bench, struct rs_ttrpc_client *client, const char *method,
                const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                ProtobufCMessage **response)
{
    char text[256];
    size_t fd_count = 0;

    if (rs_ttrpc_call(client, "ringside.v1.Control", method, request, type, response, NULL,
                      &fd_count, WAIT_NS, text, sizeof text) < 0)
        return bench_fail(bench, "%s: %s", method, text);
    return 0;
}

/* A loan and its return: two calls, in each of which the sidecar does one compare-and-swap on a
 * slot's word. */
static int loan_and_abandon(struct bench *bench, struct rs_ttrpc_client *client, double *ns)
{
    int64_t extent = 64;
    Ringside__V1__Tensor tensor = RINGSIDE__V1__TENSOR__INIT, *tensors = &tensor;
    Ringside__V1__LoanRequest loan = RINGSIDE__V1__LOAN_REQUEST__INIT;
    Ringside__V1__LeaseRequest lease = RINGSIDE__V1__LEASE_REQUEST__INIT;
    ProtobufCMessage *loaned, *empty;

    tensor.dtype = RINGSIDE__V1__DTYPE__UINT8;
    tensor.n_shape = 1;
    tensor.shape = &extent;
    loan.n_tensors = 1;
    loan.tensors = &tensors;
    uint64_t start = bench_ticks();
    if (call(bench, client, "Loan", &loan.base, &ringside__v1__loan_response__descriptor, &loaned) <
        0)
        return -1;
    ns[0] = (double)(bench_ticks() - start) * bench->ns_per_tick;
    lease.lease = ((Ringside__V1__LoanResponse *)loaned)->lease;
    start = bench_ticks();
    int rc = call(bench, client, "Abandon", &lease.base, &ringside__v1__empty__descriptor, &empty);
    ns[1] = (double)(bench_ticks() - start) * bench->ns_per_tick;
    protobuf_c_message_free_unpacked(loaned, NULL);
    if (rc == 0)
        protobuf_c_message_free_unpacked(empty, NULL);
    return rc;
}

static int attach(struct bench *bench, struct rs_ttrpc_client *client)
{
    Ringside__V1__AttachRequest request = RINGSIDE__V1__ATTACH_REQUEST__INIT;
    ProtobufCMessage *response;

    if (call(bench, client, "Attach", &request.base, &ringside__v1__attach_response__descriptor,
             &response) < 0)
        return -1;
    protobuf_c_message_free_unpacked(response, NULL);
    return 0;
}

/* Two echoes and two calls a turn: echoes stand in the first half of single_ns, calls in the
 * second. */
static int call_in_turns(struct bench *bench, struct rs_ttrpc_client *client, int fd)
{
    uint32_t pairs = bench_scaled(bench, PAIRS);

    for (uint32_t i = 0; i < pairs + WARM_UP; i++) {
        double *echo_ns = &bench->single_ns[i < WARM_UP ? 0 : 2 * (i - WARM_UP)];

        for (int k = 0; k < 2; k++) {
            uint64_t start = bench_ticks();
            if (bench_uds_round(bench, 0, &fd) < 0)
                return -1;
            echo_ns[k] = (double)(bench_ticks() - start) * bench->ns_per_tick;
        }
        if (loan_and_abandon(bench, client, echo_ns + 2 * pairs) < 0)
            return -1;
    }
    bench->value[0] = bench_percentile(bench->single_ns, 2 * pairs, 50);
    bench->value[1] = bench_percentile(bench->single_ns + 2 * pairs, 2 * pairs, 50);
    return 0;
}

static int caller(struct bench *bench, struct control *control)
{
    struct rs_ttrpc_client client;
    char text[256];

    if (rs_ttrpc_client_connect(&client, control->stages.socket[0], WAIT_NS, text, sizeof text) < 0)
        return bench_fail(bench, "%s", text);
    int rc = attach(bench, &client);
    if (rc == 0)
        rc = call_in_turns(bench, &client, control->echo[0]);
    rs_ttrpc_client_finish(&client);
    return rc;
}

/* Side 1 echoes, on the core where the sidecar is. */
static int control_side(struct bench *bench, int side, void *arg)
{
    struct control *control = arg;
    int rc = 0;

    if (side == 0)
        return caller(bench, control);
    for (uint32_t i = 0; i < 2 * (bench_scaled(bench, PAIRS) + WARM_UP) && rc == 0; i++)
        rc = bench_uds_round(bench, 1, &control->echo[1]);
    return rc;
}

/* As the echo: left alone, the kernel runs caller and sidecar on one core, which is three times
 * faster. */
static int pin_sidecar(struct bench *bench, pid_t sidecar)
{
    cpu_set_t set;

    if (bench->cpu[1] < 0)
        return bench_skip(bench, "needs 2 cores");
    CPU_ZERO(&set);
    CPU_SET((size_t)bench->cpu[1], &set);
    if (sched_setaffinity(sidecar, sizeof set, &set) < 0)
        return bench_fail(bench, "cannot pin the sidecar to cpu %d: %s", bench->cpu[1],
                          strerror(errno));
    return 0;
}

int bench_control(struct bench *bench, double *out)
{
    struct control control;
    int rc = bench_stages_start(bench, &control.stages, NULL, NULL);

    if (rc == 0)
        rc = pin_sidecar(bench, control.stages.sidecar[0]);
    if (rc == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control.echo) < 0)
        rc = bench_fail(bench, "socketpair: %s", strerror(errno));
    else if (rc == 0) {
        rc = bench_fork(bench, 2, control_side, &control);
        close(control.echo[0]);
        close(control.echo[1]);
    }
    bench_stages_stop(&control.stages);
    out[0] = bench->value[0];
    out[1] = bench->value[1];
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A unary call of the control socket that does one atomic step, from a process on another core than the sidecar's. */
#include "tests/bench/link.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "proto/control.pb-c.h"
#include "proto/ttrpc_client.h"

#define WARM_UP 500 /* pairs of calls */

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

/* A loan and its return: two calls, in each of which the sidecar does one compare-and-swap on a slot's word. */
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
    if (call(bench, client, "Loan", &loan.base, &ringside__v1__loan_response__descriptor,
             &loaned) < 0)
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

static int call_often(struct bench *bench, struct rs_ttrpc_client *client)
{
    Ringside__V1__AttachRequest attach = RINGSIDE__V1__ATTACH_REQUEST__INIT;
    ProtobufCMessage *response;
    uint32_t pairs = bench_scaled(bench, 5000);

    if (call(bench, client, "Attach", &attach.base, &ringside__v1__attach_response__descriptor,
             &response) < 0)
        return -1;
    protobuf_c_message_free_unpacked(response, NULL);
    for (uint32_t i = 0; i < pairs + WARM_UP; i++) {
        double *ns = &bench->single_ns[i < WARM_UP ? 0 : 2 * (i - WARM_UP)];

        if (loan_and_abandon(bench, client, ns) < 0)
            return -1;
    }
    bench->singles = 2 * pairs;
    return 0;
}

static int control_side(struct bench *bench, int side, void *arg)
{
    struct experiment *experiment = arg;
    struct rs_ttrpc_client client;
    char text[256];

    (void)side;
    if (rs_ttrpc_client_connect(&client, experiment->stages.socket[0], WAIT_NS, text,
                                sizeof text) < 0)
        return bench_fail(bench, "%s", text);
    int rc = call_often(bench, &client);
    rs_ttrpc_client_finish(&client);
    return rc;
}

/* As the echo that it is held against: left alone, the kernel would run both on one core, which is four times faster. */
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
    struct experiment experiment = {.bytes = 64};
    int rc = bench_stages_start(bench, &experiment.stages, NULL, NULL);

    if (rc == 0)
        rc = pin_sidecar(bench, experiment.stages.sidecar[0]);
    if (rc == 0)
        rc = bench_fork(bench, 1, control_side, &experiment);
    bench_stages_stop(&experiment.stages);
    if (rc == 0)
        out[0] = bench_single_percentile(bench, 50);
    return rc;
}

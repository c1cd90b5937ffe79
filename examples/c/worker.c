/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker on libringside: steps in shared memory, tensors in place.
 *
 * Build and run (after ./run build; with Ringside installed: `pkg-config --cflags --libs
 * ringside`):
 *
 *     cc -o worker worker.c -I../../client/c -L../../build/client/c -lringside
 *     export LD_LIBRARY_PATH=../../build/client/c
 *     ./worker SOCKET send ROUTE    a float32 [80, 3000] written in place, then sent on a route of
 * the stage
 *     ./worker SOCKET receive       the next message of the stage's inbox
 *     ./worker SOCKET call ROUTE    calls the method Scale of a stage with such a tensor, and reads
 * the reply
 *     ./worker SOCKET serve         answers one call: Scale doubles the tensor
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ringside.h"

static const int64_t ten_seconds = 10000000000;

static const char from[] = "{\"from\":\"c\"}";
static const struct ringside_options ours = {.metadata = from,
                                             .metadata_bytes = sizeof from - 1,
                                             .metadata_kind = RINGSIDE_JSON,
                                             .timeout_ns = ten_seconds};

/* A loan with a tensor written in place. */
static int fill(struct ringside *rs, struct ringside_slot *slot)
{
    struct ringside_tensor mel = {.dtype = RINGSIDE_FLOAT32, .rank = 2, .shape = {80, 3000}};

    int rc = ringside_loan(rs, &mel, 1, sizeof from + 64, ten_seconds, slot);
    if (rc < 0)
        return rc;
    float *data = slot->tensors[0].data;
    for (int i = 0; i < 80 * 3000; i++)
        data[i] = (float)i / 2;
    return 0;
}

static void use(const struct ringside_message *message)
{
    const struct ringside_tensor *tensor = &message->tensors[0];
    const float *data = tensor->data;
    double sum = 0;

    for (size_t i = 0; i < tensor->bytes / sizeof *data; i++)
        sum += data[i];
    printf("received %s [%" PRId64 ", %" PRId64 "] sum %.0f %.*s\n",
           ringside_dtype_name(tensor->dtype), tensor->shape[0], tensor->shape[1], sum,
           (int)message->metadata_bytes, (const char *)message->metadata);
}

static int send_one(struct ringside *rs, const char *route)
{
    struct ringside_slot slot;

    int rc = fill(rs, &slot);
    if (rc < 0)
        return rc;
    rc = ringside_send(rs, &slot, route, &ours);
    if (rc < 0) {
        ringside_abandon(rs, &slot);
        return rc;
    }
    printf("sent as ticket %#" PRIx64 "\n", slot.ticket);
    return 0;
}

static int receive_one(struct ringside *rs)
{
    struct ringside_message message;

    int rc = ringside_receive(rs, &message, ten_seconds);
    if (rc < 0)
        return rc;
    use(&message);
    return ringside_release(rs, &message);
}

static int call_one(struct ringside *rs, const char *route)
{
    struct ringside_options options = ours;
    struct ringside_message reply;
    struct ringside_slot slot;
    struct ringside_call call;

    int rc = fill(rs, &slot);
    if (rc < 0)
        return rc;
    options.ttl_ns = (uint64_t)ten_seconds; /* of the call: travels with it */
    rc = ringside_call(rs, &slot, route, "Scale", &options, &call);
    if (rc < 0) {
        ringside_abandon(rs, &slot);
        return rc;
    }
    rc = ringside_call_wait(rs, &call, &reply, RINGSIDE_FOREVER); /* 0: there is no other */
    if (rc < 0)
        return rc;
    ringside_call_cancel(rs, &call); /* does nothing after the last reply */
    use(&reply);
    return ringside_release(rs, &reply);
}

/* The reply is as the request, doubled. An error that a handler returns is the caller's. */
static int scale(struct ringside *rs, struct ringside_message *request, void *data)
{
    struct ringside_slot slot;

    (void)data;
    if (request->tensor_count != 1 || request->tensors[0].dtype != RINGSIDE_FLOAT32)
        return ringside_reply_error(rs, request, RINGSIDE_STATUS_INVALID_ARGUMENT,
                                    "Scale takes one tensor of float32");
    int rc = ringside_loan(rs, request->tensors, 1, sizeof from, ten_seconds, &slot);
    if (rc < 0)
        return rc;
    const float *in = request->tensors[0].data;
    float *out = slot.tensors[0].data;
    for (size_t i = 0; i < slot.tensors[0].bytes / sizeof *out; i++)
        out[i] = 2 * in[i];
    rc = ringside_reply(rs, request, &slot, &ours, 1);
    if (rc < 0)
        ringside_abandon(rs, &slot); /* the caller may have left */
    return rc;
}

static int serve_one(struct ringside *rs)
{
    static const struct ringside_method methods[] = {{"Scale", scale, NULL}};

    return ringside_serve(rs, methods, sizeof methods / sizeof *methods, ten_seconds);
}

static int run(struct ringside *rs, const char *verb, const char *route)
{
    if (strcmp(verb, "send") == 0)
        return send_one(rs, route);
    if (strcmp(verb, "call") == 0)
        return call_one(rs, route);
    return strcmp(verb, "serve") == 0 ? serve_one(rs) : receive_one(rs);
}

static int is_fine(int argc, char **argv)
{
    if (argc == 4)
        return strcmp(argv[2], "send") == 0 || strcmp(argv[2], "call") == 0;
    return argc == 3 && (strcmp(argv[2], "receive") == 0 || strcmp(argv[2], "serve") == 0);
}

int main(int argc, char **argv)
{
    struct ringside_connect_options options = {.name = "c"};
    struct ringside *rs;

    if (!is_fine(argc, argv)) {
        fprintf(stderr, "usage: worker SOCKET send ROUTE | receive | call ROUTE | serve\n");
        return 2;
    }
    options.socket = argv[1];
    if (ringside_connect(&rs, &options) < 0) {
        fprintf(stderr, "worker: %s\n", ringside_explain(NULL));
        return 1;
    }
    int rc = run(rs, argv[2], argv[3]);
    if (rc < 0)
        fprintf(stderr, "worker: %s\n", ringside_explain(rs));
    ringside_close(rs);
    return rc < 0;
}

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
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ringside.h"

static const int64_t ten_seconds = 10000000000;

static int send_one(struct ringside *rs, const char *route)
{
    static const char from[] = "{\"from\":\"c\"}";
    struct ringside_tensor mel = {.dtype = RINGSIDE_FLOAT32, .rank = 2, .shape = {80, 3000}};
    struct ringside_options options = {.metadata = from,
                                       .metadata_bytes = sizeof from - 1,
                                       .metadata_kind = RINGSIDE_JSON,
                                       .timeout_ns = ten_seconds};
    struct ringside_slot slot;

    int rc = ringside_loan(rs, &mel, 1, sizeof from, ten_seconds, &slot);
    if (rc < 0)
        return rc;
    float *data = slot.tensors[0].data;
    for (int i = 0; i < 80 * 3000; i++)
        data[i] = (float)i / 2;
    rc = ringside_send(rs, &slot, route, &options);
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
    double sum = 0;

    int rc = ringside_receive(rs, &message, ten_seconds);
    if (rc < 0)
        return rc;
    const struct ringside_tensor *tensor = &message.tensors[0];
    const float *data = tensor->data;
    for (size_t i = 0; i < tensor->bytes / sizeof *data; i++)
        sum += data[i];
    printf("received %s [%" PRId64 ", %" PRId64 "] sum %.0f %.*s\n",
           ringside_dtype_name(tensor->dtype), tensor->shape[0], tensor->shape[1], sum,
           (int)message.metadata_bytes, (const char *)message.metadata);
    return ringside_release(rs, &message);
}

int main(int argc, char **argv)
{
    struct ringside_connect_options options = {.name = "c"};
    struct ringside *rs;

    if (argc < 3 || (strcmp(argv[2], "send") == 0) != (argc > 3)) {
        fprintf(stderr, "usage: worker SOCKET send ROUTE | receive\n");
        return 2;
    }
    options.socket = argv[1];
    if (ringside_connect(&rs, &options) < 0) {
        fprintf(stderr, "worker: %s\n", ringside_explain(NULL));
        return 1;
    }
    int rc = argc > 3 ? send_one(rs, argv[3]) : receive_one(rs);
    if (rc < 0)
        fprintf(stderr, "worker: %s\n", ringside_explain(rs));
    ringside_close(rs);
    return rc < 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A worker whose methods the tests of the tool call: callee SOCKET; a line on standard output for
 * what it sees. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/c/ringside.h"

#define LONG INT64_C(20000000000)

static struct ringside_slot slot; /* tens of kilobytes */

static void say(const char *text)
{
    puts(text);
    fflush(stdout);
}

static int reply(struct ringside *connection, struct ringside_message *request,
                 const struct ringside_message *from, int last)
{
    const struct ringside_options options = {.metadata = from->metadata,
                                             .metadata_bytes = from->metadata_bytes,
                                             .metadata_kind = from->metadata_kind,
                                             .timeout_ns = LONG};
    int rc = ringside_loan(connection, from->tensors, from->tensor_count, from->metadata_bytes,
                           LONG, &slot);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < from->tensor_count; i++) {
        if (slot.tensors[i].bytes > 0)
            memcpy(slot.tensors[i].data, from->tensors[i].data, slot.tensors[i].bytes);
    }
    rc = ringside_reply(connection, request, &slot, &options, last);
    if (rc < 0)
        ringside_abandon(connection, &slot);
    return rc;
}

static int echo(struct ringside *connection, struct ringside_message *request, void *data)
{
    (void)data;
    return reply(connection, request, request, 1);
}

/* The request three times, and then an empty one: none of the three was known to be the last. */
static int thrice(struct ringside *connection, struct ringside_message *request, void *data)
{
    static const struct ringside_message end = {.tensor_count = 1,
                                                .tensors = {{.dtype = RINGSIDE_BYTES, .rank = 1}}};
    int rc = 0;

    (void)data;
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = reply(connection, request, request, 0);
    return rc == 0 ? reply(connection, request, &end, 1) : rc;
}

static int refuse(struct ringside *connection, struct ringside_message *request, void *data)
{
    (void)data;
    return ringside_reply_error(connection, request, RINGSIDE_STATUS_NOT_FOUND,
                                "NO_ROUTE: not\nto Rome");
}

static int break_down(struct ringside *connection, struct ringside_message *request, void *data)
{
    (void)connection, (void)request, (void)data;
    return -RINGSIDE_ESHAPE;
}

/* How long the caller waits, then until it does not any more. */
static int hang(struct ringside *connection, struct ringside_message *request, void *data)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    (void)data;
    printf("holds %" PRIu64 " ms\n", request->ttl_ns / 1000000);
    fflush(stdout);
    while (ringside_cancelled(connection, request) == 0)
        nanosleep(&pause, NULL);
    say("cancelled");
    return 0;
}

static int vanish(struct ringside *connection, struct ringside_message *request, void *data)
{
    (void)connection, (void)request, (void)data;
    _Exit(7);
}

int main(int argc, char **argv)
{
    const struct ringside_connect_options how = {.socket = argc > 1 ? argv[1] : NULL,
                                                 .name = "callee"};
    const struct ringside_method methods[] = {{"Echo", echo, NULL},     {"Thrice", thrice, NULL},
                                              {"Refuse", refuse, NULL}, {"Break", break_down, NULL},
                                              {"Hang", hang, NULL},     {"Vanish", vanish, NULL}};
    struct ringside *connection;
    int rc = ringside_connect(&connection, &how);

    if (rc == 0)
        say("serves");
    while (rc == 0 || rc == -RINGSIDE_ETIMEOUT)
        rc = ringside_serve(connection, methods, sizeof methods / sizeof methods[0], LONG);
    fprintf(stderr, "callee: %s\n", ringside_explain(rc == 0 ? NULL : connection));
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside ping`: does the sidecar answer, and how fast? */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/cli/cli.h"
#include "client/cli/to_json.h"
#include "client/cli/output.h"
#include "client/cli/sample.h"
#include "control.pb-c.h"

static uint64_t ping_count = 5;
static int64_t interval_ns = INT64_C(200000000);
static bool quiet;

static const struct cli_option options[] = {
    {"count", 'c', CLI_COUNT, &ping_count, "N", "How many times to ask. Default: 5."},
    {"interval", 'i', CLI_SECONDS, &interval_ns, "SECONDS", "Pause between two. Default: 0.2."},
    {"quiet", 'q', CLI_FLAG, &quiet, NULL, "Print the summary only."},
    {0},
};

static int ping(struct cli *cli, uint64_t number, struct sample *sample)
{
    Ringside__V1__StatusRequest request = RINGSIDE__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *response;
    char text[OUTPUT_NUMBER_BYTES];
    uint64_t begin_ns = cli_now_ns();

    int status = cli_call(cli, "Status", &request.base, &ringside__v1__status_response__descriptor,
                          &response);
    if (status != CLI_OK)
        return status;
    uint64_t took_ns = cli_now_ns() - begin_ns;
    const Ringside__V1__StatusResponse *answer = (const Ringside__V1__StatusResponse *)response;
    sample_add(sample, took_ns);
    if (!quiet && !cli->json) {
        char *stage = output_escape(answer->stage);
        char *state = output_escape(answer->state);
        printf("%" PRIu64 ": %s, %s, %s\n", number, stage, state, output_duration(text, took_ns));
        fflush(stdout);
        free(stage);
        free(state);
    }
    protobuf_c_message_free_unpacked(response, NULL);
    return CLI_OK;
}

static void print_summary(const struct cli *cli, uint64_t asked, struct sample *sample)
{
    if (cli->json) {
        json_t *summary = sample_json(sample);
        json_object_set_new(summary, "asked", json_integer((json_int_t)asked));
        json_object_set_new(summary, "answered", json_integer((json_int_t)sample->count));
        json_print(summary);
        return;
    }
    printf("%" PRIu64 " asked, %zu answered", asked, sample->count);
    if (sample->count > 0) {
        fputs("; ", stdout);
        sample_print(sample);
    }
    putchar('\n');
}

static int run(struct cli *cli, int count, char **arguments)
{
    const struct timespec pause = {interval_ns / 1000000000, interval_ns % 1000000000};
    struct sample sample = {0};
    uint64_t asked = 0;
    int status = cli_connect(cli);

    (void)count;
    (void)arguments;
    if (status != CLI_OK)
        return status;
    while (asked < ping_count) {
        if (asked > 0 && interval_ns > 0)
            nanosleep(&pause, NULL);
        int rc = ping(cli, ++asked, &sample);
        if (rc != CLI_OK)
            status = rc;
        /* A late answer costs one round; a connection that is over costs them all. */
        if (cli->client.error != 0)
            break;
    }
    print_summary(cli, asked, &sample);
    sample_finish(&sample);
    return status;
}

const struct cli_command ping_command = {
    .name = "ping",
    .summary = "whether a sidecar answers, and how fast",
    .description =
        "Asks for the sidecar's status several times over one connection and prints each round "
        "trip. It measures the control socket, which no message on this node passes through: a "
        "slow answer means a busy sidecar or machine, not slow hand-offs.\n\n"
        "The exit status is that of the last question that failed, else 0, so that ping -c1 -q "
        "serves as a probe.",
    .examples = "    ringside ping\n"
                "    ringside ping -c 10000 -i 0 -q\n"
                "    ringside ping -c 1 -q --connect-timeout 10 >/dev/null && start-worker\n",
    .options = options,
    .run = run,
};

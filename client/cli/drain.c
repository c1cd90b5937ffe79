/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside drain`: lets a sidecar finish and end. */
#include <stdio.h>

#include "client/cli/cli.h"
#include "client/cli/to_json.h"
#include "control.pb-c.h"

static int64_t within_ns;

static const struct cli_option options[] = {
    {"within", 'w', CLI_SECONDS, &within_ns, "SECONDS",
     "How long the sidecar waits for what is queued or held. Default, also for 0: "
     "drain_timeout_ms of its config."},
    {0},
};

static int run(struct cli *cli, int count, char **arguments)
{
    Ringside__V1__DrainRequest request = RINGSIDE__V1__DRAIN_REQUEST__INIT;
    ProtobufCMessage *response;

    (void)count;
    (void)arguments;
    request.timeout_ns = (uint64_t)within_ns;
    int status = cli_connect(cli);
    if (status == CLI_OK)
        status = cli_call(cli, "Drain", &request.base, &ringside__v1__empty__descriptor, &response);
    if (status != CLI_OK)
        return status;
    protobuf_c_message_free_unpacked(response, NULL);
    if (cli->json)
        json_print(json_pack("{s:b}", "draining", 1));
    else
        puts("draining");
    return CLI_OK;
}

const struct cli_command drain_command = {
    .name = "drain",
    .summary = "stops new work at a sidecar and lets it finish",
    .description =
        "From now on the sidecar refuses new attaches, loans and sends. What is queued can be "
        "received and what is held released; when nothing of it is left, or the time is over, the "
        "sidecar ends, as after a SIGTERM. Returns at once: follow it by ringside status, which "
        "says draining, and later that nobody is there (exit status 3). It cannot be taken back.",
    .examples = "    ringside drain --within 30\n",
    .options = options,
    .run = run,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside drain`: lets a sidecar finish its work. */
#include <stdio.h>

#include "client/cli/cli.h"
#include "client/cli/to_json.h"
#include "control.pb-c.h"

static int64_t within_ns;

static const struct cli_option options[] = {
    {"within", 'w', CLI_SECONDS, &within_ns, "SECONDS",
     "How long to wait for what is queued or held. Default, also for 0: drain_timeout_ms of the "
     "sidecar's config."},
    {0},
};

static int run(struct cli *cli, int count, char **arguments)
{
    Ringside__V1__DrainRequest request = RINGSIDE__V1__DRAIN_REQUEST__INIT;
    ProtobufCMessage *response;

    (void)count;
    (void)arguments;
    request.timeout_ns = (uint64_t)within_ns;
    /* The answer comes when the drain is over; how long that may be is the sidecar's to know. */
    if (within_ns > 0)
        cli->timeout_ns += within_ns;
    else
        cli->timeout_ns = RS_TTRPC_FOREVER;
    int status = cli_connect(cli);
    if (status == CLI_OK)
        status = cli_call(cli, "Drain", &request.base, &ringside__v1__empty__descriptor, &response);
    if (status != CLI_OK)
        return status;
    protobuf_c_message_free_unpacked(response, NULL);
    if (cli->json)
        json_print(json_pack("{s:b}", "drained", 1));
    else
        puts("drained");
    return CLI_OK;
}

const struct cli_command drain_command = {
    .name = "drain",
    .summary = "stops new work at a sidecar and waits until it holds none",
    .description =
        "From now on the sidecar refuses new attaches, loans and sends. What is queued can be "
        "received and what is held released. Returns when nothing of it is left, or with exit "
        "status 5 when the time is over and something still is; ringside ls shows what.\n\n"
        "The sidecar goes on answering, and goes on refusing, until it is ended by a SIGTERM: "
        "draining cannot be taken back.",
    .examples = "    ringside drain --within 30 && kill $(ringside status -j | jq .pid)\n",
    .options = options,
    .run = run,
};

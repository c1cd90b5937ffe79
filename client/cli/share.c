/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside share`: .npy files as a message that is read by its ticket. */
#include <inttypes.h>
#include <stdio.h>

#include "client/cli/publish.h"
#include "client/cli/to_json.h"

#define READERS_MAX 255

static uint64_t readers;
static bool kept;

static const struct cli_option options[] = {
    {"readers", 'r', CLI_COUNT, &readers, "N",
     "How many readings the message is for, 1 to 255; its memory goes with the last. Default: 1."},
    {"kept", 'k', CLI_FLAG, &kept, NULL,
     "Any number of readings, until it is freed or its time is over."},
    PUBLISH_OPTIONS,
    {0},
};

static int share(const struct cli *cli, struct ringside *connection, int count, char **files)
{
    static struct publication publication; /* tens of kilobytes */
    unsigned reads = kept ? 0 : readers > 0 ? (unsigned)readers : 1;
    uint64_t ticket;
    int status = publish_load(cli, connection, count, files, &publication);

    if (status != CLI_OK)
        return status;
    int rc = ringside_share(connection, &publication.slot, reads, &publication.options, &ticket);
    if (rc < 0) {
        status = worker_explain(cli, connection, NULL, rc);
        ringside_abandon(connection, &publication.slot);
        return status;
    }
    if (!cli->json) {
        puts(publication.text);
        return CLI_OK;
    }
    char number[24];
    snprintf(number, sizeof number, "0x%016" PRIx64, ticket);
    json_print(json_pack("{s:s, s:s, s:i, s:b, s:i, s:I}", "ticket", number, "text",
                         publication.text, "readers", (int)reads, "kept", (int)kept, "tensors",
                         (int)publication.slot.tensor_count, "bytes",
                         (json_int_t)publication.bytes));
    return CLI_OK;
}

static int run(struct cli *cli, int count, char **arguments)
{
    struct ringside *connection;

    if (kept && readers > 0)
        return cli_fail(cli, CLI_USAGE, "--readers %" PRIu64 " and --kept exclude each other",
                        readers);
    if (readers > READERS_MAX)
        return cli_fail(cli, CLI_USAGE,
                        "--readers is %" PRIu64 "; it must be 1 to %d, or say --kept", readers,
                        READERS_MAX);
    int status = publish_check(cli);
    if (status == CLI_OK)
        status = worker_open(cli, &connection);
    if (status != CLI_OK)
        return status;
    status = share(cli, connection, count, arguments);
    ringside_close(connection);
    return status;
}

const struct cli_command share_command = {
    .name = "share",
    .summary = "puts .npy files into the ring and prints a ticket for them",
    .arguments = "FILE...",
    .description =
        "Reads the files into a slot of the stage's ring, the tensors of one message in this "
        "order, and prints the text form of its ticket (rst1-...). Whoever has the ticket reads it "
        "by ringside read or in a worker, as often as --readers says.\n\n"
        "The message belongs to the ring, not to this process: it stays when the command has "
        "ended, also when the sidecar is started anew, until it has been read that often, is "
        "freed by ringside free, or its time is over. The time is at most tickets.ttl_ms of the "
        "sidecar's config, 10 minutes unless that says otherwise, so nothing is kept for "
        "ever.\n\n" PUBLISH_FILES,
    .examples = "    ticket=$(ringside share weights.npy --readers 2)\n"
                "    ringside share table.npy --kept --ttl 60 --json | jq -r .text\n",
    .options = options,
    .min_arguments = 1,
    .max_arguments = RINGSIDE_MAX_TENSORS,
    .run = run,
};

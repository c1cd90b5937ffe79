/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside send`: .npy files as a message on a route. */
#include <inttypes.h>
#include <stdio.h>

#include "client/cli/publish.h"
#include "client/cli/to_json.h"

static bool each;

static const struct cli_option options[] = {
    {"each", 'e', CLI_FLAG, &each, NULL, "Send each file as a message of its own."},
    PUBLISH_OPTIONS,
    {0},
};

static void report(const struct cli *cli, const char *route, const struct publication *publication)
{
    if (!cli->json) {
        puts(publication->text);
        fflush(stdout);
        return;
    }
    char number[24];
    snprintf(number, sizeof number, "0x%016" PRIx64, publication->slot.ticket);
    json_print_line(json_pack(
        "{s:s, s:s, s:s, s:i, s:I}", "ticket", number, "text", publication->text, "route", route,
        "tensors", (int)publication->slot.tensor_count, "bytes", (json_int_t)publication->bytes));
}

static int send_files(const struct cli *cli, struct ringside *connection, const char *route,
                      int count, char **files)
{
    static struct publication publication; /* tens of kilobytes */
    int status = publish_load(cli, connection, count, files, &publication);

    if (status != CLI_OK)
        return status;
    int rc = ringside_send(connection, &publication.slot, route, &publication.options);
    if (rc < 0) {
        status = worker_explain(cli, connection, NULL, rc);
        ringside_abandon(connection, &publication.slot);
        return status;
    }
    report(cli, route, &publication);
    return CLI_OK;
}

static int run(struct cli *cli, int count, char **arguments)
{
    struct ringside *connection;
    const char *route = arguments[0];
    int files = count - 1;

    if (!each && files > RINGSIDE_MAX_TENSORS)
        return cli_fail(cli, CLI_USAGE,
                        "%d files are more tensors than a message can have (%d); send each as a "
                        "message of its own by --each",
                        files, RINGSIDE_MAX_TENSORS);
    int status = publish_check(cli);
    if (status == CLI_OK)
        status = worker_open(cli, &connection);
    if (status != CLI_OK)
        return status;
    if (!each)
        status = send_files(cli, connection, route, files, arguments + 1);
    for (int i = 0; each && i < files && status == CLI_OK; i++)
        status = send_files(cli, connection, route, 1, arguments + 1 + i);
    ringside_close(connection);
    return status;
}

const struct cli_command send_command = {
    .name = "send",
    .summary = "sends .npy files as a message on a route",
    .arguments = "ROUTE FILE...",
    .description =
        "Takes a slot as a worker of the stage does, reads the files into it and sends it on "
        "ROUTE, one of the stage's config (ringside routes lists them). Several files are the "
        "tensors of one message, in this order; with --each every file is a message of its own, "
        "and the first that fails ends the command. Prints the ticket of each message "
        "sent.\n\n" PUBLISH_FILES "\n\n"
        "Waits at most --timeout for a slot and, where the route blocks, for room in the inbox and "
        "for the next stage to be there. Exit status 0 means that the message is published: it "
        "outlives this process. 1: refused, and nothing of it was published. 5: no slot or no room "
        "in time, likewise.",
    .examples = "    ringside send embeddings mel.npy --ttl 0.5 --meta '{\"utterance\": 17}'\n"
                "    ringside send embeddings ids.npy mask.npy      # two tensors, one message\n"
                "    ringside send --each embeddings *.npy          # a message a file\n"
                "    make-array | ringside send embeddings -\n",
    .options = options,
    .min_arguments = 2,
    .max_arguments = 1000000,
    .run = run,
};

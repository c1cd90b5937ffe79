/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside recv`: messages of the stage's inbox into files. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/cli/message.h"
#include "client/cli/output.h"
#include "client/cli/store.h"
#include "client/cli/to_json.h"
#include "client/cli/worker.h"

#define TEXT_BYTES 512

static uint64_t wanted = 1;
static const char *directory;

static const struct cli_option options[] = {
    {"count", 'n', CLI_COUNT, &wanted, "N", "How many messages to receive. Default: 1."},
    {"output", 'o', CLI_TEXT, &directory, "DIR",
     "Where the files go; it is made when it is not there."},
    {0},
};

/* The line for people, the caller's: made while the metadata are still there. */
static char *describe(const struct ringside_message *message, const char *text)
{
    char tensors[TEXT_BYTES], *line;
    char *metadata = message_metadata(message), *safe = output_escape(metadata);
    char *path = output_escape(directory);

    message_tensors(tensors, sizeof tensors, message);
    if (asprintf(&line, "%s/%s.json  %s%s%s", path, text, tensors, safe[0] != '\0' ? "  " : "",
                 safe) < 0)
        line = NULL;
    free(path);
    free(metadata);
    free(safe);
    return output_need(line);
}

static void report(const struct cli *cli, const char *line, json_t *document)
{
    if (!cli->json) {
        puts(line);
        fflush(stdout);
        return;
    }
    json_object_set_new(document, "directory", json_string(directory));
    json_print_line(json_incref(document));
}

/* Files first, then the acknowledgement; without the one the other is taken back. */
static int keep(const struct cli *cli, struct ringside *connection, const struct store *store,
                struct ringside_message *message)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    json_t *document = NULL;
    int rc = ringside_ticket_text(connection, message->ticket, text);
    int status = rc < 0 ? worker_explain(cli, connection, "ticket", rc)
                        : store_message(cli, store, message, text, &document);

    if (status != CLI_OK) {
        ringside_nack(connection, message);
        return status;
    }
    char *line = describe(message, text);
    rc = ringside_release(connection, message);
    if (rc < 0) {
        store_forget(store, message, text);
        status = worker_explain(cli, connection, "acknowledge (its files are removed again)", rc);
    } else {
        report(cli, line, document);
    }
    free(line);
    json_decref(document);
    return status;
}

static int receive(const struct cli *cli, struct ringside *connection, const struct store *store,
                   uint64_t received)
{
    static struct ringside_message message; /* some kilobytes */
    int64_t timeout_ns = cli->timeout_given ? cli->timeout_ns : RINGSIDE_FOREVER;
    int rc = ringside_receive(connection, &message, timeout_ns);

    if (rc == -RINGSIDE_ETIMEOUT)
        return cli_fail(cli, CLI_TIMEOUT,
                        "no message came within %.3g s; %" PRIu64 " of %" PRIu64 " received",
                        (double)timeout_ns / 1e9, received, wanted);
    if (rc < 0)
        return worker_explain(cli, connection, NULL, rc);
    return keep(cli, connection, store, &message);
}

static int run(struct cli *cli, int count, char **arguments)
{
    struct ringside *connection;
    struct store store;
    int status;

    (void)count;
    (void)arguments;
    if (directory == NULL || directory[0] == '\0')
        return cli_fail(cli, CLI_USAGE, "where to? Give a directory by -o DIR");
    status = worker_open(cli, &connection);
    if (status != CLI_OK)
        return status;
    /* Made only once there is somebody to receive from. */
    status = store_open(cli, &store, directory, true);
    for (uint64_t i = 0; i < wanted && status == CLI_OK; i++)
        status = receive(cli, connection, &store, i);
    store_close(&store);
    ringside_close(connection);
    return status;
}

const struct cli_command recv_command = {
    .name = "recv",
    .summary = "receives messages of the stage into .npy and .json files",
    .description =
        "Receives as a worker of the stage does: what it gets, no other worker gets. For each "
        "message it writes DIR/TICKET.0.npy, TICKET.1.npy, ... for the tensors and then "
        "DIR/TICKET.json, which holds their dtypes and shapes, the metadata and the times; TICKET "
        "is the text form of the message's ticket. It prints the name of the .json, or with --json "
        "what is in it and \"directory\".\n\n"
        "Every file is written under a hidden name (.NAME.part) and renamed when it is complete "
        "and "
        "on the disk, the .json last: when it is there, all are. Only then is the message "
        "acknowledged. If the disk is full, or the command is killed, the message goes back to the "
        "inbox; delivered again, it lands in files of the same names.\n\n"
        "bfloat16 and 8-bit floats, for which NumPy has no name, become opaque items of their size "
        "(\"|V2\", \"|V1\"); the .json names the type, and a.view(ml_dtypes.bfloat16) gives it "
        "back.\n\n"
        "Waits for ever unless --timeout says how long to wait for each message; then the exit "
        "status is 5 when fewer than N came.",
    .examples = "    ringside recv -o in\n"
                "    ringside recv -n 100 --timeout 5 -o in --json | jq -r .metadata.utterance\n",
    .options = options,
    .run = run,
};

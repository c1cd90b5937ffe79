/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside read`: what a ticket names into a file. */
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/message.h"
#include "client/cli/output.h"
#include "client/cli/store.h"
#include "client/cli/to_json.h"
#include "client/cli/worker.h"

#define TEXT_BYTES 512

static const char *output;
static uint64_t number; /* of the tensor, from 1; 0: not given */

static const struct cli_option options[] = {
    {"output", 'o', CLI_TEXT, &output, "FILE",
     "Where the tensor goes; - is standard output. A directory that is there gets all tensors and "
     "the metadata, named as by recv."},
    {"tensor", 'n', CLI_COUNT, &number, "N", "Which tensor of several, from 1."},
    {0},
};

/* The one tensor that is meant. NULL: explained. */
static const struct ringside_tensor *choose(const struct cli *cli,
                                            const struct ringside_message *message, int *status)
{
    char text[TEXT_BYTES];

    if (number == 0 && message->tensor_count > 1) {
        *status = cli_fail(cli, CLI_USAGE,
                           "the message has %" PRIu32 " tensors (%s); say by --tensor which, or "
                           "give -o a directory for all",
                           message->tensor_count, message_tensors(text, sizeof text, message));
        return NULL;
    }
    if (number > message->tensor_count) {
        *status = cli_fail(cli, CLI_USAGE, "--tensor is %" PRIu64 "; the message has %" PRIu32,
                           number, message->tensor_count);
        return NULL;
    }
    return &message->tensors[number > 0 ? number - 1 : 0];
}

static int write_file(const struct cli *cli, const struct ringside_tensor *tensor)
{
    char *path = output_need(strdup(output)), *directory = output_need(strdup(output));
    struct store store;
    int status = store_open(cli, &store, dirname(directory), false);

    if (status == CLI_OK)
        status = store_tensor(cli, &store, basename(path), tensor);
    store_close(&store);
    free(path);
    free(directory);
    return status;
}

static int write_directory(const struct cli *cli, const struct ringside_message *message,
                           const char *text, json_t **document)
{
    struct store store;
    int status = store_open(cli, &store, output, false);

    if (status == CLI_OK)
        status = store_message(cli, &store, message, text, document);
    store_close(&store);
    return status;
}

static int write_output(const struct cli *cli, const struct ringside_message *message,
                        const char *text, json_t **document)
{
    int status = CLI_FAILED;
    struct stat file;

    if (strcmp(output, "-") != 0 && stat(output, &file) == 0 && S_ISDIR(file.st_mode))
        return write_directory(cli, message, text, document);
    const struct ringside_tensor *tensor = choose(cli, message, &status);
    if (tensor == NULL)
        return status;
    *document = message_json(message, text);
    json_object_set_new(
        json_array_get(json_object_get(*document, "tensors"), (size_t)(tensor - message->tensors)),
        "file", json_string(output));
    if (strcmp(output, "-") != 0)
        return write_file(cli, tensor);
    int rc = store_write_tensor(STDOUT_FILENO, tensor);
    return rc == 0
               ? CLI_OK
               : cli_fail(cli, CLI_FAILED, "cannot write to standard output: %s", strerror(-rc));
}

/* The reading counts when it is released; a connection that closes without gives it back uncounted.
 */
static int read_message(const struct cli *cli, struct ringside *connection,
                        const struct worker_ticket *ticket)
{
    static struct ringside_message message; /* some kilobytes */
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    json_t *document = NULL;
    int rc = ticket->text != NULL ? ringside_read_text(connection, ticket->text, &message)
                                  : ringside_read(connection, ticket->number, &message);

    if (rc == 0)
        rc = ringside_ticket_text(connection, message.ticket, text);
    if (rc < 0)
        return worker_explain(cli, connection, NULL, rc);
    int status = write_output(cli, &message, text, &document);
    if (status == CLI_OK && cli->json)
        json_object_set_new(document, "output", json_string(output));
    if (status == CLI_OK) {
        rc = ringside_release(connection, &message);
        if (rc < 0)
            status = worker_explain(cli, connection, "end the reading", rc);
    }
    if (status == CLI_OK && cli->json)
        json_print(json_incref(document));
    json_decref(document);
    return status;
}

static int run(struct cli *cli, int count, char **arguments)
{
    struct worker_ticket ticket;
    struct ringside *connection;

    (void)count;
    if (output == NULL || output[0] == '\0')
        return cli_fail(cli, CLI_USAGE,
                        "where to? Give a file by -o FILE, or - for standard output");
    if (cli->json && strcmp(output, "-") == 0)
        return cli_fail(cli, CLI_USAGE,
                        "--json and the array cannot both go to standard output; "
                        "give -o a file");
    int status = worker_ticket(cli, arguments[0], &ticket);
    if (status == CLI_OK)
        status = worker_open(cli, &connection);
    if (status != CLI_OK)
        return status;
    status = read_message(cli, connection, &ticket);
    ringside_close(connection);
    return status;
}

const struct cli_command read_command = {
    .name = "read",
    .summary = "reads a shared message by its ticket into an .npy file",
    .arguments = "TICKET",
    .description =
        "Reads the message that a ticket names, as a worker of the stage does, and writes its "
        "tensor to FILE as .npy, under a hidden name first, so that FILE is whole or not there. "
        "TICKET is the text form (rst1-...), or the 64-bit number, decimal or hexadecimal after "
        "0x; the text form is the safe one.\n\n"
        "The ring must be that of this sidecar's stage. One of the readings that the message was "
        "shared for is used up when the file is complete; if the command fails before, or is "
        "killed, none is.\n\n"
        "Exit status 4 means that the ticket names nothing (any more) and standard error says why: "
        "STALE_TICKET (read to the end, or freed), EXPIRED_TICKET or FOREIGN_TICKET (of another "
        "sidecar).",
    .examples = "    ringside read rst1-000100002000000ab-5f3a9c11-772c -o weights.npy\n"
                "    ringside read $ticket -o - | ringside -s vocoder.sock send audio -\n",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside read`: what a ticket names into a file. */
#include <stdio.h>

#include "client/cli/save.h"
#include "client/cli/to_json.h"
#include "client/cli/worker.h"

static const struct cli_option options[] = {
    SAVE_OPTIONS,
    {0},
};

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
    int status = save_message(cli, &message, text, &document);
    if (status == CLI_OK && cli->json)
        json_object_set_new(document, "output", json_string(save.output));
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
    if (save.output == NULL || save.output[0] == '\0')
        return cli_fail(cli, CLI_USAGE,
                        "where to? Give a file by -o FILE, or - for standard output");
    int status = save_check(cli);
    if (status == CLI_OK)
        status = worker_ticket(cli, arguments[0], &ticket);
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

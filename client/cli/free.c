/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside free`: ends a ticket. */
#include <stdio.h>

#include "client/cli/to_json.h"
#include "client/cli/worker.h"

static int run(struct cli *cli, int count, char **arguments)
{
    struct worker_ticket ticket;
    struct ringside *connection;

    (void)count;
    int status = worker_ticket(cli, arguments[0], &ticket);
    if (status == CLI_OK)
        status = worker_open(cli, &connection);
    if (status != CLI_OK)
        return status;
    int rc = ticket.text != NULL ? ringside_free_text(connection, ticket.text)
                                 : ringside_free(connection, ticket.number);
    if (rc < 0)
        status = worker_explain(cli, connection, NULL, rc);
    else if (cli->json)
        json_print(json_pack("{s:b, s:s}", "freed", 1, "ticket", arguments[0]));
    else
        puts("freed");
    ringside_close(connection);
    return status;
}

const struct cli_command free_command = {
    .name = "free",
    .summary = "ends a ticket: no new readers",
    .arguments = "TICKET",
    .description =
        "Ends the ticket of a message that was shared. Who reads it now reads on, and its memory "
        "goes with the last of them; nobody begins to. TICKET is the text form (rst1-...), or the "
        "64-bit number, decimal or hexadecimal after 0x; the text form is the safe one.\n\n"
        "Exit status 4 means that the ticket names nothing (any more): freed before, read to the "
        "end, or of another sidecar.",
    .examples = "    ringside free rst1-000100002000000ab-5f3a9c11-772c\n",
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};

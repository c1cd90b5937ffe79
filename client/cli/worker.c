/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching through libringside, with its failures in the tool's words; reading tickets. */
#include "client/cli/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/ticket.h"

int worker_explain(const struct cli *cli, const struct ringside *connection, const char *what,
                   int error)
{
    return cli_fail(cli, cli_status(error), "%s%s%s: %s", what != NULL ? what : "",
                    what != NULL ? ": " : "", ringside_error_name(error),
                    ringside_explain(connection));
}

int worker_open(struct cli *cli, struct ringside **connection)
{
    char name[64];
    int status = cli_connect(cli); /* explains best why nobody is there, and how long to try */

    if (status != CLI_OK)
        return status;
    cli_disconnect(cli);
    snprintf(name, sizeof name, "ringside %s", cli->command);
    const struct ringside_connect_options how = {
        .socket = cli->socket, .name = name, .timeout_ns = cli->timeout_ns};
    int rc = ringside_connect(connection, &how);
    return rc < 0 ? worker_explain(cli, NULL, "attach", rc) : CLI_OK;
}

/* Decimal, or hexadecimal after 0x. */
static bool read_number(const char *text, uint64_t *number)
{
    bool hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *digits = text + (hexadecimal ? 2 : 0);
    char *end;

    if (digits[0] == '\0' ||
        digits[strspn(digits, hexadecimal ? "0123456789abcdefABCDEF" : "0123456789")] != '\0')
        return false;
    errno = 0;
    *number = strtoull(digits, &end, hexadecimal ? 16 : 10);
    return errno == 0;
}

int worker_ticket(const struct cli *cli, const char *argument, struct worker_ticket *ticket)
{
    struct rs_ticket parts;

    *ticket = (struct worker_ticket){0};
    if (read_number(argument, &ticket->number)) {
        if (rs_ticket_unpack(&parts, ticket->number) == 0)
            return CLI_OK;
        return cli_fail(cli, CLI_USAGE,
                        "%s is not a ticket: its sidecar id, the upper 16 bits, is 0", argument);
    }
    ticket->number = 0;
    if (rs_ticket_parse(&parts, argument) < 0)
        return cli_fail(cli, CLI_USAGE,
                        "'%s' is not a ticket; it must be a whole number or a text as in "
                        "rst1-000100002000000ab-5f3a9c11-772c, and the text ends with a checksum",
                        argument);
    ticket->text = argument;
    return CLI_OK;
}

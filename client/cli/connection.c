/* SPDX-License-Identifier: Apache-2.0 */
/* To the sidecar and back, with every failure explained once and turned into an exit status. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "proto/err.h"

#define SERVICE    "ringside.v1.Control"
#define TEXT_BYTES 1280 /* of an error: the sidecar sends at most RS_TTRPC_MESSAGE_MAX */

uint64_t cli_now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int cli_fail(const struct cli *cli, int status, const char *format, ...)
{
    va_list arguments;
    char *text;

    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    va_end(arguments);
    /* It may quote the sidecar or a name that somebody chose. */
    char *safe = output_escape(output_need(text));
    fflush(stdout);
    fprintf(stderr, "ringside%s%s: %s\n", cli->command != NULL ? " " : "",
            cli->command != NULL ? cli->command : "", safe);
    free(safe);
    free(text);
    return status;
}

int cli_status(int error)
{
    switch (error) {
    case -RINGSIDE_E_UNAVAILABLE:
    case -EACCES:
        return CLI_UNREACHABLE;
    case -RINGSIDE_E_STALE_TICKET:
    case -RINGSIDE_E_FOREIGN_TICKET:
    case -RINGSIDE_E_EXPIRED_TICKET:
        return CLI_TICKET;
    case -RINGSIDE_E_MALFORMED_TICKET:
    case -ENAMETOOLONG:
        return CLI_USAGE;
    case -RINGSIDE_E_TIMEOUT:
        return CLI_TIMEOUT;
    default:
        return error >= 0 ? CLI_OK : CLI_FAILED;
    }
}

int cli_find_socket(struct cli *cli)
{
    const char *from = "--socket";

    if (cli->socket == NULL) {
        cli->socket = getenv("RINGSIDE_SOCKET");
        from = "RINGSIDE_SOCKET";
    }
    if (cli->socket == NULL)
        return cli_fail(cli, CLI_USAGE,
                        "which sidecar? Give its socket by --socket PATH or in RINGSIDE_SOCKET");
    if (cli->socket[0] == '\0')
        return cli_fail(cli, CLI_USAGE, "%s is empty; it must be the path of a sidecar's socket",
                        from);
    return CLI_OK;
}

int cli_connect(struct cli *cli)
{
    char text[TEXT_BYTES] = "";
    int status = cli_find_socket(cli);

    if (status != CLI_OK)
        return status;
    int rc = rs_ttrpc_client_connect(&cli->client, cli->socket, cli->connect_timeout_ns, text,
                                     sizeof text);
    if (rc < 0) {
        status = cli_status(rc);
        return cli_fail(cli, status == CLI_FAILED ? CLI_UNREACHABLE : status, "%s", text);
    }
    cli->connected = true;
    return CLI_OK;
}

int cli_call_fds(struct cli *cli, const char *method, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *type, ProtobufCMessage **response, int *fds,
                 size_t *fd_count)
{
    char text[TEXT_BYTES] = "";
    int rc = rs_ttrpc_call(&cli->client, SERVICE, method, request, type, response, fds, fd_count,
                           cli->timeout_ns, text, sizeof text);

    if (rc == 0)
        return CLI_OK;
    return cli_fail(cli, cli_status(rc), "%s: %s", rs_error_name(rc),
                    text[0] != '\0' ? text : rs_strerror(rc));
}

int cli_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
             const ProtobufCMessageDescriptor *type, ProtobufCMessage **response)
{
    return cli_call_fds(cli, method, request, type, response, NULL, NULL);
}

void cli_disconnect(struct cli *cli)
{
    if (cli->connected)
        rs_ttrpc_client_finish(&cli->client);
    cli->connected = false;
}

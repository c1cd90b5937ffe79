/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside call`: .npy files as the request of a method, and its replies into files. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/message.h"
#include "client/cli/output.h"
#include "client/cli/publish.h"
#include "client/cli/save.h"
#include "client/cli/store.h"
#include "client/cli/to_json.h"

#define TEXT_BYTES     512
#define STREAM_CREDITS 4 /* replies that the callee may be ahead */
#define NAME_ROOM      8 /* beside the bytes of the method's name */

static bool stream;

static const struct cli_option options[] = {
    SAVE_OPTIONS,
    {"stream", 'S', CLI_FLAG, &stream, NULL,
     "Take all replies of a method that answers with many; -o is then a directory, which is made "
     "when it is not there."},
    PUBLISH_WHAT_OPTIONS,
    {0},
};

/* Both parts of ROUTE.METHOD; a route may have dots. */
struct target {
    char *route;        /* owned */
    const char *method; /* part of the argument */
};

static int split(const struct cli *cli, const char *argument, struct target *target)
{
    const char *dot = strrchr(argument, '.');

    if (dot == NULL || dot == argument || dot[1] == '\0')
        return cli_fail(cli, CLI_USAGE,
                        "'%s' is not ROUTE.METHOD: a route of the stage (ringside routes lists "
                        "them), a dot, and a method of the stage that it leads to",
                        argument);
    target->route = output_need(strndup(argument, (size_t)(dot - argument)));
    target->method = dot + 1;
    return CLI_OK;
}

static int begin(const struct cli *cli, struct ringside *connection, const struct target *target,
                 int count, char **files, struct ringside_call *call)
{
    static struct publication publication; /* tens of kilobytes */

    publish.more_bytes = (uint32_t)strnlen(target->method, TEXT_BYTES) + NAME_ROOM;
    int status = publish_load(cli, connection, count, files, &publication);
    if (status != CLI_OK)
        return status;
    struct ringside_options *how = &publication.options;
    how->ttl_ns = how->timeout_ns > 0 ? (uint64_t)how->timeout_ns : 1;
    how->credits = stream ? STREAM_CREDITS : 1;
    int rc = ringside_call(connection, &publication.slot, target->route, target->method, how, call);
    if (rc < 0) {
        status = worker_explain(cli, connection, NULL, rc);
        ringside_abandon(connection, &publication.slot);
    }
    return status;
}

/* What goes into a directory for each of many, or where -o says. */
static int keep(const struct cli *cli, const struct store *store,
                const struct ringside_message *reply, const char *text, json_t **document)
{
    *document = NULL;
    if (save.output == NULL)
        *document = message_json(reply, text);
    else if (stream)
        return store_message(cli, store, reply, text, document);
    else
        return save_message(cli, reply, text, document);
    return CLI_OK;
}

static void report(const struct cli *cli, const struct ringside_message *reply, const char *text,
                   json_t *document)
{
    char tensors[TEXT_BYTES];

    if (cli->json) {
        if (save.output != NULL)
            json_object_set_new(document, stream ? "directory" : "output",
                                json_string(save.output));
        json_print_line(json_incref(document));
        return;
    }
    if (save.output != NULL && strcmp(save.output, "-") == 0)
        return; /* the array is there */
    char *metadata = message_metadata(reply), *safe = output_escape(metadata);
    if (stream && save.output != NULL)
        printf("%s/%s.json  ", save.output, text);
    printf("%s%s%s\n", message_tensors(tensors, sizeof tensors, reply), safe[0] != '\0' ? "  " : "",
           safe);
    fflush(stdout);
    free(metadata);
    free(safe);
}

static int take(const struct cli *cli, struct ringside *connection, const struct store *store,
                struct ringside_message *reply)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    json_t *document = NULL;
    int rc = ringside_ticket_text(connection, reply->ticket, text);
    int status = rc < 0 ? worker_explain(cli, connection, "ticket", rc)
                        : keep(cli, store, reply, text, &document);

    if (status == CLI_OK)
        report(cli, reply, text, document);
    json_decref(document);
    rc = ringside_release(connection, reply);
    return rc < 0 && status == CLI_OK ? worker_explain(cli, connection, "release", rc) : status;
}

/* A stream's last item may go out before anybody knows that it is the last; then an empty one
 * follows. */
static bool is_end(const struct ringside_message *reply)
{
    return reply->tensor_count == 1 && reply->tensors[0].dtype == RINGSIDE_BYTES &&
           reply->tensors[0].bytes == 0 && reply->metadata_bytes == 0;
}

static int explain(const struct cli *cli, const struct ringside *connection,
                   const struct target *target, const struct ringside_call *call, int rc)
{
    bool late = rc == -RINGSIDE_ETIMEOUT && call->status == 0;

    return cli_fail(cli, late ? CLI_TIMEOUT : CLI_FAILED, "%s.%s: %s: %s", target->route,
                    target->method, ringside_error_name(rc), ringside_explain(connection));
}

static int take_replies(const struct cli *cli, struct ringside *connection,
                        const struct target *target, struct ringside_call *call)
{
    static struct ringside_message reply; /* some kilobytes */
    struct store store = {.directory = -1};
    int status = CLI_OK, rc = 1;

    if (stream && save.output != NULL)
        status = store_open(cli, &store, save.output, true);
    while (status == CLI_OK && rc == 1) {
        rc = ringside_call_wait(connection, call, &reply, RINGSIDE_FOREVER);
        if (rc < 0)
            status = explain(cli, connection, target, call, rc);
        else if (rc == 1 && !stream)
            status =
                cli_fail(cli, CLI_FAILED, "%s.%s answers with many replies; take them by --stream",
                         target->route, target->method);
        else if (rc == 0 && stream && is_end(&reply))
            (void)ringside_release(connection, &reply);
        else
            status = take(cli, connection, &store, &reply);
    }
    store_close(&store);
    return status;
}

static int call_method(struct cli *cli, const struct target *target, int count, char **files)
{
    static struct ringside_call call;
    struct ringside *connection;
    int status = worker_open(cli, &connection);

    if (status != CLI_OK)
        return status;
    status = begin(cli, connection, target, count, files, &call);
    if (status == CLI_OK)
        status = take_replies(cli, connection, target, &call);
    (void)ringside_call_cancel(connection, &call); /* when something failed here */
    ringside_close(connection);
    return status;
}

static int run(struct cli *cli, int count, char **arguments)
{
    struct target target = {0};
    int status = save_check(cli);

    if (status == CLI_OK && stream && save.output != NULL && strcmp(save.output, "-") == 0)
        status = cli_fail(cli, CLI_USAGE,
                          "many replies cannot go to standard output; give -o a directory");
    if (status == CLI_OK && count - 1 > RINGSIDE_MAX_TENSORS)
        status = cli_fail(cli, CLI_USAGE, "%d files are more tensors than a message can have (%d)",
                          count - 1, RINGSIDE_MAX_TENSORS);
    if (status == CLI_OK)
        status = publish_check(cli);
    if (status == CLI_OK)
        status = split(cli, arguments[0], &target);
    if (status == CLI_OK)
        status = call_method(cli, &target, count - 1, arguments + 1);
    free(target.route);
    return status;
}

const struct cli_command call_command = {
    .name = "call",
    .summary = "calls a method of another stage with .npy files",
    .arguments = "ROUTE.METHOD [FILE]...",
    .description =
        "Sends the files as the request of METHOD to the stage that ROUTE leads to, as a worker of "
        "the stage does, and waits for the reply. Several files are the tensors of the request; "
        "without any it is an empty byte string. Prints the shapes and the metadata of the reply, "
        "or with --json all that is known of it and the names of files.\n\n" PUBLISH_FILES "\n\n"
        "--timeout is for all of it, and travels with the call: when it is over, or this command "
        "is interrupted, the callee sees that nobody waits.\n\n"
        "Exit status 1 also stands for what the callee answered, which standard error shows: "
        "UNIMPLEMENTED (it has no such method; the text names those that it has), UNAVAILABLE (it "
        "died with the call), INTERNAL (its method failed) and others. 5: no reply in time.",
    .examples =
        "    ringside call denoiser.Denoise noisy.npy -o clean.npy --timeout 2\n"
        "    ringside call denoiser.Health --json | jq .metadata\n"
        "    ringside call vocoder.Speak mel.npy --stream -o chunks --meta '{\"voice\": 3}'\n",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1000000,
    .run = run,
};

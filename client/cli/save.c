/* SPDX-License-Identifier: Apache-2.0 */
/* A message into a file, a directory or standard output. */
#include "client/cli/save.h"

#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/message.h"
#include "client/cli/output.h"
#include "client/cli/store.h"

#define TEXT_BYTES 512

struct save_settings save;

int save_check(const struct cli *cli)
{
    if (save.output != NULL && save.output[0] == '\0')
        return cli_fail(cli, CLI_USAGE, "where to? -o is empty; give a file or a directory");
    if (cli->json && save.output != NULL && strcmp(save.output, "-") == 0)
        return cli_fail(cli, CLI_USAGE,
                        "--json and the array cannot both go to standard output; "
                        "give -o a file");
    return CLI_OK;
}

/* The one tensor that is meant. NULL: explained. */
static const struct ringside_tensor *choose(const struct cli *cli,
                                            const struct ringside_message *message, int *status)
{
    char text[TEXT_BYTES];

    if (save.number == 0 && message->tensor_count > 1) {
        *status = cli_fail(cli, CLI_USAGE,
                           "the message has %" PRIu32 " tensors (%s); say by --tensor which, or "
                           "give -o a directory for all",
                           message->tensor_count, message_tensors(text, sizeof text, message));
        return NULL;
    }
    if (save.number > message->tensor_count) {
        *status = cli_fail(cli, CLI_USAGE, "--tensor is %" PRIu64 "; the message has %" PRIu32,
                           save.number, message->tensor_count);
        return NULL;
    }
    return &message->tensors[save.number > 0 ? save.number - 1 : 0];
}

static int write_file(const struct cli *cli, const struct ringside_tensor *tensor)
{
    char *path = output_need(strdup(save.output)), *directory = output_need(strdup(save.output));
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
    int status = store_open(cli, &store, save.output, false);

    if (status == CLI_OK)
        status = store_message(cli, &store, message, text, document);
    store_close(&store);
    return status;
}

int save_message(const struct cli *cli, const struct ringside_message *message, const char *text,
                 json_t **document)
{
    int status = CLI_FAILED;
    struct stat file;

    *document = NULL;
    if (strcmp(save.output, "-") != 0 && stat(save.output, &file) == 0 && S_ISDIR(file.st_mode))
        return write_directory(cli, message, text, document);
    const struct ringside_tensor *tensor = choose(cli, message, &status);
    if (tensor == NULL)
        return status;
    *document = message_json(message, text);
    json_object_set_new(
        json_array_get(json_object_get(*document, "tensors"), (size_t)(tensor - message->tensors)),
        "file", json_string(save.output));
    if (strcmp(save.output, "-") != 0)
        return write_file(cli, tensor);
    int rc = store_write_tensor(STDOUT_FILENO, tensor);
    return rc == 0
               ? CLI_OK
               : cli_fail(cli, CLI_FAILED, "cannot write to standard output: %s", strerror(-rc));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Files into a slot: every header is checked first, then one slot is taken and read into. */
#include "client/cli/publish.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "client/cli/npy.h"
#include "client/cli/output.h"

struct publish_settings publish;

int publish_check(const struct cli *cli)
{
    json_error_t error;

    if (publish.metadata == NULL)
        return CLI_OK;
    json_t *value = json_loads(publish.metadata, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (value == NULL)
        return cli_fail(cli, CLI_USAGE, "--meta '%.60s' is not JSON: %s (at character %d)%s",
                        publish.metadata, error.text, error.column,
                        publish.metadata[0] != '"' ? "; a text must be in double quotes" : "");
    json_decref(value);
    return CLI_OK;
}

/* Opens all files. Those that are open are to be closed, whatever is returned. */
static int open_files(const struct cli *cli, int count, char **files, struct npy *npys, int *opened)
{
    char why[NPY_WHY_BYTES];
    int standard = 0;

    *opened = 0;
    for (int i = 0; i < count; i++)
        standard += strcmp(files[i], "-") == 0;
    if (standard > 1)
        return cli_fail(cli, CLI_USAGE, "standard input (-) can be only one of the files");
    for (; *opened < count; (*opened)++) {
        if (npy_open(&npys[*opened], files[*opened], publish.dtype, why) < 0)
            return cli_fail(cli, CLI_FAILED, "%s", why);
    }
    return CLI_OK;
}

static int loan(const struct cli *cli, struct ringside *connection, int count,
                const struct npy *npys, struct publication *publication)
{
    struct ringside_tensor tensors[RINGSIDE_MAX_TENSORS];
    uint32_t metadata_bytes =
        publish.metadata != NULL ? (uint32_t)strnlen(publish.metadata, UINT32_MAX) : 0;

    for (int i = 0; i < count; i++) {
        const struct rs_tensor *from = &npys[i].tensor;
        tensors[i] = (struct ringside_tensor){.dtype = from->dtype, .rank = from->rank};
        memcpy(tensors[i].shape, from->shape, sizeof from->shape);
        publication->bytes += from->bytes;
    }
    publication->options = (struct ringside_options){
        .ttl_ns = (uint64_t)publish.ttl_ns,
        .metadata = publish.metadata,
        .metadata_bytes = metadata_bytes,
        .metadata_kind = publish.metadata != NULL ? RINGSIDE_JSON : RINGSIDE_OPAQUE,
    };
    if (count == 0)
        tensors[count++] = (struct ringside_tensor){.dtype = RINGSIDE_BYTES, .rank = 1};
    int rc = ringside_loan(connection, tensors, (size_t)count, metadata_bytes + publish.more_bytes,
                           cli->timeout_ns, &publication->slot);
    return rc < 0 ? worker_explain(cli, connection, "loan", rc) : CLI_OK;
}

static int fill(const struct cli *cli, struct ringside *connection, int count, struct npy *npys,
                struct publication *publication)
{
    char why[NPY_WHY_BYTES];

    for (int i = 0; i < count; i++) {
        if (npy_read(&npys[i], publication->slot.tensors[i].data, why) < 0)
            return cli_fail(cli, CLI_FAILED, "%s", why);
    }
    /* While the slot is ours: a message may be over before the call that sends it returns. */
    int rc = ringside_ticket_text(connection, publication->slot.ticket, publication->text);
    return rc < 0 ? worker_explain(cli, connection, "ticket", rc) : CLI_OK;
}

int publish_load(const struct cli *cli, struct ringside *connection, int count, char **files,
                 struct publication *publication)
{
    struct npy npys[RINGSIDE_MAX_TENSORS];
    uint64_t begin_ns = cli_now_ns();
    int opened;

    publication->bytes = 0;
    int status = open_files(cli, count, files, npys, &opened);
    if (status == CLI_OK)
        status = loan(cli, connection, count, npys, publication);
    if (status == CLI_OK) {
        int64_t left_ns = cli->timeout_ns - (int64_t)(cli_now_ns() - begin_ns);
        publication->options.timeout_ns = left_ns > 0 ? left_ns : 0;
        status = fill(cli, connection, count, npys, publication);
        if (status != CLI_OK)
            ringside_abandon(connection, &publication->slot);
    }
    while (opened > 0)
        npy_close(&npys[--opened]);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A file is written under a hidden name, brought to the disk, and renamed: no reader sees a part of
 * it. */
#include "client/cli/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/message.h"
#include "client/cli/npy.h"
#include "client/cli/output.h"

#define NAME_BYTES 320 /* of any file, with what hides it */

int store_open(const struct cli *cli, struct store *store, const char *path, bool make)
{
    *store = (struct store){.directory = -1, .path = path};
    if (make && mkdir(path, 0777) < 0 && errno != EEXIST)
        return cli_fail(cli, CLI_FAILED, "cannot make the directory %s: %s", path, strerror(errno));
    store->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->directory < 0)
        return cli_fail(cli, CLI_FAILED, "cannot open the directory %s: %s", path, strerror(errno));
    return CLI_OK;
}

void store_close(struct store *store)
{
    if (store->directory >= 0)
        close(store->directory);
    store->directory = -1;
}

static int write_all(int fd, const void *bytes, uint64_t count)
{
    const char *at = bytes;

    while (count > 0) {
        ssize_t step = write(fd, at, count < (1u << 30) ? count : 1u << 30);
        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0)
            return -errno;
        at += step;
        count -= (uint64_t)step;
    }
    return 0;
}

int store_write_tensor(int fd, const struct ringside_tensor *tensor)
{
    char header[NPY_HEADER_BYTES];
    size_t bytes = npy_header_write(header, tensor->dtype, tensor->rank, tensor->shape);
    int rc = write_all(fd, header, bytes);

    return rc == 0 ? write_all(fd, tensor->data, tensor->bytes) : rc;
}

/* ".NAME.part" beside the file that it becomes. */
static bool hide(char *hidden, const char *name)
{
    int bytes = snprintf(hidden, NAME_BYTES, ".%s.part", name);

    return bytes > 0 && bytes < NAME_BYTES;
}

/* A part that an earlier process left is its own to lose. Returns a descriptor or -errno. */
static int begin(const struct store *store, const char *name)
{
    char hidden[NAME_BYTES];

    if (!hide(hidden, name))
        return -ENAMETOOLONG;
    if (unlinkat(store->directory, hidden, 0) < 0 && errno != ENOENT)
        return -errno;
    int fd = openat(store->directory, hidden, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd < 0 ? -errno : fd;
}

/* Takes the descriptor. `rc` is what came of writing. CLI_OK or an explained status. */
static int end(const struct cli *cli, const struct store *store, const char *name, int fd, int rc)
{
    char hidden[NAME_BYTES];

    if (fd >= 0) {
        hide(hidden, name);
        if (rc == 0 && fsync(fd) < 0 && errno != EINVAL)
            rc = -errno;
        if (close(fd) < 0 && rc == 0)
            rc = -errno;
        if (rc == 0 && renameat(store->directory, hidden, store->directory, name) < 0)
            rc = -errno;
        if (rc < 0)
            unlinkat(store->directory, hidden, 0);
    }
    return rc == 0 ? CLI_OK
                   : cli_fail(cli, CLI_FAILED, "cannot write %s in %s: %s", name, store->path,
                              strerror(-rc));
}

int store_tensor(const struct cli *cli, const struct store *store, const char *name,
                 const struct ringside_tensor *tensor)
{
    int fd = begin(store, name);

    return end(cli, store, name, fd, fd < 0 ? fd : store_write_tensor(fd, tensor));
}

static int store_document(const struct cli *cli, const struct store *store, const char *name,
                          json_t *document)
{
    char *text = output_need(json_dumps(document, JSON_INDENT(2) | JSON_ENSURE_ASCII));
    int fd = begin(store, name), rc = fd < 0 ? fd : write_all(fd, text, strlen(text));

    if (rc == 0)
        rc = write_all(fd, "\n", 1);
    free(text);
    return end(cli, store, name, fd, rc);
}

static void tensor_name(char *name, const char *text, unsigned i)
{
    snprintf(name, NAME_BYTES, "%s.%u.npy", text, i);
}

void store_forget(const struct store *store, const struct ringside_message *message,
                  const char *text)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "%s.json", text);
    unlinkat(store->directory, name, 0);
    for (uint32_t i = 0; i < message->tensor_count; i++) {
        tensor_name(name, text, i);
        unlinkat(store->directory, name, 0);
    }
}

int store_message(const struct cli *cli, const struct store *store,
                  const struct ringside_message *message, const char *text, json_t **document)
{
    char name[NAME_BYTES];
    json_t *tensors;
    int status = CLI_OK;

    *document = message_json(message, text);
    tensors = json_object_get(*document, "tensors");
    for (uint32_t i = 0; i < message->tensor_count && status == CLI_OK; i++) {
        tensor_name(name, text, i);
        json_object_set_new(json_array_get(tensors, i), "file", json_string(name));
        status = store_tensor(cli, store, name, &message->tensors[i]);
    }
    snprintf(name, sizeof name, "%s.json", text);
    if (status == CLI_OK)
        status = store_document(cli, store, name, *document);
    /* The names as well: what is acknowledged exists nowhere else. */
    if (status == CLI_OK && fsync(store->directory) < 0 && errno != EINVAL)
        status = cli_fail(cli, CLI_FAILED, "cannot bring %s to the disk: %s", store->path,
                          strerror(errno));
    if (status != CLI_OK) {
        store_forget(store, message, text);
        json_decref(*document);
        *document = NULL;
    }
    return status;
}

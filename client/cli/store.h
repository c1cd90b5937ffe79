/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as files: each appears under its name only when it is complete. */
#ifndef RINGSIDE_CLI_STORE_H
#define RINGSIDE_CLI_STORE_H

#include <jansson.h>

#include "client/c/ringside.h"
#include "client/cli/cli.h"

/* A directory that files are written to. */
struct store {
    int directory;    /* owned descriptor; -1: none */
    const char *path; /* for people; the caller's */
};

/* Opens the directory `path`; with `make` it is made when it is not there (its parents are not).
 * CLI_OK or an explained status. */
int store_open(const struct cli *cli, struct store *store, const char *path, bool make);
void store_close(struct store *store);

/*
 * Writes the message: TEXT.0.npy, TEXT.1.npy, ... and, last, TEXT.json, where `text` is its ticket.
 * What had these names is replaced. All are on the disk when this returns CLI_OK; then *document is
 * what the .json holds, the caller's. Else nothing of it is left, and the status is explained.
 */
int store_message(const struct cli *cli, const struct store *store,
                  const struct ringside_message *message, const char *text, json_t **document);

/* Removes the files of a message again. */
void store_forget(const struct store *store, const struct ringside_message *message,
                  const char *text);

/* Writes one tensor to the file `name` in the directory. CLI_OK or an explained status. */
int store_tensor(const struct cli *cli, const struct store *store, const char *name,
                 const struct ringside_tensor *tensor);

/* Writes one tensor to a descriptor as .npy. 0 or -errno. */
int store_write_tensor(int fd, const struct ringside_tensor *tensor);

#endif

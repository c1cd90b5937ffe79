/* SPDX-License-Identifier: Apache-2.0 */
/* Directories and files that a ring lives in: made with the right owner and mode, opened without
 * trusting what is there. */
#ifndef RINGSIDE_PROXY_RING_DIR_H
#define RINGSIDE_PROXY_RING_DIR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"
#include "proxy/startup_error.h"

/* Who may open the files of a ring by their paths: the same as may use the socket. */
struct ring_access {
    mode_t file_mode; /* permission bits without x */
    mode_t dir_mode;  /* of directories that are made */
    gid_t gid;        /* (gid_t)-1: left alone */
};

/* 0 or -RINGSIDE_E_INVALID (no such group). */
int ring_access_init(struct ring_access *access, const struct rs_config *config,
                     const struct startup_error *error);

/* Opens the directory and makes what is missing of it. It must belong to this user or root, and
 * not be a symbolic link. Returns a descriptor of the caller's, or a negative error. */
int ring_dir_open(const char *path, const struct ring_access *access,
                  const struct startup_error *error);

/* Makes a new, empty file. Returns a descriptor of the caller's, -EEXIST or another -errno. */
int ring_dir_create(int dir, const char *name, const struct ring_access *access);

/* Opens an existing file, if it is a regular one of this user with no second name; never follows a
 * link. `path` is for the text. A descriptor of the caller's, -ENOENT (no text) or a negative
 * error. */
int ring_dir_existing(int dir, const char *name, const char *path,
                      const struct startup_error *error);

/* Whether the name still leads to the file of that descriptor. */
bool ring_dir_is(int dir, const char *name, int fd);

/* An OFD write lock on one byte of a file. 0, -EAGAIN when another description has it, or -errno.
 */
int ring_lock_byte(int fd, uint32_t byte);
/* Whether another description locks one of `count` bytes. Unknown counts as locked. */
bool ring_bytes_locked(int fd, uint32_t first, uint32_t count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the session tokens: the ring's incarnation, then one token per client number. */
#include "proxy/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static off_t offset_of(uint32_t number)
{
    return (off_t)(number + 1) * TOKEN_BYTES;
}

/* A file that somebody else could write is no place for secrets: it is made anew. */
static int open_private(const char *path)
{
    struct stat info;

    for (int i = 0; i < 2; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 && errno != ELOOP)
            return -errno;
        if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
            info.st_nlink == 1 && (info.st_mode & 0077) == 0)
            return fd;
        if (fd >= 0)
            close(fd);
        if (unlink(path) < 0)
            return -errno;
    }
    return -EPERM;
}

static bool load(struct tokens *tokens, const uint64_t incarnation[2])
{
    uint64_t header[2];
    size_t bytes = (size_t)tokens->count * TOKEN_BYTES;

    return pread(tokens->fd, header, sizeof header, 0) == (ssize_t)sizeof header &&
           memcmp(header, incarnation, sizeof header) == 0 &&
           pread(tokens->fd, tokens->values, bytes, offset_of(0)) == (ssize_t)bytes;
}

static int start_anew(struct tokens *tokens, const uint64_t incarnation[2])
{
    size_t bytes = (size_t)tokens->count * TOKEN_BYTES;

    memset(tokens->values, 0, bytes);
    if (ftruncate(tokens->fd, 0) < 0 || ftruncate(tokens->fd, offset_of(tokens->count)) < 0 ||
        pwrite(tokens->fd, incarnation, 2 * sizeof *incarnation, 0) != 2 * sizeof *incarnation) {
        int rc = errno != 0 ? -errno : -EIO;
        close(tokens->fd);
        tokens->fd = -1;
        return rc;
    }
    return 0;
}

int tokens_open(struct tokens *tokens, const char *dir, const char *stage, uint32_t count,
                const uint64_t incarnation[2])
{
    memset(tokens, 0, sizeof *tokens);
    tokens->fd = -1;
    tokens->count = count;
    tokens->values = calloc(count, TOKEN_BYTES);
    if (tokens->values == NULL)
        return -ENOMEM;
    if ((size_t)snprintf(tokens->path, sizeof tokens->path, "%s/%s.sessions", dir, stage) >=
        sizeof tokens->path)
        return -ENAMETOOLONG;
    int fd = open_private(tokens->path);
    if (fd < 0)
        return fd;
    tokens->fd = fd;
    return load(tokens, incarnation) ? 0 : start_anew(tokens, incarnation);
}

void tokens_close(struct tokens *tokens, bool remove)
{
    if (tokens->fd >= 0) {
        if (remove)
            unlink(tokens->path);
        close(tokens->fd);
    }
    free(tokens->values);
    tokens->values = NULL;
    tokens->fd = -1;
}

/* A full disk costs a session its return after a restart, nothing more. */
static void store(struct tokens *tokens, uint32_t number)
{
    if (tokens->fd >= 0 &&
        pwrite(tokens->fd, tokens->values[number], TOKEN_BYTES, offset_of(number)) != TOKEN_BYTES)
        return;
}

int tokens_renew(struct tokens *tokens, uint32_t number)
{
    if (getrandom(tokens->values[number], TOKEN_BYTES, 0) != TOKEN_BYTES)
        return -errno;
    store(tokens, number);
    return 0;
}

void tokens_drop(struct tokens *tokens, uint32_t number)
{
    memset(tokens->values[number], 0, TOKEN_BYTES);
    store(tokens, number);
}

int tokens_find(const struct tokens *tokens, const uint8_t token[TOKEN_BYTES])
{
    uint64_t wanted[2], have[2];
    int found = -1;

    memcpy(wanted, token, sizeof wanted);
    if ((wanted[0] | wanted[1]) == 0)
        return -1;
    for (uint32_t i = 0; i < tokens->count; i++) {
        memcpy(have, tokens->values[i], sizeof have);
        uint64_t difference = (have[0] ^ wanted[0]) | (have[1] ^ wanted[1]);
        /* All ones when they are equal, without a branch that could be timed. */
        int equal = -(int)(((difference | -difference) >> 63) ^ 1);
        found = (found & ~equal) | ((int)i & equal);
    }
    return found;
}

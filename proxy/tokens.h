/* SPDX-License-Identifier: Apache-2.0 */
/* Session tokens: 16 random bytes per client number, in a private file that outlives the sidecar.
 */
#ifndef RINGSIDE_PROXY_TOKENS_H
#define RINGSIDE_PROXY_TOKENS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define TOKEN_BYTES 16

struct tokens {
    char path[PATH_MAX];
    int fd;                         /* -1: they do not outlive this process */
    uint32_t count;                 /* numbers 0..count-1 */
    uint8_t (*values)[TOKEN_BYTES]; /* owned; zeroes: none */
};

/*
 * Opens <dir>/<stage>.sessions, mode 0600. Its tokens are kept when it was written for the same
 * ring (`incarnation`). 0 or -ENOMEM; -errno when the file cannot be used, after which the tokens
 * work, but only for this process.
 */
int tokens_open(struct tokens *tokens, const char *dir, const char *stage, uint32_t count,
                const uint64_t incarnation[2]);
void tokens_close(struct tokens *tokens, bool remove);

/* Gives a number a new token, or none. 0 or -errno (getrandom). */
int tokens_renew(struct tokens *tokens, uint32_t number);
void tokens_drop(struct tokens *tokens, uint32_t number);

/* The number whose token it is, -1 when nobody's. Takes the same time wherever they differ. */
int tokens_find(const struct tokens *tokens, const uint8_t token[TOKEN_BYTES]);

#endif

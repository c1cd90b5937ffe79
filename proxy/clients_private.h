/* SPDX-License-Identifier: Apache-2.0 */
/* What clients.c and witness.c share: the clients of the own ring, and who tells of their deaths.
 */
#ifndef RINGSIDE_PROXY_CLIENTS_PRIVATE_H
#define RINGSIDE_PROXY_CLIENTS_PRIVATE_H

#include <uv.h>

#include "proto/ring_layout.h"
#include "proxy/clients.h"
#include "proxy/tokens.h"

struct witness;

struct client {
    enum client_phase phase;
    bool wants_lock;
    bool foreign;
    bool moved;     /* another process came with its token: while the first one lives, so does it */
    bool inherited; /* of an earlier sidecar, without a number: may read with the shared one */
    uint8_t reader; /* 1..36, or RS_NO_READER */
    uint32_t pid;   /* 0: unknown */
    uint64_t start_time;
    struct witness *witness; /* NULL: no pidfd */
    char name[RS_NAME_BYTES];
};

struct clients {
    uint32_t count;         /* numbers 0..count-1; 0 is the sidecar */
    struct client *entries; /* owned */
    struct tokens tokens;
    /* Bits of the reader numbers and of the client numbers in use. Not 0's: the sidecar holds
     * nothing as itself between two turns of its loop. */
    uint64_t readers;
    uint64_t in_use[RS_MAX_CLIENTS / 64];
    uint64_t nonces[RS_MAX_CLIENTS];    /* of those in use, as admitted */
    uint16_t by_reader[RS_MAX_READERS]; /* who has it, when the bit is on */
    uint32_t inherited;                 /* how many are */
    bool shared_left; /* readings of an earlier sidecar's sessions may be left in the words */
    uv_timer_t look;  /* soon after somebody detached */
    bool closed;
};

/* Takes a pidfd over, whose process's end is the client's. 0 or a negative error. */
int witness_call(struct proxy *proxy, uint16_t number, int pidfd);
void witness_dismiss(struct client *client);
/* Whether the process of the entry lives, as far as its pid tells. */
bool witness_process_is_there(const struct client *client);
/* Whether it is known to be gone, where no pidfd speaks: by its lock or its pid. */
bool witness_is_gone(const struct proxy *proxy, uint16_t number);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Client numbers of the own ring: who has one, the lock byte that shows it alive, its pidfd, and
 * the sweep after it died. */
#ifndef RINGSIDE_PROXY_CLIENTS_H
#define RINGSIDE_PROXY_CLIENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct proxy;

struct clients_request {
    const char *name;     /* for people */
    const uint8_t *token; /* 16 bytes to come back to an earlier number, or NULL */
    int pidfd;            /* taken over, also on error; -1: none */
    uint32_t pid;         /* 0: unknown */
    bool wants_lock;      /* gets a control descriptor whose description locks its byte */
    bool foreign;         /* a worker of another stage */
    bool reads_nothing;   /* needs no reader number */
};

struct clients_admission {
    uint16_t number;
    uint8_t reader; /* or RS_NO_READER */
    uint64_t nonce;
    uint8_t token[16];
    bool resumed;
    int control_fd; /* fresh description, locked when wanted; the caller's to close or pass on */
};

/* Gives a client number. 0, -RINGSIDE_E_LIMIT (clients.max), -RINGSIDE_E_DRAINING,
 * -RINGSIDE_E_DENIED (the token of another kind of client), -RINGSIDE_E_STATE (the token of one
 * with a lock for one without, or the reverse), -errno. Who has a token comes back also during a
 * drain. */
int clients_admit(struct proxy *proxy, const struct clients_request *request,
                  struct clients_admission *admission);
/* The session's socket closed. The number stays with the process: shown as detached until the
 * kernel says it is gone, or, when it has said goodbye and holds nothing, given back at once. */
void clients_detach(struct proxy *proxy, uint16_t number, bool goodbye);
/* Runs the sweep of a number whose process is known to be gone. Idempotent. */
void clients_died(struct proxy *proxy, uint16_t number);

/* ---- the daemon's own ---- */

#define CLIENTS_SHARED_READER \
    (RS_MAX_READERS - 1u) /* the sidecar's, for sessions that read without a number of theirs */

enum client_phase {
    CLIENT_FREE,     /* the number is nobody's */
    CLIENT_ATTACHED, /* its session's socket is open */
    CLIENT_DETACHED, /* the process lives, as far as anybody knows */
    CLIENT_DYING,    /* gone; what it left is being swept */
};

/* Reads the session tokens of an adopted ring and judges its clients, or begins with none. 0 or a
 * negative error. */
int clients_open(struct proxy *proxy);
/* Closes handles; memory goes with clients_destroy, after the loop. `clients_destroy` with remove
 * unlinks the tokens. */
void clients_close(struct proxy *proxy);
void clients_destroy(struct proxy *proxy, bool remove);
/* Looks after those that no pidfd speaks for. Every second. */
void clients_tick(struct proxy *proxy);
/* The sweep and its audit are over: the number may be given again. Called by mend.c. */
void clients_swept(struct proxy *proxy, uint16_t number);

enum client_phase clients_phase(const struct proxy *proxy, uint16_t number);
/* Its reader number, or RS_NO_READER. */
unsigned clients_reader(const struct proxy *proxy, uint16_t number);
/* The other way round; 0 for the sidecar's and those that it reads for, -1 when nobody has it. */
int clients_by_reader(const struct proxy *proxy, unsigned reader);
/* Never NULL; "sidecar" for 0. */
const char *clients_name(const struct proxy *proxy, uint16_t number);
bool clients_is_foreign(const struct proxy *proxy, uint16_t number);
uint32_t clients_pid(const struct proxy *proxy, uint16_t number);
/* Numbers below this one may be in use. */
uint32_t clients_end(const struct proxy *proxy);
/* How many of the stage's own workers have a number. */
uint32_t clients_local_count(const struct proxy *proxy);

#endif

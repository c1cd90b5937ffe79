/* SPDX-License-Identifier: Apache-2.0 */
/* The sidecar: everything it owns, and its life from the first file to the last. */
#ifndef RINGSIDE_PROXY_PROXY_H
#define RINGSIDE_PROXY_PROXY_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "config/config.h"
#include "proto/inbox.h"
#include "proto/repair.h"
#include "proto/ring.h"
#include "proxy/census.h"
#include "proxy/clients.h"
#include "proxy/conn.h"
#include "proxy/log.h"
#include "proxy/ring_files.h"
#include "proxy/routes.h"

enum proxy_phase {
    PROXY_STARTING, /* ring files are being made */
    PROXY_SERVING,
    PROXY_DRAINING, /* nothing new; what is queued may be received */
    PROXY_CLOSING,  /* handles are being closed */
};

struct proxy {
    uv_loop_t loop;
    struct log log;
    struct rs_config config;
    struct ring_files files;
    struct rs_ring ring;   /* the own ring, as client 0 */
    struct rs_inbox inbox; /* the own inbox; ring 0 is the own ring */
    struct rs_repair
        repair; /* peers.c fills in inboxes[] and ring_number[] of what routes lead to */
    struct routes routes;
    int inbox_event; /* eventfd of the own inbox; given to its producers and consumers */
    int bell_event;  /* eventfd of the own ring's bell */
    enum proxy_phase phase;
    int64_t started_ns;        /* CLOCK_MONOTONIC */
    int exit_code;             /* of the process */
    struct listener *listener; /* conn.c and listen.c */
    struct clients *clients;   /* clients.c */
    struct mend *mend;         /* mend.c */
    struct counter *counter;   /* census.c */
    struct watch *watch;       /* watch.c */
    struct control *control;   /* control.c */
    struct peers *peers;       /* peers.c */
    struct tables *tables;     /* tables.c */
    /* The rest is proxy.c's own. */
    uv_work_t opening; /* ring_files_open on a worker thread */
    int open_result;
    char open_error[1024];
    uv_signal_t terminate, interrupt;
    uv_timer_t drain_timer;
    uv_poll_t highest; /* only to size libuv's table */
    int64_t drain_deadline_ns;
    struct census_request drain_census; /* what is left; asked for by drain_timer */
    bool opened;                        /* the ring is mapped */
    bool remove_files;                  /* nobody needs them any more */
    bool leaving;                       /* told to end: drains, then closes */
    bool damaged;              /* the ring lost memory: nothing is loaned, taken or sent any more */
    struct drain_call *drains; /* calls that wait for the end of the drain */
};

/* Runs a sidecar until it is told to stop. `config` is taken over. Returns the process's exit code.
 */
int proxy_run(struct rs_config *config);

/* A request from any connection; called by conn.c. */
void proxy_dispatch(struct conn_call *call);

/* Drain: stops new attaches and loans, and answers the call when nothing is queued or held any
 * more. */
void proxy_drain_for(struct proxy *proxy, struct conn_call *call, uint64_t timeout_ms);

/* True while new attaches and loans are refused. */
static inline bool proxy_is_draining(const struct proxy *proxy)
{
    return proxy->phase != PROXY_SERVING;
}

static inline bool proxy_is_damaged(const struct proxy *proxy)
{
    return proxy->damaged;
}

#endif

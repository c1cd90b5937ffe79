/* SPDX-License-Identifier: Apache-2.0 */
/* What conn.c and listen.c share: a connection and the listener that keeps all of them. */
#ifndef RINGSIDE_PROXY_CONN_PRIVATE_H
#define RINGSIDE_PROXY_CONN_PRIVATE_H

#include <sys/types.h>
#include <uv.h>

#include "proto/ttrpc.h"
#include "proxy/conn.h"

#define CONN_HALF_FRAME_NS  INT64_C(5000000000)   /* a frame must be whole by then */
#define CONN_SILENT_READ_NS INT64_C(30000000000)  /* output must move by then */
#define CONN_OUTPUT_BYTES   ((4u << 20) + 65536u) /* cap of the output queue */
#define CONN_OUTPUT_HIGH    (1u << 20) /* no request is taken while more waits to be sent */
#define CONN_CALLS_MAX      32u        /* requests that wait for their answer */
#define CONN_SPARE          32u        /* connections without a session or peer, over clients.max */

struct call;
struct out_call;
struct delivery;

struct conn {
    struct proxy *proxy;
    struct conn *next, *previous; /* of the listener's list, oldest first */
    uint64_t serial;
    int socket; /* owned */
    uv_poll_t poll;
    uv_timer_t timer; /* for the nearest of all deadlines */
    unsigned handles; /* open uv handles */
    int events;       /* polled for now */
    struct rs_ttrpc_reader reader;
    struct rs_ttrpc_writer writer;
    struct rs_ttrpc_streams streams;
    struct call *calls; /* requests that wait for their answer */
    unsigned call_count;
    struct out_call *outs;                       /* our calls */
    struct delivery *deliveries, *last_delivery; /* tracked answers, oldest first */
    size_t frame_fds;                            /* of the frame at hand, not yet taken */
    int64_t blocked_ns;                          /* since when output does not move, 0: it does */
    conn_closed_cb *closed;                      /* may be NULL */
    void *owner;
    conn_connected_cb *connected; /* not yet told */
    void *connected_data;
    const char *failed; /* closes at the next turn, with this reason (static) */
    bool outgoing;      /* this side connected */
    bool denied;        /* every request is refused, then it closes */
    bool corked;        /* requests are being handled: one flush at the end */
    bool stalled;       /* requests wait for output to move */
    bool closing;
};

struct listener {
    struct proxy *proxy;
    int lock;     /* description with the lock of <path>.lock, or -1 */
    int socket;   /* listening, or -1 */
    dev_t device; /* identity of our socket's file */
    ino_t inode;
    uv_poll_t poll;
    uv_timer_t pause; /* after descriptor exhaustion */
    bool polling, closed;
    uint64_t serial; /* of the last connection */
    struct conn *first, *last;
    unsigned count, unowned;
};

/* Takes a connected socket over, also on failure. NULL: out of memory. */
struct conn *conn_create(struct proxy *proxy, int socket, bool outgoing);

/* ---- conn.c ---- */

/* Closes in a later turn: the caller may still use what the connection owns. `reason` is static. */
void conn_fail(struct conn *conn, const char *reason);
/* Sends what waits; a failure is conn_fail's. */
void conn_flush(struct conn *conn);
/* After a frame was queued with result `rc`: sends unless corked. Passes an error on, which is
 * conn_fail's too. */
int conn_queued(struct conn *conn, int rc);
void conn_update_timer(struct conn *conn);

/* ---- conn_call.c ---- */

void conn_handle_request(struct conn *conn, const struct rs_frame *frame);
/* Data frames mean one thing here: the caller of a stream closes its side. */
void conn_handle_data(struct conn *conn, const struct rs_frame *frame);
void conn_handle_response(struct conn *conn, const struct rs_frame *frame);
void conn_respond_error(struct conn *conn, uint32_t stream, int error, const char *text);
/* Tells tracked answers that the kernel has them; with `all` the rest that it has not. */
void conn_settle_deliveries(struct conn *conn, bool all);
/* The earliest deadline of all calls, INT64_MAX when there is none; ends those that are over. */
int64_t conn_next_deadline(const struct conn *conn);
void conn_expire_calls(struct conn *conn, int64_t now);
/* At the end of the connection. */
void conn_cancel_calls(struct conn *conn, const char *reason);

#endif

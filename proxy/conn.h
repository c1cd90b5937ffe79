/* SPDX-License-Identifier: Apache-2.0 */
/* One ttrpc connection on the loop: requests in, calls out, descriptors both ways, bounded in every
 * direction. */
#ifndef RINGSIDE_PROXY_CONN_H
#define RINGSIDE_PROXY_CONN_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conn;
struct proxy;

/* A request that waits for its answer. Valid until answered; `cancelled` runs instead when the
 * connection closes, the deadline passes or the caller ends its stream first (the caller's status
 * is then sent already). */
struct conn_call {
    struct conn *conn;
    uint32_t stream;
    const char *service; /* full name, "ringside.v1.Control" */
    const char *method;
    const uint8_t *payload; /* of the request; valid only during the request callback */
    size_t payload_bytes;
    bool streaming;                            /* expects a stream of messages, not one answer */
    int64_t deadline_ns;                       /* CLOCK_MONOTONIC; INT64_MAX: none */
    void (*cancelled)(struct conn_call *call); /* set by the handler when it keeps the call; undo,
                                                  do not answer */
    void *data;                                /* the handler's */
};

/* Answers and ends a call. Descriptors are closed after sending, also on failure. 0 or a negative
 * error: then the answer was not delivered (the handler undoes what it gave). */
int conn_reply(struct conn_call *call, const ProtobufCMessage *response, const int *fds,
               size_t fd_count);
/* As conn_reply, for an answer that gives something away: done(data, delivered) runs once, when the
 * kernel has all of it or the connection went first. Not called when a negative error is returned.
 */
typedef void conn_done_cb(void *data, bool delivered);
int conn_reply_tracked(struct conn_call *call, const ProtobufCMessage *response, const int *fds,
                       size_t fd_count, conn_done_cb *done, void *data);
/* One message of a streaming call, which goes on; `done` as in conn_reply_tracked. 0 or a negative
 * error. */
int conn_stream_send(struct conn_call *call, const ProtobufCMessage *message, conn_done_cb *done,
                     void *data);
/* Ends a streaming call that went well. */
void conn_stream_end(struct conn_call *call);
/* Answers with the gRPC status of `error` and "NAME: text"; ends a stream as well. */
void conn_reply_error(struct conn_call *call, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with a status that somebody else gave: any but OK. */
void conn_reply_status(struct conn_call *call, unsigned code, const char *name, const char *text);
/* Decodes the payload within a memory budget; on failure answers and returns NULL. Free with
 * conn_free_message. */
ProtobufCMessage *conn_decode(struct conn_call *call, const ProtobufCMessageDescriptor *type);
void conn_free_message(ProtobufCMessage *message);
/* Takes a descriptor that arrived with this connection's requests, oldest first; -1 when there is
 * none. */
int conn_take_fd(struct conn *conn);

/* The answer to a call that this side made: error 0 and a response, or a negative error and a text.
 * fds are the callback's to close or keep; the response is freed after it returns. Never called
 * when conn_call_out failed. */
typedef void conn_response_cb(struct conn *conn, int error, const char *text,
                              const ProtobufCMessage *response, int *fds, size_t fd_count,
                              void *data);
/* Calls the other side. fds are closed after sending. 0 or a negative error (then fds are still
 * closed). */
int conn_call_out(struct conn *conn, const char *service, const char *method,
                  const ProtobufCMessage *request, const ProtobufCMessageDescriptor *response_type,
                  int *fds, size_t fd_count, int64_t timeout_ns, conn_response_cb *callback,
                  void *data);

/* Closes: pending calls are cancelled, pending out-calls fail with -RINGSIDE_E_UNAVAILABLE, then
 * `closed` runs and the memory goes. Idempotent. */
void conn_close(struct conn *conn, const char *reason);

/* Called once when the connection is gone; set by whoever owns a session or a peer on it. NULL:
 * owned by nobody. */
typedef void conn_closed_cb(struct conn *conn, void *data);
void conn_on_closed(struct conn *conn, conn_closed_cb *closed, void *data);
void *conn_owner(struct conn *conn); /* the data of conn_on_closed */
/* The same when `closed` is the callback that was set, else NULL: tells a session's connection from
 * a peer's. */
void *conn_owner_of(struct conn *conn, conn_closed_cb *closed);
/* Whether so much waits to be sent that a large answer should wait as well. */
bool conn_is_behind(const struct conn *conn);
/* Whether this side connected. */
bool conn_is_outgoing(const struct conn *conn);

struct proxy *conn_proxy(struct conn *conn);
int conn_socket(struct conn *conn);      /* for SO_PEERCRED, SO_PEERPIDFD */
uint64_t conn_serial(struct conn *conn); /* for logs */

/* Claims the socket's path: takes the lock beside it and removes a stale socket after a failed
 * probe. Nothing else there is touched. Logs what is wrong. 0, -RINGSIDE_E_IN_USE (a living sidecar
 * has it), -EEXIST (not a socket), -errno. */
int conn_claim(struct proxy *proxy);
/* Listening socket on the claimed path: mode, group, allow_uids; accept pauses on descriptor
 * exhaustion. Requests go to proxy_dispatch. Logs what is wrong. 0 or a negative error. */
int conn_listen(struct proxy *proxy);
/* Stops listening and takes the socket's file and its lock away. Idempotent. */
void conn_listen_close(struct proxy *proxy);
void conn_close_all(struct proxy *proxy);
/* Connects to another sidecar's socket. 0: `connected` gets the connection in a later turn of the
 * loop, unless the proxy closes before. A negative error (nobody listens, -EAGAIN for a full queue,
 * ...): it is never called. */
typedef void conn_connected_cb(struct conn *conn, int error, void *data);
int conn_connect(struct proxy *proxy, const char *path, conn_connected_cb *connected, void *data);

#endif

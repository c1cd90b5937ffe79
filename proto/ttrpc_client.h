/* SPDX-License-Identifier: Apache-2.0 */
/* A blocking ttrpc client with deadlines, over a UNIX socket. */
#ifndef RINGSIDE_PROTO_TTRPC_CLIENT_H
#define RINGSIDE_PROTO_TTRPC_CLIENT_H

#include "proto/ttrpc.h"

#define RS_TTRPC_FOREVER (-1) /* as a timeout: no limit */

/* One call at a time; whoever shares a client among threads puts a lock around it. */
struct rs_ttrpc_client {
    int socket;                      /* owned; -1 when not connected */
    int error;                       /* what ended the connection, or 0 */
    struct rs_ttrpc_streams streams; /* of the connecting side */
    struct rs_ttrpc_reader reader;
    struct rs_ttrpc_writer writer;
};

/* Takes over a connected stream socket. Allocates nothing and cannot fail. */
void rs_ttrpc_client_init(struct rs_ttrpc_client *client, int socket);

/*
 * Connects to the socket file `path`. While nobody listens there yet or the listener's queue is
 * full it tries again, at random intervals, until `timeout_ns` is over (0: one try;
 * RS_TTRPC_FOREVER). 0, or -RINGSIDE_E_UNAVAILABLE when time is over, -ENAMETOOLONG, -EACCES and
 * others at once; then `text` says why, and the client is as rs_ttrpc_client_finish leaves it.
 */
int rs_ttrpc_client_connect(struct rs_ttrpc_client *client, const char *path, int64_t timeout_ns,
                            char *text, size_t text_bytes);

/* Closes the socket and every descriptor nobody claimed. NULL and finished are fine, zeroed is not.
 */
void rs_ttrpc_client_finish(struct rs_ttrpc_client *client);

/*
 * Calls service/method with `request` (NULL: an empty message) and waits for the answer.
 *
 * `timeout_ns` bounds the wait here and travels as the call's deadline: a caller that wants to see
 * the other side's own deadline error gives the method's wait in the message and some more time
 * here.
 *
 * 0: *response is a message of `type`, the caller's (protobuf_c_message_free_unpacked). On entry
 * *fd_count is the room in `fds`, on return the descriptors that came with the answer, now the
 * caller's; `fds` and `fd_count` may be NULL where none are wanted. Descriptors beyond the room are
 * closed.
 *
 * Failure: *response is NULL, *fd_count 0 and `text` says why. The called side's error as
 * rs_ttrpc_status_error gives it; -RINGSIDE_E_TIMEOUT from here, after which the client goes on
 * working and a late answer is dropped; -RINGSIDE_E_UNAVAILABLE, -RINGSIDE_E_PROTOCOL and
 * -RINGSIDE_E_LIMIT with client->error set: the connection is over; -RINGSIDE_E_TOO_BIG, -ENOMEM.
 */
int rs_ttrpc_call(struct rs_ttrpc_client *client, const char *service, const char *method,
                  const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                  ProtobufCMessage **response, int *fds, size_t *fd_count, int64_t timeout_ns,
                  char *text, size_t text_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* UNIX sockets: addresses, descriptors over SCM_RIGHTS, and who is at the other end. */
#ifndef RINGSIDE_PROTO_FDPASS_H
#define RINGSIDE_PROTO_FDPASS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>

#define RS_FDPASS_MAX      16  /* descriptors one send or one receive carries */
#define RS_FD_QUEUE_MAX    32  /* descriptors a queue holds */
#define RS_SOCKET_PATH_MAX 107 /* bytes of a socket path, without its end */
#define RS_SO_PEERPIDFD    77  /* Linux 6.5; missing from older headers */

/* Owned descriptors, oldest first, each at a position in the byte stream. Zeroed is empty. */
struct rs_fd_queue {
    uint64_t positions[RS_FD_QUEUE_MAX]; /* bytes from the stream's start, never decreasing */
    int fds[RS_FD_QUEUE_MAX];            /* owned, close-on-exec */
    uint32_t count;                      /* of both arrays, at most RS_FD_QUEUE_MAX */
};

/* Takes all `count` descriptors, or none: -RINGSIDE_E_LIMIT, and they stay the caller's. */
int rs_fd_queue_push(struct rs_fd_queue *queue, const int *fds, size_t count, uint64_t position);

/* How many of the oldest descriptors stand at or before `position`. */
size_t rs_fd_queue_count_to(const struct rs_fd_queue *queue, uint64_t position);

/* The oldest descriptor, now the caller's; -RINGSIDE_E_STATE when there is none. */
int rs_fd_queue_take(struct rs_fd_queue *queue);

/* Closes the `count` oldest descriptors (fewer when fewer are there); all of them. NULL is fine. */
void rs_fd_queue_close(struct rs_fd_queue *queue, size_t count);
void rs_fd_queue_close_all(struct rs_fd_queue *queue);

/* Closes `count` descriptors; negative ones are skipped. Preserves errno. */
void rs_fd_close(const int *fds, size_t count);

/*
 * Sends bytes, with `count` descriptors attached to the first of them. Never blocks, never raises
 * SIGPIPE. Returns the bytes sent (the descriptors went with them), -EAGAIN or another -errno, or
 * -RINGSIDE_E_INVALID for more than RS_FDPASS_MAX descriptors or descriptors without a byte. The
 * descriptors stay the caller's in every case.
 */
ssize_t rs_fd_send(int socket, const struct iovec *iov, size_t iov_count, const int *fds,
                   size_t count);

/*
 * Receives bytes and at most RS_FDPASS_MAX descriptors (`fds` has that much room), close-on-exec
 * and owned by the caller. Never blocks. Returns the bytes received, 0 at the end of the stream,
 * -EAGAIN or another -errno. -RINGSIDE_E_PROTOCOL (too many descriptors were sent) and -EMFILE
 * (this process had no number left for one) mean that all of them are closed and bytes are lost:
 * the connection is of no further use. *count is 0 on every failure.
 */
ssize_t rs_fd_receive(int socket, const struct iovec *iov, size_t iov_count, int fds[RS_FDPASS_MAX],
                      size_t *count);

/*
 * Fills in the address of a socket file. -ENAMETOOLONG for more than RS_SOCKET_PATH_MAX bytes,
 * because a cut name is another socket; -RINGSIDE_E_INVALID for an empty path.
 */
int rs_socket_address(struct sockaddr_un *address, const char *path, socklen_t *address_bytes);

/* A pidfd of the connecting process, owned by the caller; -ENOTSUP before Linux 6.5, or -errno. */
int rs_peer_pidfd(int socket);

/* Pid, uid and gid of the connecting process; pid 0 when it lives in a foreign PID namespace. */
int rs_peer_credentials(int socket, struct ucred *credentials);

#endif

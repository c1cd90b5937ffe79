/* SPDX-License-Identifier: Apache-2.0 */
/* sendmsg and recvmsg with descriptors, none of which is ever lost. */
#include "proto/fdpass.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "proto/err.h"

#define CONTROL_BYTES CMSG_SPACE(sizeof(int) * RS_FDPASS_MAX)

/* Padding that could hold one descriptor more would let it pass unnoticed. */
static_assert(CONTROL_BYTES == CMSG_LEN(sizeof(int) * RS_FDPASS_MAX), "padding after descriptors");
static_assert(sizeof((struct sockaddr_un *)0)->sun_path == RS_SOCKET_PATH_MAX + 1, "sun_path");

union control {
    char bytes[CONTROL_BYTES];
    struct cmsghdr align;
};

int rs_fd_queue_push(struct rs_fd_queue *queue, const int *fds, size_t count, uint64_t position)
{
    if (count > RS_FD_QUEUE_MAX - queue->count)
        return -RINGSIDE_E_LIMIT;
    for (size_t i = 0; i < count; i++) {
        queue->fds[queue->count] = fds[i];
        queue->positions[queue->count++] = position;
    }
    return 0;
}

size_t rs_fd_queue_count_to(const struct rs_fd_queue *queue, uint64_t position)
{
    size_t count = 0;

    while (count < queue->count && queue->positions[count] <= position)
        count++;
    return count;
}

static void drop_oldest(struct rs_fd_queue *queue, size_t count)
{
    queue->count -= (uint32_t)count;
    memmove(queue->fds, queue->fds + count, queue->count * sizeof queue->fds[0]);
    memmove(queue->positions, queue->positions + count, queue->count * sizeof queue->positions[0]);
}

int rs_fd_queue_take(struct rs_fd_queue *queue)
{
    if (queue->count == 0)
        return -RINGSIDE_E_STATE;
    int fd = queue->fds[0];
    drop_oldest(queue, 1);
    return fd;
}

void rs_fd_queue_close(struct rs_fd_queue *queue, size_t count)
{
    if (count > queue->count)
        count = queue->count;
    rs_fd_close(queue->fds, count);
    drop_oldest(queue, count);
}

void rs_fd_queue_close_all(struct rs_fd_queue *queue)
{
    if (queue != NULL)
        rs_fd_queue_close(queue, queue->count);
}

void rs_fd_close(const int *fds, size_t count)
{
    int saved = errno;

    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    errno = saved;
}

ssize_t rs_fd_send(int socket, const struct iovec *iov, size_t iov_count, const int *fds,
                   size_t count)
{
    union control control;
    struct msghdr message = {.msg_iov = (struct iovec *)iov, .msg_iovlen = iov_count};
    size_t bytes = 0;
    ssize_t sent;

    for (size_t i = 0; i < iov_count; i++)
        bytes += iov[i].iov_len;
    if (count > RS_FDPASS_MAX || (count > 0 && bytes == 0))
        return -RINGSIDE_E_INVALID;
    if (count > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * count);
    }
    do {
        sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}

static size_t collect(struct msghdr *message, int fds[RS_FDPASS_MAX])
{
    size_t count = 0;

    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds + count, CMSG_DATA(header), here * sizeof(int));
        count += here;
    }
    return count;
}

ssize_t rs_fd_receive(int socket, const struct iovec *iov, size_t iov_count, int fds[RS_FDPASS_MAX],
                      size_t *count)
{
    union control control;
    struct msghdr message = {.msg_iov = (struct iovec *)iov,
                             .msg_iovlen = iov_count,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t received;

    *count = 0;
    do {
        received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (received < 0 && errno == EINTR);
    if (received < 0)
        return -errno;
    size_t found = collect(&message, fds);
    if (message.msg_flags & MSG_CTRUNC) {
        rs_fd_close(fds, found);
        return found == RS_FDPASS_MAX ? -RINGSIDE_E_PROTOCOL : -EMFILE;
    }
    *count = found;
    return received;
}

int rs_socket_address(struct sockaddr_un *address, const char *path, socklen_t *address_bytes)
{
    size_t bytes = strlen(path);

    if (bytes == 0)
        return -RINGSIDE_E_INVALID;
    if (bytes > RS_SOCKET_PATH_MAX)
        return -ENAMETOOLONG;
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, path, bytes + 1);
    *address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes + 1);
    return 0;
}

int rs_peer_pidfd(int socket)
{
    int pidfd = -1;
    socklen_t bytes = sizeof pidfd;

    if (getsockopt(socket, SOL_SOCKET, RS_SO_PEERPIDFD, &pidfd, &bytes) == 0)
        return pidfd;
    return errno == ENOPROTOOPT ? -ENOTSUP : -errno;
}

int rs_peer_credentials(int socket, struct ucred *credentials)
{
    socklen_t bytes = sizeof *credentials;

    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, credentials, &bytes) == 0 ? 0 : -errno;
}

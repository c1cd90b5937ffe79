/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors over sockets: none is lost, none is left open; socket paths are never cut. */
#include "proto/fdpass.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "proto/err.h"
#include "tests/unit/rpc_fixture.h"
#include "tests/unit/emulator.h"

static int open_null(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

static void send_fds(int socket, size_t count)
{
    int fds[RS_FDPASS_MAX];
    struct iovec iov = {"x", 1};

    for (size_t i = 0; i < count; i++)
        fds[i] = open_null();
    assert_int_equal(rs_fd_send(socket, &iov, 1, fds, count), 1);
    rs_fd_close(fds, count);
}

static void fds_carried(void **state)
{
    int sockets[2], fds[RS_FDPASS_MAX];
    char byte;
    struct iovec iov = {&byte, 1};
    size_t count;

    (void)state;
    make_pair(sockets);
    for (size_t sent = 0; sent <= RS_FDPASS_MAX; sent++) {
        send_fds(sockets[0], sent);
        assert_int_equal(rs_fd_receive(sockets[1], &iov, 1, fds, &count), 1);
        assert_int_equal(count, sent);
        for (size_t i = 0; i < count; i++) {
            struct stat stat;
            assert_int_equal(fstat(fds[i], &stat), 0);
            assert_true(S_ISCHR(stat.st_mode));
            assert_int_equal(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
        }
        rs_fd_close(fds, count);
    }
    close_pair(sockets);
}

static void bad_sends_refused(void **state)
{
    int sockets[2], fds[RS_FDPASS_MAX + 1] = {0};
    struct iovec iov = {"x", 1}, empty = {"x", 0};

    (void)state;
    make_pair(sockets);
    assert_int_equal(rs_fd_send(sockets[0], &iov, 1, fds, RS_FDPASS_MAX + 1), -RINGSIDE_E_INVALID);
    assert_int_equal(rs_fd_send(sockets[0], &empty, 1, fds, 1), -RINGSIDE_E_INVALID);
    close(sockets[1]);
    assert_int_equal(rs_fd_send(sockets[0], &iov, 1, NULL, 0), -EPIPE);
    close(sockets[0]);
}

static void nothing_blocks(void **state)
{
    int sockets[2], fds[RS_FDPASS_MAX];
    static char bytes[65536];
    struct iovec iov = {bytes, sizeof bytes};
    size_t count;
    ssize_t rc;

    (void)state;
    make_pair(sockets);
    assert_int_equal(rs_fd_receive(sockets[1], &iov, 1, fds, &count), -EAGAIN);
    while ((rc = rs_fd_send(sockets[0], &iov, 1, NULL, 0)) > 0)
        ;
    assert_int_equal(rc, -EAGAIN);
    close(sockets[0]);
    while ((rc = rs_fd_receive(sockets[1], &iov, 1, fds, &count)) > 0)
        ;
    assert_int_equal(rc, 0);
    close(sockets[1]);
}

/* A sender that does not keep to the limit. */
static void send_unbounded(int socket, const int *fds, size_t count)
{
    char control[CMSG_SPACE(64 * sizeof(int))] = {0};
    struct iovec iov = {"x", 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    assert_int_equal(sendmsg(socket, &message, 0), 1);
}

static void too_many_fds_all_closed(void **state)
{
    int sockets[2], fds[RS_FDPASS_MAX], many[64];
    char byte;
    struct iovec iov = {&byte, 1};
    size_t count;

    (void)state;
    skip_if_emulated("does not tell that descriptors were cut off");
    make_pair(sockets);
    int null = open_null();
    for (size_t i = 0; i < 64; i++)
        many[i] = null;
    int before = open_fds();
    for (size_t sent = RS_FDPASS_MAX + 1; sent <= 64; sent++) {
        send_unbounded(sockets[0], many, sent);
        assert_int_equal(rs_fd_receive(sockets[1], &iov, 1, fds, &count), -RINGSIDE_E_PROTOCOL);
        assert_int_equal(count, 0);
        assert_int_equal(open_fds(), before);
    }
    close(null);
    close_pair(sockets);
}

static void out_of_numbers(void **state)
{
    int sockets[2], fds[RS_FDPASS_MAX];
    char byte;
    struct iovec iov = {&byte, 1};
    struct rlimit old, low;
    size_t count;

    (void)state;
    make_pair(sockets);
    send_fds(sockets[0], 4);
    int before = open_fds();
    int next = open_null();
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)next + 2; /* room for two of the four */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    ssize_t rc = rs_fd_receive(sockets[1], &iov, 1, fds, &count);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(rc, -EMFILE);
    assert_int_equal(count, 0);
    assert_int_equal(open_fds(), before);
    close_pair(sockets);
}

static void queue_keeps_order(void **state)
{
    struct rs_fd_queue queue = {0};
    int fds[4] = {open_null(), open_null(), open_null(), open_null()};

    (void)state;
    assert_int_equal(rs_fd_queue_take(&queue), -RINGSIDE_E_STATE);
    assert_int_equal(rs_fd_queue_push(&queue, fds, 1, 10), 0);
    assert_int_equal(rs_fd_queue_push(&queue, fds + 1, 3, 20), 0);
    assert_int_equal(rs_fd_queue_count_to(&queue, 9), 0);
    assert_int_equal(rs_fd_queue_count_to(&queue, 10), 1);
    assert_int_equal(rs_fd_queue_count_to(&queue, 20), 4);
    assert_int_equal(rs_fd_queue_take(&queue), fds[0]);
    assert_int_equal(rs_fd_queue_take(&queue), fds[1]);
    close(fds[0]);
    close(fds[1]);
    rs_fd_queue_close(&queue, 1);
    assert_int_equal(fcntl(fds[2], F_GETFD), -1);
    assert_int_equal(fcntl(fds[3], F_GETFD), FD_CLOEXEC);
    rs_fd_queue_close_all(&queue);
    assert_int_equal(queue.count, 0);
    rs_fd_queue_close_all(NULL);
}

static void queue_full_takes_none(void **state)
{
    struct rs_fd_queue queue = {0};
    int none[RS_FD_QUEUE_MAX];

    (void)state;
    for (size_t i = 0; i < RS_FD_QUEUE_MAX; i++)
        none[i] = -1;
    assert_int_equal(rs_fd_queue_push(&queue, none, RS_FD_QUEUE_MAX - 1, 0), 0);
    assert_int_equal(rs_fd_queue_push(&queue, none, 2, 0), -RINGSIDE_E_LIMIT);
    assert_int_equal(queue.count, RS_FD_QUEUE_MAX - 1);
    assert_int_equal(rs_fd_queue_push(&queue, none, 1, 0), 0);
    assert_int_equal(rs_fd_queue_push(&queue, none, 1, 0), -RINGSIDE_E_LIMIT);
}

static void address_never_cut(void **state)
{
    struct sockaddr_un address;
    socklen_t bytes;
    char path[120];

    (void)state;
    memset(path, 'p', sizeof path);
    path[107] = '\0';
    assert_int_equal(rs_socket_address(&address, path, &bytes), 0);
    assert_string_equal(address.sun_path, path);
    assert_int_equal(bytes, sizeof address);
    for (size_t length = 108; length < sizeof path; length++) {
        path[length - 1] = 'p';
        path[length] = '\0';
        assert_int_equal(rs_socket_address(&address, path, &bytes), -ENAMETOOLONG);
    }
    assert_int_equal(rs_socket_address(&address, "", &bytes), -RINGSIDE_E_INVALID);
}

static void peer_is_known(void **state)
{
    int sockets[2];
    struct ucred credentials;

    (void)state;
    make_pair(sockets);
    assert_int_equal(rs_peer_credentials(sockets[0], &credentials), 0);
    assert_int_equal(credentials.pid, getpid());
    assert_int_equal(credentials.uid, getuid());
    int null = open_null();
    assert_int_equal(rs_peer_credentials(null, &credentials), -ENOTSOCK);
    close(null);
    close_pair(sockets);
}

/* The pidfd of a child that connected becomes readable when the child is gone, not before. */
static void pidfd_tells_of_death(void **state)
{
    struct sockaddr_un address;
    socklen_t bytes;
    char path[64], byte = 'x';
    int go[2];

    (void)state;
    snprintf(path, sizeof path, "/tmp/rs-test-pidfd-%d", getpid());
    assert_int_equal(rs_socket_address(&address, path, &bytes), 0);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        _exit(connect(fd, (struct sockaddr *)&address, bytes) != 0 || read(go[0], &byte, 1) != 1);
    }
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    int pidfd = rs_peer_pidfd(fd);
    struct pollfd poll_fd = {pidfd, POLLIN, 0};
    int early = pidfd < 0 ? 0 : poll(&poll_fd, 1, 0);
    assert_int_equal(write(go[1], &byte, 1), 1);
    int late = pidfd < 0 ? 1 : poll(&poll_fd, 1, 10000);
    waitpid(child, NULL, 0);
    int all[] = {listener, go[0], go[1], fd, pidfd};
    rs_fd_close(all, 5);
    unlink(path);
    if (pidfd == -ENOTSUP) {
        print_message("skipped: this kernel has no SO_PEERPIDFD (Linux 6.5)\n");
        skip();
    }
    assert_true(pidfd >= 0);
    assert_int_equal(early, 0);
    assert_int_equal(late, 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, note_fds, same_fds)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(fds_carried),          CASE(bad_sends_refused), CASE(nothing_blocks),
        CASE(out_of_numbers),       CASE(queue_keeps_order), CASE(too_many_fds_all_closed),
        CASE(address_never_cut),    CASE(peer_is_known),     CASE(queue_full_takes_none),
        CASE(pidfd_tells_of_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

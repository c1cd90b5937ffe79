/* SPDX-License-Identifier: Apache-2.0 */
/* The blocking client: answers, deadlines, late answers, broken servers, full queues. */
#include "proto/ttrpc_client.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>

#include "proto/err.h"
#define RS_WRAP_ALLOC
#include "tests/unit/rpc_fixture.h"

#define PAIR_TYPE (&ringside__ttrpc__v1__key_value__descriptor)
#define SOON      INT64_C(20000000000) /* generous: no test waits for it to pass */

static struct rs_ttrpc_client client;
static struct rs_ttrpc_writer server; /* answers are written before they are asked for */
static int server_socket;
static char text[256];

static int start(void **state)
{
    int sockets[2];

    note_fds(state);
    make_pair(sockets);
    rs_ttrpc_client_init(&client, sockets[0]);
    server_socket = sockets[1];
    rs_ttrpc_writer_init(&server, 64 << 20);
    text[0] = '\0';
    return 0;
}

static int stop(void **state)
{
    rs_ttrpc_client_finish(&client);
    rs_ttrpc_client_finish(&client);
    rs_ttrpc_writer_finish(&server);
    if (server_socket >= 0)
        close(server_socket);
    return same_fds(state);
}

static void answer(uint32_t stream, const char *value, size_t fd_count)
{
    Ringside__Ttrpc__V1__KeyValue pair = RINGSIDE__TTRPC__V1__KEY_VALUE__INIT;
    int fds[RS_FDPASS_MAX];

    pair.value = (char *)value;
    for (size_t i = 0; i < fd_count; i++)
        fds[i] = file_of_bytes((off_t)stream);
    assert_int_equal(rs_ttrpc_respond(&server, stream, &pair.base, fds, fd_count), 0);
    assert_int_equal(rs_ttrpc_writer_flush(&server, server_socket), 0);
}

/* One call; its value, or NULL with the error in *rc. */
static char *call(int64_t timeout_ns, int *fds, size_t *fd_count, int *rc)
{
    ProtobufCMessage *response;
    char *value = NULL;

    *rc = rs_ttrpc_call(&client, "s", "m", NULL, PAIR_TYPE, &response, fds, fd_count, timeout_ns,
                        text, sizeof text);
    assert_true((*rc == 0) == (response != NULL));
    if (response != NULL)
        value = strdup(((Ringside__Ttrpc__V1__KeyValue *)response)->value);
    protobuf_c_message_free_unpacked(response, NULL);
    return value;
}

static void expect(const char *value)
{
    int rc;
    char *got = call(SOON, NULL, NULL, &rc);

    assert_int_equal(rc, 0);
    assert_string_equal(got, value);
    free(got);
}

static int expect_error(void)
{
    int rc;

    assert_null(call(SOON, NULL, NULL, &rc));
    assert_true(text[0] != '\0');
    return rc;
}

static void answers(void **state)
{
    (void)state;
    answer(1, "one", 0);
    answer(3, "two", 0);
    expect("one");
    expect("two");
}

static void descriptors_arrive(void **state)
{
    int fds[4], rc;
    size_t count = 4;
    struct stat stat;

    (void)state;
    answer(1, "a", 3);
    free(call(SOON, fds, &count, &rc));
    assert_int_equal(rc, 0);
    assert_int_equal(count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(fstat(fds[i], &stat), 0);
        assert_int_equal(stat.st_size, 1);
        close(fds[i]);
    }
    int before = open_fds();
    answer(3, "not wanted", 2);
    expect("not wanted");
    answer(5, "more than room", 3);
    count = 1;
    free(call(SOON, fds, &count, &rc));
    assert_int_equal(count, 1);
    assert_int_equal(open_fds(), before + 1);
    close(fds[0]);
}

static void late_answer_dropped(void **state)
{
    int fds[4], rc;
    size_t count = 4;
    struct stat stat;

    (void)state;
    assert_null(call(0, fds, &count, &rc));
    assert_int_equal(rc, -RINGSIDE_E_TIMEOUT);
    assert_int_equal(count, 0);
    assert_null(call(1000000, NULL, NULL, &rc));
    assert_int_equal(rc, -RINGSIDE_E_TIMEOUT);
    answer(3, "late", 2);
    answer(1, "later", 1);
    answer(5, "right", 1);
    count = 4;
    char *value = call(SOON, fds, &count, &rc);
    assert_string_equal(value, "right");
    free(value);
    assert_int_equal(count, 1);
    assert_int_equal(fstat(fds[0], &stat), 0);
    assert_int_equal(stat.st_size, 5);
    close(fds[0]);
}

static void error_is_told(void **state)
{
    int fds[4] = {0}, rc;
    size_t count = 4;

    (void)state;
    rs_ttrpc_respond_error(&server, 1, -RINGSIDE_E_STALE_TICKET, "slot 3 was reused");
    rs_ttrpc_writer_flush(&server, server_socket);
    answer(3, "goes on", 0);
    assert_null(call(SOON, fds, &count, &rc));
    assert_int_equal(rc, -RINGSIDE_E_STALE_TICKET);
    assert_string_equal(text, "slot 3 was reused");
    assert_int_equal(count, 0);
    expect("goes on");
}

static void deadline_travels(void **state)
{
    const int64_t cases[][2] = {{0, 1}, {12345, 12345}};
    Ringside__Ttrpc__V1__Request *request;
    struct rs_ttrpc_reader reader;
    struct rs_ttrpc_call decoded;
    struct rs_frame frame;
    const char *why;
    int rc;

    (void)state;
    rs_ttrpc_reader_init(&reader, 0);
    for (size_t i = 0; i < 2; i++) {
        assert_null(call(cases[i][0], NULL, NULL, &rc));
        assert_true(rs_ttrpc_reader_fill(&reader, server_socket, 1) > 0);
        assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 1);
        assert_int_equal(rs_ttrpc_request_decode(&frame, 0, &decoded, &request, &why), 0);
        assert_int_equal(request->timeout_nano, cases[i][1]);
        rs_ttrpc_request_free(request);
    }
    answer(5, "no limit", 0);
    free(call(RS_TTRPC_FOREVER, NULL, NULL, &rc));
    assert_int_equal(rc, 0);
    assert_true(rs_ttrpc_reader_fill(&reader, server_socket, 1) > 0);
    assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 1);
    assert_int_equal(rs_ttrpc_request_decode(&frame, 0, &decoded, &request, &why), 0);
    assert_int_equal(request->timeout_nano, 0);
    rs_ttrpc_request_free(request);
    rs_ttrpc_reader_finish(&reader);
}

static void closed_connection_stays_closed(void **state)
{
    (void)state;
    close(server_socket);
    server_socket = -1;
    assert_int_equal(expect_error(), -RINGSIDE_E_UNAVAILABLE);
    assert_int_equal(client.error, -RINGSIDE_E_UNAVAILABLE);
    assert_int_equal(expect_error(), -RINGSIDE_E_UNAVAILABLE);
}

/* A server that refuses a request and closes, with the request unread. */
static void refusal_before_close_is_heard(void **state)
{
    (void)state;
    rs_ttrpc_respond_error(&server, 1, -RINGSIDE_E_LIMIT, "request too long");
    rs_ttrpc_writer_flush(&server, server_socket);
    close(server_socket);
    server_socket = -1;
    assert_int_equal(expect_error(), -RINGSIDE_E_LIMIT);
    assert_string_equal(text, "request too long");
    assert_int_equal(expect_error(), -RINGSIDE_E_UNAVAILABLE);
}

static void half_answer_then_end(void **state)
{
    (void)state;
    assert_int_equal(write(server_socket, "\0\0\0\7\0\0\0\1\2\0abc", 13), 13);
    assert_int_equal(shutdown(server_socket, SHUT_WR), 0);
    assert_int_equal(expect_error(), -RINGSIDE_E_UNAVAILABLE);
}

static void nonsense_ends_the_connection(void **state)
{
    static const struct {
        uint8_t header[RS_FRAME_HEADER_BYTES];
        int error;
    } cases[] = {
        {{0x00, 0x40, 0, 1, 0, 0, 0, 1, 2, 0}, -RINGSIDE_E_LIMIT}, /* 4 MiB + 1 */
        {{0xff, 0xff, 255, 255, 0, 0, 0, 1, 2, 0}, -RINGSIDE_E_LIMIT},
        {{0, 0, 0, 0, 0, 0, 0, 5, 2, 0}, -RINGSIDE_E_PROTOCOL}, /* never asked */
        {{0, 0, 0, 0, 0, 0, 0, 2, 2, 0}, -RINGSIDE_E_PROTOCOL}, /* not ours to ask */
        {{0, 0, 0, 0, 0, 0, 0, 0, 2, 0}, -RINGSIDE_E_PROTOCOL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(write(server_socket, cases[i].header, 10), 10);
        assert_int_equal(expect_error(), cases[i].error);
        assert_int_equal(client.error, cases[i].error);
        stop(state);
        start(state);
    }
}

static void unknown_types_ignored(void **state)
{
    (void)state;
    assert_int_equal(write(server_socket, "\0\0\0\1\0\0\0\1\x09\0x", 11), 11);
    assert_int_equal(write(server_socket, "\0\0\0\0\0\0\0\2\x01\0", 10), 10);
    answer(1, "after", 0);
    expect("after");
}

/* Frames of no interest are not read on and on when the caller's time is over. */
static void flood_does_not_hold(void **state)
{
    uint8_t frames[4000] = {0};
    int rc, unread = 0;

    (void)state;
    for (size_t i = 0; i < sizeof frames; i += RS_FRAME_HEADER_BYTES)
        frames[i + 8] = 9;
    while (send(server_socket, frames, sizeof frames, MSG_DONTWAIT) > 0)
        ;
    assert_null(call(0, NULL, NULL, &rc));
    assert_int_equal(rc, -RINGSIDE_E_TIMEOUT);
    assert_int_equal(ioctl(client.socket, FIONREAD, &unread), 0);
    assert_true(unread > 50000);
}

/* A request larger than the socket takes, to a server that reads it late. */
static void *read_and_answer(void *argument)
{
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;
    size_t *length = argument;

    rs_ttrpc_reader_init(&reader, RS_FRAME_MAX_BYTES);
    while (rs_ttrpc_reader_next(&reader, &frame) == 0) {
        ssize_t rc = rs_ttrpc_reader_fill(&reader, server_socket, 1);
        if (rc == 0 || (rc < 0 && rc != -EAGAIN))
            break;
    }
    *length = frame.header.length;
    rs_ttrpc_reader_finish(&reader);
    answer(1, "all of it", 0);
    return NULL;
}

static void large_request(void **state)
{
    Ringside__Ttrpc__V1__Request request = RINGSIDE__TTRPC__V1__REQUEST__INIT;
    ProtobufCMessage *response;
    pthread_t thread;
    size_t length = 0;

    (void)state;
    request.payload.len = 3 << 20;
    request.payload.data = calloc(1, request.payload.len);
    assert_int_equal(pthread_create(&thread, NULL, read_and_answer, &length), 0);
    int rc = rs_ttrpc_call(&client, "s", "m", &request.base, PAIR_TYPE, &response, NULL, NULL, SOON,
                           text, sizeof text);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    assert_true(length > request.payload.len);
    protobuf_c_message_free_unpacked(response, NULL);
    free(request.payload.data);

    request.payload.len = RS_FRAME_MAX_BYTES;
    request.payload.data = calloc(1, request.payload.len);
    rc = rs_ttrpc_call(&client, "s", "m", &request.base, PAIR_TYPE, &response, NULL, NULL, SOON,
                       text, sizeof text);
    assert_int_equal(rc, -RINGSIDE_E_TOO_BIG);
    assert_int_equal(client.error, 0);
    free(request.payload.data);
}

static void nth_allocation_fails(void **state)
{
    int rc = -1, nth;

    for (nth = 0; rc != 0; nth++) {
        stop(state);
        start(state);
        answer(1, "value", 2);
        alloc_countdown = nth;
        ProtobufCMessage *response;
        rc = rs_ttrpc_call(&client, "s", "m", NULL, PAIR_TYPE, &response, NULL, NULL, SOON, text,
                           sizeof text);
        alloc_countdown = INT_MAX;
        assert_true(rc == 0 || rc == -ENOMEM);
        protobuf_c_message_free_unpacked(response, NULL);
    }
    assert_true(nth > 5);
}

/* ---- Connecting. ---- */

static char path[64];

static int listen_at(int backlog)
{
    struct sockaddr_un address;
    socklen_t bytes;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(path, sizeof path, "/tmp/rs-test-client-%d", getpid());
    unlink(path);
    rs_socket_address(&address, path, &bytes);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    if (backlog >= 0)
        assert_int_equal(listen(fd, backlog), 0);
    return fd;
}

static void connect_refusals(void **state)
{
    struct rs_ttrpc_client other;
    char long_path[200];

    (void)state;
    assert_int_equal(rs_ttrpc_client_connect(&other, "/nonexistent/socket", 0, text, sizeof text),
                     -RINGSIDE_E_UNAVAILABLE);
    assert_non_null(strstr(text, "/nonexistent/socket"));
    rs_ttrpc_client_finish(&other);
    int fd = listen_at(-1); /* bound and not listening, as a dead sidecar leaves it */
    assert_int_equal(rs_ttrpc_client_connect(&other, path, 5000000, text, sizeof text),
                     -RINGSIDE_E_UNAVAILABLE);
    assert_non_null(strstr(text, "refused"));
    close(fd);
    unlink(path);
    memset(long_path, 'p', sizeof long_path);
    long_path[108] = '\0';
    assert_int_equal(rs_ttrpc_client_connect(&other, long_path, SOON, text, sizeof text),
                     -ENAMETOOLONG);
    assert_non_null(strstr(text, "108 bytes, at most 107"));
    assert_int_equal(rs_ttrpc_client_connect(&other, "/dev/null/x", SOON, text, sizeof text),
                     -ENOTDIR);
    rs_ttrpc_client_finish(&other);
}

/* Connections that fill the listener's queue. */
static size_t fill_queue(int fds[64])
{
    struct sockaddr_un address;
    socklen_t bytes;

    rs_socket_address(&address, path, &bytes);
    for (size_t count = 0; count < 64; count++) {
        fds[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (connect(fds[count], (struct sockaddr *)&address, bytes) < 0) {
            assert_int_equal(errno, EAGAIN);
            close(fds[count]);
            return count;
        }
    }
    fail();
    return 0;
}

static void *accept_later(void *argument)
{
    struct timespec pause = {0, 30000000};
    int fd = *(int *)argument;

    nanosleep(&pause, NULL);
    return (void *)(intptr_t)accept4(fd, NULL, NULL, SOCK_CLOEXEC);
}

static void full_queue_is_waited_for(void **state)
{
    struct rs_ttrpc_client other;
    pthread_t thread;
    void *accepted;
    int fds[64], fd = listen_at(1);
    size_t count = fill_queue(fds);

    (void)state;
    assert_int_equal(rs_ttrpc_client_connect(&other, path, 0, text, sizeof text),
                     -RINGSIDE_E_UNAVAILABLE);
    assert_non_null(strstr(text, "queue"));
    assert_int_equal(pthread_create(&thread, NULL, accept_later, &fd), 0);
    assert_int_equal(rs_ttrpc_client_connect(&other, path, SOON, text, sizeof text), 0);
    pthread_join(thread, &accepted);
    rs_ttrpc_client_finish(&other);
    rs_fd_close(fds, count);
    close((int)(intptr_t)accepted);
    close(fd);
    unlink(path);
}

static void *listen_later(void *unused)
{
    struct timespec pause = {0, 30000000};

    (void)unused;
    nanosleep(&pause, NULL);
    return (void *)(intptr_t)listen_at(8);
}

static void late_listener_is_waited_for(void **state)
{
    struct rs_ttrpc_client other;
    pthread_t thread;
    void *listener;

    (void)state;
    snprintf(path, sizeof path, "/tmp/rs-test-client-%d", getpid());
    char expected[sizeof path];
    memcpy(expected, path, sizeof path);
    assert_int_equal(pthread_create(&thread, NULL, listen_later, NULL), 0);
    assert_int_equal(rs_ttrpc_client_connect(&other, expected, RS_TTRPC_FOREVER, text, sizeof text),
                     0);
    pthread_join(thread, &listener);
    rs_ttrpc_client_finish(&other);
    close((int)(intptr_t)listener);
    unlink(expected);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(answers),
        CASE(descriptors_arrive),
        CASE(late_answer_dropped),
        CASE(error_is_told),
        CASE(deadline_travels),
        CASE(closed_connection_stays_closed),
        CASE(refusal_before_close_is_heard),
        CASE(half_answer_then_end),
        CASE(nonsense_ends_the_connection),
        CASE(unknown_types_ignored),
        CASE(flood_does_not_hold),
        CASE(large_request),
        CASE(nth_allocation_fails),
        CASE(connect_refusals),
        CASE(full_queue_is_waited_for),
        CASE(late_listener_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Connect with patience, then one call at a time with poll and a deadline. */
#include "proto/ttrpc_client.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "proto/err.h"

#define MS_NS          INT64_C(1000000)
#define RETRY_FIRST_NS (2 * MS_NS)
#define RETRY_MOST_NS  (100 * MS_NS)

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int64_t deadline_after(int64_t timeout_ns)
{
    int64_t at;

    if (timeout_ns < 0 || __builtin_add_overflow(now(), timeout_ns, &at))
        return RS_NO_DEADLINE;
    return at;
}

void rs_ttrpc_client_init(struct rs_ttrpc_client *client, int socket)
{
    client->socket = socket;
    client->error = 0;
    rs_ttrpc_streams_init(&client->streams, true);
    rs_ttrpc_reader_init(&client->reader, RS_FRAME_MAX_BYTES);
    rs_ttrpc_writer_init(&client->writer, RS_FRAME_HEADER_BYTES + RS_FRAME_MAX_BYTES);
}

void rs_ttrpc_client_finish(struct rs_ttrpc_client *client)
{
    if (client == NULL)
        return;
    rs_ttrpc_reader_finish(&client->reader);
    rs_ttrpc_writer_finish(&client->writer);
    if (client->socket >= 0)
        close(client->socket);
    client->socket = -1;
    client->error = -RINGSIDE_E_UNAVAILABLE;
}

/* A time from the upper half of the interval: clients that failed together come back apart. */
static void sleep_about(int64_t interval_ns, int64_t deadline_ns)
{
    uint32_t random = 0;

    if (getrandom(&random, sizeof random, GRND_NONBLOCK) < 0)
        random = (uint32_t)now() * 2654435761u;
    int64_t left_ns = deadline_ns - now();
    int64_t sleep_ns = interval_ns / 2 + (int64_t)random % (interval_ns / 2);
    if (sleep_ns > left_ns)
        sleep_ns = left_ns;
    if (sleep_ns <= 0)
        return;
    struct timespec time = {sleep_ns / 1000000000, sleep_ns % 1000000000};
    nanosleep(&time, NULL);
}

/* A connected socket, or -errno. */
static int try_connect(const struct sockaddr_un *address, socklen_t address_bytes)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    while (connect(fd, (const struct sockaddr *)address, address_bytes) < 0) {
        if (errno == EINTR)
            continue;
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

static bool may_pass(int error)
{
    return error == -EAGAIN || error == -ECONNREFUSED || error == -ENOENT;
}

static int connect_until(const char *path, int64_t deadline_ns)
{
    struct sockaddr_un address;
    socklen_t address_bytes;
    int rc = rs_socket_address(&address, path, &address_bytes);

    if (rc < 0)
        return rc;
    for (int64_t interval_ns = RETRY_FIRST_NS;; interval_ns *= 2) {
        rc = try_connect(&address, address_bytes);
        if (rc >= 0 || !may_pass(rc) || now() >= deadline_ns)
            return rc;
        if (interval_ns > RETRY_MOST_NS)
            interval_ns = RETRY_MOST_NS;
        sleep_about(interval_ns, deadline_ns);
    }
}

int rs_ttrpc_client_connect(struct rs_ttrpc_client *client, const char *path, int64_t timeout_ns,
                            char *text, size_t text_bytes)
{
    int rc = connect_until(path, deadline_after(timeout_ns));

    rs_ttrpc_client_init(client, rc < 0 ? -1 : rc);
    if (rc >= 0)
        return 0;
    client->error = -RINGSIDE_E_UNAVAILABLE;
    if (rc == -ENAMETOOLONG)
        snprintf(text, text_bytes, "socket path of %zu bytes, at most %d are possible: %s",
                 strlen(path), RS_SOCKET_PATH_MAX, path);
    else if (rc == -EAGAIN)
        snprintf(text, text_bytes, "cannot connect to %s: its queue stays full", path);
    else
        snprintf(text, text_bytes, "cannot connect to %s: %s%s", path, rs_strerror(rc),
                 may_pass(rc) ? "; is the sidecar running?" : "");
    return may_pass(rc) ? -RINGSIDE_E_UNAVAILABLE : rc;
}

/* Waits for the socket: 0 or -RINGSIDE_E_TIMEOUT. Errors show in the read or write that follows. */
static int wait_for(struct rs_ttrpc_client *client, short events, int64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = client->socket, .events = events};
    struct timespec time;

    for (;;) {
        int64_t left_ns = deadline_ns - now();
        if (left_ns < 0)
            left_ns = 0;
        time = (struct timespec){left_ns / 1000000000, left_ns % 1000000000};
        int rc = ppoll(&poll_fd, 1, deadline_ns == RS_NO_DEADLINE ? NULL : &time, NULL);
        if (rc > 0)
            return 0;
        if (rc == 0)
            return -RINGSIDE_E_TIMEOUT;
        if (errno != EINTR)
            return -errno;
    }
}

static int send_all(struct rs_ttrpc_client *client, int64_t deadline_ns)
{
    int rc;

    while ((rc = rs_ttrpc_writer_flush(&client->writer, client->socket)) > 0) {
        rc = wait_for(client, POLLOUT, deadline_ns);
        if (rc < 0)
            return rc;
    }
    return rc;
}

/* The frame that answers `stream`; anything else is dropped, with its descriptors. */
static int receive_answer(struct rs_ttrpc_client *client, uint32_t stream, int64_t deadline_ns,
                          struct rs_frame *frame)
{
    bool last_look = false; /* frames of no interest must not hold a caller past its deadline */

    for (;;) {
        int rc = rs_ttrpc_reader_next(&client->reader, frame);
        if (rc < 0)
            return rc;
        if (rc > 0) {
            if (frame->header.type != RS_FRAME_RESPONSE)
                continue;
            if (frame->header.stream == stream)
                return 0;
            if (!rs_ttrpc_stream_is_ours(&client->streams, frame->header.stream))
                return -RINGSIDE_E_PROTOCOL;
            continue;
        }
        if (last_look)
            return -RINGSIDE_E_TIMEOUT;
        last_look = now() >= deadline_ns;
        rc = wait_for(client, POLLIN, deadline_ns);
        if (rc < 0)
            return rc;
        ssize_t received = rs_ttrpc_reader_fill(&client->reader, client->socket, now());
        if (received == 0)
            return -RINGSIDE_E_UNAVAILABLE;
        if (received < 0 && received != -EAGAIN)
            return (int)received;
    }
}

static void take_fds(struct rs_ttrpc_client *client, size_t count, int *fds, size_t room,
                     size_t *fd_count)
{
    for (size_t i = 0; i < count && i < room; i++)
        fds[(*fd_count)++] = rs_fd_queue_take(&client->reader.fds);
}

/* Turns what the connection did into an error for the caller, and ends the connection by it. */
static int fail(struct rs_ttrpc_client *client, int error, const char *service, const char *method,
                char *text, size_t text_bytes)
{
    if (error == -RINGSIDE_E_TIMEOUT) {
        snprintf(text, text_bytes, "no answer to %s/%s in the time allowed", service, method);
        return error;
    }
    if (error == -EPIPE || error == -ECONNRESET)
        error = -RINGSIDE_E_UNAVAILABLE;
    client->error = error;
    if (error == -RINGSIDE_E_UNAVAILABLE)
        snprintf(text, text_bytes, "the connection was closed before %s/%s was answered", service,
                 method);
    else
        snprintf(text, text_bytes, "the connection failed in %s/%s: %s", service, method,
                 rs_strerror(error));
    return error;
}

/* Opens a stream and queues the request. */
static int ask(struct rs_ttrpc_client *client, struct rs_ttrpc_request *request, char *text,
               size_t text_bytes)
{
    int rc = client->error;

    if (rc < 0) {
        snprintf(text, text_bytes, "the connection is over; connect anew");
        return rc;
    }
    rc = rs_ttrpc_stream_open(&client->streams, &request->stream);
    if (rc == 0)
        rc = rs_ttrpc_request_write(&client->writer, request, NULL, 0);
    if (rc < 0)
        snprintf(text, text_bytes, "cannot ask %s/%s: %s", request->service, request->method,
                 rs_strerror(rc));
    return rc;
}

int rs_ttrpc_call(struct rs_ttrpc_client *client, const char *service, const char *method,
                  const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                  ProtobufCMessage **response, int *fds, size_t *fd_count, int64_t timeout_ns,
                  char *text, size_t text_bytes)
{
    size_t room = fds != NULL && fd_count != NULL ? *fd_count : 0;
    int64_t deadline_ns = deadline_after(timeout_ns);
    /* On the wire 0 means no limit. */
    int64_t travels_ns = timeout_ns < 0 ? 0 : timeout_ns == 0 ? 1 : timeout_ns;
    struct rs_ttrpc_request call = {
        .service = service, .method = method, .payload = request, .timeout_ns = travels_ns};
    struct rs_frame frame;

    *response = NULL;
    if (fd_count != NULL)
        *fd_count = 0;
    int rc = ask(client, &call, text, text_bytes);
    if (rc < 0)
        return rc;
    rc = send_all(client, deadline_ns);
    if (rc == -EPIPE || rc == -ECONNRESET) {
        /* Who refuses a request says so before it closes. */
        client->error = -RINGSIDE_E_UNAVAILABLE;
        rc = 0;
    }
    if (rc == 0)
        rc = receive_answer(client, call.stream, deadline_ns, &frame);
    if (rc < 0)
        return fail(client, rc, service, method, text, text_bytes);
    rc = rs_ttrpc_response_decode(&frame, type, response, text, text_bytes);
    if (rc == 0 && room > 0)
        take_fds(client, frame.fd_count, fds, room, fd_count);
    /* Until the next call nothing would close what came and was not taken. */
    rs_fd_queue_close(&client->reader.fds,
                      rs_fd_queue_count_to(&client->reader.fds, client->reader.stream_begin));
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: frames in and out, calls with deadlines, answers that are tracked until the kernel
 * has them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/fdpass.h"
#include "proxy/conn_private.h"
#include "proxy/proxy.h"

static int64_t now_ns(void)
{
    return (int64_t)uv_hrtime();
}

/* ---- output ---- */

static void on_poll(uv_poll_t *poll, int status, int events);

static void update_events(struct conn *conn)
{
    int events = UV_READABLE;

    if (conn->stalled)
        events = 0;
    if (rs_ttrpc_writer_pending(&conn->writer) > 0)
        events |= UV_WRITABLE;
    if (conn->closing || events == conn->events)
        return;
    conn->events = events;
    uv_poll_start(&conn->poll, events, on_poll);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void on_timer(uv_timer_t *timer);

void conn_update_timer(struct conn *conn)
{
    int64_t at = INT64_MAX;

    if (conn->closing)
        return;
    if (conn->failed != NULL || conn->connected != NULL)
        at = 0;
    at = earlier(at, conn_next_deadline(conn));
    int64_t half = conn->stalled ? 0 : rs_ttrpc_reader_half_since(&conn->reader);
    if (half != 0)
        at = earlier(at, half + CONN_HALF_FRAME_NS);
    if (conn->blocked_ns != 0)
        at = earlier(at, conn->blocked_ns + CONN_SILENT_READ_NS);
    if (at == INT64_MAX) {
        if (uv_is_active((uv_handle_t *)&conn->timer))
            uv_timer_stop(&conn->timer);
        return;
    }
    int64_t left = at - now_ns();
    uv_timer_start(&conn->timer, on_timer, left > 0 ? (uint64_t)(left + 999999) / 1000000 : 0, 0);
}

/* Closing waits for a turn of its own: the caller may still use what the connection owns. */
void conn_fail(struct conn *conn, const char *reason)
{
    if (conn->failed == NULL && !conn->closing) {
        conn->failed = reason;
        conn_update_timer(conn);
    }
}

void conn_flush(struct conn *conn)
{
    if (conn->closing || conn->failed != NULL)
        return;
    size_t before = rs_ttrpc_writer_pending(&conn->writer);
    if (before == 0)
        return;
    int rc = rs_ttrpc_writer_flush(&conn->writer, conn->socket);
    conn_settle_deliveries(conn, false);
    if (rc < 0) {
        conn_fail(conn,
                  rc == -EPIPE || rc == -ECONNRESET ? "the other side is gone" : "sending failed");
        return;
    }
    size_t left = rs_ttrpc_writer_pending(&conn->writer);
    if (left == 0)
        conn->blocked_ns = 0;
    else if (left < before || conn->blocked_ns == 0)
        conn->blocked_ns = now_ns();
    update_events(conn);
}

int conn_queued(struct conn *conn, int rc)
{
    if (rc < 0) {
        conn_fail(conn, "the other side does not read its answers");
        return rc;
    }
    if (!conn->corked) {
        conn_flush(conn);
        conn_update_timer(conn);
    }
    return conn->failed != NULL ? -RINGSIDE_E_UNAVAILABLE : 0;
}

/* ---- events ---- */

static void handle_frames(struct conn *conn)
{
    struct rs_frame frame;
    char text[128];
    int rc;

    conn->corked = true;
    conn->stalled = false;
    while (!conn->closing && conn->failed == NULL) {
        if (conn_is_behind(conn)) {
            conn_flush(conn);
            if (conn_is_behind(conn)) {
                conn->stalled = true;
                break;
            }
        }
        rc = rs_ttrpc_reader_next(&conn->reader, &frame);
        if (rc == 0)
            break;
        if (rc < 0) {
            snprintf(text, sizeof text, "the frame announces %u bytes, the limit is %u",
                     frame.header.length, RS_FRAME_REQUEST_BYTES);
            conn_respond_error(conn, frame.header.stream, -RINGSIDE_E_LIMIT, text);
            conn_flush(conn);
            conn_fail(conn, "frame over the limit");
            break;
        }
        if (frame.header.type == RS_FRAME_REQUEST)
            conn_handle_request(conn, &frame);
        else if (frame.header.type == RS_FRAME_RESPONSE)
            conn_handle_response(conn, &frame);
        else if (frame.header.type == RS_FRAME_DATA)
            conn_handle_data(conn, &frame);
    }
    conn->corked = false;
    conn_flush(conn);
    update_events(conn);
    conn_update_timer(conn);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct conn *conn = poll->data;

    if (status < 0) { /* libuv polls no more; what was sent before the end still counts */
        if (!conn->stalled && conn->failed == NULL &&
            rs_ttrpc_reader_fill(&conn->reader, conn->socket, now_ns()) > 0)
            handle_frames(conn);
        conn_close(conn, "reset by the other side");
        return;
    }
    if (events & UV_WRITABLE) {
        conn_flush(conn);
        if (conn->stalled)
            handle_frames(conn);
    }
    if ((events & UV_READABLE) == 0 || conn->stalled || conn->closing || conn->failed != NULL) {
        conn_update_timer(conn);
        return;
    }
    ssize_t got = rs_ttrpc_reader_fill(&conn->reader, conn->socket, now_ns());
    if (got > 0 || got == -ENOBUFS)
        handle_frames(conn);
    else if (got == 0)
        conn_close(conn, "closed by the other side");
    else if (got != -EAGAIN)
        conn_close(conn, rs_strerror((int)got));
}

static void on_timer(uv_timer_t *timer)
{
    struct conn *conn = timer->data;
    int64_t now = now_ns();

    if (conn->failed != NULL) {
        conn_close(conn, conn->failed);
        return;
    }
    if (conn->connected != NULL) {
        conn_connected_cb *connected = conn->connected;
        conn->connected = NULL;
        connected(conn, 0, conn->connected_data);
    }
    conn_expire_calls(conn, now);
    if (conn->closing)
        return;
    int64_t half = conn->stalled ? 0 : rs_ttrpc_reader_half_since(&conn->reader);
    if (half != 0 && half + CONN_HALF_FRAME_NS <= now)
        conn_close(conn, "a frame did not arrive whole within 5 s");
    else if (conn->blocked_ns != 0 && conn->blocked_ns + CONN_SILENT_READ_NS <= now)
        conn_close(conn, "the other side has not read for 30 s");
    else
        conn_update_timer(conn);
}

/* ---- life ---- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;

    if (--conn->handles > 0)
        return;
    close(conn->socket);
    rs_ttrpc_reader_finish(&conn->reader);
    rs_ttrpc_writer_finish(&conn->writer);
    free(conn);
}

struct conn *conn_create(struct proxy *proxy, int socket, bool outgoing)
{
    struct listener *listener = proxy->listener;
    struct conn *conn = calloc(1, sizeof *conn);

    if (conn == NULL || uv_poll_init(&proxy->loop, &conn->poll, socket) < 0) {
        free(conn);
        close(socket);
        return NULL;
    }
    uv_timer_init(&proxy->loop, &conn->timer);
    conn->poll.data = conn->timer.data = conn;
    conn->handles = 2;
    conn->proxy = proxy;
    conn->socket = socket;
    conn->outgoing = outgoing;
    conn->serial = ++listener->serial;
    rs_ttrpc_reader_init(&conn->reader, RS_FRAME_REQUEST_BYTES);
    rs_ttrpc_writer_init(&conn->writer, CONN_OUTPUT_BYTES);
    rs_ttrpc_streams_init(&conn->streams, outgoing);
    conn->previous = listener->last;
    if (listener->last != NULL)
        listener->last->next = conn;
    else
        listener->first = conn;
    listener->last = conn;
    listener->count++;
    listener->unowned += !outgoing;
    update_events(conn);
    return conn;
}

static void unlink_conn(struct conn *conn)
{
    struct listener *listener = conn->proxy->listener;

    if (conn->next != NULL)
        conn->next->previous = conn->previous;
    else
        listener->last = conn->previous;
    if (conn->previous != NULL)
        conn->previous->next = conn->next;
    else
        listener->first = conn->next;
    listener->count--;
    listener->unowned -= !conn->outgoing && conn->closed == NULL;
}

void conn_close(struct conn *conn, const char *reason)
{
    if (conn->closing)
        return;
    conn->closing = true;
    unlink_conn(conn);
    log_debug(&conn->proxy->log, "socket", conn->serial, "connection over: %s", reason);
    conn_settle_deliveries(conn, true);
    conn_cancel_calls(conn, reason);
    if (conn->closed != NULL)
        conn->closed(conn, conn->owner);
    uv_close((uv_handle_t *)&conn->poll, on_handle_closed);
    uv_close((uv_handle_t *)&conn->timer, on_handle_closed);
}

void conn_close_all(struct proxy *proxy)
{
    while (proxy->listener != NULL && proxy->listener->first != NULL)
        conn_close(proxy->listener->first, "the sidecar ends");
}

void conn_on_closed(struct conn *conn, conn_closed_cb *closed, void *data)
{
    if (!conn->outgoing && !conn->closing && (closed == NULL) != (conn->closed == NULL)) {
        if (closed == NULL)
            conn->proxy->listener->unowned++;
        else
            conn->proxy->listener->unowned--;
    }
    conn->closed = closed;
    conn->owner = data;
}

void *conn_owner(struct conn *conn)
{
    return conn->owner;
}

void *conn_owner_of(struct conn *conn, conn_closed_cb *closed)
{
    return conn->closed == closed ? conn->owner : NULL;
}

bool conn_is_behind(const struct conn *conn)
{
    return rs_ttrpc_writer_pending(&conn->writer) > CONN_OUTPUT_HIGH;
}

bool conn_is_outgoing(const struct conn *conn)
{
    return conn->outgoing;
}

struct proxy *conn_proxy(struct conn *conn)
{
    return conn->proxy;
}

int conn_socket(struct conn *conn)
{
    return conn->socket;
}

uint64_t conn_serial(struct conn *conn)
{
    return conn->serial;
}

int conn_connect(struct proxy *proxy, const char *path, conn_connected_cb *connected, void *data)
{
    struct sockaddr_un address;
    socklen_t bytes;

    int rc = rs_socket_address(&address, path, &bytes);
    if (rc < 0)
        return rc;
    if (proxy->listener == NULL)
        return -RINGSIDE_E_UNAVAILABLE;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, bytes) < 0) {
        rc = -errno;
        close(fd);
        return rc;
    }
    struct conn *conn = conn_create(proxy, fd, true);
    if (conn == NULL)
        return -ENOMEM;
    conn->connected = connected;
    conn->connected_data = data;
    conn_update_timer(conn);
    return 0;
}

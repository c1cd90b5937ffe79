/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: frames in and out, calls with deadlines, answers that are tracked until the kernel has them. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/decode.h"
#include "proto/err.h"
#include "proto/fdpass.h"
#include "proxy/conn_private.h"
#include "proxy/proxy.h"

struct call {
    struct conn_call call; /* first: the handler's pointer is this struct's */
    struct call *next;
    Ringside__Ttrpc__V1__Request *request; /* owned; service and method lie in it */
};

struct out_call {
    struct out_call *next;
    uint32_t stream;
    int64_t deadline_ns;
    const ProtobufCMessageDescriptor *type;
    conn_response_cb *callback;
    void *data;
};

struct delivery {
    struct delivery *next;
    uint64_t position; /* in the output stream, after the answer's last byte */
    conn_done_cb *done;
    void *data;
};

static int64_t now_ns(void)
{
    return (int64_t)uv_hrtime();
}

/* ---- output ---- */

static void settle_deliveries(struct conn *conn, bool all)
{
    struct delivery *delivery;

    while ((delivery = conn->deliveries) != NULL &&
           (all || delivery->position <= conn->writer.stream_begin)) {
        bool delivered = delivery->position <= conn->writer.stream_begin;
        conn->deliveries = delivery->next;
        if (conn->deliveries == NULL)
            conn->last_delivery = NULL;
        delivery->done(delivery->data, delivered);
        free(delivery);
    }
}

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

static void update_timer(struct conn *conn)
{
    int64_t at = INT64_MAX;

    if (conn->closing)
        return;
    if (conn->failed != NULL || conn->connected != NULL)
        at = 0;
    for (struct call *call = conn->calls; call != NULL; call = call->next)
        at = earlier(at, call->call.deadline_ns);
    for (struct out_call *out = conn->outs; out != NULL; out = out->next)
        at = earlier(at, out->deadline_ns);
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
static void fail(struct conn *conn, const char *reason)
{
    if (conn->failed == NULL && !conn->closing) {
        conn->failed = reason;
        update_timer(conn);
    }
}

static void flush(struct conn *conn)
{
    if (conn->closing || conn->failed != NULL)
        return;
    size_t before = rs_ttrpc_writer_pending(&conn->writer);
    if (before == 0)
        return;
    int rc = rs_ttrpc_writer_flush(&conn->writer, conn->socket);
    settle_deliveries(conn, false);
    if (rc < 0) {
        fail(conn, rc == -EPIPE || rc == -ECONNRESET ? "the other side is gone" : "sending failed");
        return;
    }
    size_t left = rs_ttrpc_writer_pending(&conn->writer);
    if (left == 0)
        conn->blocked_ns = 0;
    else if (left < before || conn->blocked_ns == 0)
        conn->blocked_ns = now_ns();
    update_events(conn);
}

static int queued(struct conn *conn, int rc)
{
    if (rc < 0) {
        fail(conn, "the other side does not read its answers");
        return rc;
    }
    if (!conn->corked) {
        flush(conn);
        update_timer(conn);
    }
    return conn->failed != NULL ? -RINGSIDE_E_UNAVAILABLE : 0;
}

/* ---- calls of the other side ---- */

static void unlink_call(struct call *call)
{
    struct conn *conn = call->call.conn;
    struct call **link = &conn->calls;

    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    conn->call_count--;
}

static void free_call(struct call *call)
{
    rs_ttrpc_request_free(call->request);
    free(call);
}

static int reply(struct conn_call *public_call, const ProtobufCMessage *response, const int *fds,
                 size_t fd_count, conn_done_cb *done, void *data)
{
    struct call *call = (struct call *)public_call;
    struct conn *conn = public_call->conn;
    struct delivery *delivery = NULL;
    int rc = -RINGSIDE_E_UNAVAILABLE;

    if (done != NULL && (delivery = calloc(1, sizeof *delivery)) == NULL)
        rc = -ENOMEM;
    else if (!conn->closing && conn->failed == NULL)
        rc = rs_ttrpc_respond(&conn->writer, public_call->stream, response, fds, fd_count);
    unlink_call(call);
    free_call(call);
    if (rc < 0)
        rs_fd_close(fds, fd_count);
    if (rc < 0 || done == NULL) {
        free(delivery);
        return queued(conn, rc);
    }
    delivery->position = conn->writer.stream_begin + rs_ttrpc_writer_pending(&conn->writer);
    delivery->done = done;
    delivery->data = data;
    if (conn->last_delivery != NULL)
        conn->last_delivery->next = delivery;
    else
        conn->deliveries = delivery;
    conn->last_delivery = delivery;
    queued(conn, 0); /* a failure is told through done */
    return 0;
}

int conn_reply(struct conn_call *call, const ProtobufCMessage *response, const int *fds,
               size_t fd_count)
{
    return reply(call, response, fds, fd_count, NULL, NULL);
}

int conn_reply_tracked(struct conn_call *call, const ProtobufCMessage *response, const int *fds,
                       size_t fd_count, conn_done_cb *done, void *data)
{
    return reply(call, response, fds, fd_count, done, data);
}

static void respond_error(struct conn *conn, uint32_t stream, int error, const char *text)
{
    if (!conn->closing && conn->failed == NULL)
        queued(conn, rs_ttrpc_respond_error(&conn->writer, stream, error, text));
}

void conn_reply_error(struct conn_call *public_call, int error, const char *format, ...)
{
    struct call *call = (struct call *)public_call;
    char text[RS_TTRPC_MESSAGE_MAX];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    unlink_call(call);
    respond_error(public_call->conn, public_call->stream, error, text);
    free_call(call);
}

ProtobufCMessage *conn_decode(struct conn_call *call, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *message;

    int rc = rs_decode(type, call->payload, call->payload_bytes, &message);
    if (rc < 0)
        conn_reply_error(call, rc, "the payload of %s is not a %s (%zu bytes)", call->method,
                         type->name, call->payload_bytes);
    return message;
}

void conn_free_message(ProtobufCMessage *message)
{
    if (message != NULL)
        protobuf_c_message_free_unpacked(message, NULL);
}

int conn_take_fd(struct conn *conn)
{
    if (conn->frame_fds == 0)
        return -1;
    int fd = rs_fd_queue_take(&conn->reader.fds);
    conn->frame_fds--;
    return fd >= 0 ? fd : -1;
}

static struct call *admit_call(struct conn *conn, const struct rs_frame *frame)
{
    struct rs_ttrpc_call header;
    Ringside__Ttrpc__V1__Request *request;
    const char *why;
    uint32_t stream = frame->header.stream;

    if (rs_ttrpc_stream_accept(&conn->streams, stream) < 0) {
        respond_error(conn, stream, -RINGSIDE_E_INVALID,
                      "stream id is of the wrong parity or was used before");
        fail(conn, "wrong stream id");
        return NULL;
    }
    int rc = rs_ttrpc_request_decode(frame, now_ns(), &header, &request, &why);
    if (rc < 0) {
        respond_error(conn, stream, rc, why);
        return NULL;
    }
    struct call *call = NULL;
    if (header.streaming)
        respond_error(conn, stream, -RINGSIDE_E_UNIMPLEMENTED, "no method here streams");
    else if (conn->call_count >= CONN_CALLS_MAX)
        respond_error(conn, stream, -RINGSIDE_E_LIMIT,
                      "32 calls of this connection wait already; wait for their answers");
    else if ((call = calloc(1, sizeof *call)) == NULL)
        respond_error(conn, stream, -ENOMEM, NULL);
    if (call == NULL) {
        rs_ttrpc_request_free(request);
        return NULL;
    }
    call->request = request;
    call->call = (struct conn_call){.conn = conn,
                                    .stream = stream,
                                    .service = request->service,
                                    .method = request->method,
                                    .payload = request->payload.data,
                                    .payload_bytes = request->payload.len,
                                    .deadline_ns = header.deadline_ns};
    call->next = conn->calls;
    conn->calls = call;
    conn->call_count++;
    return call;
}

static void handle_request(struct conn *conn, const struct rs_frame *frame)
{
    struct call *call = admit_call(conn, frame);

    if (call == NULL)
        return;
    if (conn->denied) {
        conn_reply_error(&call->call, -RINGSIDE_E_DENIED,
                         "this user id is not in socket.allow_uids of the stage's config");
        flush(conn);
        fail(conn, "user id not allowed");
        return;
    }
    conn->frame_fds = frame->fd_count;
    proxy_dispatch(&call->call);
    conn->frame_fds = 0;
}

/* ---- our calls ---- */

static struct out_call *unlink_out(struct conn *conn, uint32_t stream)
{
    for (struct out_call **link = &conn->outs; *link != NULL; link = &(*link)->next) {
        if ((*link)->stream == stream) {
            struct out_call *out = *link;
            *link = out->next;
            return out;
        }
    }
    return NULL;
}

static void handle_response(struct conn *conn, const struct rs_frame *frame)
{
    struct out_call *out = unlink_out(conn, frame->header.stream);
    ProtobufCMessage *response;
    char text[RS_TTRPC_MESSAGE_MAX] = "";
    int fds[RS_FDPASS_MAX];
    size_t count = 0;

    if (out == NULL)
        return; /* late */
    conn->frame_fds = frame->fd_count;
    while (count < RS_FDPASS_MAX && (fds[count] = conn_take_fd(conn)) >= 0)
        count++;
    int rc = rs_ttrpc_response_decode(frame, out->type, &response, text, sizeof text);
    if (rc < 0) {
        rs_fd_close(fds, count);
        count = 0;
    }
    out->callback(conn, rc, text, response, fds, count, out->data);
    conn_free_message(response);
    free(out);
}

int conn_call_out(struct conn *conn, const char *service, const char *method,
                  const ProtobufCMessage *request, const ProtobufCMessageDescriptor *response_type,
                  int *fds, size_t fd_count, int64_t timeout_ns, conn_response_cb *callback,
                  void *data)
{
    struct rs_ttrpc_request header = {
        .service = service, .method = method, .payload = request, .timeout_ns = timeout_ns};
    struct out_call *out = calloc(1, sizeof *out);
    int rc = out != NULL ? 0 : -ENOMEM;

    if (rc == 0 && (conn->closing || conn->failed != NULL))
        rc = -RINGSIDE_E_UNAVAILABLE;
    if (rc == 0)
        rc = rs_ttrpc_stream_open(&conn->streams, &header.stream);
    if (rc == 0)
        rc = rs_ttrpc_request_write(&conn->writer, &header, fds, fd_count);
    if (rc < 0) {
        rs_fd_close(fds, fd_count);
        free(out);
        return rc;
    }
    *out = (struct out_call){.next = conn->outs,
                             .stream = header.stream,
                             .deadline_ns = timeout_ns > 0 ? now_ns() + timeout_ns : INT64_MAX,
                             .type = response_type,
                             .callback = callback,
                             .data = data};
    conn->outs = out;
    if (!conn->corked)
        flush(conn); /* a failure reaches the callback when the connection closes */
    update_timer(conn);
    return 0;
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
        if (rs_ttrpc_writer_pending(&conn->writer) > CONN_OUTPUT_HIGH) {
            flush(conn);
            if (rs_ttrpc_writer_pending(&conn->writer) > CONN_OUTPUT_HIGH) {
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
            respond_error(conn, frame.header.stream, -RINGSIDE_E_LIMIT, text);
            flush(conn);
            fail(conn, "frame over the limit");
            break;
        }
        if (frame.header.type == RS_FRAME_REQUEST)
            handle_request(conn, &frame);
        else if (frame.header.type == RS_FRAME_RESPONSE)
            handle_response(conn, &frame);
    }
    conn->corked = false;
    flush(conn);
    update_events(conn);
    update_timer(conn);
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
        flush(conn);
        if (conn->stalled)
            handle_frames(conn);
    }
    if ((events & UV_READABLE) == 0 || conn->stalled || conn->closing || conn->failed != NULL) {
        update_timer(conn);
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

static void expire_calls(struct conn *conn, int64_t now)
{
    struct call *call;

    do {
        for (call = conn->calls; call != NULL && call->call.deadline_ns > now;)
            call = call->next;
        if (call == NULL)
            return;
        unlink_call(call);
        respond_error(conn, call->call.stream, -RINGSIDE_E_TIMEOUT, NULL);
        if (call->call.cancelled != NULL)
            call->call.cancelled(&call->call);
        free_call(call);
    } while (!conn->closing);
}

static void expire_outs(struct conn *conn, int64_t now)
{
    struct out_call *out;

    do {
        for (out = conn->outs; out != NULL && out->deadline_ns > now;)
            out = out->next;
        if (out == NULL)
            return;
        unlink_out(conn, out->stream);
        out->callback(conn, -RINGSIDE_E_TIMEOUT, "no answer in time", NULL, NULL, 0, out->data);
        free(out);
    } while (!conn->closing);
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
    expire_calls(conn, now);
    expire_outs(conn, now);
    if (conn->closing)
        return;
    int64_t half = conn->stalled ? 0 : rs_ttrpc_reader_half_since(&conn->reader);
    if (half != 0 && half + CONN_HALF_FRAME_NS <= now)
        conn_close(conn, "a frame did not arrive whole within 5 s");
    else if (conn->blocked_ns != 0 && conn->blocked_ns + CONN_SILENT_READ_NS <= now)
        conn_close(conn, "the other side has not read for 30 s");
    else
        update_timer(conn);
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
    struct call *call;
    struct out_call *out;

    if (conn->closing)
        return;
    conn->closing = true;
    unlink_conn(conn);
    log_debug(&conn->proxy->log, "socket", conn->serial, "connection over: %s", reason);
    settle_deliveries(conn, true);
    while ((call = conn->calls) != NULL) {
        unlink_call(call);
        if (call->call.cancelled != NULL)
            call->call.cancelled(&call->call);
        free_call(call);
    }
    while ((out = conn->outs) != NULL) {
        conn->outs = out->next;
        out->callback(conn, -RINGSIDE_E_UNAVAILABLE, reason, NULL, NULL, 0, out->data);
        free(out);
    }
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
    update_timer(conn);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a connection, both ways: admitted, answered or expired, and answers tracked until the
 * kernel has them. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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

/* ---- tracked answers ---- */

void conn_settle_deliveries(struct conn *conn, bool all)
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

/* A frame was queued with result `rc`: sends it, and tracks it by `delivery`, which it takes over.
 */
static int queue(struct conn *conn, int rc, struct delivery *delivery, conn_done_cb *done,
                 void *data)
{
    if (rc < 0 || delivery == NULL) {
        free(delivery);
        return conn_queued(conn, rc);
    }
    delivery->position = conn->writer.stream_begin + rs_ttrpc_writer_pending(&conn->writer);
    delivery->done = done;
    delivery->data = data;
    if (conn->last_delivery != NULL)
        conn->last_delivery->next = delivery;
    else
        conn->deliveries = delivery;
    conn->last_delivery = delivery;
    conn_queued(conn, 0); /* a failure is told through done */
    return 0;
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
    return queue(conn, rc, delivery, done, data);
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

int conn_stream_send(struct conn_call *call, const ProtobufCMessage *message, conn_done_cb *done,
                     void *data)
{
    struct conn *conn = call->conn;
    struct delivery *delivery = NULL;
    int rc = -RINGSIDE_E_UNAVAILABLE;

    if (done != NULL && (delivery = calloc(1, sizeof *delivery)) == NULL)
        return -ENOMEM; /* the connection is well: the handler ends the stream */
    if (!conn->closing && conn->failed == NULL)
        rc = rs_ttrpc_stream_send(&conn->writer, call->stream, message, NULL, 0);
    return queue(conn, rc, delivery, done, data);
}

void conn_stream_end(struct conn_call *public_call)
{
    struct call *call = (struct call *)public_call;
    struct conn *conn = public_call->conn;
    uint32_t stream = public_call->stream;

    unlink_call(call);
    free_call(call);
    if (!conn->closing && conn->failed == NULL)
        conn_queued(conn, rs_ttrpc_stream_end(&conn->writer, stream));
}

void conn_respond_error(struct conn *conn, uint32_t stream, int error, const char *text)
{
    if (!conn->closing && conn->failed == NULL)
        conn_queued(conn, rs_ttrpc_respond_error(&conn->writer, stream, error, text));
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
    conn_respond_error(public_call->conn, public_call->stream, error, text);
    free_call(call);
}

void conn_reply_status(struct conn_call *public_call, unsigned code, const char *name,
                       const char *text)
{
    struct call *call = (struct call *)public_call;
    struct conn *conn = public_call->conn;

    unlink_call(call);
    if (!conn->closing && conn->failed == NULL)
        conn_queued(conn, rs_ttrpc_respond_status(&conn->writer, public_call->stream, code, name,
                                                  text));
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
        conn_respond_error(conn, stream, -RINGSIDE_E_INVALID,
                           "stream id is of the wrong parity or was used before");
        conn_flush(conn);
        conn_fail(conn, "wrong stream id");
        return NULL;
    }
    int rc = rs_ttrpc_request_decode(frame, now_ns(), &header, &request, &why);
    if (rc < 0) {
        conn_respond_error(conn, stream, rc, why);
        return NULL;
    }
    struct call *call = NULL;
    if (conn->call_count >= CONN_CALLS_MAX)
        conn_respond_error(conn, stream, -RINGSIDE_E_LIMIT,
                           "32 calls of this connection wait already; wait for their answers");
    else if ((call = calloc(1, sizeof *call)) == NULL)
        conn_respond_error(conn, stream, -ENOMEM, NULL);
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
                                    .streaming = header.streaming,
                                    .deadline_ns = header.deadline_ns};
    call->next = conn->calls;
    conn->calls = call;
    conn->call_count++;
    return call;
}

void conn_handle_request(struct conn *conn, const struct rs_frame *frame)
{
    struct call *call = admit_call(conn, frame);

    if (call == NULL)
        return;
    if (conn->denied) {
        conn_reply_error(&call->call, -RINGSIDE_E_DENIED,
                         "this user id is not in socket.allow_uids of the stage's config");
        conn_flush(conn);
        conn_fail(conn, "user id not allowed");
        return;
    }
    conn->frame_fds = frame->fd_count;
    proxy_dispatch(&call->call);
    conn->frame_fds = 0;
}

void conn_handle_data(struct conn *conn, const struct rs_frame *frame)
{
    struct call *call = conn->calls;

    while (call != NULL && call->call.stream != frame->header.stream)
        call = call->next;
    if (call == NULL || !call->call.streaming || call->call.cancelled == NULL ||
        (frame->header.flags & RS_FRAME_REMOTE_CLOSED) == 0)
        return; /* late, or nothing that a method here takes */
    unlink_call(call);
    conn_queued(conn, rs_ttrpc_stream_end(&conn->writer, call->call.stream));
    call->call.cancelled(&call->call);
    free_call(call);
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

void conn_handle_response(struct conn *conn, const struct rs_frame *frame)
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
        conn_flush(conn); /* a failure reaches the callback when the connection closes */
    conn_update_timer(conn);
    return 0;
}

/* ---- deadlines and the end ---- */

int64_t conn_next_deadline(const struct conn *conn)
{
    int64_t at = INT64_MAX;

    for (const struct call *call = conn->calls; call != NULL; call = call->next)
        at = call->call.deadline_ns < at ? call->call.deadline_ns : at;
    for (const struct out_call *out = conn->outs; out != NULL; out = out->next)
        at = out->deadline_ns < at ? out->deadline_ns : at;
    return at;
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
        /* Who is told finds everything undone, and the callee of a call told as well. */
        if (call->call.cancelled != NULL)
            call->call.cancelled(&call->call);
        conn_respond_error(conn, call->call.stream, -RINGSIDE_E_TIMEOUT, NULL);
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

void conn_expire_calls(struct conn *conn, int64_t now)
{
    expire_calls(conn, now);
    if (!conn->closing)
        expire_outs(conn, now);
}

void conn_cancel_calls(struct conn *conn, const char *reason)
{
    struct call *call;
    struct out_call *out;

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
}

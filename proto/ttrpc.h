/* SPDX-License-Identifier: Apache-2.0 */
/* ttrpc calls over frames: requests, responses, streams and their statuses, for either side. */
#ifndef RINGSIDE_PROTO_TTRPC_H
#define RINGSIDE_PROTO_TTRPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/decode.h"
#include "proto/frame.h"
#include "proto/ttrpc_wire.pb-c.h"

#define RS_TTRPC_METADATA_MAX 64         /* pairs in one request */
#define RS_TTRPC_NAME_MAX     255        /* bytes of a service or a method */
#define RS_TTRPC_MESSAGE_MAX  1024       /* bytes of a status message that we send */
#define RS_TTRPC_STREAM_MAX   0x7fffffff /* ids end here: older peers keep them in 32 bits signed */
#define RS_NO_DEADLINE        INT64_MAX

/* ---- Stream ids of one connection, on which both sides may call. ---- */

struct rs_ttrpc_streams {
    uint32_t next; /* our next call's id: odd on the side that connected, even on the other */
    uint32_t last; /* highest id that the other side called with, 0 at first */
};

void rs_ttrpc_streams_init(struct rs_ttrpc_streams *streams, bool connected);

/* Stores our next id; -RINGSIDE_E_LIMIT when they are used up and a new connection is needed. */
int rs_ttrpc_stream_open(struct rs_ttrpc_streams *streams, uint32_t *stream);

/* Admits the id of the other side's request: -RINGSIDE_E_INVALID for wrong parity or one used. */
int rs_ttrpc_stream_accept(struct rs_ttrpc_streams *streams, uint32_t stream);

/* Whether `stream` is one that we opened. */
bool rs_ttrpc_stream_is_ours(const struct rs_ttrpc_streams *streams, uint32_t stream);

/* ---- The side that is called. ---- */

struct rs_ttrpc_call {
    uint32_t stream;     /* to answer on */
    bool streaming;      /* a stream of data frames is expected, not one response */
    bool open;           /* the caller sends data frames too */
    int64_t deadline_ns; /* monotonic; RS_NO_DEADLINE when the caller set none */
};

/*
 * Decodes a request frame and fills in `call`. *request is the caller's to free with
 * rs_ttrpc_request_free; NULL on failure. On failure *why says what was wrong (static storage) and
 * the error is fit for rs_ttrpc_respond_error: -RINGSIDE_E_INVALID, -RINGSIDE_E_LIMIT, -ENOMEM.
 */
int rs_ttrpc_request_decode(const struct rs_frame *frame, int64_t now_ns,
                            struct rs_ttrpc_call *call, Ringside__Ttrpc__V1__Request **request,
                            const char **why);
void rs_ttrpc_request_free(Ringside__Ttrpc__V1__Request *request);

/*
 * The writers below queue one frame and return 0 or what rs_ttrpc_writer_reserve returns, which
 * also says who owns the descriptors. None sends.
 */

/* Ends a call with `payload` (NULL: an empty message). */
int rs_ttrpc_respond(struct rs_ttrpc_writer *writer, uint32_t stream,
                     const ProtobufCMessage *payload, const int *fds, size_t fd_count);

/*
 * Ends a call, streaming or not, with the status of `error`. The status message is "NAME: text", by
 * which the error keeps its identity; `text` NULL stands for rs_strerror(error). Cut at
 * RS_TTRPC_MESSAGE_MAX, and what is not UTF-8 becomes '?'.
 */
int rs_ttrpc_respond_error(struct rs_ttrpc_writer *writer, uint32_t stream, int error,
                           const char *text);
/* The same with any status but OK, for one that somebody else gave. */
int rs_ttrpc_respond_status(struct rs_ttrpc_writer *writer, uint32_t stream, unsigned code,
                            const char *name, const char *text);

/* One message of a stream; the end of a stream that went well (a failed one: respond_error). */
int rs_ttrpc_stream_send(struct rs_ttrpc_writer *writer, uint32_t stream,
                         const ProtobufCMessage *payload, const int *fds, size_t fd_count);
int rs_ttrpc_stream_end(struct rs_ttrpc_writer *writer, uint32_t stream);

/* ---- The side that calls. ---- */

struct rs_ttrpc_metadata {
    const char *key;   /* UTF-8 */
    const char *value; /* UTF-8 */
};

struct rs_ttrpc_request {
    uint32_t stream;                 /* from rs_ttrpc_stream_open */
    uint8_t flags;                   /* 0: unary; RS_FRAME_REMOTE_CLOSED: server streaming */
    const char *service;             /* not empty */
    const char *method;              /* not empty */
    const ProtobufCMessage *payload; /* NULL: an empty message */
    int64_t timeout_ns;              /* 0: none */
    const struct rs_ttrpc_metadata *metadata; /* `metadata_count` pairs */
    size_t metadata_count;                    /* at most RS_TTRPC_METADATA_MAX */
};

/* Queues a request frame: as the writers above, and -RINGSIDE_E_INVALID for a bad name or count. */
int rs_ttrpc_request_write(struct rs_ttrpc_writer *writer, const struct rs_ttrpc_request *request,
                           const int *fds, size_t fd_count);

/*
 * Decodes a response frame. 0: *payload is the message of `type` (freed by
 * protobuf_c_message_free_unpacked). Otherwise *payload is NULL and `text` holds the reason, cut to
 * `text_bytes` and without the error's name: the called side's error by rs_ttrpc_status_error, or
 * -RINGSIDE_E_PROTOCOL, -RINGSIDE_E_LIMIT, -ENOMEM when the response cannot be decoded here.
 */
int rs_ttrpc_response_decode(const struct rs_frame *frame, const ProtobufCMessageDescriptor *type,
                             ProtobufCMessage **payload, char *text, size_t text_bytes);

/*
 * -RINGSIDE_E_* for a status: by the name in front of its message ("STALE_TICKET: ..."), else by
 * its code; 0 for OK. `*text`, when not NULL, points at what follows the name. `message` may be
 * NULL.
 */
int rs_ttrpc_status_error(int code, const char *message, const char **text);

#endif

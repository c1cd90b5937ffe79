/* SPDX-License-Identifier: Apache-2.0 */
/* ttrpc frames: header, a reader that trusts no length, a writer with a bound. */
#ifndef RINGSIDE_PROTO_FRAME_H
#define RINGSIDE_PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fdpass.h"

#define RS_FRAME_HEADER_BYTES  10
#define RS_FRAME_REQUEST_BYTES (64u << 10) /* cap on a request's payload */
#define RS_FRAME_MAX_BYTES     (4u << 20)  /* largest payload that any ttrpc accepts */

enum rs_frame_type {
    RS_FRAME_REQUEST = 1,
    RS_FRAME_RESPONSE = 2,
    RS_FRAME_DATA = 3,
};

enum rs_frame_flag {
    RS_FRAME_REMOTE_CLOSED = 0x1, /* the sender sends no more on this stream; not a unary call */
    RS_FRAME_REMOTE_OPEN = 0x2,   /* request only: data frames follow; not a unary call */
    RS_FRAME_NO_DATA = 0x4,       /* data only: not even an empty message */
};

struct rs_frame_header {
    uint32_t length; /* payload bytes after the header */
    uint32_t stream; /* odd: called by the side that connected; even: by the side that accepted */
    uint8_t type;    /* enum rs_frame_type; others are to be ignored */
    uint8_t flags;   /* enum rs_frame_flag */
};

void rs_frame_header_encode(const struct rs_frame_header *header,
                            uint8_t bytes[RS_FRAME_HEADER_BYTES]);
void rs_frame_header_decode(struct rs_frame_header *header,
                            const uint8_t bytes[RS_FRAME_HEADER_BYTES]);

struct rs_frame {
    struct rs_frame_header header;
    const uint8_t *payload; /* header.length bytes, until the next fill, feed or finish */
    size_t fd_count;        /* descriptors that came with it, first in the reader's queue */
};

/*
 * Bytes of one connection turned into frames. Grows with what arrived, never with what a header
 * claims. One thread at a time.
 *
 * Descriptors arrive in the receive that ends with the bytes they were sent with, so they belong to
 * the last frame that begins in those bytes, given that a frame with descriptors is sent by a call
 * of its own. What a frame's handler does not take is closed by the next rs_ttrpc_reader_next.
 */
struct rs_ttrpc_reader {
    uint8_t *buffer;        /* `capacity` bytes; NULL before the first one arrives */
    size_t capacity;        /* bytes, at most header + cap_bytes */
    size_t begin;           /* offset of the first byte not yet yielded */
    size_t end;             /* offset after the last byte received */
    uint64_t stream_begin;  /* position of `begin` in the whole byte stream */
    int64_t half_since_ns;  /* when the frame at `begin` began to arrive, 0 when none has */
    int64_t filled_ns;      /* when bytes arrived last */
    struct rs_fd_queue fds; /* received and not yet claimed */
    uint32_t cap_bytes;     /* largest payload accepted, at most RS_FRAME_MAX_BYTES */
};

/* `cap_bytes` 0 stands for RS_FRAME_REQUEST_BYTES. Allocates nothing. */
void rs_ttrpc_reader_init(struct rs_ttrpc_reader *reader, uint32_t cap_bytes);

/* Frees the buffer and closes every unclaimed descriptor. NULL and zeroed are fine. */
void rs_ttrpc_reader_finish(struct rs_ttrpc_reader *reader);

/*
 * Receives once, without blocking. Returns the bytes received; 0 at the end of the stream (a half
 * frame may be left: rs_ttrpc_reader_half_since tells); -EAGAIN; -ENOBUFS when whole frames fill
 * the buffer (take them first); -ENOMEM; -RINGSIDE_E_LIMIT when descriptors pile up unclaimed; or
 * what rs_fd_receive returns. Everything but -EAGAIN and -ENOBUFS ends the connection.
 */
ssize_t rs_ttrpc_reader_fill(struct rs_ttrpc_reader *reader, int socket, int64_t now_ns);

/* The same from memory: takes as many of the bytes as there is room for, returns how many. */
ssize_t rs_ttrpc_reader_feed(struct rs_ttrpc_reader *reader, const void *bytes, size_t count,
                             int64_t now_ns);

/*
 * Yields the next whole frame: 1, or 0 when more bytes must arrive. -RINGSIDE_E_LIMIT for a header
 * that announces more than the cap: frame->header is filled in, so that the stream can be told, and
 * every later call fails the same way, because what follows is not read.
 */
int rs_ttrpc_reader_next(struct rs_ttrpc_reader *reader, struct rs_frame *frame);

/* When the half frame at hand began to arrive, 0 when there is none. Call it after next gave 0. */
int64_t rs_ttrpc_reader_half_since(const struct rs_ttrpc_reader *reader);

/* Frames that wait to be sent. One thread at a time. */
struct rs_ttrpc_writer {
    uint8_t *buffer;        /* `capacity` bytes; NULL before the first frame */
    size_t capacity;        /* bytes */
    size_t begin;           /* offset of the first byte not yet sent */
    size_t end;             /* offset after the last byte queued */
    size_t cap_bytes;       /* limit on end - begin, headers included */
    uint64_t stream_begin;  /* position of `begin` in the whole byte stream */
    struct rs_fd_queue fds; /* each at the position of its frame's first byte; closed once sent */
};

void rs_ttrpc_writer_init(struct rs_ttrpc_writer *writer, size_t cap_bytes);

/* Drops what is queued and closes its descriptors. NULL and zeroed are fine. */
void rs_ttrpc_writer_finish(struct rs_ttrpc_writer *writer);

/* Bytes that wait. */
size_t rs_ttrpc_writer_pending(const struct rs_ttrpc_writer *writer);

/*
 * Queues a frame whose payload (header->length bytes) the caller writes to *payload before any
 * other call on the writer. On success the descriptors are the writer's; on failure nothing is
 * queued and they stay the caller's: -RINGSIDE_E_LIMIT (over the cap, in bytes or descriptors),
 * -RINGSIDE_E_TOO_BIG (over RS_FRAME_MAX_BYTES), -RINGSIDE_E_INVALID (over RS_FDPASS_MAX), -ENOMEM.
 */
int rs_ttrpc_writer_reserve(struct rs_ttrpc_writer *writer, const struct rs_frame_header *header,
                            const int *fds, size_t fd_count, uint8_t **payload);

/* Sends what the socket takes, without blocking: 0 all sent, 1 more waits, or -errno. */
int rs_ttrpc_writer_flush(struct rs_ttrpc_writer *writer, int socket);

#endif

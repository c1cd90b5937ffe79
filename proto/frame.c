/* SPDX-License-Identifier: Apache-2.0 */
/* Frames in and out of a connection, in two buffers with caps. */
#include "proto/frame.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/err.h"

#define FIRST_BYTES 4096

void rs_frame_header_encode(const struct rs_frame_header *header,
                            uint8_t bytes[RS_FRAME_HEADER_BYTES])
{
    uint32_t length = htobe32(header->length);
    uint32_t stream = htobe32(header->stream);

    memcpy(bytes, &length, 4);
    memcpy(bytes + 4, &stream, 4);
    bytes[8] = header->type;
    bytes[9] = header->flags;
}

void rs_frame_header_decode(struct rs_frame_header *header,
                            const uint8_t bytes[RS_FRAME_HEADER_BYTES])
{
    memcpy(&header->length, bytes, 4);
    memcpy(&header->stream, bytes + 4, 4);
    header->length = be32toh(header->length);
    header->stream = be32toh(header->stream);
    header->type = bytes[8];
    header->flags = bytes[9];
}

void rs_ttrpc_reader_init(struct rs_ttrpc_reader *reader, uint32_t cap_bytes)
{
    memset(reader, 0, sizeof *reader);
    if (cap_bytes == 0)
        cap_bytes = RS_FRAME_REQUEST_BYTES;
    reader->cap_bytes = cap_bytes < RS_FRAME_MAX_BYTES ? cap_bytes : RS_FRAME_MAX_BYTES;
}

void rs_ttrpc_reader_finish(struct rs_ttrpc_reader *reader)
{
    if (reader == NULL)
        return;
    rs_fd_queue_close_all(&reader->fds);
    free(reader->buffer);
    memset(reader, 0, sizeof *reader);
}

/* Room for at least one byte: moves what is left to the front, or doubles a full buffer. */
static int make_room(struct rs_ttrpc_reader *reader)
{
    size_t most = RS_FRAME_HEADER_BYTES + (size_t)reader->cap_bytes;

    if (reader->begin > 0) {
        memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    if (reader->end < reader->capacity)
        return 0;
    if (reader->capacity == most)
        return -ENOBUFS;
    size_t capacity = reader->capacity == 0 ? FIRST_BYTES : 2 * reader->capacity;
    if (capacity > most)
        capacity = most;
    uint8_t *buffer = realloc(reader->buffer, capacity);
    if (buffer == NULL)
        return -ENOMEM;
    reader->buffer = buffer;
    reader->capacity = capacity;
    return 0;
}

static void took(struct rs_ttrpc_reader *reader, size_t count, int64_t now_ns)
{
    if (reader->begin == reader->end)
        reader->half_since_ns = now_ns;
    reader->filled_ns = now_ns;
    reader->end += count;
}

static uint64_t stream_end(const struct rs_ttrpc_reader *reader)
{
    return reader->stream_begin + (reader->end - reader->begin);
}

ssize_t rs_ttrpc_reader_fill(struct rs_ttrpc_reader *reader, int socket, int64_t now_ns)
{
    int fds[RS_FDPASS_MAX];
    size_t fd_count;
    int rc = make_room(reader);

    if (rc < 0)
        return rc;
    struct iovec iov = {reader->buffer + reader->end, reader->capacity - reader->end};
    ssize_t received = rs_fd_receive(socket, &iov, 1, fds, &fd_count);
    if (received <= 0)
        return received;
    took(reader, (size_t)received, now_ns);
    rc = rs_fd_queue_push(&reader->fds, fds, fd_count, stream_end(reader));
    if (rc < 0) {
        rs_fd_close(fds, fd_count);
        return rc;
    }
    return received;
}

ssize_t rs_ttrpc_reader_feed(struct rs_ttrpc_reader *reader, const void *bytes, size_t count,
                             int64_t now_ns)
{
    if (count == 0)
        return 0;
    int rc = make_room(reader);
    if (rc < 0)
        return rc;
    size_t room = reader->capacity - reader->end;
    if (count > room)
        count = room;
    memcpy(reader->buffer + reader->end, bytes, count);
    took(reader, count, now_ns);
    return (ssize_t)count;
}

int rs_ttrpc_reader_next(struct rs_ttrpc_reader *reader, struct rs_frame *frame)
{
    size_t available = reader->end - reader->begin;

    rs_fd_queue_close(&reader->fds, rs_fd_queue_count_to(&reader->fds, reader->stream_begin));
    if (available < RS_FRAME_HEADER_BYTES)
        return 0;
    rs_frame_header_decode(&frame->header, reader->buffer + reader->begin);
    if (frame->header.length > reader->cap_bytes)
        return -RINGSIDE_E_LIMIT;
    size_t bytes = RS_FRAME_HEADER_BYTES + (size_t)frame->header.length;
    if (available < bytes)
        return 0;
    frame->payload = reader->buffer + reader->begin + RS_FRAME_HEADER_BYTES;
    reader->begin += bytes;
    reader->stream_begin += bytes;
    /* With one fill to each round of next, the frame after this one began in the last fill. */
    reader->half_since_ns = reader->filled_ns;
    frame->fd_count = rs_fd_queue_count_to(&reader->fds, reader->stream_begin);
    return 1;
}

int64_t rs_ttrpc_reader_half_since(const struct rs_ttrpc_reader *reader)
{
    return reader->begin < reader->end ? reader->half_since_ns : 0;
}

void rs_ttrpc_writer_init(struct rs_ttrpc_writer *writer, size_t cap_bytes)
{
    memset(writer, 0, sizeof *writer);
    writer->cap_bytes = cap_bytes;
}

void rs_ttrpc_writer_finish(struct rs_ttrpc_writer *writer)
{
    if (writer == NULL)
        return;
    rs_fd_queue_close_all(&writer->fds);
    free(writer->buffer);
    memset(writer, 0, sizeof *writer);
}

size_t rs_ttrpc_writer_pending(const struct rs_ttrpc_writer *writer)
{
    return writer->end - writer->begin;
}

/* Room for `bytes` more at the end; the cap was checked. */
static int make_space(struct rs_ttrpc_writer *writer, size_t bytes)
{
    size_t pending = rs_ttrpc_writer_pending(writer);
    size_t capacity = writer->capacity == 0 ? FIRST_BYTES : writer->capacity;

    if (writer->capacity - writer->end >= bytes)
        return 0;
    if (writer->begin > 0) {
        memmove(writer->buffer, writer->buffer + writer->begin, pending);
        writer->begin = 0;
        writer->end = pending;
    }
    if (writer->capacity - pending >= bytes)
        return 0;
    while (capacity < pending + bytes)
        capacity *= 2;
    uint8_t *buffer = realloc(writer->buffer, capacity);
    if (buffer == NULL)
        return -ENOMEM;
    writer->buffer = buffer;
    writer->capacity = capacity;
    return 0;
}

int rs_ttrpc_writer_reserve(struct rs_ttrpc_writer *writer, const struct rs_frame_header *header,
                            const int *fds, size_t fd_count, uint8_t **payload)
{
    size_t pending = rs_ttrpc_writer_pending(writer);
    size_t bytes = RS_FRAME_HEADER_BYTES + (size_t)header->length;

    if (header->length > RS_FRAME_MAX_BYTES)
        return -RINGSIDE_E_TOO_BIG;
    if (fd_count > RS_FDPASS_MAX)
        return -RINGSIDE_E_INVALID;
    if (pending > writer->cap_bytes || bytes > writer->cap_bytes - pending)
        return -RINGSIDE_E_LIMIT;
    int rc = make_space(writer, bytes);
    if (rc == 0)
        rc = rs_fd_queue_push(&writer->fds, fds, fd_count, writer->stream_begin + pending);
    if (rc < 0)
        return rc;
    rs_frame_header_encode(header, writer->buffer + writer->end);
    *payload = writer->buffer + writer->end + RS_FRAME_HEADER_BYTES;
    writer->end += bytes;
    return 0;
}

/* Bytes for one send: a frame with descriptors goes alone, others up to the next such frame. */
static size_t next_send_bytes(const struct rs_ttrpc_writer *writer, size_t fd_count)
{
    struct rs_frame_header header;

    if (fd_count > 0) {
        rs_frame_header_decode(&header, writer->buffer + writer->begin);
        return RS_FRAME_HEADER_BYTES + (size_t)header.length;
    }
    if (writer->fds.count > 0)
        return (size_t)(writer->fds.positions[0] - writer->stream_begin);
    return rs_ttrpc_writer_pending(writer);
}

int rs_ttrpc_writer_flush(struct rs_ttrpc_writer *writer, int socket)
{
    while (writer->begin < writer->end) {
        size_t fd_count = rs_fd_queue_count_to(&writer->fds, writer->stream_begin);
        struct iovec iov = {writer->buffer + writer->begin, next_send_bytes(writer, fd_count)};
        ssize_t sent = rs_fd_send(socket, &iov, 1, writer->fds.fds, fd_count);

        if (sent == -EAGAIN)
            return 1;
        if (sent < 0)
            return (int)sent;
        rs_fd_queue_close(&writer->fds, fd_count);
        writer->begin += (size_t)sent;
        writer->stream_begin += (uint64_t)sent;
    }
    writer->begin = writer->end = 0;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A byte stream, cut anywhere, is either frames or an end; what the reader yields is what came in.
 */
#include "proto/frame.h"
#include "tests/fuzz/fuzz.h"

/* Queues the frame again and compares: header and payload are those of the stream at `at`. */
static void check_frame(const struct rs_frame *frame, const uint8_t *at, size_t left)
{
    uint8_t header[RS_FRAME_HEADER_BYTES];
    struct rs_ttrpc_writer writer;
    uint8_t *payload;

    CHECK(RS_FRAME_HEADER_BYTES + (size_t)frame->header.length <= left);
    rs_frame_header_encode(&frame->header, header);
    CHECK(memcmp(header, at, sizeof header) == 0);
    rs_ttrpc_writer_init(&writer, 1u << 16);
    if (rs_ttrpc_writer_reserve(&writer, &frame->header, NULL, 0, &payload) == 0) {
        memcpy(payload, frame->payload, frame->header.length);
        size_t bytes = RS_FRAME_HEADER_BYTES + (size_t)frame->header.length;
        CHECK(rs_ttrpc_writer_pending(&writer) == bytes);
        CHECK(memcmp(writer.buffer + writer.begin, at, bytes) == 0);
    }
    rs_ttrpc_writer_finish(&writer);
}

/* Takes every whole frame. False when the stream is over the cap: then for good. */
static bool take_frames(struct rs_ttrpc_reader *reader, const uint8_t *stream, size_t bytes,
                        size_t *at)
{
    struct rs_frame frame;
    int rc;

    while ((rc = rs_ttrpc_reader_next(reader, &frame)) == 1) {
        check_frame(&frame, stream + *at, bytes - *at);
        *at += RS_FRAME_HEADER_BYTES + (size_t)frame.header.length;
        CHECK(frame.fd_count == 0);
    }
    if (rc == 0)
        return true;
    CHECK(rc == -RINGSIDE_E_LIMIT && frame.header.length > reader->cap_bytes);
    CHECK(rs_ttrpc_reader_next(reader, &frame) == -RINGSIDE_E_LIMIT);
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct rs_ttrpc_reader reader;
    uint32_t cap_bytes = (uint32_t)next(&input, 3);
    size_t piece_bytes = 1 + (size_t)next(&input, 2);
    const uint8_t *stream = input.at;
    size_t bytes = input.left, fed = 0, at = 0;

    rs_ttrpc_reader_init(&reader, cap_bytes);
    while (fed < bytes) {
        size_t most = bytes - fed < piece_bytes ? bytes - fed : piece_bytes;
        ssize_t took = rs_ttrpc_reader_feed(&reader, stream + fed, most, (int64_t)fed + 1);

        CHECK(took > 0 && (size_t)took <= most);
        fed += (size_t)took;
        if (!take_frames(&reader, stream, fed, &at))
            break;
        CHECK((rs_ttrpc_reader_half_since(&reader) != 0) == (at < fed));
        CHECK(reader.capacity <= RS_FRAME_HEADER_BYTES + (size_t)reader.cap_bytes);
    }
    rs_ttrpc_reader_finish(&reader);
    return 0;
}

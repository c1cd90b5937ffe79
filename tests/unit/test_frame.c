/* SPDX-License-Identifier: Apache-2.0 */
/* Frames: lengths at every edge, halves in every cut, bounded memory, descriptors with their frame.
 */
#include "proto/frame.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/err.h"
#define RS_WRAP_ALLOC
#include "tests/unit/rpc_fixture.h"

#define CAP 1000u

static size_t put_frame(uint8_t *at, uint32_t length, uint32_t stream)
{
    struct rs_frame_header header = {length, stream, RS_FRAME_REQUEST, RS_FRAME_REMOTE_CLOSED};

    rs_frame_header_encode(&header, at);
    for (uint32_t i = 0; i < length; i++)
        at[RS_FRAME_HEADER_BYTES + i] = (uint8_t)(stream + i);
    return RS_FRAME_HEADER_BYTES + length;
}

static void check_frame(const struct rs_frame *frame, uint32_t length, uint32_t stream)
{
    assert_int_equal(frame->header.length, length);
    assert_int_equal(frame->header.stream, stream);
    assert_int_equal(frame->header.type, RS_FRAME_REQUEST);
    assert_int_equal(frame->header.flags, RS_FRAME_REMOTE_CLOSED);
    for (uint32_t i = 0; i < length; i++)
        assert_int_equal(frame->payload[i], (uint8_t)(stream + i));
}

static void header_is_big_endian(void **state)
{
    const uint8_t expected[] = {0x01, 0x02, 0x03, 0x04, 0x8a, 0x0b, 0x0c, 0x0d, 3, 5};
    struct rs_frame_header header = {0x01020304, 0x8a0b0c0d, RS_FRAME_DATA, 5}, back;
    uint8_t bytes[RS_FRAME_HEADER_BYTES];

    (void)state;
    rs_frame_header_encode(&header, bytes);
    assert_memory_equal(bytes, expected, sizeof expected);
    rs_frame_header_decode(&back, bytes);
    assert_int_equal(back.length, header.length);
    assert_int_equal(back.stream, header.stream);
    assert_int_equal(back.type, RS_FRAME_DATA);
    assert_int_equal(back.flags, 5);
}

static void length_up_to_cap_accepted(void **state)
{
    const uint32_t lengths[] = {0, 1, CAP - 1, CAP};
    uint8_t bytes[RS_FRAME_HEADER_BYTES + CAP];
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        rs_ttrpc_reader_init(&reader, CAP);
        size_t count = put_frame(bytes, lengths[i], 7);
        assert_int_equal(rs_ttrpc_reader_feed(&reader, bytes, count, 1), count);
        assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 1);
        check_frame(&frame, lengths[i], 7);
        assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 0);
        rs_ttrpc_reader_finish(&reader);
    }
}

/* The claim alone costs nothing but the first small buffer, and names the stream to answer on. */
static void length_over_cap_refused(void **state)
{
    const uint32_t lengths[] = {CAP + 1, 1u << 24, 1u << 31, UINT32_MAX};
    uint8_t bytes[RS_FRAME_HEADER_BYTES];
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct rs_frame_header header = {lengths[i], 9, RS_FRAME_REQUEST, 0};
        rs_ttrpc_reader_init(&reader, CAP);
        rs_frame_header_encode(&header, bytes);
        alloc_bytes = 0;
        assert_int_equal(rs_ttrpc_reader_feed(&reader, bytes, sizeof bytes, 1), sizeof bytes);
        assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), -RINGSIDE_E_LIMIT);
        assert_int_equal(frame.header.stream, 9);
        assert_int_equal(frame.header.length, lengths[i]);
        assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), -RINGSIDE_E_LIMIT);
        assert_true(alloc_bytes <= 4096);
        rs_ttrpc_reader_finish(&reader);
    }
}

static void buffer_grows_with_data_only(void **state)
{
    struct rs_frame_header header = {RS_FRAME_MAX_BYTES, 1, RS_FRAME_REQUEST, 0};
    uint8_t bytes[RS_FRAME_HEADER_BYTES], chunk[1000] = {0};
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;
    size_t total = sizeof bytes;

    (void)state;
    rs_ttrpc_reader_init(&reader, RS_FRAME_MAX_BYTES);
    rs_frame_header_encode(&header, bytes);
    rs_ttrpc_reader_feed(&reader, bytes, sizeof bytes, 1);
    for (size_t i = 0; i < 300; i++) {
        assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 0);
        total += (size_t)rs_ttrpc_reader_feed(&reader, chunk, sizeof chunk, 1);
        assert_true(reader.capacity <= 2 * total + 4096);
    }
    rs_ttrpc_reader_finish(&reader);
}

static void byte_by_byte(void **state)
{
    uint8_t bytes[600];
    size_t count = 0, yielded = 0;
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;

    (void)state;
    for (uint32_t i = 0; i < 5; i++)
        count += put_frame(bytes + count, 17 * i, i);
    rs_ttrpc_reader_init(&reader, CAP);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(rs_ttrpc_reader_feed(&reader, bytes + i, 1, 1), 1);
        while (rs_ttrpc_reader_next(&reader, &frame) == 1) {
            check_frame(&frame, (uint32_t)(17 * yielded), (uint32_t)yielded);
            yielded++;
        }
    }
    assert_int_equal(yielded, 5);
    rs_ttrpc_reader_finish(&reader);
}

/* Two frames cut in two at every place, through a socket. */
static void halves_pipelined(void **state)
{
    uint8_t bytes[200];
    size_t count = put_frame(bytes, 40, 1);
    struct rs_frame frame;
    int sockets[2];

    (void)state;
    count += put_frame(bytes + count, 50, 3);
    make_pair(sockets);
    for (size_t cut = 1; cut < count; cut++) {
        struct rs_ttrpc_reader reader;
        uint32_t yielded = 0;

        rs_ttrpc_reader_init(&reader, CAP);
        for (int half = 0; half < 2; half++) {
            const uint8_t *from = half ? bytes + cut : bytes;
            ssize_t part = (ssize_t)(half ? count - cut : cut);
            assert_int_equal(write(sockets[0], from, (size_t)part), part);
            assert_int_equal(rs_ttrpc_reader_fill(&reader, sockets[1], 1), part);
            for (; rs_ttrpc_reader_next(&reader, &frame) == 1; yielded++)
                check_frame(&frame, 40 + 10 * yielded, 1 + 2 * yielded);
        }
        assert_int_equal(yielded, 2);
        assert_int_equal(rs_ttrpc_reader_fill(&reader, sockets[1], 1), -EAGAIN);
        rs_ttrpc_reader_finish(&reader);
    }
    close_pair(sockets);
}

/* A trickle does not renew its time; a frame behind another has its own. */
static void half_frame_has_an_age(void **state)
{
    uint8_t bytes[200];
    size_t first = put_frame(bytes, 40, 1);
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;

    (void)state;
    put_frame(bytes + first, 50, 3);
    rs_ttrpc_reader_init(&reader, CAP);
    assert_int_equal(rs_ttrpc_reader_half_since(&reader), 0);
    for (size_t i = 0; i < first - 1; i++) {
        rs_ttrpc_reader_feed(&reader, bytes + i, 1, 100 + (int64_t)i);
        assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 0);
        assert_int_equal(rs_ttrpc_reader_half_since(&reader), 100);
    }
    rs_ttrpc_reader_feed(&reader, bytes + first - 1, 6, 500);
    assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 1);
    assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 0);
    assert_int_equal(rs_ttrpc_reader_half_since(&reader), 500);
    rs_ttrpc_reader_feed(&reader, bytes + first + 5, 55, 600);
    assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 1);
    assert_int_equal(rs_ttrpc_reader_half_since(&reader), 0);
    rs_ttrpc_reader_feed(&reader, bytes, 1, 700);
    assert_int_equal(rs_ttrpc_reader_half_since(&reader), 700);
    rs_ttrpc_reader_finish(&reader);
}

static void whole_frames_fill_the_buffer(void **state)
{
    uint8_t bytes[RS_FRAME_HEADER_BYTES + CAP];
    size_t count = put_frame(bytes, CAP, 1);
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;

    (void)state;
    rs_ttrpc_reader_init(&reader, CAP);
    assert_int_equal(rs_ttrpc_reader_feed(&reader, bytes, count, 1), count);
    assert_int_equal(rs_ttrpc_reader_feed(&reader, bytes, 1, 1), -ENOBUFS);
    assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 1);
    assert_int_equal(rs_ttrpc_reader_feed(&reader, bytes, 1, 1), 1);
    rs_ttrpc_reader_finish(&reader);
    rs_ttrpc_reader_finish(&reader);
    rs_ttrpc_reader_finish(NULL);
}

static void end_of_stream(void **state)
{
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;
    int sockets[2];

    (void)state;
    make_pair(sockets);
    rs_ttrpc_reader_init(&reader, CAP);
    assert_int_equal(write(sockets[0], "\0\0\0", 3), 3);
    close(sockets[0]);
    assert_int_equal(rs_ttrpc_reader_fill(&reader, sockets[1], 5), 3);
    assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 0);
    assert_int_equal(rs_ttrpc_reader_fill(&reader, sockets[1], 6), 0);
    assert_int_equal(rs_ttrpc_reader_half_since(&reader), 5);
    rs_ttrpc_reader_finish(&reader);
    close(sockets[1]);
}

static void write_frame(struct rs_ttrpc_writer *writer, uint32_t length, uint32_t stream, int fds)
{
    struct rs_frame_header header = {length, stream, RS_FRAME_REQUEST, RS_FRAME_REMOTE_CLOSED};
    int files[RS_FDPASS_MAX];
    uint8_t *payload;

    for (int i = 0; i < fds; i++)
        files[i] = file_of_bytes((off_t)stream);
    assert_int_equal(rs_ttrpc_writer_reserve(writer, &header, files, (size_t)fds, &payload), 0);
    for (uint32_t i = 0; i < length; i++)
        payload[i] = (uint8_t)(stream + i);
}

/* Every frame gets its own descriptors, whatever goes before and behind, taken or not. */
static void fds_stay_with_their_frame(void **state)
{
    const int fds[] = {0, 2, 0, 0, 1, 16, 0, 3};
    struct rs_ttrpc_writer writer;
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;
    uint32_t yielded = 0;
    int sockets[2];

    (void)state;
    make_pair(sockets);
    rs_ttrpc_writer_init(&writer, 1 << 20);
    rs_ttrpc_reader_init(&reader, 70000);
    for (uint32_t i = 0; i < 8; i++)
        write_frame(&writer, i == 4 ? 70000 : 30, i, fds[i]);
    while (yielded < 8) {
        assert_true(rs_ttrpc_writer_flush(&writer, sockets[0]) >= 0);
        assert_true(rs_ttrpc_reader_fill(&reader, sockets[1], 1) > 0);
        for (; rs_ttrpc_reader_next(&reader, &frame) == 1; yielded++) {
            check_frame(&frame, yielded == 4 ? 70000 : 30, yielded);
            assert_int_equal(frame.fd_count, fds[yielded]);
            for (size_t i = 0; i < frame.fd_count && yielded != 5; i++) {
                struct stat stat;
                int fd = rs_fd_queue_take(&reader.fds);
                assert_int_equal(fstat(fd, &stat), 0);
                assert_int_equal(stat.st_size, yielded);
                close(fd);
            }
        }
    }
    assert_int_equal(reader.fds.count, 0);
    assert_int_equal(rs_ttrpc_writer_pending(&writer), 0);
    rs_ttrpc_writer_finish(&writer);
    rs_ttrpc_reader_finish(&reader);
    close_pair(sockets);
}

/* Descriptors that nobody takes: with a frame never finished, in ever more of them. */
static void unclaimed_fds_bounded(void **state)
{
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;
    struct iovec iov = {"\0", 1};
    int sockets[2], fds[8];
    ssize_t rc = 1;

    (void)state;
    make_pair(sockets);
    rs_ttrpc_reader_init(&reader, CAP);
    int before = open_fds();
    for (size_t i = 0; i < 8; i++)
        fds[i] = sockets[0];
    for (int i = 0; i < 5; i++) {
        assert_int_equal(rs_fd_send(sockets[0], &iov, 1, fds, 8), 1);
        rc = rs_ttrpc_reader_fill(&reader, sockets[1], 1);
        assert_int_equal(rc, i < 4 ? 1 : -RINGSIDE_E_LIMIT);
        assert_int_equal(rs_ttrpc_reader_next(&reader, &frame), 0);
    }
    assert_int_equal(open_fds(), before + RS_FD_QUEUE_MAX);
    rs_ttrpc_reader_finish(&reader);
    assert_int_equal(open_fds(), before);
    close_pair(sockets);
}

static void writer_is_bounded(void **state)
{
    struct rs_frame_header header = {90, 1, RS_FRAME_RESPONSE, 0};
    struct rs_ttrpc_writer writer;
    uint8_t *payload;
    int fd = file_of_bytes(0), fds[RS_FDPASS_MAX + 1];

    (void)state;
    rs_ttrpc_writer_init(&writer, 250);
    assert_int_equal(rs_ttrpc_writer_reserve(&writer, &header, NULL, 0, &payload), 0);
    memset(payload, 0, 90);
    assert_int_equal(rs_ttrpc_writer_reserve(&writer, &header, NULL, 0, &payload), 0);
    memset(payload, 0, 90);
    assert_int_equal(rs_ttrpc_writer_reserve(&writer, &header, &fd, 1, &payload),
                     -RINGSIDE_E_LIMIT);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC); /* still ours */
    header.length = 40;
    assert_int_equal(rs_ttrpc_writer_reserve(&writer, &header, NULL, 0, &payload), 0);
    assert_int_equal(rs_ttrpc_writer_pending(&writer), 250);
    header.length = RS_FRAME_MAX_BYTES + 1;
    assert_int_equal(rs_ttrpc_writer_reserve(&writer, &header, NULL, 0, &payload),
                     -RINGSIDE_E_TOO_BIG);
    header.length = 0;
    for (size_t i = 0; i <= RS_FDPASS_MAX; i++)
        fds[i] = fd;
    assert_int_equal(rs_ttrpc_writer_reserve(&writer, &header, fds, RS_FDPASS_MAX + 1, &payload),
                     -RINGSIDE_E_INVALID);
    close(fd);
    rs_ttrpc_writer_finish(&writer);
    rs_ttrpc_writer_finish(NULL);
}

/* A reader that stops reading: what it gets in the end is whole, and the rest of the fds is closed.
 */
static void writer_survives_a_full_socket(void **state)
{
    struct rs_ttrpc_writer writer;
    struct rs_ttrpc_reader reader;
    struct rs_frame frame;
    uint32_t written = 0, yielded = 0;
    int sockets[2];

    (void)state;
    make_pair(sockets);
    rs_ttrpc_writer_init(&writer, 8 << 20);
    rs_ttrpc_reader_init(&reader, 50000);
    do
        write_frame(&writer, 50000, written++, 1);
    while (rs_ttrpc_writer_flush(&writer, sockets[0]) == 0);
    for (int more = 0; more < 5; more++)
        write_frame(&writer, 50000, written++, more & 1);
    int rc = 1;
    while (yielded < written) {
        if (rc > 0)
            rc = rs_ttrpc_writer_flush(&writer, sockets[0]);
        assert_true(rc >= 0);
        assert_true(rs_ttrpc_reader_fill(&reader, sockets[1], 1) > 0);
        for (; rs_ttrpc_reader_next(&reader, &frame) == 1; yielded++)
            check_frame(&frame, 50000, yielded);
    }
    write_frame(&writer, 10, 1, 3);
    close(sockets[1]);
    assert_int_equal(rs_ttrpc_writer_flush(&writer, sockets[0]), -EPIPE);
    rs_ttrpc_writer_finish(&writer);
    rs_ttrpc_reader_finish(&reader);
    close(sockets[0]);
}

static void allocation_fails(void **state)
{
    struct rs_frame_header header = {5000, 1, RS_FRAME_RESPONSE, 0};
    uint8_t bytes[5000] = {0}, *payload;
    struct rs_ttrpc_writer writer;
    struct rs_ttrpc_reader reader;
    int fd = file_of_bytes(0);

    (void)state;
    for (int nth = 0; nth < 2; nth++) {
        rs_ttrpc_reader_init(&reader, 8000);
        rs_ttrpc_writer_init(&writer, 8 << 20);
        alloc_countdown = nth;
        ssize_t fed = rs_ttrpc_reader_feed(&reader, bytes, 5000, 1);
        ssize_t again = fed < 0 ? fed : rs_ttrpc_reader_feed(&reader, bytes, 904, 1);
        alloc_countdown = nth;
        int rc = rs_ttrpc_writer_reserve(&writer, &header, &fd, nth == 0, &payload);
        header.length = 20000;
        if (rc == 0)
            rc = rs_ttrpc_writer_reserve(&writer, &header, &fd, 1, &payload);
        header.length = 5000;
        alloc_countdown = INT_MAX;
        assert_int_equal(fed, nth == 0 ? -ENOMEM : 4096);
        assert_int_equal(again, -ENOMEM);
        assert_int_equal(rc, -ENOMEM);
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(writer.fds.count, 0);
        rs_ttrpc_reader_finish(&reader);
        rs_ttrpc_writer_finish(&writer);
    }
    close(fd);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, note_fds, same_fds)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(header_is_big_endian),
        CASE(length_up_to_cap_accepted),
        CASE(length_over_cap_refused),
        CASE(buffer_grows_with_data_only),
        CASE(byte_by_byte),
        CASE(halves_pipelined),
        CASE(half_frame_has_an_age),
        CASE(whole_frames_fill_the_buffer),
        CASE(end_of_stream),
        CASE(fds_stay_with_their_frame),
        CASE(unclaimed_fds_bounded),
        CASE(writer_is_bounded),
        CASE(writer_survives_a_full_socket),
        CASE(allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

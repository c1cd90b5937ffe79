/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/copy.c: every alignment, the sizes around each border, and nothing written beside the destination. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/copy.h"

#define AROUND_BYTES 256u
#define ROOM_BYTES   (2 * RS_COPY_STREAMED_BYTES + 2 * AROUND_BYTES)
#define UNTOUCHED    0xA5

static uint8_t *room(void)
{
    uint8_t *bytes = aligned_alloc(64, ROOM_BYTES);

    assert_non_null(bytes);
    return bytes;
}

static void check(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    memset(to - AROUND_BYTES / 2, UNTOUCHED, bytes + AROUND_BYTES);
    rs_copy(to, from, bytes);
    assert_memory_equal(to, from, bytes);
    for (unsigned i = 1; i <= AROUND_BYTES / 2; i++) {
        assert_int_equal(to[-(ptrdiff_t)i], UNTOUCHED);
        assert_int_equal(to[bytes + i - 1], UNTOUCHED);
    }
}

static void copy_any_alignment_and_size(void **state)
{
    static const uint64_t sizes[] = {0, 1, 63, 64, 65, 4096, RS_COPY_STREAMED_BYTES - 1,
                                     RS_COPY_STREAMED_BYTES, RS_COPY_STREAMED_BYTES + 1,
                                     RS_COPY_STREAMED_BYTES + 63, RS_COPY_STREAMED_BYTES + 64,
                                     RS_COPY_STREAMED_BYTES + 127, 2 * RS_COPY_STREAMED_BYTES - 1};
    static const unsigned shifts[] = {0, 1, 16, 31, 63};
    uint8_t *to = room(), *from = room();
    uint32_t noise = 1;

    (void)state;
    for (size_t i = 0; i < ROOM_BYTES; i++)
        from[i] = (uint8_t)((noise = noise * 1664525u + 1013904223u) >> 24);
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
        for (size_t a = 0; a < sizeof shifts / sizeof *shifts; a++)
            for (size_t b = 0; b < sizeof shifts / sizeof *shifts; b++)
                check(to + AROUND_BYTES + shifts[a], from + shifts[b], sizes[size]);
    free(to);
    free(from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(copy_any_alignment_and_size)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

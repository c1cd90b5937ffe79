/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzz targets share: the entry point, taking an input apart, and what must hold. */
#ifndef RINGSIDE_TESTS_FUZZ_H
#define RINGSIDE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK RS_REQUIRE

/* What is left of an input. */
struct input {
    const uint8_t *at;
    size_t left; /* bytes */
};

/* The next bytes as a little-endian number; beyond the end they are zeroes. */
static inline uint64_t next(struct input *input, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes && input->left > 0; i++, input->at++, input->left--)
        value |= (uint64_t)*input->at << (8 * i);
    return value;
}

/* Copies at most `bytes` of what is left; returns how many. */
static inline size_t next_bytes(struct input *input, void *to, size_t bytes)
{
    size_t count = bytes < input->left ? bytes : input->left;

    if (count > 0)
        memcpy(to, input->at, count);
    input->at += count;
    input->left -= count;
    return count;
}

#endif

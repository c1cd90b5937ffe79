/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files: a header that says dtype and shape, then the elements. */
#ifndef RINGSIDE_CLI_NPY_H
#define RINGSIDE_CLI_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/tensor.h"

#define NPY_DICT_BYTES   65536 /* longest header that is read */
#define NPY_HEADER_BYTES 512   /* room for any header that is written */
#define NPY_WHY_BYTES    400   /* room for any explanation */
#define NPY_DESCR_BYTES  32

/* What a header says. */
struct npy_header {
    char descr[NPY_DESCR_BYTES]; /* the dtype in NumPy's words: "<f4"; "" when it is a list of
                                    fields */
    bool fortran;                /* column by column */
    unsigned rank;               /* 0..RS_MAX_RANK */
    int64_t shape[RS_MAX_RANK];  /* each >= 0 */
};

/* An array that is being read. */
struct npy {
    const char *path;  /* for people: "standard input" for "-"; the caller's */
    int fd;            /* owned unless standard input; -1: closed */
    uint8_t *elements; /* owned; of what is no regular file, read ahead. NULL: still in the file */
    struct rs_tensor tensor; /* dtype, rank, shape, bytes */
};

/*
 * Reads the dictionary of a header, `bytes` of text that may be anything. 0 or -RINGSIDE_E_INVALID;
 * then `why` says what is wrong with it.
 */
int npy_parse(const char *text, size_t bytes, struct npy_header *header, char why[NPY_WHY_BYTES]);

/*
 * Opens `path` ("-": standard input), reads the header, and makes sure that the elements are all
 * there and nothing else: of a file by its size, of a pipe by reading it to its end. `dtype` is the
 * element type to take the elements for (any name of rs_dtype_from_name), or NULL: what the header
 * says. 0 or a negative error; then `why` says why, with the path, and nothing is open.
 */
int npy_open(struct npy *npy, const char *path, const char *dtype, char why[NPY_WHY_BYTES]);
/* Puts all elements to `place`, npy->tensor.bytes. 0 or a negative error. */
int npy_read(struct npy *npy, void *place, char why[NPY_WHY_BYTES]);
/* NULL and closed are fine, zeroed is not. */
void npy_close(struct npy *npy);

/*
 * Writes the header of a tensor in version 1; kinds that NumPy does not have become opaque items of
 * their size ("|V2" for bfloat16, as NumPy itself does with ml_dtypes). Returns its size.
 */
size_t npy_header_write(char text[NPY_HEADER_BYTES], unsigned dtype, unsigned rank,
                        const int64_t *shape);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an .npy file or pipe: what it claims is compared with what is there before a slot is
 * taken. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/npy.h"
#include "proto/err.h"

#define PREFIX_BYTES 8                   /* magic and version */
#define CHUNK_BYTES  (UINT64_C(1) << 20) /* first piece of a pipe; memory grows with what arrives \
                                          */

static int refuse(const struct npy *npy, char *why, int error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int refuse(const struct npy *npy, char *why, int error, const char *format, ...)
{
    char text[NPY_WHY_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(why, NPY_WHY_BYTES, "%.180s: %.210s", npy->path, text);
    return error;
}

/* Up to `bytes`: fewer at the end of the file. A negative error has been explained. */
static ssize_t fill(const struct npy *npy, void *place, size_t bytes, char *why)
{
    size_t got = 0;

    while (got < bytes) {
        ssize_t step = read(npy->fd, (char *)place + got, bytes - got);
        if (step == 0)
            break;
        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0)
            return refuse(npy, why, -errno, "cannot be read: %s", strerror(errno));
        got += (size_t)step;
    }
    return (ssize_t)got;
}

static int refuse_ended(const struct npy *npy, char *why)
{
    return refuse(npy, why, -RINGSIDE_E_INVALID, "it ends within the header of .npy");
}

/* *bytes: how long the dictionary is. */
static int read_prefix(const struct npy *npy, size_t *bytes, char *why)
{
    uint8_t prefix[PREFIX_BYTES], length[4] = {0};
    ssize_t got = fill(npy, prefix, sizeof prefix, why);

    if (got < 0)
        return (int)got;
    if (got >= 4 && memcmp(prefix, "PK\x03\x04", 4) == 0)
        return refuse(npy, why, -RINGSIDE_E_INVALID,
                      "an .npz archive, of several arrays; save each by numpy.save");
    if (got < 6 || memcmp(prefix, "\x93NUMPY", 6) != 0)
        return refuse(npy, why, -RINGSIDE_E_INVALID,
                      "not an .npy file: it %s; write it by numpy.save",
                      got == 0 ? "is empty" : "does not begin with the byte 0x93 and NUMPY");
    if (got < PREFIX_BYTES)
        return refuse_ended(npy, why);
    if (prefix[6] < 1 || prefix[6] > 3 || prefix[7] != 0)
        return refuse(npy, why, -RINGSIDE_E_INVALID,
                      "version %u.%u of .npy; those that can be read are 1.0, 2.0 and 3.0",
                      prefix[6], prefix[7]);
    ssize_t width = prefix[6] == 1 ? 2 : 4;
    got = fill(npy, length, (size_t)width, why);
    if (got < width)
        return got < 0 ? (int)got : refuse_ended(npy, why);
    *bytes = (size_t)length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 |
             (size_t)length[3] << 24;
    if (*bytes > NPY_DICT_BYTES)
        return refuse(npy, why, -RINGSIDE_E_INVALID,
                      "its header claims %zu bytes; more than %d have no place in one", *bytes,
                      NPY_DICT_BYTES);
    return 0;
}

static int read_header(const struct npy *npy, struct npy_header *header, char *why)
{
    char *text, reason[NPY_WHY_BYTES];
    size_t bytes = 0;
    int rc = read_prefix(npy, &bytes, why);

    if (rc < 0)
        return rc;
    text = malloc(bytes + 1);
    if (text == NULL)
        return refuse(npy, why, -ENOMEM, "out of memory");
    ssize_t got = fill(npy, text, bytes, why);
    if (got < 0)
        rc = (int)got;
    else if ((size_t)got < bytes)
        rc = refuse_ended(npy, why);
    else if (npy_parse(text, bytes, header, reason) < 0)
        rc = refuse(npy, why, -RINGSIDE_E_INVALID, "%s", reason);
    free(text);
    return rc;
}

/* Bytes of an element by its NumPy name, for kinds that are nothing but so many bytes; else 0. */
static unsigned plain_bytes(const char *descr)
{
    char *end;

    if (strchr("<|=", descr[0]) == NULL || strchr("biufcV", descr[1]) == NULL ||
        !isdigit((unsigned char)descr[2]))
        return 0;
    unsigned long bytes = strtoul(descr + 2, &end, 10);
    return *end == '\0' && bytes <= 16 ? (unsigned)bytes : 0;
}

static int refuse_dtype(const struct npy *npy, const char *descr, char *why)
{
    static const char *const kinds[] = {
        "OPython objects (pickle), which are never loaded",
        "Utext; send its bytes: numpy.frombuffer(text.encode(), 'uint8')",
        "Stext; take .view('uint8')",
        "Mdates; take .view('int64')",
        "mdurations; take .view('int64')",
        "Vopaque items; say by --dtype what they are (bfloat16, float8_e4m3fn, ...), or take "
        ".view('uint8')",
    };
    const char *reason = rs_dtype_refusal(descr);

    if (reason != NULL)
        return refuse(npy, why, -RINGSIDE_E_DTYPE,
                      "dtype '%s': big-endian; take .astype(a.dtype.newbyteorder('<'))", descr);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (descr[0] != '\0' && descr[1] == kinds[i][0])
            return refuse(npy, why, -RINGSIDE_E_DTYPE, "dtype '%s': %s", descr, kinds[i] + 1);
    }
    return refuse(npy, why, -RINGSIDE_E_DTYPE,
                  "dtype '%s' is not one of a tensor's; convert it, as by .astype('float32')",
                  descr);
}

/* The element type that the header names, or that the user says it is. */
static int find_dtype(const struct npy *npy, const struct npy_header *header, const char *dtype,
                      char *why)
{
    char descr[NPY_DESCR_BYTES];

    snprintf(descr, sizeof descr, "%s", header->descr);
    if (descr[0] == '>' && strchr("biu", descr[1]) != NULL && strcmp(descr + 2, "1") == 0)
        descr[0] = '|'; /* one byte has no order */
    int code = strchr("<|=", descr[0]) != NULL ? rs_dtype_from_name(descr) : -RINGSIDE_E_DTYPE;
    if (dtype == NULL)
        return code >= 0 ? code : refuse_dtype(npy, descr, why);
    int wanted = rs_dtype_from_name(dtype);
    if (wanted < 0)
        return refuse(
            npy, why, -RINGSIDE_E_DTYPE,
            "--dtype '%s' is not an element type; those are named as in float32 or bfloat16",
            dtype);
    unsigned bytes = plain_bytes(descr);
    if (bytes == 0)
        return refuse_dtype(npy, descr, why);
    if (bytes != rs_dtype_info((unsigned)wanted)->item_bytes)
        return refuse(npy, why, -RINGSIDE_E_DTYPE,
                      "its elements ('%s') have %u bytes, those of %s %u", descr, bytes, dtype,
                      rs_dtype_info((unsigned)wanted)->item_bytes);
    return wanted;
}

static int take_header(struct npy *npy, const struct npy_header *header, const char *dtype,
                       char *why)
{
    struct rs_tensor *tensor = &npy->tensor;
    int code = find_dtype(npy, header, dtype, why);
    unsigned wide = 0; /* dimensions that have an order */

    if (code < 0)
        return code;
    *tensor = (struct rs_tensor){.dtype = (uint8_t)code, .rank = (uint8_t)header->rank};
    for (unsigned i = 0; i < header->rank; i++) {
        tensor->shape[i] = header->shape[i];
        wide += header->shape[i] > 1;
    }
    if (rs_tensor_size(tensor) < 0)
        return refuse(npy, why, -RINGSIDE_E_SHAPE,
                      "its shape has more elements than memory has bytes");
    if (header->fortran && wide > 1 && tensor->bytes > 0)
        return refuse(npy, why, -RINGSIDE_E_SHAPE,
                      "stored column by column (Fortran order), and tensors are row by row; save "
                      "numpy.ascontiguousarray(a)");
    return 0;
}

static int refuse_size(const struct npy *npy, char *why, uint64_t there, const char *more)
{
    return refuse(npy, why, -RINGSIDE_E_INVALID,
                  "by its header %" PRIu64 " bytes of elements follow, but it has %" PRIu64 "%s%s",
                  npy->tensor.bytes, there, more,
                  there < npy->tensor.bytes ? ": cut short" : "; only one array may be in it");
}

/* A pipe: what it has is only known when it has ended, and meanwhile no slot should be held. */
static int read_ahead(struct npy *npy, char *why)
{
    uint64_t bytes = npy->tensor.bytes, room = 0, got = 0;
    char extra;

    while (got == room && (got < bytes || npy->elements == NULL)) {
        room = room == 0 ? CHUNK_BYTES : 2 * room;
        room = room < bytes ? room : bytes;
        uint8_t *larger = realloc(npy->elements, room > 0 ? room : 1);
        if (larger == NULL)
            return refuse(npy, why, -ENOMEM, "out of memory at %" PRIu64 " bytes", got);
        npy->elements = larger;
        ssize_t step = fill(npy, npy->elements + got, room - got, why);
        if (step < 0)
            return (int)step;
        got += (uint64_t)step;
    }
    if (got < bytes)
        return refuse_size(npy, why, got, "");
    ssize_t more = fill(npy, &extra, 1, why);
    return more <= 0 ? (int)more : refuse_size(npy, why, bytes, " and more");
}

static int check_elements(struct npy *npy, char *why)
{
    struct stat file;
    off_t at = lseek(npy->fd, 0, SEEK_CUR);

    if (fstat(npy->fd, &file) < 0 || !S_ISREG(file.st_mode) || at < 0)
        return read_ahead(npy, why);
    uint64_t there = file.st_size > at ? (uint64_t)(file.st_size - at) : 0;
    return there == npy->tensor.bytes ? 0 : refuse_size(npy, why, there, "");
}

int npy_open(struct npy *npy, const char *path, const char *dtype, char why[NPY_WHY_BYTES])
{
    struct npy_header header;
    bool standard = strcmp(path, "-") == 0;

    *npy = (struct npy){.path = standard ? "standard input" : path};
    npy->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (npy->fd < 0)
        return refuse(npy, why, -errno, "cannot be opened: %s", strerror(errno));
    int rc = read_header(npy, &header, why);
    if (rc == 0)
        rc = take_header(npy, &header, dtype, why);
    if (rc == 0)
        rc = check_elements(npy, why);
    if (rc < 0)
        npy_close(npy);
    return rc;
}

int npy_read(struct npy *npy, void *place, char why[NPY_WHY_BYTES])
{
    if (npy->elements != NULL) {
        memcpy(place, npy->elements, npy->tensor.bytes);
        return 0;
    }
    ssize_t got = fill(npy, place, npy->tensor.bytes, why);
    if (got < 0)
        return (int)got;
    return (uint64_t)got == npy->tensor.bytes ? 0 : refuse_size(npy, why, (uint64_t)got, "");
}

void npy_close(struct npy *npy)
{
    if (npy == NULL)
        return;
    free(npy->elements);
    npy->elements = NULL;
    if (npy->fd > STDIN_FILENO)
        close(npy->fd);
    npy->fd = -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The dictionary of an .npy header: three keys of a Python literal, read strictly and written. */
#include "client/cli/npy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/err.h"

#define MAGIC       "\x93NUMPY\x01\x00"
#define MAGIC_BYTES 8
#define ALIGN       64 /* of the elements, as NumPy has it */

enum key { DESCR = 1, FORTRAN = 2, SHAPE = 4, ALL = 7 };

/* What is left of the text. */
struct text {
    const char *at, *end;
    char *why;
};

static int refuse(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(struct text *text, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text->why, NPY_WHY_BYTES, format, arguments);
    va_end(arguments);
    return -RINGSIDE_E_INVALID;
}

static int refuse_syntax(struct text *text, const char *expected)
{
    return refuse(text, "its header is damaged: %s was expected before \"%.*s\"", expected,
                  (int)(text->end - text->at < 20 ? text->end - text->at : 20), text->at);
}

static void skip_blanks(struct text *text)
{
    while (text->at < text->end && strchr(" \t\n\r", *text->at) != NULL && *text->at != '\0')
        text->at++;
}

/* Takes `character` when it is next. */
static bool take(struct text *text, char character)
{
    skip_blanks(text);
    if (text->at >= text->end || *text->at != character)
        return false;
    text->at++;
    return true;
}

static bool take_word(struct text *text, const char *word)
{
    size_t bytes = strlen(word);

    skip_blanks(text);
    if ((size_t)(text->end - text->at) < bytes || memcmp(text->at, word, bytes) != 0)
        return false;
    text->at += bytes;
    return true;
}

/* A string without escapes; what is longer than the room is refused. */
static int take_string(struct text *text, char *string, size_t room)
{
    char quote = take(text, '\'') ? '\'' : take(text, '"') ? '"' : '\0';
    const char *end =
        quote != '\0' ? memchr(text->at, quote, (size_t)(text->end - text->at)) : NULL;

    if (end == NULL)
        return refuse_syntax(text, "a string");
    size_t bytes = (size_t)(end - text->at);
    if (bytes >= room || memchr(text->at, '\\', bytes) != NULL ||
        memchr(text->at, 0, bytes) != NULL)
        return refuse(text, "its header has a string that makes no sense there: \"%.*s\"",
                      bytes < 40 ? (int)bytes : 40, text->at);
    memcpy(string, text->at, bytes);
    string[bytes] = '\0';
    text->at = end + 1;
    return 0;
}

/* An L may follow: Python 2 wrote that. */
static int take_extent(struct text *text, int64_t *extent)
{
    const char *begin;

    skip_blanks(text);
    begin = text->at;
    for (*extent = 0; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
        if (__builtin_mul_overflow(*extent, 10, extent) ||
            __builtin_add_overflow(*extent, *text->at - '0', extent))
            return refuse(text, "its shape has an extent past 2^63 - 1");
    }
    if (text->at == begin)
        return refuse_syntax(text, "an extent, a whole number,");
    (void)take(text, 'L');
    return 0;
}

static int take_shape(struct text *text, struct npy_header *header)
{
    unsigned rank = 0;

    if (!take(text, '('))
        return refuse_syntax(text, "'(' of the shape");
    while (!take(text, ')')) {
        int64_t extent;
        int rc = take_extent(text, &extent);
        if (rc < 0)
            return rc;
        if (rank == RS_MAX_RANK)
            return refuse(text,
                          "it has more than %d dimensions, which a tensor cannot have; reshape it",
                          RS_MAX_RANK);
        header->shape[rank++] = extent;
        bool comma = take(text, ',');
        skip_blanks(text);
        bool over = text->at < text->end && *text->at == ')';
        /* (3) is a number in Python, and no shape. */
        if (!comma && (!over || rank == 1))
            return refuse_syntax(text, "',' in the shape");
    }
    header->rank = rank;
    return 0;
}

static int take_value(struct text *text, enum key key, struct npy_header *header)
{
    switch (key) {
    case SHAPE:
        return take_shape(text, header);
    case FORTRAN:
        header->fortran = take_word(text, "True");
        return header->fortran || take_word(text, "False") ? 0
                                                           : refuse_syntax(text, "True or False");
    default:
        skip_blanks(text);
        if (text->at < text->end && (*text->at == '[' || *text->at == '('))
            return refuse(text,
                          "its elements have fields (a structured dtype), and a tensor's have "
                          "none; save each field as an array of its own");
        return take_string(text, header->descr, sizeof header->descr);
    }
}

static int take_entry(struct text *text, struct npy_header *header, unsigned *seen)
{
    char name[32];
    int rc = take_string(text, name, sizeof name);
    enum key key = strcmp(name, "descr") == 0           ? DESCR
                   : strcmp(name, "fortran_order") == 0 ? FORTRAN
                   : strcmp(name, "shape") == 0         ? SHAPE
                                                        : 0;

    if (rc < 0)
        return rc;
    if (key == 0 || (*seen & key) != 0)
        return refuse(text, "its header has the key '%s'%s", name,
                      key != 0 ? " twice" : ", which is not one of .npy");
    *seen |= key;
    if (!take(text, ':'))
        return refuse_syntax(text, "':'");
    return take_value(text, key, header);
}

int npy_parse(const char *bytes, size_t count, struct npy_header *header, char why[NPY_WHY_BYTES])
{
    struct text text = {bytes, bytes + count, why};
    unsigned seen = 0;

    *header = (struct npy_header){0};
    if (!take(&text, '{'))
        return refuse_syntax(&text, "'{'");
    while (!take(&text, '}')) {
        int rc = take_entry(&text, header, &seen);
        if (rc < 0)
            return rc;
        bool comma = take(&text, ',');
        skip_blanks(&text);
        if (!comma && (text.at >= text.end || *text.at != '}'))
            return refuse_syntax(&text, "',' or '}'");
    }
    skip_blanks(&text);
    if (text.at != text.end)
        return refuse_syntax(&text, "the end");
    return seen == ALL ? 0
                       : refuse(&text, "its header lacks %s",
                                !(seen & DESCR)     ? "'descr'"
                                : !(seen & FORTRAN) ? "'fortran_order'"
                                                    : "'shape'");
}

size_t npy_header_write(char text[NPY_HEADER_BYTES], unsigned dtype, unsigned rank,
                        const int64_t *shape)
{
    const struct rs_dtype_info *info = rs_dtype_info(dtype);
    unsigned item = info != NULL ? info->item_bytes : 1;
    char opaque[8];
    size_t at = MAGIC_BYTES + 2;

    memcpy(text, MAGIC, MAGIC_BYTES);
    snprintf(opaque, sizeof opaque, "V%u", item);
    const char *name = info != NULL && info->numpy != NULL ? info->numpy : opaque;
    at += (size_t)snprintf(text + at, NPY_HEADER_BYTES - at,
                           "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                           item == 1 || name[0] == 'V' ? '|' : '<', name);
    for (unsigned i = 0; i < rank; i++)
        at += (size_t)snprintf(text + at, NPY_HEADER_BYTES - at, "%s%" PRId64 "%s",
                               i > 0 ? ", " : "", shape[i], rank == 1 ? "," : "");
    at += (size_t)snprintf(text + at, NPY_HEADER_BYTES - at, "), }");
    size_t bytes = (at + 1 + ALIGN - 1) / ALIGN * ALIGN;
    memset(text + at, ' ', bytes - 1 - at);
    text[bytes - 1] = '\n';
    text[MAGIC_BYTES] = (char)((bytes - MAGIC_BYTES - 2) & 0xff);
    text[MAGIC_BYTES + 1] = (char)((bytes - MAGIC_BYTES - 2) >> 8);
    return bytes;
}

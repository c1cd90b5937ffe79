/* SPDX-License-Identifier: Apache-2.0 */
/* Errors in words, and the functions that need no connection. */
#include "client/c/private.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SAME(name) _Static_assert((int)RINGSIDE_E##name == (int)RINGSIDE_E_##name, "error numbers")
SAME(INVALID);
SAME(TIMEOUT);
SAME(FULL);
SAME(TOO_BIG);
SAME(STALE_TICKET);
SAME(FOREIGN_TICKET);
SAME(MALFORMED_TICKET);
SAME(EXPIRED_TICKET);
SAME(NO_ROUTE);
SAME(UNAVAILABLE);
SAME(DRAINING);
SAME(VERSION);
SAME(DENIED);
SAME(FORKED);
SAME(LIMIT);
SAME(STATE);
SAME(DTYPE);
SAME(CORRUPT);
SAME(INTERNAL);
SAME(PROTOCOL);
SAME(CANCELLED);
SAME(SHAPE);
SAME(IN_USE);
SAME(UNIMPLEMENTED);

#define SAME_DTYPE(name) _Static_assert((int)RINGSIDE_##name == (int)RS_##name, "dtype numbers")
SAME_DTYPE(BOOL);
SAME_DTYPE(UINT64);
SAME_DTYPE(INT64);
SAME_DTYPE(FLOAT64);
SAME_DTYPE(COMPLEX128);
SAME_DTYPE(FLOAT8_E8M0FNU);
SAME_DTYPE(BYTES);

_Static_assert(RINGSIDE_MAX_TENSORS == RS_MAX_TENSORS, "limits");
_Static_assert(RINGSIDE_MAX_RANK == RS_MAX_RANK, "limits");
_Static_assert(RINGSIDE_TICKET_TEXT_BYTES == RS_TICKET_TEXT_BYTES, "limits");

static _Thread_local struct {
    const struct ringside *connection; /* of the failed call */
    const char *fixed;                 /* static text, or NULL: `text` */
    char text[512];
} last;

int fail(const struct ringside *connection, int error, const char *format, ...)
{
    va_list arguments;
    char text[sizeof last.text]; /* an argument may be the last text */

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(last.text, text, sizeof text);
    last.connection = connection;
    last.fixed = NULL;
    return error;
}

int fail_with(const struct ringside *connection, int error, const char *text)
{
    last.connection = connection;
    last.fixed = text;
    return error;
}

void report(struct ringside *connection, const char *format, ...)
{
    va_list arguments;
    char line[512];

    if (connection->log == NULL)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    connection->log(connection->log_data, line);
}

const char *ringside_explain(const struct ringside *connection)
{
    if (last.connection != connection)
        return "";
    return last.fixed != NULL ? last.fixed : last.text;
}

const char *ringside_strerror(int error)
{
    return rs_strerror(error);
}

const char *ringside_error_name(int error)
{
    return rs_error_name(error);
}

const char *ringside_version(void)
{
    return RINGSIDE_VERSION;
}

size_t ringside_dtype_bytes(unsigned dtype)
{
    const struct rs_dtype_info *info = rs_dtype_info(dtype);

    return info != NULL ? info->item_bytes : 0;
}

const char *ringside_dtype_name(unsigned dtype)
{
    const struct rs_dtype_info *info = rs_dtype_info(dtype);

    return info != NULL ? info->name : NULL;
}

int ringside_dtype_from_name(const char *name)
{
    int dtype = rs_dtype_from_name(name);
    const char *refusal = dtype < 0 ? rs_dtype_refusal(name) : NULL;

    if (dtype >= 0)
        return dtype;
    if (refusal != NULL)
        return fail(NULL, dtype, "dtype \"%s\" is refused: %s", name, refusal);
    return fail(NULL, dtype, "dtype \"%s\" is unknown", name != NULL ? name : "(null)");
}

int ringside_ticket_parse(const char *text, uint64_t *ticket)
{
    struct rs_ticket parts;
    int rc = rs_ticket_parse(&parts, text);

    if (rc < 0)
        return fail(NULL, rc, "\"%.60s\" is not the text form of a ticket (rst1-...)",
                    text != NULL ? text : "(null)");
    *ticket = rs_ticket_pack(parts.sidecar_id, parts.slot, parts.generation);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The text that says why the sidecar cannot start, written by whoever found out. */
#ifndef RINGSIDE_PROXY_STARTUP_ERROR_H
#define RINGSIDE_PROXY_STARTUP_ERROR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

struct startup_error {
    char *text;   /* the caller's buffer; always a string */
    size_t bytes; /* room in it, at least 1 */
};

/* Writes the text in place of an earlier one and returns `code`, so that callers can return it. */
static inline int __attribute__((format(printf, 3, 4)))
startup_fail(const struct startup_error *error, int code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error->text, error->bytes, format, arguments);
    va_end(arguments);
    return code;
}

#endif

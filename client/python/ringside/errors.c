/* SPDX-License-Identifier: Apache-2.0 */
/* From an error number to the exception of ringside._errors that stands for it. */
#include "client/python/ringside/core.h"

#include <stdarg.h>

/* `status`: 0 unless a callee gave it. */
static void raise_text(struct core_state *state, int error, PyObject *text, unsigned status)
{
    PyObject *exception;

    if (!text)
        return;
    exception = PyObject_CallFunction(state->make_error, "isOI", error < 0 ? -error : error,
                                      ringside_error_name(error), text, status);
    if (exception) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
}

void core_raise(struct core_state *state, const struct ringside *ringside, int error)
{
    core_raise_status(state, ringside, error, 0);
}

void core_raise_status(struct core_state *state, const struct ringside *ringside, int error,
                       unsigned status)
{
    const char *explained = ringside_explain(ringside);
    PyObject *text;

    if (error == CORE_RAISED)
        return;
    if (!*explained)
        explained = ringside_strerror(error);
    text = PyUnicode_DecodeUTF8(explained, (Py_ssize_t)strlen(explained), "replace");
    raise_text(state, error, text, status);
    Py_XDECREF(text);
}

void core_raise_own(struct core_state *state, int error, const char *format, ...)
{
    PyObject *text;
    va_list arguments;

    va_start(arguments, format);
    text = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    raise_text(state, error, text, 0);
    Py_XDECREF(text);
}

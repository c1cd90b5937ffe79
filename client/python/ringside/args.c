/* SPDX-License-Identifier: Apache-2.0 */
/* From Python arguments to what ringside.h takes: keywords, seconds, shapes, dtypes, metadata. */
#include "client/python/ringside/core.h"

#include <math.h>

static int keyword_index(const struct core_signature *signature, PyObject *keyword)
{
    for (int i = 0; i < signature->count; i++) {
        if (PyUnicode_CompareWithASCIIString(keyword, signature->names[i]) == 0)
            return i;
    }
    return -1;
}

static int parse_keyword(const struct core_signature *signature, PyObject *keyword, PyObject *value,
                         PyObject **values)
{
    int index = keyword_index(signature, keyword);

    if (index < 0) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'",
                     signature->name, keyword);
        return -1;
    }
    if (values[index]) {
        PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", signature->name,
                     keyword);
        return -1;
    }
    values[index] = value;
    return 0;
}

int core_parse(const struct core_signature *signature, PyObject *const *args, Py_ssize_t given,
               PyObject *kwnames, PyObject **values)
{
    Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;

    given = PyVectorcall_NARGS((size_t)given);
    if (given > signature->count) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                     signature->name, signature->count, given);
        return -1;
    }
    for (int i = 0; i < signature->count; i++)
        values[i] = i < given ? args[i] : NULL;
    for (Py_ssize_t i = 0; i < keywords; i++) {
        if (parse_keyword(signature, PyTuple_GET_ITEM(kwnames, i), args[given + i], values) < 0)
            return -1;
    }
    for (int i = 0; i < signature->required; i++) {
        if (!values[i]) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", signature->name,
                         signature->names[i]);
            return -1;
        }
    }
    return 0;
}

/* Seconds to nanoseconds; clamped, so that 1e30 means "very long". */
static int seconds(PyObject *value, const char *what, int64_t *ns)
{
    double given = PyFloat_AsDouble(value);

    if (given == -1.0 && PyErr_Occurred())
        return -1;
    if (!(given >= 0.0)) {
        PyErr_Format(PyExc_ValueError, "%s is %R; it is a number of seconds, 0 or more", what,
                     value);
        return -1;
    }
    *ns = given >= 9.0e9 ? INT64_MAX : (int64_t)ceil(given * 1e9);
    return 0;
}

int core_timeout(PyObject *value, int64_t *timeout_ns)
{
    if (!value || value == Py_None) {
        *timeout_ns = RINGSIDE_FOREVER;
        return 0;
    }
    return seconds(value, "timeout", timeout_ns);
}

int core_ttl(PyObject *value, uint64_t *ttl_ns)
{
    int64_t ns;

    *ttl_ns = 0;
    if (!value || value == Py_None)
        return 0;
    if (seconds(value, "ttl", &ns) < 0)
        return -1;
    if (ns == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "ttl is 0; a message lives for more than 0 seconds (None: the default)");
        return -1;
    }
    *ttl_ns = (uint64_t)ns;
    return 0;
}

int core_unsigned(PyObject *value, const char *what, uint64_t most, uint64_t *number)
{
    unsigned long long given;
    PyObject *index;

    if (!value)
        return 0;
    index = PyNumber_Index(value);
    if (!index)
        return -1;
    given = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if ((given == (unsigned long long)-1 && PyErr_Occurred()) || given > most) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s is %R; it is an integer in 0..%llu", what, value,
                     (unsigned long long)most);
        return -1;
    }
    *number = given;
    return 0;
}

int core_ticket(struct core_state *state, PyObject *value, struct core_ticket *ticket)
{
    PyObject *index;
    Py_ssize_t length;
    bool negative;

    *ticket = (struct core_ticket){0};
    if (PyUnicode_Check(value) || PyObject_TypeCheck(value, (PyTypeObject *)state->ticket_type)) {
        ticket->owner = PyObject_Str(value);
        ticket->text = ticket->owner ? PyUnicode_AsUTF8AndSize(ticket->owner, &length) : NULL;
        if (ticket->text && strlen(ticket->text) == (size_t)length)
            return 0;
        if (ticket->text || PyErr_ExceptionMatches(PyExc_UnicodeError)) {
            PyErr_Clear();
            core_raise_own(state, RINGSIDE_EMALFORMED_TICKET,
                           "%R is not the text form of a ticket (rst1-...)", value);
        }
        core_ticket_finish(ticket);
        return -1;
    }
    index = PyNumber_Index(value);
    if (!index) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError,
                         "the ticket is a %s; it is a Ticket, its text, or an integer",
                         Py_TYPE(value)->tp_name);
        return -1;
    }
    ticket->number = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    negative = ticket->number == (unsigned long long)-1 && PyErr_Occurred();
    if (!negative)
        return 0;
    PyErr_Clear();
    core_raise_own(state, RINGSIDE_EMALFORMED_TICKET, "the ticket is %R; it has 64 bits", value);
    return -1;
}

void core_ticket_finish(struct core_ticket *ticket)
{
    Py_CLEAR(ticket->owner);
}

int core_readers(struct core_state *state, PyObject *readers, PyObject *kept, unsigned *number)
{
    int is_kept = kept ? PyObject_IsTrue(kept) : 0;
    uint64_t given = 1;

    if (is_kept < 0 || core_unsigned(readers, "readers", 255, &given) < 0)
        return -1;
    if (!is_kept && given == 0) {
        core_raise_own(state, RINGSIDE_EINVALID,
                       "readers is 0; it is 1..255 reads, or kept=True until free(ticket)");
        return -1;
    }
    *number = is_kept ? 0 : (unsigned)given;
    return 0;
}

static int set_trace(struct ringside_options *options, PyObject *trace)
{
    if (!trace || trace == Py_None)
        return 0;
    if (!PyBytes_Check(trace) || PyBytes_GET_SIZE(trace) != sizeof(options->trace_id)) {
        PyErr_Format(PyExc_ValueError, "trace is %R; it is 16 bytes", trace);
        return -1;
    }
    memcpy(options->trace_id, PyBytes_AS_STRING(trace), sizeof(options->trace_id));
    return 0;
}

static int set_metadata(struct core_state *state, struct core_options *options, PyObject *metadata)
{
    PyObject *encoded = NULL;
    int rc;

    if (!metadata || metadata == Py_None)
        return 0;
    if (PyDict_Check(metadata)) {
        encoded = PyObject_CallMethod(state->support, "encode_metadata", "O", metadata);
        if (!encoded)
            return -1;
        metadata = encoded;
        options->options.metadata_kind = RINGSIDE_JSON;
    } else if (!PyObject_CheckBuffer(metadata)) {
        PyErr_Format(PyExc_TypeError, "meta is a %s; give bytes, or a dict (it travels as JSON)",
                     Py_TYPE(metadata)->tp_name);
        return -1;
    }
    rc = PyObject_GetBuffer(metadata, &options->metadata, PyBUF_SIMPLE);
    Py_XDECREF(encoded);
    if (rc < 0)
        return -1;
    options->has_metadata = true;
    if (options->metadata.len > (Py_ssize_t)UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "meta has %zd bytes; at most 2^32 - 1 can travel",
                     options->metadata.len);
        return -1;
    }
    options->options.metadata = options->metadata.buf;
    options->options.metadata_bytes = (uint32_t)options->metadata.len;
    return 0;
}

int core_options_init(struct core_state *state, struct core_options *options, PyObject *ttl,
                      PyObject *metadata, PyObject *stream, PyObject *sequence, PyObject *trace)
{
    memset(&options->options, 0, sizeof(options->options));
    options->has_metadata = false;
    if (core_ttl(ttl, &options->options.ttl_ns) < 0 ||
        core_unsigned(stream, "stream", UINT64_MAX, &options->options.stream_id) < 0 ||
        core_unsigned(sequence, "sequence", UINT64_MAX, &options->options.sequence) < 0 ||
        set_trace(&options->options, trace) < 0 || set_metadata(state, options, metadata) < 0) {
        core_options_finish(options);
        return -1;
    }
    return 0;
}

void core_options_finish(struct core_options *options)
{
    if (options->has_metadata)
        PyBuffer_Release(&options->metadata);
    options->has_metadata = false;
}

int core_dtype(struct core_state *state, PyObject *dtype)
{
    PyObject *code = PyDict_GetItemWithError(state->dtype_codes, dtype);
    long number;

    if (code)
        return (int)PyLong_AsLong(code);
    PyErr_Clear(); /* what cannot be hashed is refused below, by name */
    code = PyObject_CallMethod(state->support, "dtype_code", "O", dtype);
    if (!code)
        return -1;
    number = PyLong_AsLong(code);
    if (number >= 0 && PyDict_SetItem(state->dtype_codes, dtype, code) < 0)
        PyErr_Clear(); /* a cache only */
    Py_DECREF(code);
    return (int)number;
}

static int set_dimension(struct core_state *state, PyObject *value, struct ringside_tensor *tensor)
{
    PyObject *index;
    long long dimension;

    if (tensor->rank == RINGSIDE_MAX_RANK) {
        core_raise_own(state, RINGSIDE_ESHAPE, "the shape has more than %d dimensions; reshape it",
                       RINGSIDE_MAX_RANK);
        return -1;
    }
    index = PyNumber_Index(value);
    if (!index)
        return -1;
    dimension = PyLong_AsLongLong(index);
    Py_DECREF(index);
    if (dimension < 0) {
        PyErr_Clear();
        core_raise_own(state, RINGSIDE_ESHAPE, "dimension %d of the shape is %R; it is 0..2^63-1",
                       (int)tensor->rank, value);
        return -1;
    }
    tensor->shape[tensor->rank++] = dimension;
    return 0;
}

int core_tensor(struct core_state *state, PyObject *shape, PyObject *dtype,
                struct ringside_tensor *tensor)
{
    int code = core_dtype(state, dtype);
    PyObject *sequence;
    int rc = 0;

    if (code < 0)
        return -1;
    memset(tensor, 0, sizeof(*tensor));
    tensor->dtype = (uint8_t)code;
    if (PyIndex_Check(shape))
        return set_dimension(state, shape, tensor);
    sequence = PySequence_Fast(shape, "shape is neither an integer nor a sequence of integers");
    if (!sequence)
        return -1;
    for (Py_ssize_t i = 0; rc == 0 && i < PySequence_Fast_GET_SIZE(sequence); i++)
        rc = set_dimension(state, PySequence_Fast_GET_ITEM(sequence, i), tensor);
    Py_DECREF(sequence);
    return rc;
}

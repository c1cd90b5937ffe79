/* SPDX-License-Identifier: Apache-2.0 */
/* Connection.send, the one-line way: loan, copy whatever holds numbers, publish. And Connection.loan. */
#include "client/python/ringside/core.h"

#define COPY_UNLOCKED_BYTES (64 * 1024) /* below, handing the GIL over costs more than the copy */

struct source {
    PyObject *object; /* whose memory is copied; a strong reference */
    Py_buffer buffer;
    bool is_open;
};

static int sized(const char *what, Py_ssize_t itemsize)
{
    char name[16];

    snprintf(name, sizeof(name), "%s%d", what, (int)itemsize * 8);
    return ringside_dtype_from_name(name);
}

/* Code of the items of a buffer, or an error. Letters differ in width between "native" and "standard": itemsize rules. */
static int format_dtype(const Py_buffer *buffer)
{
    const char *format = buffer->format ? buffer->format : "B";

    if ((*format == '>' || *format == '!') && buffer->itemsize > 1)
        return -RINGSIDE_EDTYPE;
    if (strchr("@=<>!|", *format))
        format++;
    if (*format && strchr("bhilqn", *format) && !format[1])
        return sized("int", buffer->itemsize);
    if (*format && strchr("BHILQN", *format) && !format[1])
        return sized("uint", buffer->itemsize);
    if (*format && strchr("efd", *format) && !format[1])
        return sized("float", buffer->itemsize);
    if (!strcmp(format, "Zf") || !strcmp(format, "Zd"))
        return sized("complex", buffer->itemsize);
    return strcmp(format, "?") ? -RINGSIDE_EDTYPE : RINGSIDE_BOOL;
}

static int buffer_tensor(struct core_state *state, const Py_buffer *buffer,
                         struct ringside_tensor *tensor)
{
    int code = format_dtype(buffer);

    if (code < 0) {
        core_raise_own(
            state, RINGSIDE_EDTYPE,
            "items of format '%s' cannot travel; convert the array first, big-endian ones "
            "with array.astype(array.dtype.newbyteorder('<'))",
            buffer->format);
        return -1;
    }
    if (buffer->ndim > RINGSIDE_MAX_RANK) {
        core_raise_own(state, RINGSIDE_ESHAPE, "the array has %d dimensions, at most %d can travel",
                       buffer->ndim, RINGSIDE_MAX_RANK);
        return -1;
    }
    memset(tensor, 0, sizeof(*tensor));
    tensor->dtype = (uint8_t)code;
    tensor->rank = (uint8_t)buffer->ndim;
    for (int i = 0; i < buffer->ndim; i++)
        tensor->shape[i] = buffer->shape[i];
    return 0;
}

/* What has no usable buffer (torch tensors, dtypes of ml_dtypes, scalars): ringside._support finds one. */
static int open_converted(struct core_state *state, PyObject *item, struct source *source,
                          struct ringside_tensor *tensor)
{
    PyObject *found = PyObject_CallMethod(state->support, "as_source", "O", item);
    int rc = -1;

    if (!found)
        return -1;
    if (core_tensor(state, PyTuple_GET_ITEM(found, 2), PyTuple_GET_ITEM(found, 1), tensor) == 0 &&
        PyObject_GetBuffer(PyTuple_GET_ITEM(found, 0), &source->buffer, PyBUF_FULL_RO) == 0) {
        source->object = PyTuple_GET_ITEM(found, 0);
        Py_INCREF(source->object);
        source->is_open = true;
        rc = 0;
    }
    Py_DECREF(found);
    return rc;
}

static int open_source(struct core_state *state, PyObject *item, struct source *source,
                       struct ringside_tensor *tensor)
{
    bool is_lease = Py_TYPE(item) == state->message_type || Py_TYPE(item) == state->slot_type;
    uint32_t count;

    if (!PyObject_CheckBuffer(item) ||
        PyObject_GetBuffer(item, &source->buffer, PyBUF_FULL_RO) < 0) {
        PyErr_Clear();
        return open_converted(state, item, source, tensor);
    }
    source->is_open = true;
    Py_INCREF(item);
    source->object = item;
    if (is_lease) {
        *tensor = core_lease_tensors((struct core_lease *)item, &count)[0];
        return 0;
    }
    if (buffer_tensor(state, &source->buffer, tensor) < 0)
        return -1;
    if (PyBytes_Check(item) || PyByteArray_Check(item))
        tensor->dtype = RINGSIDE_BYTES;
    return 0;
}

static int copy_strided(struct core_lease *slot, uint32_t index, struct source *source)
{
    struct core_view *view = core_view_create(slot, index);
    PyObject *array = view ? core_view_numpy(view) : NULL;
    PyObject *done = NULL;
    int rc = -1;

    if (array) {
        done = PyObject_CallMethod(core_state_of(slot)->support, "copy_into", "OO", array,
                                   source->object);
        rc = done ? 0 : -1;
    } else if (view && PyErr_ExceptionMatches(PyExc_ImportError)) {
        PyErr_Clear(); /* slower, but needs no NumPy */
        rc = PyBuffer_ToContiguous(view->tensor.data, &source->buffer, source->buffer.len, 'C');
    }
    Py_XDECREF(done);
    Py_XDECREF(array);
    Py_XDECREF(view);
    return rc;
}

static int copy_in(struct core_lease *slot, uint32_t index, struct source *source)
{
    const struct ringside_tensor *tensor = &slot->box->slot.tensors[index];

    if (tensor->bytes == 0)
        return 0;
    if ((uint64_t)source->buffer.len != tensor->bytes) {
        core_raise_own(core_state_of(slot), RINGSIDE_EINTERNAL, "%zd bytes for a tensor of %llu",
                       source->buffer.len, (unsigned long long)tensor->bytes);
        return -1;
    }
    if (!PyBuffer_IsContiguous(&source->buffer, 'C'))
        return copy_strided(slot, index, source);
    if (tensor->bytes < COPY_UNLOCKED_BYTES) {
        memcpy(tensor->data, source->buffer.buf, tensor->bytes);
        return 0;
    }
    slot->phase = CORE_BUSY; /* so that a close() meanwhile leaves the mapping */
    Py_BEGIN_ALLOW_THREADS
    ringside_copy(tensor->data, source->buffer.buf, tensor->bytes);
    Py_END_ALLOW_THREADS
    slot->phase = CORE_HELD;
    return 0;
}

struct sending {
    Py_ssize_t count;
    struct source sources[RINGSIDE_MAX_TENSORS];
    struct ringside_tensor tensors[RINGSIDE_MAX_TENSORS]; /* only count are set */
};

static int open_sources(struct core_state *state, PyObject *data, struct sending *sending)
{
    bool many = PyList_Check(data) || PyTuple_Check(data);
    Py_ssize_t count = many ? PySequence_Fast_GET_SIZE(data) : 1;

    if (count < 1 || count > RINGSIDE_MAX_TENSORS) {
        core_raise_own(state, RINGSIDE_ESHAPE, "a list of %zd arrays; a message has 1..%d tensors",
                       count, RINGSIDE_MAX_TENSORS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        struct source *source = &sending->sources[i];

        source->is_open = false;
        source->object = NULL;
        sending->count = i + 1;
        if (open_source(state, many ? PySequence_Fast_GET_ITEM(data, i) : data, source,
                        &sending->tensors[i]) < 0)
            return -1;
    }
    return 0;
}

static void close_sources(struct sending *sending)
{
    for (Py_ssize_t i = 0; i < sending->count; i++) {
        if (sending->sources[i].is_open)
            PyBuffer_Release(&sending->sources[i].buffer);
        Py_XDECREF(sending->sources[i].object);
    }
}

/* A slot with a copy of the sources, or NULL with an exception set. */
static struct core_lease *load_sources(struct core_connection *connection, struct sending *sending,
                                       uint32_t metadata_bytes, int64_t timeout_ns,
                                       struct core_lease *request)
{
    struct core_lease *slot = core_loan(connection, sending->tensors, (size_t)sending->count,
                                        metadata_bytes, timeout_ns, request);

    for (Py_ssize_t i = 0; slot && i < sending->count; i++) {
        if (copy_in(slot, (uint32_t)i, &sending->sources[i]) < 0)
            Py_CLEAR(slot);
    }
    return slot;
}

static int send_sources(struct core_connection *connection, const char *route,
                        struct sending *sending, struct core_options *options, int64_t timeout_ns)
{
    int64_t deadline_ns = core_deadline(timeout_ns);
    struct core_lease *slot =
        load_sources(connection, sending, options->options.metadata_bytes, timeout_ns, NULL);
    int rc = slot ? core_slot_send(slot, route, &options->options, core_left(deadline_ns)) : -1;

    Py_XDECREF(slot); /* abandons it unless it was sent */
    return rc;
}

PyObject *core_connection_send(PyObject *self, PyObject *const *args, Py_ssize_t given,
                               PyObject *kwnames)
{
    static const struct core_signature signature = {
        "send", 2, 8, {"route", "data", "meta", "ttl", "timeout", "stream", "sequence", "trace"}};
    struct core_connection *connection = (struct core_connection *)self;
    struct core_options options;
    struct sending sending;
    PyObject *values[8];
    const char *route;
    int64_t timeout_ns;
    int rc;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_timeout(values[4], &timeout_ns) < 0)
        return NULL;
    route = PyUnicode_AsUTF8(values[0]);
    if (!route || core_options_init(connection->state, &options, values[3], values[2], values[5],
                                    values[6], values[7]) < 0)
        return NULL;
    sending.count = 0;
    rc = open_sources(connection->state, values[1], &sending);
    if (rc == 0)
        rc = send_sources(connection, route, &sending, &options, timeout_ns);
    close_sources(&sending);
    core_options_finish(&options);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* _load(data, meta_bytes, timeout): the first half of send(), for who awaits the second. */
PyObject *core_connection_load(PyObject *self, PyObject *const *args, Py_ssize_t given,
                               PyObject *kwnames)
{
    static const struct core_signature signature = {
        "_load", 3, 3, {"data", "meta_bytes", "timeout"}};
    struct core_connection *connection = (struct core_connection *)self;
    struct core_lease *slot = NULL;
    struct sending sending;
    PyObject *values[3];
    uint64_t metadata_bytes = 0;
    int64_t timeout_ns;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_unsigned(values[1], "meta_bytes", UINT32_MAX, &metadata_bytes) < 0 ||
        core_timeout(values[2], &timeout_ns) < 0)
        return NULL;
    sending.count = 0;
    if (open_sources(connection->state, values[0], &sending) == 0)
        slot = load_sources(connection, &sending, (uint32_t)metadata_bytes, timeout_ns, NULL);
    close_sources(&sending);
    return (PyObject *)slot;
}

/* _put(arrays, tree, readers, kept, ttl, timeout): what ringside._tree took apart. */
PyObject *core_connection_put(PyObject *self, PyObject *const *args, Py_ssize_t given,
                              PyObject *kwnames)
{
    static const struct core_signature signature = {
        "_put", 6, 6, {"arrays", "tree", "readers", "kept", "ttl", "timeout"}};
    struct core_connection *connection = (struct core_connection *)self;
    struct core_lease *slot = NULL;
    struct core_options options;
    struct sending sending;
    PyObject *values[6], *ticket = NULL;
    unsigned readers;
    int64_t timeout_ns;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_timeout(values[5], &timeout_ns) < 0 ||
        core_readers(connection->state, values[2], values[3], &readers) < 0 ||
        core_options_init(connection->state, &options, values[4], values[1], NULL, NULL, NULL) < 0)
        return NULL;
    options.options.metadata_kind = RINGSIDE_TREE;
    sending.count = 0;
    if (open_sources(connection->state, values[0], &sending) == 0)
        slot = load_sources(connection, &sending, options.options.metadata_bytes, timeout_ns, NULL);
    if (slot)
        ticket = core_slot_share(slot, readers, &options.options);
    Py_XDECREF(slot); /* abandons it unless it was shared */
    close_sources(&sending);
    core_options_finish(&options);
    return ticket;
}

static struct core_lease *load_data(struct core_connection *connection, PyObject *data,
                                    uint32_t metadata_bytes, int64_t timeout_ns,
                                    struct core_lease *request)
{
    struct core_lease *slot = NULL;
    struct sending sending;

    if (Py_TYPE(data) == connection->state->slot_type) {
        slot = (struct core_lease *)data;
        if (slot->connection != connection) {
            core_raise_own(connection->state, RINGSIDE_EINVALID,
                           "the slot was loaned by another connection");
            return NULL;
        }
        Py_INCREF(slot);
        return slot;
    }
    sending.count = 0;
    if (open_sources(connection->state, data, &sending) == 0)
        slot = load_sources(connection, &sending, metadata_bytes, timeout_ns, request);
    close_sources(&sending);
    return slot;
}

struct core_lease *core_load(struct core_connection *connection, PyObject *data, PyObject *metadata,
                             PyObject *trace, uint32_t more_bytes, int64_t timeout_ns,
                             struct core_lease *request, struct core_options *options)
{
    struct core_state *state = connection->state;
    bool is_tree = data && PyDict_Check(data);
    struct core_lease *slot = NULL;
    PyObject *parts = NULL;

    if (is_tree && metadata && metadata != Py_None) {
        core_raise_own(state, RINGSIDE_EINVALID,
                       "a dict travels with its structure as metadata; put meta into the dict");
        return NULL;
    }
    if (is_tree)
        parts = PyObject_CallMethod(state->support, "encode_tree", "O", data);
    else if (!data || data == Py_None)
        parts = Py_BuildValue("(y#O)", "", (Py_ssize_t)0, metadata ? metadata : Py_None);
    else
        parts = Py_BuildValue("(OO)", data, metadata ? metadata : Py_None);
    if (!parts)
        return NULL;
    if (core_options_init(state, options, NULL, PyTuple_GET_ITEM(parts, 1), NULL, NULL, trace) ==
        0) {
        if (is_tree)
            options->options.metadata_kind = RINGSIDE_TREE;
        slot = load_data(connection, PyTuple_GET_ITEM(parts, 0),
                         options->options.metadata_bytes + more_bytes, timeout_ns, request);
        if (!slot)
            core_options_finish(options);
    }
    Py_DECREF(parts);
    return slot;
}

/* loan([(shape, dtype), ...]) */
static Py_ssize_t pairs(struct core_state *state, PyObject *list, struct ringside_tensor *tensors)
{
    Py_ssize_t count =
        PyList_Check(list) || PyTuple_Check(list) ? PySequence_Fast_GET_SIZE(list) : 0;

    if (count < 1 || count > RINGSIDE_MAX_TENSORS) {
        core_raise_own(state, RINGSIDE_ESHAPE,
                       "loan() takes a shape and a dtype, or a list of 1..%d (shape, dtype)",
                       RINGSIDE_MAX_TENSORS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PySequence_Fast_GET_ITEM(list, i);

        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
            core_raise_own(state, RINGSIDE_ESHAPE, "item %zd is %R; it is a pair (shape, dtype)", i,
                           pair);
            return -1;
        }
        if (core_tensor(state, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), &tensors[i]) <
            0)
            return -1;
    }
    return count;
}

PyObject *core_connection_loan(PyObject *self, PyObject *const *args, Py_ssize_t given,
                               PyObject *kwnames)
{
    static const struct core_signature signature = {
        "loan", 1, 4, {"shape", "dtype", "timeout", "meta_bytes"}};
    struct core_connection *connection = (struct core_connection *)self;
    struct ringside_tensor tensors[RINGSIDE_MAX_TENSORS];
    PyObject *values[4];
    uint64_t metadata_bytes = 0;
    int64_t timeout_ns;
    Py_ssize_t count = 1;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_timeout(values[2], &timeout_ns) < 0 ||
        core_unsigned(values[3], "meta_bytes", UINT32_MAX, &metadata_bytes) < 0)
        return NULL;
    if (!values[1] || values[1] == Py_None)
        count = pairs(connection->state, values[0], tensors);
    else if (core_tensor(connection->state, values[0], values[1], tensors) < 0)
        return NULL;
    if (count < 0)
        return NULL;
    return (PyObject *)core_loan(connection, tensors, (size_t)count, (uint32_t)metadata_bytes,
                                 timeout_ns, NULL);
}

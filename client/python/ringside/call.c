/* SPDX-License-Identifier: Apache-2.0 */
/* Calling: the Call in flight, from where it opens to its end. */
#include "client/python/ringside/core.h"

/* ---- in flight ---- */

static bool is_ours(const struct core_connection *connection)
{
    return connection->ringside && connection->forks == core_forks();
}

void core_pending_open(struct core_pending *pending)
{
    struct core_connection *connection = pending->connection;

    pending->open = true;
    pending->next = connection->pending;
    if (pending->next)
        pending->next->previous = pending;
    connection->pending = pending;
}

void core_pending_close(struct core_pending *pending)
{
    struct core_connection *connection = pending->connection;

    if (pending->has_room)
        atomic_fetch_sub(&connection->awaited, pending->credits);
    pending->has_room = false;
    if (!pending->open)
        return;
    pending->open = false;
    if (pending->next)
        pending->next->previous = pending->previous;
    if (pending->previous)
        pending->previous->next = pending->next;
    else
        connection->pending = pending->next;
}

void core_pending_cancel(struct core_pending *pending)
{
    if (pending->busy) {
        atomic_store(&pending->is_unwanted, true);
        return;
    }
    if (pending->open && is_ours(pending->connection))
        (void)ringside_call_cancel(pending->connection->ringside, &pending->call);
    core_pending_close(pending);
}

void core_connection_end_calls(struct core_connection *connection)
{
    for (struct core_pending *pending = connection->pending, *next; pending; pending = next) {
        next = pending->next;
        core_pending_cancel(pending);
    }
}

int core_pending_usable(struct core_pending *pending)
{
    if (pending->busy) {
        core_raise_own(pending->connection->state, RINGSIDE_ESTATE,
                       "another thread is in a call on it");
        return -1;
    }
    return core_usable(pending->connection);
}

static void pending_dealloc(PyObject *self)
{
    struct core_pending *pending = (struct core_pending *)self;
    PyTypeObject *type = Py_TYPE(self);

    core_pending_cancel(pending);
    core_pending_drop(pending);
    Py_XDECREF(pending->reply);
    Py_DECREF(pending->connection);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject *core_connection_call(PyObject *self, PyObject *const *args, Py_ssize_t given,
                               PyObject *kwnames)
{
    static const struct core_signature signature = {
        "call", 1, 5, {"target", "data", "meta", "timeout", "trace"}};
    struct core_connection *connection = (struct core_connection *)self;
    struct core_pending *pending;
    struct core_lease *reply;
    PyObject *values[5];

    if (core_parse(&signature, args, given, kwnames, values) < 0 || core_usable(connection) < 0)
        return NULL;
    pending = core_pending_create(connection, values, 1);
    if (!pending)
        return NULL;
    reply = core_pending_start(pending) < 0 ? NULL : core_pending_next(pending, RINGSIDE_FOREVER);
    if (reply && pending->open) {
        Py_CLEAR(reply);
        core_raise_own(connection->state, RINGSIDE_ESTATE,
                       "%R answers with a stream: use call_stream()", values[0]);
    }
    Py_DECREF(pending); /* cancels it unless it ended */
    return (PyObject *)reply;
}

/* _call(target, data, meta, timeout, trace, credits): a Call that is not begun. */
PyObject *core_connection_begin_call(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                     PyObject *kwnames)
{
    static const struct core_signature signature = {
        "_call", 6, 6, {"target", "data", "meta", "timeout", "trace", "credits"}};
    struct core_connection *connection = (struct core_connection *)self;
    PyObject *values[6];
    uint64_t credits = 0;

    if (core_parse(&signature, args, given, kwnames, values) < 0 || core_usable(connection) < 0 ||
        core_unsigned(values[5], "credits", CORE_MOST_AWAITED, &credits) < 0)
        return NULL;
    if (credits == 0) {
        core_raise_own(connection->state, RINGSIDE_EINVALID, "credits is 0; it is 1..%d",
                       CORE_MOST_AWAITED);
        return NULL;
    }
    return (PyObject *)core_pending_create(connection, values, (uint32_t)credits);
}

/* ---- the type ---- */

static PyObject *step(PyObject *self, PyObject *wait,
                      int (*function)(struct core_pending *pending, int64_t wait_ns))
{
    struct core_pending *pending = (struct core_pending *)self;
    int64_t wait_ns;
    int rc;

    if (core_timeout(wait, &wait_ns) < 0 || core_pending_usable(pending) < 0)
        return NULL;
    pending->busy = true;
    rc = function(pending, wait_ns);
    pending->busy = false;
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *pending_reserve(PyObject *self, PyObject *wait)
{
    return step(self, wait, core_pending_reserve);
}

static PyObject *pending_load(PyObject *self, PyObject *wait)
{
    return step(self, wait, core_pending_load);
}

static PyObject *pending_send(PyObject *self, PyObject *wait)
{
    return step(self, wait, core_pending_send);
}

static PyObject *pending_start(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    if (core_pending_start((struct core_pending *)self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The end of a stream whose last item went out before anybody knew that it was the last. */
static bool is_end(const struct ringside_message *reply)
{
    return reply->tensor_count == 1 && reply->tensors[0].dtype == RINGSIDE_BYTES &&
           reply->tensors[0].bytes == 0 && reply->metadata_bytes == 0;
}

/* The next reply, or None: none will come any more. */
static PyObject *pending_next(PyObject *self, PyObject *ignored)
{
    struct core_pending *pending = (struct core_pending *)self;
    struct core_lease *reply = core_pending_next(pending, RINGSIDE_FOREVER);

    (void)ignored;
    if (reply && !pending->open && is_end(&reply->box->message))
        Py_CLEAR(reply);
    if (!reply && !PyErr_Occurred())
        Py_RETURN_NONE;
    return (PyObject *)reply;
}

/* Of a call with one reply: what _poll() took. */
static PyObject *pending_reply(PyObject *self, PyObject *ignored)
{
    struct core_pending *pending = (struct core_pending *)self;
    struct core_lease *reply = core_pending_next(pending, 0);

    (void)ignored;
    if (!reply && !PyErr_Occurred())
        core_raise_own(pending->connection->state, RINGSIDE_ESTATE, "the call has no reply");
    return (PyObject *)reply;
}

/* Whether _next() would not block. */
static PyObject *pending_poll(PyObject *self, PyObject *ignored)
{
    struct core_pending *pending = (struct core_pending *)self;

    (void)ignored;
    pending->reply = core_pending_next(pending, 0);
    if (!pending->reply && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(pending->reply || !pending->open);
}

static PyObject *pending_cancel(PyObject *self, PyObject *ignored)
{
    struct core_pending *pending = (struct core_pending *)self;

    (void)ignored;
    core_pending_cancel(pending);
    if (!pending->busy)
        Py_CLEAR(pending->reply);
    Py_RETURN_NONE;
}

static PyObject *pending_no_pickle(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    PyErr_SetString(PyExc_TypeError,
                    "a call in flight belongs to its connection and cannot be pickled; pickle what "
                    "its replies hold");
    return NULL;
}

static PyObject *pending_open(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((struct core_pending *)self)->open);
}

static PyMethodDef pending_methods[] = {
    {"_reserve", pending_reserve, METH_O, NULL},
    {"_load", pending_load, METH_O, NULL},
    {"_send", pending_send, METH_O, NULL},
    {"_start", pending_start, METH_NOARGS, NULL},
    {"_next", pending_next, METH_NOARGS, NULL},
    {"_reply", pending_reply, METH_NOARGS, NULL},
    {"_poll", pending_poll, METH_NOARGS, NULL},
    {"cancel", pending_cancel, METH_NOARGS,
     "cancel($self)\n--\n\nTell the callee that nobody waits; replies that come yet are dropped."},
    {"__reduce_ex__", pending_no_pickle, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef pending_fields[] = {
    {"open", pending_open, NULL, "Whether replies may come.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot pending_slots[] = {{Py_tp_doc, "A call in flight; dropped, it is cancelled."},
                                      {Py_tp_dealloc, pending_dealloc},
                                      {Py_tp_methods, pending_methods},
                                      {Py_tp_getset, pending_fields},
                                      {0, NULL}};

PyType_Spec core_call_spec = {"ringside._core.Call", sizeof(struct core_pending), 0,
                              Py_TPFLAGS_DEFAULT, pending_slots};

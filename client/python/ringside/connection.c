/* SPDX-License-Identifier: Apache-2.0 */
/* The Connection: opens, hands out slots and messages, and really closes when their last view is gone. */
#include "client/python/ringside/core.h"

#include <structmember.h>

#define FIRST_ATTEMPT_NS ((int64_t)250 * 1000 * 1000)

/* ringside_connect cannot be interrupted, so it gets slices that grow; each failed one lets Ctrl-C in. */
static int open_ringside(struct core_state *state, const char *socket, const char *name,
                         int64_t timeout_ns, struct ringside **ringside)
{
    struct ringside_connect_options options = {.socket = socket, .name = name};
    int64_t deadline_ns = core_deadline(timeout_ns), slice_ns = FIRST_ATTEMPT_NS;
    int rc;

    for (;; slice_ns *= 2) {
        int64_t left_ns = core_left(deadline_ns), begin_ns = core_now_ns();

        options.timeout_ns = left_ns < 0 || left_ns > slice_ns ? slice_ns : left_ns;
        if (options.timeout_ns < 1)
            options.timeout_ns = 1; /* 0 would mean the default */
        Py_BEGIN_ALLOW_THREADS
        rc = ringside_connect(ringside, &options);
        Py_END_ALLOW_THREADS
        if (rc >= 0)
            return rc;
        if (PyErr_CheckSignals() < 0)
            return CORE_RAISED;
        /* An attempt that gave up early says something other than "too slow". */
        if (core_left(deadline_ns) == 0 || core_now_ns() - begin_ns < options.timeout_ns / 2)
            break;
    }
    core_raise(state, NULL, rc);
    return CORE_RAISED;
}

static PyObject *connection_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"socket", "name", "timeout", NULL};
    const char *socket = NULL, *name = NULL;
    struct core_connection *connection;
    PyObject *timeout = NULL;
    int64_t timeout_ns = (int64_t)5 * 1000 * 1000 * 1000;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zzO:Connection", names, &socket, &name,
                                     &timeout) ||
        (timeout && core_timeout(timeout, &timeout_ns) < 0))
        return NULL;
    connection = (struct core_connection *)type->tp_alloc(type, 0);
    if (!connection)
        return NULL;
    core_fault_add(connection);
    connection->state = PyType_GetModuleState(type);
    connection->forks = core_forks();
    connection->closed = true; /* until it is open */
    if (open_ringside(connection->state, socket, name, timeout_ns, &connection->ringside) < 0) {
        connection->ringside = NULL;
        Py_DECREF(connection);
        return NULL;
    }
    connection->closed = false;
    connection->stage = PyUnicode_FromString(ringside_stage(connection->ringside));
    if (!socket)
        socket = getenv("RINGSIDE_SOCKET");
    connection->socket = PyUnicode_DecodeFSDefault(socket ? socket : "");
    if (!connection->stage || !connection->socket)
        Py_CLEAR(connection);
    return (PyObject *)connection;
}

static void call_watchers(struct core_connection *connection)
{
    PyObject *type, *value, *traceback;
    PyObject *watchers = connection->watchers ? PySequence_Tuple(connection->watchers) : NULL;

    PyErr_Fetch(&type, &value, &traceback); /* close() may run while an exception is on its way */
    for (Py_ssize_t i = 0; watchers && i < PyTuple_GET_SIZE(watchers); i++) {
        PyObject *done = PyObject_CallNoArgs(PyTuple_GET_ITEM(watchers, i));

        if (!done)
            PyErr_WriteUnraisable(PyTuple_GET_ITEM(watchers, i));
        Py_XDECREF(done);
    }
    Py_XDECREF(watchers);
    PyErr_Restore(type, value, traceback);
}

static void close_connection(struct core_connection *connection)
{
    bool first = !connection->closed;

    connection->closed = true;
    if (first && connection->watchers && connection->forks == core_forks())
        call_watchers(connection);
    core_connection_end_calls(connection);
    core_connection_end_leases(connection);
    core_maybe_close(connection);
}

static void connection_dealloc(PyObject *self)
{
    struct core_connection *connection = (struct core_connection *)self;
    PyTypeObject *type = Py_TYPE(self);

    if (connection->weak_references)
        PyObject_ClearWeakRefs(self);
    close_connection(connection); /* no lease is left: each holds a reference */
    core_fault_remove(connection);
    while (connection->free_boxes) {
        union core_box *box = connection->free_boxes;

        connection->free_boxes = box->next_free;
        PyMem_RawFree(box);
    }
    Py_XDECREF(connection->stage);
    Py_XDECREF(connection->socket);
    Py_XDECREF(connection->watchers);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *connection_close(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    close_connection((struct core_connection *)self);
    Py_RETURN_NONE;
}

static PyObject *connection_enter(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    if (core_usable((struct core_connection *)self) < 0)
        return NULL;
    Py_INCREF(self);
    return self;
}

static PyObject *connection_exit(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    (void)args;
    (void)given;
    close_connection((struct core_connection *)self);
    Py_RETURN_FALSE;
}

static PyObject *connection_receive(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                    PyObject *kwnames)
{
    static const struct core_signature signature = {"receive", 0, 1, {"timeout"}};
    PyObject *values[1];
    int64_t timeout_ns;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_timeout(values[0], &timeout_ns) < 0)
        return NULL;
    return (PyObject *)core_receive((struct core_connection *)self, timeout_ns, false);
}

static PyObject *connection_receive_batch(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                          PyObject *kwnames)
{
    static const struct core_signature signature = {"receive_batch", 1, 2, {"n", "timeout"}};
    struct core_connection *connection = (struct core_connection *)self;
    PyObject *values[2], *list;
    uint64_t most = 0;
    int64_t timeout_ns;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_unsigned(values[0], "n", UINT32_MAX, &most) < 0 ||
        core_timeout(values[1], &timeout_ns) < 0)
        return NULL;
    list = PyList_New(0);
    for (uint64_t i = 0; list && i < most; i++) {
        struct core_lease *message = core_receive(connection, i ? 0 : timeout_ns, i > 0);

        if (!message && i > 0 && !PyErr_Occurred())
            break;
        if (!message || PyList_Append(list, (PyObject *)message) < 0)
            Py_CLEAR(list);
        Py_XDECREF(message);
    }
    return list;
}

static PyObject *connection_inbox(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                  PyObject *kwnames)
{
    static const struct core_signature signature = {"inbox", 0, 1, {"timeout"}};
    PyObject *values[1];
    int64_t timeout_ns;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_timeout(values[0], &timeout_ns) < 0 || core_usable((struct core_connection *)self) < 0)
        return NULL;
    return core_inbox_create((struct core_connection *)self, timeout_ns);
}

static int add_number(PyObject *dict, const char *name, uint64_t number)
{
    PyObject *value = PyLong_FromUnsignedLongLong(number);
    int rc = value ? PyDict_SetItemString(dict, name, value) : -1;

    Py_XDECREF(value);
    return rc;
}

static int add_leases(PyObject *dict, const struct core_connection *connection)
{
    uint64_t slots = 0, messages = 0, views = 0;

    for (const struct core_lease *lease = connection->leases; lease; lease = lease->next) {
        bool is_held = lease->phase != CORE_ENDED;

        slots += is_held && lease->is_slot;
        messages += is_held && !lease->is_slot;
        views += (uint64_t)lease->views;
    }
    return add_number(dict, "held_slots", slots) < 0 ||
                   add_number(dict, "held_messages", messages) < 0
               ? -1
               : add_number(dict, "views", views);
}

static PyObject *connection_stats(PyObject *self, PyObject *ignored)
{
    static const char *const names[] = {"sent",           "received", "released",      "forwarded",
                                        "forward_copies", "nacked",   "shared",        "reads",
                                        "expired",        "dropped",  "dead_lettered", "requeued",
                                        "sent_bytes",     "overflows"};
    struct core_connection *connection = (struct core_connection *)self;
    struct ringside_counters counters;
    uint64_t values[sizeof(counters) / sizeof(uint64_t)];
    PyObject *dict;
    int rc;

    (void)ignored;
    if (core_usable(connection) < 0)
        return NULL;
    rc = ringside_counters(connection->ringside, &counters);
    if (rc < 0) {
        core_raise(connection->state, connection->ringside, rc);
        return NULL;
    }
    memcpy(values, &counters, sizeof(values));
    dict = PyDict_New();
    for (size_t i = 0; dict && i < sizeof(names) / sizeof(*names); i++) {
        if (add_number(dict, names[i], values[i]) < 0)
            Py_CLEAR(dict);
    }
    if (dict && add_leases(dict, connection) < 0)
        Py_CLEAR(dict);
    return dict;
}

/* Until _unwatch, the descriptor stays open, and close() calls `function`. */
static PyObject *connection_watch(PyObject *self, PyObject *function)
{
    struct core_connection *connection = (struct core_connection *)self;

    if (core_usable(connection) < 0)
        return NULL;
    if (!connection->watchers && !(connection->watchers = PyList_New(0)))
        return NULL;
    if (PyList_Append(connection->watchers, function) < 0)
        return NULL;
    connection->waiting++;
    Py_RETURN_NONE;
}

static PyObject *connection_unwatch(PyObject *self, PyObject *function)
{
    struct core_connection *connection = (struct core_connection *)self;
    Py_ssize_t index = connection->watchers ? PySequence_Index(connection->watchers, function) : -1;

    if (index < 0 || PySequence_DelItem(connection->watchers, index) < 0)
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_ValueError, "%R does not watch", function);
    connection->waiting--;
    core_maybe_close(connection);
    Py_RETURN_NONE;
}

/* receive(timeout=0), but None when nothing is there. */
static PyObject *connection_receive_now(PyObject *self, PyObject *ignored)
{
    struct core_lease *message = core_receive((struct core_connection *)self, 0, true);

    (void)ignored;
    if (!message && !PyErr_Occurred())
        Py_RETURN_NONE;
    return (PyObject *)message;
}

/* The descriptor is not readable any more. Quietly nothing once it is closed. */
static PyObject *connection_clear(PyObject *self, PyObject *ignored)
{
    struct core_connection *connection = (struct core_connection *)self;

    (void)ignored;
    if (connection->ringside && connection->forks == core_forks())
        (void)ringside_fd_clear(connection->ringside);
    Py_RETURN_NONE;
}

static PyObject *connection_fileno(PyObject *self, PyObject *ignored)
{
    struct core_connection *connection = (struct core_connection *)self;
    int fd;

    (void)ignored;
    if (core_usable(connection) < 0)
        return NULL;
    fd = ringside_fd(connection->ringside);
    if (fd < 0) {
        core_raise(connection->state, connection->ringside, fd);
        return NULL;
    }
    return PyLong_FromLong(fd);
}

static PyObject *connection_no_pickle(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    PyErr_SetString(PyExc_TypeError,
                    "a Connection belongs to its process and cannot be pickled; call "
                    "ringside.connect() in the other process");
    return NULL;
}

static PyObject *connection_stage(PyObject *self, void *closure)
{
    (void)closure;
    Py_INCREF(((struct core_connection *)self)->stage);
    return ((struct core_connection *)self)->stage;
}

static PyObject *connection_socket(PyObject *self, void *closure)
{
    (void)closure;
    Py_INCREF(((struct core_connection *)self)->socket);
    return ((struct core_connection *)self)->socket;
}

/* Neither closed nor another process's. */
static PyObject *connection_usable(PyObject *self, void *closure)
{
    struct core_connection *connection = (struct core_connection *)self;

    (void)closure;
    return PyBool_FromLong(!connection->closed && connection->forks == core_forks());
}

static PyObject *connection_closed(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((struct core_connection *)self)->closed);
}

static PyObject *connection_repr(PyObject *self)
{
    struct core_connection *connection = (struct core_connection *)self;

    return PyUnicode_FromFormat("<ringside.Connection of stage %R%s>", connection->stage,
                                connection->closed ? ", closed" : "");
}

static PyMethodDef connection_methods[] = {
    {"loan", CORE_FUNCTION(core_connection_loan), CORE_FAST,
     "loan($self, shape, dtype=None, timeout=None, meta_bytes=0)\n--\n\n"
     "Take a free slot for a tensor, or for several: loan([(shape, dtype), ...]).\n\n"
     "timeout is seconds (None: for ever); meta_bytes is room for metadata beyond what the slot "
     "has "
     "left.\nRaises RingFull (timeout 0), Timeout, TooBig, InvalidShape, UnsupportedDtype."},
    {"send", CORE_FUNCTION(core_connection_send), CORE_FAST,
     "send($self, route, data, meta=None, ttl=None, timeout=None, stream=0, sequence=0, "
     "trace=None)\n--\n\n"
     "Copy an array (anything with a buffer, a torch tensor), or a list of them, and publish "
     "it.\n\n"
     "The arrays may be non-contiguous. meta is bytes, or a dict, which travels as JSON."},
    {"call", CORE_FUNCTION(core_connection_call), CORE_FAST,
     "call($self, target, data=None, meta=None, timeout=None, trace=None)\n--\n\n"
     "Call a method of another stage: target is \"ROUTE.METHOD\". Returns its reply, a Message to be released.\n\n"
     "data is an array, a list of them, a dict (the callee's tree()), or a loaned Slot as it is. timeout is seconds\n"
     "for all of it; it travels. What the callee raised is raised here; Unavailable when it died with the call."},
    {"receive", CORE_FUNCTION(connection_receive), CORE_FAST,
     "receive($self, timeout=None)\n--\n\nThe next Message; waits at most timeout seconds, then "
     "raises Timeout."},
    {"receive_batch", CORE_FUNCTION(connection_receive_batch), CORE_FAST,
     "receive_batch($self, n, timeout=None)\n--\n\nWait for one Message, and take at most n that "
     "are there."},
    {"inbox", CORE_FUNCTION(connection_inbox), CORE_FAST,
     "inbox($self, timeout=None)\n--\n\n"
     "Iterate over messages; each is acknowledged when the next one is asked for, and its lease "
     "lasts "
     "as long as\nits views. The loop ends when none came within timeout, or at close(). After a "
     "break, "
     "the last message is\nstill held: release() it, or let it go back to the inbox."},
    {"read", core_connection_read, METH_O,
     "read($self, ticket, /)\n--\n\n"
     "Begin reading by a Ticket, its text, or a bare number; ends with Message.release().\n\n"
     "Raises StaleTicket, ForeignTicket, MalformedTicket, ExpiredTicket."},
    {"_watch", connection_watch, METH_O, NULL},
    {"_unwatch", connection_unwatch, METH_O, NULL},
    {"_clear", connection_clear, METH_NOARGS, NULL},
    {"_receive_now", connection_receive_now, METH_NOARGS, NULL},
    {"_read_added", core_connection_read_added, METH_O, NULL},
    {"_call", CORE_FUNCTION(core_connection_begin_call), CORE_FAST, NULL},
    {"_load", CORE_FUNCTION(core_connection_load), CORE_FAST, NULL},
    {"_put", CORE_FUNCTION(core_connection_put), CORE_FAST, NULL},
    {"free", core_connection_free, METH_O,
     "free($self, ticket, /)\n--\n\nEnd a ticket: no new readers; its memory goes with the last "
     "one."},
    {"ticket_text", core_connection_ticket_text, METH_O,
     "ticket_text($self, ticket, /)\n--\n\nThe text form of a ticket, for JSON (whose numbers end "
     "at 2**53)."},
    {"stats", connection_stats, METH_NOARGS,
     "stats($self)\n--\n\n"
     "A dict of what this client did since it attached: messages sent, received, released, "
     "forwarded (with\n"
     "forward_copies), nacked, shared, reads by ticket, expired, dropped, dead_lettered, "
     "sent_bytes, overflows; and\n"
     "what it holds now: held_slots, held_messages, views. Threads that race may lose a count."},
    {"fileno", connection_fileno, METH_NOARGS,
     "fileno($self)\n--\n\nA descriptor that polls readable when a message may be waiting.\n\n"
     "Then receive(timeout=0) until Timeout, and poll again."},
    {"close", connection_close, METH_NOARGS,
     "close($self)\n--\n\nEnd the session. What has live views stays mapped until the last one is "
     "gone; loans "
     "without views\nare abandoned, messages without views go back to their inbox."},
    {"__enter__", connection_enter, METH_NOARGS, NULL},
    {"__exit__", CORE_FUNCTION(connection_exit), METH_FASTCALL, NULL},
    {"__reduce_ex__", connection_no_pickle, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef connection_fields[] = {
    {"stage", connection_stage, NULL, "Name of the stage.", NULL},
    {"socket", connection_socket, NULL, "Path of the sidecar's socket.", NULL},
    {"_usable", connection_usable, NULL, NULL, NULL},
    {"closed", connection_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef connection_members[] = {{"__weaklistoffset__", T_PYSSIZET,
                                            offsetof(struct core_connection, weak_references),
                                            READONLY, NULL},
                                           {NULL, 0, 0, 0, NULL}};

static PyType_Slot connection_slots[] = {
    {Py_tp_doc,
     "A connection to a sidecar; see ringside.connect. Any number of threads may use it."},
    {Py_tp_new, connection_new},
    {Py_tp_dealloc, connection_dealloc},
    {Py_tp_repr, connection_repr},
    {Py_tp_methods, connection_methods},
    {Py_tp_getset, connection_fields},
    {Py_tp_members, connection_members},
    {0, NULL}};

PyType_Spec core_connection_spec = {"ringside.Connection", sizeof(struct core_connection), 0,
                                    Py_TPFLAGS_DEFAULT, connection_slots};

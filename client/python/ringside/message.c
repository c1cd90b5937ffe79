/* SPDX-License-Identifier: Apache-2.0 */
/* The Message: a lease on what was received or read by ticket. */
#include "client/python/ringside/core.h"

static struct ringside_message *message_of(PyObject *self)
{
    return &((struct core_lease *)self)->box->message;
}

static int run_receive(struct core_call *call, int64_t timeout_ns)
{
    return ringside_receive(call->connection->ringside, &call->box->message, timeout_ns);
}

/* NULL without an exception: none came, and none_is_fine. */
struct core_lease *core_receive(struct core_connection *connection, int64_t timeout_ns,
                                bool none_is_fine)
{
    struct core_call call = {.connection = connection, .run = run_receive};
    struct core_lease *message;
    int rc;

    if (core_usable(connection) < 0)
        return NULL;
    call.box = core_box_take(connection);
    if (!call.box)
        return NULL;
    rc = core_wait(&call, timeout_ns);
    if (rc < 0) {
        core_box_give(connection, call.box);
        if (!none_is_fine || rc != -RINGSIDE_ETIMEOUT)
            core_raise(connection->state, connection->ringside, rc);
        return NULL;
    }
    message = core_lease_create(connection, connection->state->message_type, call.box);
    if (message && core_usable(connection) < 0)
        Py_CLEAR(message); /* closed while it waited; it goes back to the inbox */
    return message;
}

static PyObject *end(struct core_lease *message, enum core_ending ending)
{
    int rc;

    if (core_lease_held(message) < 0)
        return NULL;
    rc = core_lease_end(message, ending);
    if (rc < 0) {
        core_raise(core_state_of(message), message->connection->ringside, rc);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *message_release(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return end((struct core_lease *)self, CORE_RELEASE);
}

static PyObject *message_nack(PyObject *self, PyObject *ignored)
{
    struct core_lease *message = (struct core_lease *)self;

    (void)ignored;
    if (message->is_reading || message->is_reply) {
        core_raise_own(core_state_of(message), RINGSIDE_ESTATE,
                       "a %s has no inbox to go back to; release() it",
                       message->is_reply ? "reply to a call" : "message read by ticket");
        return NULL;
    }
    return end(message, CORE_NACK);
}

static PyObject *message_exit(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    struct core_lease *message = (struct core_lease *)self;
    bool failed = PyVectorcall_NARGS((size_t)given) > 0 && args[0] != Py_None;

    if (message->phase == CORE_HELD && !failed)
        return end(message, CORE_RELEASE);
    if (message->phase == CORE_HELD) /* the body's exception is the one to see */
        core_lease_end(message,
                       message->is_reading || message->is_reply ? CORE_RELEASE : CORE_NACK);
    Py_RETURN_NONE;
}

static int run_forward(struct core_call *call, int64_t timeout_ns)
{
    call->options->timeout_ns = timeout_ns;
    return ringside_forward(call->connection->ringside, &call->box->message, call->route,
                            call->options);
}

static int forward(struct core_lease *message, const char *route, struct ringside_options *options,
                   int64_t timeout_ns)
{
    struct core_call call = {.connection = message->connection,
                             .run = run_forward,
                             .box = message->box,
                             .route = route,
                             .options = options};
    int rc;

    message->phase = CORE_BUSY;
    rc = core_wait(&call, timeout_ns);
    message->phase = CORE_HELD;
    if (rc >= 0 || rc == -RINGSIDE_ESTATE)
        core_lease_ended(message);
    if (rc >= 0)
        return rc;
    core_raise(core_state_of(message), message->connection->ringside, rc);
    if (message->connection->closed && message->phase == CORE_HELD)
        core_lease_end(message, CORE_NACK);
    return -1;
}

static PyObject *message_forward(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                 PyObject *kwnames)
{
    static const struct core_signature signature = {
        "forward", 1, 7, {"route", "ttl", "meta", "timeout", "stream", "sequence", "trace"}};
    struct core_lease *message = (struct core_lease *)self;
    struct core_options options;
    PyObject *values[7];
    const char *route;
    int64_t timeout_ns;
    int rc;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_timeout(values[3], &timeout_ns) < 0 || core_lease_held(message) < 0)
        return NULL;
    if (message->views > 0) {
        core_raise_own(
            core_state_of(message), RINGSIDE_ESTATE,
            "%zd views of this message are alive and would outlive its lease; delete the "
            "arrays before forward(), or send() a copy",
            message->views);
        return NULL;
    }
    route = PyUnicode_AsUTF8(values[0]);
    if (!route || core_options_init(core_state_of(message), &options, values[1], values[2],
                                    values[4], values[5], values[6]) < 0)
        return NULL;
    rc = forward(message, route, &options.options, timeout_ns);
    core_options_finish(&options);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

static PyObject *message_arrays(PyObject *self, PyObject *ignored)
{
    struct core_lease *message = (struct core_lease *)self;
    PyObject *list = PyList_New((Py_ssize_t)message->box->message.tensor_count);

    (void)ignored;
    for (uint32_t i = 0; list && i < message->box->message.tensor_count; i++) {
        struct core_view *view = core_view_create(message, i);
        PyObject *array = view ? core_view_numpy(view) : NULL;

        Py_XDECREF(view);
        if (!array)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, array);
    }
    return list;
}

static PyObject *message_meta(PyObject *self, void *closure)
{
    struct core_lease *lease = (struct core_lease *)self;
    const struct ringside_message *message = message_of(self);

    (void)closure;
    if (!lease->metadata) {
        if (core_lease_held(lease) < 0)
            return NULL;
        lease->metadata = PyBytes_FromStringAndSize(
            message->metadata_bytes ? message->metadata : "", (Py_ssize_t)message->metadata_bytes);
        if (lease->metadata && message->metadata_kind == RINGSIDE_JSON)
            Py_SETREF(lease->metadata,
                      PyObject_CallMethod(core_state_of(lease)->support, "decode_metadata", "O",
                                          lease->metadata));
    }
    Py_XINCREF(lease->metadata);
    return lease->metadata;
}

/* Seconds, or None. */
static PyObject *message_ttl(PyObject *self, void *closure)
{
    uint64_t ttl_ns = message_of(self)->ttl_ns;

    (void)closure;
    if (!ttl_ns)
        Py_RETURN_NONE;
    return PyFloat_FromDouble((double)ttl_ns / 1e9);
}

static PyObject *message_trace(PyObject *self, void *closure)
{
    static const uint8_t none[16];
    const struct ringside_message *message = message_of(self);

    (void)closure;
    if (!memcmp(message->trace_id, none, sizeof(none)))
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)message->trace_id, sizeof(message->trace_id));
}

static PyObject *message_number(PyObject *self, void *offset)
{
    uint64_t number;

    memcpy(&number, (const char *)message_of(self) + (uintptr_t)offset, sizeof(number));
    return PyLong_FromUnsignedLongLong(number);
}

static PyObject *message_attempts(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(message_of(self)->attempts);
}

static PyObject *message_held(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((struct core_lease *)self)->phase == CORE_HELD);
}

static PyObject *message_kind(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(message_of(self)->metadata_kind);
}

static PyObject *message_origin(PyObject *self, void *closure)
{
    (void)closure;
    if (!message_of(self)->origin_ticket)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(message_of(self)->origin_ticket);
}

static PyMethodDef message_methods[] = {
    {"numpy", CORE_FUNCTION(core_lease_numpy), CORE_FAST,
     "numpy($self, i=0)\n--\n\nTensor i as a read-only numpy.ndarray; no copy. The lease lasts as "
     "long as it."},
    {"arrays", message_arrays, METH_NOARGS,
     "arrays($self)\n--\n\nA list with numpy(i) of every tensor."},
    {"buffer", CORE_FUNCTION(core_lease_buffer), CORE_FAST,
     "buffer($self, i=0)\n--\n\nTensor i as a read-only memoryview; bytes where the dtype has no "
     "letter."},
    {"torch", CORE_FUNCTION(core_lease_torch), CORE_FAST,
     "torch($self, i=0, copy=False)\n--\n\nTensor i as a torch.Tensor on the CPU.\n\n"
     "Without copy it shares the read-only memory: torch has no read-only tensors, and writing to "
     "it "
     "ends the process."},
    {"__dlpack__", CORE_FUNCTION(core_lease_dlpack), CORE_FAST,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "Tensor 0 as a DLPack capsule, read-only. Consumers older than DLPack 1.0 are not told so; "
     "writing ends the process."},
    {"__dlpack_device__", core_view_dlpack_device, METH_NOARGS, NULL},
    {"release", message_release, METH_NOARGS,
     "release($self)\n--\n\nAcknowledge it, or end the reading, once its last view is gone."},
    {"nack", message_nack, METH_NOARGS,
     "nack($self)\n--\n\nGive it back to its inbox, attempts + 1, once its last view is gone."},
    {"forward", CORE_FUNCTION(message_forward), CORE_FAST,
     "forward($self, route, ttl=None, meta=None, timeout=None, stream=0, sequence=0, "
     "trace=None)\n--\n\n"
     "Pass it on to a route and release it. Returns True when no byte was copied.\n\n"
     "What is not given stays as it came; giving ttl, meta, stream, sequence or trace makes it a "
     "copy.\n"
     "Its views must be gone (InvalidState otherwise)."},
    {"reply", CORE_FUNCTION(core_message_reply), CORE_FAST,
     "reply($self, data=None, meta=None, last=True, timeout=None)\n--\n\n"
     "Answer a call: with an array, a list of them, a dict (the caller's tree()), or a loaned Slot as it is.\n\n"
     "last=False: others follow. Waits while the caller has not read the last replies (its credits). Raises Cancelled "
     "when\nnobody waits for replies any more. Release the call afterwards."},
    {"reply_error", CORE_FUNCTION(core_message_reply_error), CORE_FAST,
     "reply_error($self, status, text='')\n--\n\n"
     "Answer a call with a gRPC status other than 0 and a text of at most 1,024 bytes.\n\n"
     "A text that begins with the name of an error and a colon (\"NO_ROUTE: ...\") is that error to the caller."},
    {"__enter__", core_lease_self, METH_NOARGS, NULL},
    {"__exit__", CORE_FUNCTION(message_exit), METH_FASTCALL, NULL},
    {"__reduce_ex__", core_message_pickle, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

#define AT(field) (void *)offsetof(struct ringside_message, field)

static PyGetSetDef message_fields[] = {
    {"tensors", core_lease_tensor_list, NULL, "Tuple of Tensor(shape, dtype, nbytes).", NULL},
    {"shape", core_lease_first_field, NULL, "Shape of tensor 0.", (void *)0},
    {"dtype", core_lease_first_field, NULL, "Canonical dtype name of tensor 0.", (void *)1},
    {"nbytes", core_lease_first_field, NULL, "Bytes of tensor 0.", (void *)2},
    {"meta", message_meta, NULL, "bytes, or the dict that was sent; of what put() made, its JSON.",
     NULL},
    {"method", core_message_method, NULL, "Name of the method that is called; None: no call.", NULL},
    {"call_id", message_number, NULL, "Of a call and of its replies, else 0.", AT(call_id)},
    {"cancelled", core_message_cancelled, NULL,
     "Whether nobody waits for replies to this call any more: cancelled, caller gone, time over.", NULL},
    {"time_left", core_message_time_left, NULL,
     "Seconds of the time to live that are left, at least 0; of a call, its timeout. None: no limit.", NULL},
    {"_answered", core_message_answered, NULL, NULL, NULL},
    {"_kind", message_kind, NULL, NULL, NULL},
    {"_held", message_held, NULL, NULL, NULL},
    {"ticket", message_number, NULL, "The message's ticket, an int.", AT(ticket)},
    {"attempts", message_attempts, NULL, "Earlier deliveries that were not acknowledged.", NULL},
    {"ttl", message_ttl, NULL, "Seconds after publish_ns; None: until acknowledged.", NULL},
    {"publish_ns", message_number, NULL, "When it was sent, on time.monotonic_ns()'s clock.",
     AT(publish_ns)},
    {"stream", message_number, NULL, "The sender's stream id.", AT(stream_id)},
    {"sequence", message_number, NULL, "The sender's sequence number.", AT(sequence)},
    {"trace", message_trace, NULL, "16 bytes, or None.", NULL},
    {"origin_ticket", message_origin, NULL, "Ticket on the node it came from, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot message_slots[] = {
    {Py_tp_doc,
     "A received message. `with message:` releases it at the end and nacks it on an exception;\n"
     "one that is dropped without either is nacked. Views keep the lease alive.\n\n"
     "One that was read by ticket can be pickled while it is held: the ticket travels, with one read more, and\n"
     "the message is read again where it is unpickled, through ringside.default_connection()."},
    {Py_tp_dealloc, core_lease_dealloc},
    {Py_tp_methods, message_methods},
    {Py_tp_getset, message_fields},
    {Py_bf_getbuffer, core_lease_getbuffer},
    {0, NULL}};

PyType_Spec core_message_spec = {"ringside.Message", sizeof(struct core_lease), 0,
                                 Py_TPFLAGS_DEFAULT, message_slots};

/* The iterator of Connection.inbox(). */
struct inbox {
    PyObject_HEAD
    struct core_connection *connection;
    struct core_lease *current; /* acknowledged when the next one is asked for */
    int64_t timeout_ns;
};

PyObject *core_inbox_create(struct core_connection *connection, int64_t timeout_ns)
{
    PyTypeObject *type = connection->state->inbox_type;
    struct inbox *inbox = (struct inbox *)type->tp_alloc(type, 0);

    if (!inbox)
        return NULL;
    Py_INCREF(connection);
    inbox->connection = connection;
    inbox->timeout_ns = timeout_ns;
    return (PyObject *)inbox;
}

static PyObject *inbox_next(PyObject *self)
{
    struct inbox *inbox = (struct inbox *)self;
    struct core_lease *last = inbox->current;
    int rc = 0;

    inbox->current = NULL;
    if (last && last->phase == CORE_HELD)
        rc = core_lease_end(last, CORE_RELEASE);
    Py_XDECREF(last);
    if (rc < 0) {
        core_raise(inbox->connection->state, inbox->connection->ringside, rc);
        return NULL;
    }
    if (inbox->connection->closed)
        return NULL;
    inbox->current = core_receive(inbox->connection, inbox->timeout_ns, true);
    if (!inbox->current && inbox->connection->closed && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear(); /* close() from elsewhere ends the loop; Ctrl-C still shows */
    Py_XINCREF(inbox->current);
    return (PyObject *)inbox->current;
}

static void inbox_dealloc(PyObject *self)
{
    struct inbox *inbox = (struct inbox *)self;
    PyTypeObject *type = Py_TYPE(self);

    Py_XDECREF(inbox->current);
    Py_XDECREF(inbox->connection);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot inbox_slots[] = {
    {Py_tp_doc,
     "Iterator over received messages; each is acknowledged when the next is asked for."},
    {Py_tp_dealloc, inbox_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, inbox_next},
    {0, NULL}};

PyType_Spec core_inbox_spec = {"ringside._core.Inbox", sizeof(struct inbox), 0, Py_TPFLAGS_DEFAULT,
                               inbox_slots};

/* SPDX-License-Identifier: Apache-2.0 */
/* The Slot: a loan that the caller writes, then sends, shares or abandons. */
#include "client/python/ringside/core.h"

static int run_loan(struct core_call *call, int64_t timeout_ns)
{
    return ringside_loan(call->connection->ringside, call->tensors, call->tensor_count,
                         call->metadata_bytes, timeout_ns, &call->box->slot);
}

struct core_lease *core_loan(struct core_connection *connection,
                             const struct ringside_tensor *tensors, size_t count,
                             uint32_t metadata_bytes, int64_t timeout_ns,
                             struct core_lease *request)
{
    struct core_call call = {.connection = connection,
                             .request = request,
                             .run = run_loan,
                             .tensors = tensors,
                             .tensor_count = count,
                             .metadata_bytes = metadata_bytes};
    struct core_lease *slot;
    int rc;

    if (core_usable(connection) < 0)
        return NULL;
    call.box = core_box_take(connection);
    if (!call.box)
        return NULL;
    rc = core_wait(&call, timeout_ns);
    if (rc < 0) {
        core_box_give(connection, call.box);
        core_raise(connection->state, connection->ringside, rc);
        return NULL;
    }
    slot = core_lease_create(connection, connection->state->slot_type, call.box);
    if (slot && core_usable(connection) < 0)
        Py_CLEAR(slot); /* closed while it waited */
    return slot;
}

static int run_send(struct core_call *call, int64_t timeout_ns)
{
    call->options->timeout_ns = timeout_ns;
    return ringside_send(call->connection->ringside, &call->box->slot, call->route, call->options);
}

int core_slot_send(struct core_lease *slot, const char *route, struct ringside_options *options,
                   int64_t timeout_ns)
{
    struct core_call call = {.connection = slot->connection,
                             .run = run_send,
                             .box = slot->box,
                             .route = route,
                             .options = options};
    int rc;

    if (core_lease_held(slot) < 0 || core_usable(slot->connection) < 0)
        return -1;
    slot->phase = CORE_BUSY;
    rc = core_wait(&call, timeout_ns);
    slot->phase = CORE_HELD;
    if (rc >= 0 || rc == -RINGSIDE_ESTATE)
        core_lease_ended(slot);
    if (rc >= 0)
        return 0;
    core_raise(core_state_of(slot), slot->connection->ringside, rc);
    if (slot->connection->closed && slot->phase == CORE_HELD)
        core_lease_end(slot, CORE_ABANDON);
    return -1;
}

static PyObject *slot_send(PyObject *self, PyObject *const *args, Py_ssize_t given,
                           PyObject *kwnames)
{
    static const struct core_signature signature = {
        "send", 1, 7, {"route", "ttl", "meta", "timeout", "stream", "sequence", "trace"}};
    struct core_lease *slot = (struct core_lease *)self;
    struct core_options options;
    PyObject *values[7];
    const char *route;
    int64_t timeout_ns;
    int rc;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_timeout(values[3], &timeout_ns) < 0)
        return NULL;
    route = PyUnicode_AsUTF8(values[0]);
    if (!route || core_options_init(core_state_of(slot), &options, values[1], values[2], values[4],
                                    values[5], values[6]) < 0)
        return NULL;
    rc = core_slot_send(slot, route, &options.options, timeout_ns);
    core_options_finish(&options);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The text is made while the slot is ours: once it is shared, a reader may be done with it at once.
 */
PyObject *core_slot_share(struct core_lease *slot, unsigned readers,
                          struct ringside_options *options)
{
    struct core_state *state = core_state_of(slot);
    struct ringside *ringside = slot->connection->ringside;
    struct ringside_slot *loan = &slot->box->slot;
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    PyObject *ticket;
    int rc;

    if (core_lease_held(slot) < 0 || core_usable(slot->connection) < 0)
        return NULL;
    rc = ringside_ticket_text(ringside, loan->ticket, text);
    if (rc < 0) {
        core_raise(state, ringside, rc);
        return NULL;
    }
    ticket = PyObject_CallFunction(state->ticket_type, "s", text);
    if (!ticket)
        return NULL;
    rc = ringside_share(ringside, loan, readers, options, NULL);
    if (rc >= 0 || rc == -RINGSIDE_ESTATE)
        core_lease_ended(slot);
    if (rc >= 0)
        return ticket;
    Py_DECREF(ticket);
    core_raise(state, ringside, rc);
    return NULL;
}

static PyObject *slot_share(PyObject *self, PyObject *const *args, Py_ssize_t given,
                            PyObject *kwnames)
{
    static const struct core_signature signature = {
        "share", 0, 7, {"readers", "kept", "ttl", "meta", "stream", "sequence", "trace"}};
    struct core_lease *slot = (struct core_lease *)self;
    struct core_options options;
    PyObject *values[7], *ticket;
    unsigned readers;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_readers(core_state_of(slot), values[0], values[1], &readers) < 0 ||
        core_options_init(core_state_of(slot), &options, values[2], values[3], values[4], values[5],
                          values[6]) < 0)
        return NULL;
    ticket = core_slot_share(slot, readers, &options.options);
    core_options_finish(&options);
    return ticket;
}

static PyObject *slot_abandon(PyObject *self, PyObject *ignored)
{
    struct core_lease *slot = (struct core_lease *)self;
    int rc;

    (void)ignored;
    if (core_lease_held(slot) < 0)
        return NULL;
    rc = core_lease_end(slot, CORE_ABANDON);
    if (rc < 0) {
        core_raise(core_state_of(slot), slot->connection->ringside, rc);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *slot_exit(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    struct core_lease *slot = (struct core_lease *)self;

    (void)args;
    (void)given;
    if (slot->phase == CORE_HELD)
        core_lease_end(slot, CORE_ABANDON);
    Py_RETURN_FALSE;
}

static PyObject *slot_ticket(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(((struct core_lease *)self)->box->slot.ticket);
}

static PyObject *slot_nbytes_total(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(((struct core_lease *)self)->box->slot.slot_bytes);
}

static PyMethodDef slot_methods[] = {
    {"numpy", CORE_FUNCTION(core_lease_numpy), CORE_FAST,
     "numpy($self, i=0)\n--\n\nTensor i as a writable numpy.ndarray over the slot; no copy.\n\n"
     "After send() or share() the memory belongs to the readers: do not write to arrays made "
     "before."},
    {"buffer", CORE_FUNCTION(core_lease_buffer), CORE_FAST,
     "buffer($self, i=0)\n--\n\nTensor i as a writable memoryview; bytes where the dtype has no "
     "letter."},
    {"torch", CORE_FUNCTION(core_lease_torch), CORE_FAST,
     "torch($self, i=0, copy=False)\n--\n\nTensor i as a torch.Tensor on the CPU, writable over "
     "the slot unless copied."},
    {"__dlpack__", CORE_FUNCTION(core_lease_dlpack), CORE_FAST,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "Tensor 0 as a writable DLPack capsule."},
    {"__dlpack_device__", core_view_dlpack_device, METH_NOARGS, NULL},
    {"send", CORE_FUNCTION(slot_send), CORE_FAST,
     "send($self, route, ttl=None, meta=None, timeout=None, stream=0, sequence=0, "
     "trace=None)\n--\n\n"
     "Publish on a route; the slot is spent. ttl and timeout are seconds, meta bytes or a dict.\n\n"
     "Raises NoRoute, RingFull, Timeout (a route that blocks); the slot is then still held."},
    {"share", CORE_FUNCTION(slot_share), CORE_FAST,
     "share($self, readers=1, kept=False, ttl=None, meta=None, stream=0, sequence=0, "
     "trace=None)\n--\n\n"
     "Publish for `readers` reads by ticket, or until free(ticket) with kept=True.\n\n"
     "Returns a Ticket. It always has a time to live: ttl seconds, or the stage's tickets.ttl_ms."},
    {"abandon", slot_abandon, METH_NOARGS,
     "abandon($self)\n--\n\nGive the loan back unpublished, once its last view is gone."},
    {"__enter__", core_lease_self, METH_NOARGS, NULL},
    {"__exit__", CORE_FUNCTION(slot_exit), METH_FASTCALL, NULL},
    {"__reduce_ex__", core_lease_no_pickle, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef slot_fields[] = {
    {"tensors", core_lease_tensor_list, NULL, "Tuple of Tensor(shape, dtype, nbytes).", NULL},
    {"shape", core_lease_first_field, NULL, "Shape of tensor 0.", (void *)0},
    {"dtype", core_lease_first_field, NULL, "Canonical dtype name of tensor 0.", (void *)1},
    {"nbytes", core_lease_first_field, NULL, "Bytes of tensor 0.", (void *)2},
    {"ticket", slot_ticket, NULL, "Ticket of the message that this becomes.", NULL},
    {"slot_bytes", slot_nbytes_total, NULL, "Size of the whole slot.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot slot_slots[] = {
    {Py_tp_doc,
     "A loaned slot of shared memory: write its tensors, then send(), share() or abandon().\n\n"
     "As a context manager it is abandoned at the end unless it was sent or shared."},
    {Py_tp_dealloc, core_lease_dealloc},
    {Py_tp_methods, slot_methods},
    {Py_tp_getset, slot_fields},
    {Py_bf_getbuffer, core_lease_getbuffer},
    {0, NULL}};

PyType_Spec core_slot_spec = {"ringside.Slot", sizeof(struct core_lease), 0, Py_TPFLAGS_DEFAULT,
                              slot_slots};

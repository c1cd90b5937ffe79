/* SPDX-License-Identifier: Apache-2.0 */
/* What slots and messages have in common: a lease lasts as long as its views, and the mappings as long as any view. */
#include "client/python/ringside/core.h"

#include <errno.h>

#define FREE_BOXES 16

union core_box *core_box_take(struct core_connection *connection)
{
    union core_box *box = connection->free_boxes;

    if (box) {
        connection->free_boxes = box->next_free;
        connection->free_box_count--;
        return box;
    }
    box = PyMem_RawMalloc(sizeof(*box));
    if (!box)
        PyErr_NoMemory();
    return box;
}

void core_box_give(struct core_connection *connection, union core_box *box)
{
    if (connection->free_box_count == FREE_BOXES) {
        PyMem_RawFree(box);
        return;
    }
    box->next_free = connection->free_boxes;
    connection->free_boxes = box;
    connection->free_box_count++;
}

static int end_box(struct core_connection *connection, union core_box *box, enum core_ending ending)
{
    if (connection->forks != core_forks())
        return -RINGSIDE_EFORKED;
    switch (ending) {
    case CORE_RELEASE:
        return ringside_release(connection->ringside, &box->message);
    case CORE_NACK:
        return ringside_nack(connection->ringside, &box->message);
    case CORE_ABANDON:
        return ringside_abandon(connection->ringside, &box->slot);
    }
    return -EINVAL;
}

static void unpin(struct core_lease *lease)
{
    struct core_connection *connection = lease->connection;

    if (!lease->pinned)
        return;
    lease->pinned = false;
    if (lease->next)
        lease->next->previous = lease->previous;
    if (lease->previous)
        lease->previous->next = lease->next;
    else
        connection->leases = lease->next;
    if (connection->closed)
        core_maybe_close(connection);
}

struct core_lease *core_lease_create(struct core_connection *connection, PyTypeObject *type,
                                     union core_box *box)
{
    struct core_lease *lease = (struct core_lease *)type->tp_alloc(type, 0);
    bool is_slot = type == connection->state->slot_type;

    if (!lease) {
        end_box(connection, box, is_slot ? CORE_ABANDON : CORE_NACK);
        core_box_give(connection, box);
        return NULL;
    }
    Py_INCREF(connection);
    lease->connection = connection;
    lease->box = box;
    lease->is_slot = is_slot;
    lease->phase = CORE_HELD;
    lease->pinned = true;
    lease->next = connection->leases;
    if (lease->next)
        lease->next->previous = lease;
    connection->leases = lease;
    return lease;
}

static enum core_ending default_ending(const struct core_lease *lease)
{
    if (lease->is_slot)
        return CORE_ABANDON;
    return lease->is_reading || lease->is_reply ? CORE_RELEASE : CORE_NACK;
}

void core_lease_dealloc(PyObject *self)
{
    struct core_lease *lease = (struct core_lease *)self;
    struct core_connection *connection = lease->connection;
    PyTypeObject *type = Py_TYPE(self);

    if (lease->phase == CORE_HELD)
        end_box(connection, lease->box, default_ending(lease));
    core_box_give(connection, lease->box);
    unpin(lease);
    Py_XDECREF(lease->metadata);
    type->tp_free(self);
    Py_DECREF(type);
    Py_DECREF(connection);
}

static const char *why_not_held(const struct core_lease *lease)
{
    if (lease->phase == CORE_BUSY)
        return "another thread is in a call on it";
    if (lease->connection->closed)
        return "its connection is closed";
    return lease->is_slot ? "it was sent, shared or abandoned already"
                          : "it was released, nacked or forwarded already";
}

int core_lease_held(struct core_lease *lease)
{
    if (lease->phase == CORE_HELD)
        return lease->connection->forks == core_forks() ? 0 : core_usable(lease->connection);
    core_raise_own(core_state_of(lease), RINGSIDE_ESTATE, "this %s cannot be used: %s",
                   lease->is_slot ? "slot" : "message", why_not_held(lease));
    return -1;
}

/* The views, if any, keep it pinned. */
void core_lease_ended(struct core_lease *lease)
{
    lease->phase = CORE_ENDED;
    if (lease->views == 0)
        unpin(lease);
}

/* Now, or when the last view is gone. Returns 0 or the library's error; sets no exception. */
int core_lease_end(struct core_lease *lease, enum core_ending ending)
{
    int rc;

    if (lease->views > 0) {
        lease->phase = CORE_ENDING;
        lease->ending = (uint8_t)ending;
        return 0;
    }
    rc = end_box(lease->connection, lease->box, ending);
    core_lease_ended(lease);
    return rc;
}

void core_lease_view_gone(struct core_lease *lease)
{
    if (--lease->views > 0)
        return;
    if (lease->phase == CORE_ENDING)
        core_lease_end(lease, (enum core_ending)lease->ending);
    else if (lease->phase == CORE_ENDED)
        unpin(lease);
}

void core_connection_end_leases(struct core_connection *connection)
{
    struct core_lease *lease = connection->leases;

    while (lease) {
        struct core_lease *next = lease->next;

        if (lease->phase == CORE_HELD)
            core_lease_end(lease, default_ending(lease));
        lease = next;
    }
}

const struct ringside_tensor *core_lease_tensors(const struct core_lease *lease, uint32_t *count)
{
    if (lease->is_slot) {
        *count = lease->box->slot.tensor_count;
        return lease->box->slot.tensors;
    }
    *count = lease->box->message.tensor_count;
    return lease->box->message.tensors;
}

static struct core_view *view_argument(PyObject *self, const char *function, PyObject *const *args,
                                       Py_ssize_t given, PyObject *kwnames)
{
    struct core_lease *lease = (struct core_lease *)self;
    struct core_signature signature = {function, 0, 1, {"i"}};
    PyObject *values[1];
    uint64_t index = 0;
    uint32_t count;

    if (PyVectorcall_NARGS((size_t)given) > 0 || kwnames) {
        if (core_parse(&signature, args, given, kwnames, values) < 0)
            return NULL;
        core_lease_tensors(lease, &count);
        if (core_unsigned(values[0], "i", count - 1, &index) < 0)
            return NULL;
    }
    return core_view_create(lease, (uint32_t)index);
}

PyObject *core_lease_numpy(PyObject *self, PyObject *const *args, Py_ssize_t given,
                           PyObject *kwnames)
{
    struct core_view *view = view_argument(self, "numpy", args, given, kwnames);
    PyObject *array;

    if (!view)
        return NULL;
    array = core_view_numpy(view);
    Py_DECREF(view);
    return array;
}

PyObject *core_lease_buffer(PyObject *self, PyObject *const *args, Py_ssize_t given,
                            PyObject *kwnames)
{
    struct core_view *view = view_argument(self, "buffer", args, given, kwnames);
    PyObject *memory;

    if (!view)
        return NULL;
    memory = PyMemoryView_FromObject((PyObject *)view);
    Py_DECREF(view);
    return memory;
}

PyObject *core_lease_torch(PyObject *self, PyObject *const *args, Py_ssize_t given,
                           PyObject *kwnames)
{
    static const struct core_signature signature = {"torch", 0, 2, {"i", "copy"}};
    struct core_lease *lease = (struct core_lease *)self;
    PyObject *values[2], *shape, *made = NULL;
    struct core_view *view;
    uint32_t count;
    const struct ringside_tensor *tensors = core_lease_tensors(lease, &count);
    uint64_t index = 0;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_unsigned(values[0], "i", count - 1, &index) < 0)
        return NULL;
    view = core_view_create(lease, (uint32_t)index);
    shape = view ? core_shape_tuple(&tensors[index]) : NULL;
    if (shape)
        made = PyObject_CallMethod(core_state_of(lease)->support, "torch_tensor", "OIOO", view,
                                   (unsigned)tensors[index].dtype, shape,
                                   values[1] ? values[1] : Py_False);
    Py_XDECREF(shape);
    Py_XDECREF(view);
    return made;
}

PyObject *core_lease_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t given,
                            PyObject *kwnames)
{
    struct core_view *view = core_view_create((struct core_lease *)self, 0);
    PyObject *capsule;

    if (!view)
        return NULL;
    capsule = core_view_dlpack((PyObject *)view, args, given, kwnames);
    Py_DECREF(view);
    return capsule;
}

int core_lease_getbuffer(PyObject *self, Py_buffer *buffer, int flags)
{
    struct core_view *view = core_view_create((struct core_lease *)self, 0);
    int rc;

    buffer->obj = NULL;
    if (!view) {
        PyObject *type, *value, *traceback;

        /* The protocol knows BufferError only; the reason becomes its cause's text. */
        PyErr_Fetch(&type, &value, &traceback);
        PyErr_Format(PyExc_BufferError, "%S", value ? value : type);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return -1;
    }
    rc = PyObject_GetBuffer((PyObject *)view, buffer, flags);
    Py_DECREF(view);
    return rc;
}

static PyObject *tensor_item(struct core_state *state, const struct ringside_tensor *tensor)
{
    PyObject *item = PyStructSequence_New(state->tensor_type);
    PyObject *name = state->dtype_names[tensor->dtype % CORE_DTYPES];

    if (!item)
        return NULL;
    Py_INCREF(name);
    PyStructSequence_SET_ITEM(item, 0, core_shape_tuple(tensor));
    PyStructSequence_SET_ITEM(item, 1, name);
    PyStructSequence_SET_ITEM(item, 2, PyLong_FromUnsignedLongLong(tensor->bytes));
    if (!PyStructSequence_GET_ITEM(item, 0) || !PyStructSequence_GET_ITEM(item, 2))
        Py_CLEAR(item);
    return item;
}

PyObject *core_lease_tensor_list(PyObject *self, void *closure)
{
    struct core_lease *lease = (struct core_lease *)self;
    uint32_t count;
    const struct ringside_tensor *tensors = core_lease_tensors(lease, &count);
    PyObject *list = PyTuple_New((Py_ssize_t)count);

    (void)closure;
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *item = tensor_item(core_state_of(lease), &tensors[i]);

        if (!item)
            Py_CLEAR(list);
        else
            PyTuple_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    return list;
}

/* shape, dtype and nbytes of tensor 0: `closure` is the field of Tensor. */
PyObject *core_lease_first_field(PyObject *self, void *closure)
{
    struct core_lease *lease = (struct core_lease *)self;
    uint32_t count;
    PyObject *item = tensor_item(core_state_of(lease), core_lease_tensors(lease, &count));
    PyObject *field;

    if (!item)
        return NULL;
    field = PyStructSequence_GET_ITEM(item, (Py_ssize_t)(intptr_t)closure);
    Py_INCREF(field);
    Py_DECREF(item);
    return field;
}

PyObject *core_lease_no_pickle(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return PyErr_Format(
        PyExc_TypeError,
        "a %s is a lease of shared memory and cannot be pickled: %s, or pickle a copy, "
        "numpy().copy()",
        ((struct core_lease *)self)->is_slot    ? "Slot"
        : ((struct core_lease *)self)->is_reply ? "reply to a call"
                                                : "Message that came by a route",
        ((struct core_lease *)self)->is_slot ? "share() it and pass the Ticket"
                                             : "put() its arrays and pass the Ticket");
}

PyObject *core_lease_self(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    if (core_lease_held((struct core_lease *)self) < 0)
        return NULL;
    Py_INCREF(self);
    return self;
}

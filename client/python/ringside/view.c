/* SPDX-License-Identifier: Apache-2.0 */
/* One exported tensor: buffer protocol and NumPy. While a View lives, its lease and the mapping live. */
#include "client/python/ringside/core.h"

struct core_view *core_view_create(struct core_lease *lease, uint32_t index)
{
    struct core_view *view;
    PyTypeObject *type;
    uint32_t count;
    const struct ringside_tensor *tensors;

    if (core_lease_held(lease) < 0)
        return NULL;
    type = core_state_of(lease)->view_type;
    view = (struct core_view *)type->tp_alloc(type, 0);
    if (!view)
        return NULL;
    tensors = core_lease_tensors(lease, &count);
    view->tensor = tensors[index];
    Py_INCREF(lease);
    view->lease = lease;
    lease->views++;
    return view;
}

static void view_dealloc(PyObject *self)
{
    struct core_view *view = (struct core_view *)self;
    PyTypeObject *type = Py_TYPE(self);

    core_lease_view_gone(view->lease);
    Py_DECREF(view->lease);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Letters of the struct module, native; NULL: no letter, exported as bytes. */
static const char *letter(unsigned dtype)
{
    static const char *const letters[CORE_DTYPES] = {
        [RINGSIDE_BOOL] = "?",       [RINGSIDE_UINT8] = "B",       [RINGSIDE_UINT16] = "H",
        [RINGSIDE_UINT32] = "I",     [RINGSIDE_UINT64] = "L",      [RINGSIDE_INT8] = "b",
        [RINGSIDE_INT16] = "h",      [RINGSIDE_INT32] = "i",       [RINGSIDE_INT64] = "l",
        [RINGSIDE_FLOAT16] = "e",    [RINGSIDE_FLOAT32] = "f",     [RINGSIDE_FLOAT64] = "d",
        [RINGSIDE_COMPLEX64] = "Zf", [RINGSIDE_COMPLEX128] = "Zd", [RINGSIDE_BYTES] = "B"};

    return dtype < CORE_DTYPES ? letters[dtype] : NULL;
}
_Static_assert(sizeof(long) == 8, "the letters l and L stand for 64 bits");

static void set_strides(struct core_view *view)
{
    Py_ssize_t stride = (Py_ssize_t)ringside_dtype_bytes(view->tensor.dtype);

    for (int i = view->tensor.rank - 1; i >= 0; i--) {
        view->strides[i] = stride;
        stride *= view->tensor.shape[i] > 0 ? (Py_ssize_t)view->tensor.shape[i] : 1;
    }
}

/* As one dimension of bytes, in place: the original stays in the lease. */
static void make_raw(struct core_view *view)
{
    view->raw = true;
    view->tensor.dtype = RINGSIDE_UINT8;
    view->tensor.rank = 1;
    view->tensor.shape[0] = (int64_t)view->tensor.bytes;
}

static int view_getbuffer(PyObject *self, Py_buffer *buffer, int flags)
{
    struct core_view *view = (struct core_view *)self;
    static char nowhere[1]; /* what an empty tensor without an address points to */

    buffer->obj = NULL;
    if ((flags & PyBUF_WRITABLE) && !view->lease->is_slot) {
        PyErr_SetString(PyExc_BufferError, "a received tensor is read-only");
        return -1;
    }
    if (!letter(view->tensor.dtype))
        make_raw(view);
    set_strides(view);
    buffer->buf = view->tensor.data ? view->tensor.data : nowhere;
    buffer->len = (Py_ssize_t)view->tensor.bytes;
    buffer->readonly = !view->lease->is_slot;
    buffer->itemsize = (Py_ssize_t)ringside_dtype_bytes(view->tensor.dtype);
    buffer->format = flags & PyBUF_FORMAT ? (char *)letter(view->tensor.dtype) : NULL;
    buffer->ndim = view->tensor.rank;
    buffer->shape = flags & PyBUF_ND ? (Py_ssize_t *)view->tensor.shape : NULL;
    buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? view->strides : NULL;
    buffer->suboffsets = NULL;
    buffer->internal = NULL;
    Py_INCREF(self);
    buffer->obj = self;
    return 0;
}

PyObject *core_shape_tuple(const struct ringside_tensor *tensor)
{
    PyObject *shape = PyTuple_New(tensor->rank);

    for (int i = 0; shape && i < tensor->rank; i++) {
        PyObject *dimension = PyLong_FromLongLong(tensor->shape[i]);

        if (!dimension)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, i, dimension);
    }
    return shape;
}

static PyObject *numpy_dtype(struct core_state *state, unsigned dtype)
{
    PyObject **cached = &state->numpy_dtypes[dtype % CORE_DTYPES];

    if (!*cached)
        *cached = PyObject_CallMethod(state->support, "numpy_dtype", "I", dtype);
    return *cached;
}

static PyObject *ndarray(struct core_state *state)
{
    if (!state->ndarray) {
        PyObject *numpy = PyImport_ImportModule("numpy");

        if (numpy)
            state->ndarray = PyObject_GetAttrString(numpy, "ndarray");
        Py_XDECREF(numpy);
    }
    return state->ndarray;
}

/* numpy.ndarray(shape, dtype, view): public API only, so that one build serves NumPy 1 and 2. */
PyObject *core_view_numpy(struct core_view *view)
{
    struct core_state *state = core_state_of(view->lease);
    PyObject *arguments[3] = {NULL, numpy_dtype(state, view->tensor.dtype), (PyObject *)view};
    PyObject *array;

    if (!arguments[1] || !ndarray(state))
        return NULL;
    arguments[0] = core_shape_tuple(&view->tensor);
    if (!arguments[0])
        return NULL;
    array = PyObject_Vectorcall(state->ndarray, arguments, 3, NULL);
    Py_DECREF(arguments[0]);
    return array;
}

static PyObject *view_as_bytes(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    make_raw((struct core_view *)self);
    Py_INCREF(self);
    return self;
}

static PyMethodDef view_methods[] = {
    {"as_bytes", view_as_bytes, METH_NOARGS, "The same memory as one dimension of uint8."},
    {"__dlpack__", CORE_FUNCTION(core_view_dlpack), CORE_FAST, NULL},
    {"__dlpack_device__", core_view_dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyType_Slot view_slots[] = {
    {Py_tp_doc, "What stands behind arrays and buffers of a lease; it keeps the lease."},
    {Py_tp_dealloc, view_dealloc},
    {Py_tp_methods, view_methods},
    {Py_bf_getbuffer, view_getbuffer},
    {0, NULL}};

PyType_Spec core_view_spec = {"ringside._core.View", sizeof(struct core_view), 0,
                              Py_TPFLAGS_DEFAULT, view_slots};

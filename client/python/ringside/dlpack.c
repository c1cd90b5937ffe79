/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack export of a view, ABI 1.0 and the unversioned one before it: CPU memory, no copy unless asked for. */
#include "client/python/ringside/core.h"

#include "proto/tensor.h"

#define DLPACK_CPU       1
#define DLPACK_READ_ONLY ((uint64_t)1)
#define DLPACK_IS_COPIED ((uint64_t)2)

/* The structs of dlpack.h that we fill; their layout is DLPack's ABI. */
struct dl_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* items */
    uint64_t byte_offset;
};

struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *);
};

struct dl_managed_versioned {
    uint32_t major;
    uint32_t minor;
    void *context;
    void (*deleter)(struct dl_managed_versioned *);
    uint64_t flags;
    struct dl_tensor tensor;
};
_Static_assert(sizeof(struct dl_tensor) == 48, "DLTensor");
_Static_assert(sizeof(struct dl_managed) == 64, "DLManagedTensor");
_Static_assert(sizeof(struct dl_managed_versioned) == 80, "DLManagedTensorVersioned");

struct exported {
    union {
        struct dl_managed managed;
        struct dl_managed_versioned versioned;
    };
    PyObject *view; /* keeps the memory; NULL for a copy */
    void *copy;     /* owned, or NULL */
    int64_t shape[RINGSIDE_MAX_RANK];
    int64_t strides[RINGSIDE_MAX_RANK];
};

/* Consumers may call this on any thread, with or without the GIL. */
static void drop(struct exported *exported)
{
    if (exported->view && Py_IsInitialized()) {
        PyGILState_STATE gil = PyGILState_Ensure();

        Py_DECREF(exported->view);
        PyGILState_Release(gil);
    }
    PyMem_RawFree(exported->copy);
    PyMem_RawFree(exported);
}

static void delete_managed(struct dl_managed *managed)
{
    drop(managed->context);
}

static void delete_versioned(struct dl_managed_versioned *versioned)
{
    drop(versioned->context);
}

static void capsule_gone(PyObject *capsule)
{
    /* Renamed by whoever consumed it; theirs to delete then. */
    if (PyCapsule_IsValid(capsule, "dltensor"))
        delete_managed(PyCapsule_GetPointer(capsule, "dltensor"));
    else if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        delete_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
}

static void fill_tensor(struct exported *exported, struct dl_tensor *out,
                        const struct ringside_tensor *tensor)
{
    const struct rs_dtype_info *info =
        rs_dtype_info(tensor->dtype == RINGSIDE_BYTES ? RINGSIDE_UINT8 : tensor->dtype);
    int64_t stride = 1;

    for (int i = tensor->rank - 1; i >= 0; i--) {
        exported->shape[i] = tensor->shape[i];
        exported->strides[i] = stride;
        stride *= tensor->shape[i] > 0 ? tensor->shape[i] : 1;
    }
    *out = (struct dl_tensor){.data = exported->copy ? exported->copy : tensor->data,
                              .device_type = DLPACK_CPU,
                              .ndim = tensor->rank,
                              .code = info->dlpack_code,
                              .bits = info->dlpack_bits,
                              .lanes = 1,
                              .shape = exported->shape,
                              .strides = exported->strides};
}

static struct exported *export_create(struct core_view *view, bool copy)
{
    struct exported *exported = PyMem_RawCalloc(1, sizeof(*exported));

    if (exported && copy) {
        exported->copy = PyMem_RawMalloc(view->tensor.bytes ? view->tensor.bytes : 1);
        if (exported->copy && view->tensor.bytes)
            memcpy(exported->copy, view->tensor.data, view->tensor.bytes);
    }
    if (!exported || (copy && !exported->copy)) {
        PyMem_RawFree(exported);
        PyErr_NoMemory();
        return NULL;
    }
    if (!copy) {
        Py_INCREF(view);
        exported->view = (PyObject *)view;
    }
    return exported;
}

static PyObject *capsule(struct core_view *view, bool versioned, bool copy)
{
    struct exported *exported = export_create(view, copy);
    PyObject *made;

    if (!exported)
        return NULL;
    if (!copy && !view->lease->is_slot)
        core_fault_watch();
    if (versioned) {
        fill_tensor(exported, &exported->versioned.tensor, &view->tensor);
        exported->versioned.major = 1;
        exported->versioned.context = exported;
        exported->versioned.deleter = delete_versioned;
        exported->versioned.flags = copy                   ? DLPACK_IS_COPIED
                                    : view->lease->is_slot ? 0
                                                           : DLPACK_READ_ONLY;
    } else {
        fill_tensor(exported, &exported->managed.tensor, &view->tensor);
        exported->managed.context = exported;
        exported->managed.deleter = delete_managed;
    }
    made = PyCapsule_New(exported, versioned ? "dltensor_versioned" : "dltensor", capsule_gone);
    if (!made)
        drop(exported);
    return made;
}
_Static_assert(offsetof(struct exported, managed) == 0, "the capsule points to the managed tensor");

static int is_cpu(PyObject *device)
{
    int type, number;

    if (!device || device == Py_None)
        return 1;
    if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &type, &number)) {
        PyErr_Clear();
        return 0;
    }
    return type == DLPACK_CPU && number == 0;
}

static int major_of(PyObject *version)
{
    long major;

    if (!version || version == Py_None)
        return 0;
    if (!PyTuple_Check(version) || PyTuple_GET_SIZE(version) != 2) {
        PyErr_Format(PyExc_TypeError, "max_version is %R; it is a pair of integers", version);
        return -1;
    }
    major = PyLong_AsLong(PyTuple_GET_ITEM(version, 0));
    return major > 0 ? 1 : major < 0 && PyErr_Occurred() ? -1 : 0;
}

PyObject *core_view_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t given,
                           PyObject *kwnames)
{
    static const struct core_signature signature = {
        "__dlpack__", 0, 4, {"stream", "max_version", "dl_device", "copy"}};
    PyObject *values[4];
    int major, copy = 0;

    if (core_parse(&signature, args, given, kwnames, values) < 0)
        return NULL;
    if (values[0] && values[0] != Py_None)
        return PyErr_Format(PyExc_BufferError, "stream is %R; CPU memory has none", values[0]);
    if (!is_cpu(values[2]))
        return PyErr_Format(PyExc_BufferError, "dl_device is %R; the memory is on (1, 0), the CPU",
                            values[2]);
    major = major_of(values[1]);
    if (values[3] && values[3] != Py_None)
        copy = PyObject_IsTrue(values[3]);
    if (major < 0 || copy < 0)
        return NULL;
    return capsule((struct core_view *)self, major > 0, copy > 0);
}

PyObject *core_view_dlpack_device(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    return Py_BuildValue("(ii)", DLPACK_CPU, 0);
}

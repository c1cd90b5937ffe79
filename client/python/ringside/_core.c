/* SPDX-License-Identifier: Apache-2.0 */
/* The extension module ringside._core: its types, its state, and the table of dtypes. */
#include "client/python/ringside/core.h"

#include "proto/err.h"
#include "proto/tensor.h"

static PyStructSequence_Field tensor_fields[] = {{"shape", "tuple of int"},
                                                 {"dtype", "canonical name"},
                                                 {"nbytes", "size in bytes"},
                                                 {NULL, NULL}};

static PyStructSequence_Desc tensor_description = {
    "ringside.Tensor", "What a tensor of a slot or message looks like.", tensor_fields, 3};

static PyObject *dtype_from_name(PyObject *module, PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name);

    (void)module;
    return text ? PyLong_FromLong(ringside_dtype_from_name(text)) : NULL;
}

static PyObject *dtype_refusal(PyObject *module, PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name);

    (void)module;
    return text ? Py_BuildValue("z", rs_dtype_refusal(text)) : NULL;
}

/* (name, NumPy type string or None, torch name or None, DLPack code, bytes) */
static PyObject *dtype_info(PyObject *module, PyObject *code)
{
    long number = PyLong_AsLong(code);
    const struct rs_dtype_info *info = number < 0 ? NULL : rs_dtype_info((unsigned)number);

    (void)module;
    if (PyErr_Occurred())
        return NULL;
    if (!info)
        return PyErr_Format(PyExc_ValueError, "%ld is no dtype code", number);
    return Py_BuildValue("(szziI)", info->name, info->numpy, info->torch, (int)info->dlpack_code,
                         (unsigned)info->item_bytes);
}

/* Of a number of enum ringside_error or an errno. */
static PyObject *error_status(PyObject *module, PyObject *code)
{
    int number = (int)PyLong_AsLong(code);

    (void)module;
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromLong((long)rs_error_status(number > 0 ? -number : number));
}

/* Called by ringside/__init__.py: _support itself needs this module. */
static PyObject *set_support(PyObject *module, PyObject *support)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *ticket_type = PyObject_GetAttrString(support, "Ticket");

    if (!ticket_type)
        return NULL;
    Py_XSETREF(state->ticket_type, ticket_type);
    Py_INCREF(support);
    Py_XSETREF(state->support, support);
    Py_RETURN_NONE;
}

static PyObject *ticket_parse(PyObject *module, PyObject *text)
{
    struct core_state *state = PyModule_GetState(module);
    Py_ssize_t length = 0;
    const char *chars = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
    uint64_t ticket;

    if (!PyUnicode_Check(text))
        return PyErr_Format(
            PyExc_TypeError,
            "a Ticket is made of its text; for a bare number, Ticket(rs.ticket_text(number))");
    PyErr_Clear(); /* what has no UTF-8 is no ticket either */
    if (chars && strlen(chars) == (size_t)length && ringside_ticket_parse(chars, &ticket) == 0)
        return PyLong_FromUnsignedLongLong(ticket);
    core_raise_own(state, RINGSIDE_EMALFORMED_TICKET,
                   "%R is not the text form of a ticket (rst1-...)", text);
    return NULL;
}

/* As Ticket(text), without any Python code: a pickle calls it, where others wait for a hand-off. */
static PyObject *ticket_create(PyObject *module, PyObject *text)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *number = ticket_parse(module, text), *ticket = NULL;

    if (!number)
        return NULL;
    PyObject *arguments = PyTuple_Pack(1, number);
    Py_DECREF(number);
    if (arguments)
        ticket = PyLong_Type.tp_new((PyTypeObject *)state->ticket_type, arguments, NULL);
    Py_XDECREF(arguments);
    if (ticket && PyObject_SetAttrString(ticket, "_text", text) < 0)
        Py_CLEAR(ticket);
    return ticket;
}

static PyMethodDef core_functions[] = {
    {"dtype_from_name", dtype_from_name, METH_O,
     "Code of a name in any of the known systems, or < 0."},
    {"dtype_refusal", dtype_refusal, METH_O, "Why a dtype is refused by name, or None."},
    {"dtype_info", dtype_info, METH_O, "(name, numpy, torch, DLPack code, bytes) of a code."},
    {"ticket_parse", ticket_parse, METH_O, "The bare number in the text form of a ticket."},
    {"unpickle_ticket", ticket_create, METH_O, "The Ticket with that text."},
    {"error_status", error_status, METH_O, "The gRPC status for an error code."},
    {"set_support", set_support, METH_O, "Hand over ringside._support."},
    {NULL, NULL, 0, NULL}};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, bool constructible)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);

    if (!type)
        return NULL;
    if (!constructible)
        type->tp_new = NULL;
    if (PyModule_AddType(module, type) < 0)
        Py_CLEAR(type);
    return type;
}

static int add_types(PyObject *module, struct core_state *state)
{
    state->connection_type = add_type(module, &core_connection_spec, true);
    state->slot_type = add_type(module, &core_slot_spec, false);
    state->message_type = add_type(module, &core_message_spec, false);
    state->view_type = add_type(module, &core_view_spec, false);
    state->inbox_type = add_type(module, &core_inbox_spec, false);
    state->call_type = add_type(module, &core_call_spec, false);
    state->tensor_type = PyStructSequence_NewType(&tensor_description);
    if (!state->connection_type || !state->slot_type || !state->message_type || !state->view_type ||
        !state->inbox_type || !state->call_type || !state->tensor_type)
        return -1;
    return PyModule_AddType(module, state->tensor_type);
}

static int add_dtypes(PyObject *module, struct core_state *state)
{
    PyObject *names = PyDict_New();

    for (unsigned code = 1; names && ringside_dtype_name(code); code++) {
        PyObject *number = PyLong_FromLong((long)code);

        state->dtype_names[code] = PyUnicode_InternFromString(ringside_dtype_name(code));
        if (!number || !state->dtype_names[code] ||
            PyDict_SetItem(names, state->dtype_names[code], number) < 0)
            Py_CLEAR(names);
        Py_XDECREF(number);
    }
    if (!names)
        return -1;
    state->dtype_codes = PyDict_Copy(names);
    if (!state->dtype_codes || PyModule_AddObject(module, "DTYPES", names) < 0) {
        Py_DECREF(names);
        return -1;
    }
    return PyModule_AddStringConstant(module, "VERSION", ringside_version());
}

static int core_exec(PyObject *module)
{
    struct core_state *state = PyModule_GetState(module);
    PyObject *errors;

    if (core_watch_forks() < 0 || add_types(module, state) < 0 || add_dtypes(module, state) < 0)
        return -1;
    errors = PyImport_ImportModule("ringside._errors");
    if (!errors)
        return -1;
    state->make_error = PyObject_GetAttrString(errors, "make");
    Py_DECREF(errors);
    return state->make_error ? 0 : -1;
}

/* No m_clear: objects that live until the very end of the interpreter still find their types here. */
static void core_free(void *module)
{
    struct core_state *state = PyModule_GetState(module);

    if (!state)
        return;
    Py_CLEAR(state->connection_type);
    Py_CLEAR(state->slot_type);
    Py_CLEAR(state->message_type);
    Py_CLEAR(state->view_type);
    Py_CLEAR(state->inbox_type);
    Py_CLEAR(state->call_type);
    Py_CLEAR(state->tensor_type);
    Py_CLEAR(state->make_error);
    Py_CLEAR(state->support);
    Py_CLEAR(state->ticket_type);
    Py_CLEAR(state->dtype_codes);
    Py_CLEAR(state->ndarray);
    for (int i = 0; i < CORE_DTYPES; i++) {
        Py_CLEAR(state->dtype_names[i]);
        Py_CLEAR(state->numpy_dtypes[i]);
    }
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL}};

static struct PyModuleDef core_module = {.m_base = PyModuleDef_HEAD_INIT,
                                         .m_name = "ringside._core",
                                         .m_doc = "The compiled part of ringside.",
                                         .m_size = sizeof(struct core_state),
                                         .m_methods = core_functions,
                                         .m_slots = core_slots,
                                         .m_free = core_free};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}

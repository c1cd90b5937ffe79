/* SPDX-License-Identifier: Apache-2.0 */
/* Answering: what a Message that is a call has more than others. */
#include "client/python/ringside/core.h"

static struct ringside_message *message_of(PyObject *self)
{
    return &((struct core_lease *)self)->box->message;
}

static int can_answer(struct core_lease *request)
{
    if (core_lease_held(request) < 0)
        return -1;
    if (!request->is_slot && ringside_is_call(&request->box->message) && !request->answered)
        return 0;
    core_raise_own(core_state_of(request), RINGSIDE_ESTATE, "this message %s",
                   request->answered ? "had its last reply already"
                                     : "is no call: nobody waits for a reply");
    return -1;
}

struct answer {
    struct core_call waiting; /* first */
    int last;
};

static int run_reply(struct core_call *call, int64_t timeout_ns)
{
    call->options->timeout_ns = timeout_ns;
    return ringside_reply(call->connection->ringside, &call->request->box->message,
                          &call->box->slot, call->options, ((struct answer *)call)->last);
}

/* 0, or -1 with an exception set. */
static int send_reply(struct core_lease *request, struct core_lease *slot,
                      struct ringside_options *options, int last, int64_t timeout_ns)
{
    struct core_connection *connection = request->connection;
    struct answer answer = {.waiting = {.connection = connection,
                                        .run = run_reply,
                                        .box = slot->box,
                                        .options = options,
                                        .request = request},
                            .last = last};
    int rc;

    /* Again: the copy into the slot may have let other threads in. */
    if (can_answer(request) < 0 || core_lease_held(slot) < 0 || core_usable(connection) < 0)
        return -1;
    request->phase = slot->phase = CORE_BUSY;
    rc = core_wait(&answer.waiting, timeout_ns);
    request->phase = slot->phase = CORE_HELD;
    if (rc >= 0 || rc == -RINGSIDE_ESTATE || rc == -RINGSIDE_ECANCELLED)
        core_lease_ended(slot);
    if (rc >= 0) {
        request->answered = last;
        return 0;
    }
    core_raise(connection->state, connection->ringside, rc);
    if (connection->closed)
        core_connection_end_leases(connection);
    return -1;
}

PyObject *core_message_reply(PyObject *self, PyObject *const *args, Py_ssize_t given,
                             PyObject *kwnames)
{
    static const struct core_signature signature = {
        "reply", 0, 4, {"data", "meta", "last", "timeout"}};
    struct core_lease *request = (struct core_lease *)self, *slot;
    struct core_options options;
    int64_t timeout_ns, deadline_ns;
    PyObject *values[4];
    int rc, last = 1;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_timeout(values[3], &timeout_ns) < 0 || can_answer(request) < 0)
        return NULL;
    if (values[2] && (last = PyObject_IsTrue(values[2])) < 0)
        return NULL;
    deadline_ns = core_deadline(timeout_ns);
    slot = core_load(request->connection, values[0], values[1], NULL, 0, timeout_ns, request,
                     &options);
    if (!slot)
        return NULL;
    rc = send_reply(request, slot, &options.options, last, core_left(deadline_ns));
    core_options_finish(&options);
    Py_DECREF(slot); /* one that was loaded here is abandoned unless it was sent */
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *core_message_reply_error(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                   PyObject *kwnames)
{
    static const struct core_signature signature = {"reply_error", 1, 2, {"status", "text"}};
    struct core_lease *request = (struct core_lease *)self;
    struct core_connection *connection = request->connection;
    PyObject *values[2];
    uint64_t status = 0;
    const char *text = NULL;
    int rc;

    if (core_parse(&signature, args, given, kwnames, values) < 0 ||
        core_unsigned(values[0], "status", 255, &status) < 0 || can_answer(request) < 0)
        return NULL;
    if (values[1] && !(text = PyUnicode_AsUTF8(values[1])))
        return NULL;
    request->phase = CORE_BUSY;
    connection->waiting++;
    Py_BEGIN_ALLOW_THREADS rc =
        ringside_reply_error(connection->ringside, &request->box->message, (unsigned)status, text);
    Py_END_ALLOW_THREADS connection->waiting--;
    request->phase = CORE_HELD;
    if (rc < 0)
        core_raise(connection->state, connection->ringside, rc);
    else
        request->answered = true;
    if (connection->closed)
        core_connection_end_leases(connection);
    core_maybe_close(connection);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *core_message_method(PyObject *self, void *closure)
{
    struct core_lease *lease = (struct core_lease *)self;
    const struct ringside_message *message = message_of(self);

    (void)closure;
    if (!message->method)
        Py_RETURN_NONE;
    if (core_lease_held(lease) < 0) /* the name is in shared memory */
        return NULL;
    return PyUnicode_DecodeUTF8(message->method, (Py_ssize_t)message->method_bytes, "replace");
}

PyObject *core_message_cancelled(PyObject *self, void *closure)
{
    struct core_lease *lease = (struct core_lease *)self;

    (void)closure;
    if (core_lease_held(lease) < 0)
        return NULL;
    if (!ringside_is_call(message_of(self)))
        Py_RETURN_FALSE;
    return PyBool_FromLong(ringside_cancelled(lease->connection->ringside, message_of(self)) != 0);
}

PyObject *core_message_time_left(PyObject *self, void *closure)
{
    const struct ringside_message *message = message_of(self);
    double left_ns;

    (void)closure;
    if (!message->ttl_ns)
        Py_RETURN_NONE;
    left_ns = (double)message->publish_ns + (double)message->ttl_ns - (double)core_now_ns();
    return PyFloat_FromDouble(left_ns > 0 ? left_ns / 1e9 : 0.0);
}

PyObject *core_message_answered(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((struct core_lease *)self)->answered);
}

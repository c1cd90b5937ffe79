/* SPDX-License-Identifier: Apache-2.0 */
/* Calling: the request, the Call in flight, and its replies. */
#include "client/python/ringside/core.h"

#include <time.h>

#define MOST_AWAITED   64 /* replies of one connection */
#define FIRST_PAUSE_NS 50000
#define LAST_PAUSE_NS  1000000

/* ---- the call in flight ---- */

static bool is_ours(const struct core_connection *connection)
{
    return connection->ringside && connection->forks == core_forks();
}

static void close_pending(struct core_pending *pending)
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

/* While a thread waits for its reply, that one ends it. */
static void cancel_pending(struct core_pending *pending)
{
    if (pending->busy) {
        atomic_store(&pending->is_unwanted, true);
        return;
    }
    if (pending->open && is_ours(pending->connection))
        (void)ringside_call_cancel(pending->connection->ringside, &pending->call);
    close_pending(pending);
}

void core_connection_end_calls(struct core_connection *connection)
{
    for (struct core_pending *pending = connection->pending, *next; pending; pending = next) {
        next = pending->next;
        cancel_pending(pending);
    }
}

/* What was not sent. A slot that was loaned here is abandoned. */
static void drop_request(struct core_pending *pending)
{
    Py_CLEAR(pending->data);
    Py_CLEAR(pending->metadata);
    Py_CLEAR(pending->trace);
    if (pending->slot)
        core_options_finish(&pending->options);
    Py_CLEAR(pending->slot);
}

static void pending_dealloc(PyObject *self)
{
    struct core_pending *pending = (struct core_pending *)self;
    PyTypeObject *type = Py_TYPE(self);

    cancel_pending(pending);
    drop_request(pending);
    Py_XDECREF(pending->reply);
    Py_DECREF(pending->connection);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- the request ---- */

/* Of one step. */
struct step {
    struct core_call waiting; /* first */
    struct core_pending *pending;
};

static struct core_pending *pending_of(struct core_call *call)
{
    return ((struct step *)call)->pending;
}

static bool try_reserve(struct core_connection *connection, uint32_t credits)
{
    if (atomic_fetch_add(&connection->awaited, credits) + credits <= MOST_AWAITED)
        return true;
    atomic_fetch_sub(&connection->awaited, credits);
    return false;
}

static int run_reserve(struct core_call *call, int64_t timeout_ns)
{
    int64_t deadline_ns = core_deadline(timeout_ns);
    struct timespec pause = {.tv_nsec = FIRST_PAUSE_NS};

    while (!try_reserve(call->connection, pending_of(call)->credits)) {
        if (core_left(deadline_ns) == 0)
            return timeout_ns == 0 ? -RINGSIDE_EFULL : -RINGSIDE_ETIMEOUT;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LAST_PAUSE_NS)
            pause.tv_nsec *= 2;
    }
    return 0;
}

/* First, before anything is copied: room for its replies, which other calls leave as they end. */
static int reserve(struct core_pending *pending, int64_t wait_ns)
{
    struct core_connection *connection = pending->connection;
    struct step step = {.waiting = {.connection = connection, .run = run_reserve},
                        .pending = pending};
    int rc = pending->has_room ? 0 : core_wait(&step.waiting, wait_ns);

    if (rc >= 0) {
        pending->has_room = true;
        return core_usable(connection);
    }
    if (rc != CORE_RAISED)
        core_raise_own(connection->state, rc,
                       "this connection awaits %d replies already (calls in flight x credits), and "
                       "too few of them came",
                       MOST_AWAITED);
    return -1;
}

static int load(struct core_pending *pending, int64_t wait_ns)
{
    if (pending->slot)
        return 0;
    pending->slot =
        core_load(pending->connection, pending->data, pending->metadata, pending->trace,
                  (uint32_t)strlen(pending->method) + 8, wait_ns, NULL, &pending->options);
    if (!pending->slot)
        return -1;
    pending->options.options.credits = pending->credits;
    return 0;
}

static int run_send(struct core_call *call, int64_t timeout_ns)
{
    struct core_pending *pending = pending_of(call);
    int64_t left_ns = core_left(pending->deadline_ns);

    pending->late = left_ns == 0;
    if (pending->late)
        return -RINGSIDE_ETIMEOUT;
    call->options->timeout_ns = timeout_ns;
    call->options->ttl_ns = left_ns < 0 ? 0 : (uint64_t)left_ns;
    return ringside_call(call->connection->ringside, &call->box->slot, call->route, pending->method,
                         call->options, &pending->call);
}

static void open_pending(struct core_pending *pending)
{
    struct core_connection *connection = pending->connection;

    pending->open = true;
    pending->next = connection->pending;
    if (pending->next)
        pending->next->previous = pending;
    connection->pending = pending;
    drop_request(pending);
}

/* 0, or -1 with an exception set and the slot still held unless it was lost. */
static int send_request(struct core_pending *pending, int64_t wait_ns)
{
    struct core_connection *connection = pending->connection;
    struct core_lease *slot = pending->slot;
    struct step step = {.waiting = {.connection = connection,
                                    .run = run_send,
                                    .route = pending->route,
                                    .box = slot->box,
                                    .options = &pending->options.options},
                        .pending = pending};
    int rc;

    if (core_lease_held(slot) < 0 || core_usable(connection) < 0)
        return -1;
    slot->phase = CORE_BUSY;
    rc = core_wait(&step.waiting, wait_ns);
    slot->phase = CORE_HELD;
    if (rc >= 0 || rc == -RINGSIDE_ESTATE)
        core_lease_ended(slot);
    if (rc >= 0) {
        open_pending(pending);
        return core_usable(connection); /* closed while it waited: who drops it cancels it */
    }
    if (pending->late && rc != CORE_RAISED)
        core_raise_own(connection->state, RINGSIDE_ETIMEOUT,
                       "the call's time was over before it could be sent");
    else
        core_raise(connection->state, connection->ringside, rc);
    if (connection->closed && slot->phase == CORE_HELD)
        core_lease_end(slot, CORE_ABANDON);
    return -1;
}

/* "ROUTE.METHOD": a route may have dots. */
static int split(struct core_pending *pending, PyObject *target)
{
    const char *text = PyUnicode_Check(target) ? PyUnicode_AsUTF8(target) : NULL;
    const char *dot = text ? strrchr(text, '.') : NULL;
    size_t bytes = dot ? (size_t)(dot - text) : 0, method_bytes = dot ? strlen(dot + 1) : 0;

    if (PyErr_Occurred())
        return -1;
    if (bytes == 0 || bytes >= sizeof(pending->route) || method_bytes == 0 ||
        method_bytes >= sizeof(pending->method)) {
        core_raise_own(pending->connection->state, RINGSIDE_EINVALID,
                       "the target is %R; it is \"ROUTE.METHOD\": a route of this stage, and a "
                       "method (1..63 bytes) of the stage that it leads to",
                       target);
        return -1;
    }
    memcpy(pending->route, text, bytes); /* the rest is 0 */
    memcpy(pending->method, dot + 1, method_bytes);
    return 0;
}

static int set_deadline(struct core_pending *pending, PyObject *timeout)
{
    int64_t timeout_ns;

    if (core_timeout(timeout, &timeout_ns) < 0)
        return -1;
    if (timeout_ns == 0) {
        core_raise_own(pending->connection->state, RINGSIDE_EINVALID,
                       "timeout is 0; a call takes more than 0 seconds (None: for ever)");
        return -1;
    }
    pending->deadline_ns = core_deadline(timeout_ns);
    return 0;
}

/* values: target, data, meta, timeout, trace. Not begun yet. */
static struct core_pending *create(struct core_connection *connection, PyObject **values,
                                   uint32_t credits)
{
    PyTypeObject *type = connection->state->call_type;
    struct core_pending *pending = (struct core_pending *)type->tp_alloc(type, 0);

    if (!pending)
        return NULL;
    Py_INCREF(connection);
    pending->connection = connection;
    pending->credits = credits;
    Py_XINCREF(values[1]);
    pending->data = values[1];
    Py_XINCREF(values[2]);
    pending->metadata = values[2];
    Py_XINCREF(values[4]);
    pending->trace = values[4];
    if (split(pending, values[0]) < 0 || set_deadline(pending, values[3]) < 0)
        Py_CLEAR(pending);
    return pending;
}

static int start(struct core_pending *pending)
{
    return reserve(pending, core_left(pending->deadline_ns)) < 0 ||
                   load(pending, core_left(pending->deadline_ns)) < 0
               ? -1
               : send_request(pending, core_left(pending->deadline_ns));
}

/* ---- replies ---- */

struct awaiting {
    struct step step; /* first */
    int error;        /* with CORE_OVER; 0: it was cancelled */
};

static int run_next(struct core_call *call, int64_t timeout_ns)
{
    int *error = &((struct awaiting *)call)->error;
    struct core_pending *pending = pending_of(call);
    struct ringside *ringside = call->connection->ringside;

    *error = 0;
    if (atomic_load(&pending->is_unwanted)) {
        (void)ringside_call_cancel(ringside, &pending->call);
        return CORE_OVER;
    }
    *error = ringside_call_wait(ringside, &pending->call, &call->box->message, timeout_ns);
    /* The end of the call is no reason to try again, whatever its error. */
    return *error < 0 && !pending->call.open ? CORE_OVER : *error;
}

static void raise_failure(const struct awaiting *awaiting, int rc)
{
    struct core_connection *connection = awaiting->step.waiting.connection;

    if (rc == CORE_OVER && awaiting->error == 0)
        core_raise_own(connection->state, RINGSIDE_ECANCELLED, "the call was cancelled");
    else if (rc == CORE_OVER)
        core_raise_status(connection->state, connection->ringside, awaiting->error,
                          awaiting->step.pending->call.status);
    else
        core_raise(connection->state, connection->ringside, rc);
}

/* The end of a stream whose last item went out before anybody knew that it was the last. */
static bool is_end(const struct ringside_message *reply)
{
    return reply->tensor_count == 1 && reply->tensors[0].dtype == RINGSIDE_BYTES &&
           reply->tensors[0].bytes == 0 && reply->metadata_bytes == 0;
}

static int can_wait(struct core_pending *pending)
{
    if (pending->busy) {
        core_raise_own(pending->connection->state, RINGSIDE_ESTATE,
                       "another thread is in a call on it");
        return -1;
    }
    return core_usable(pending->connection);
}

/* The next reply. NULL without an exception: there is none any more, or none came in time. */
static struct core_lease *next(struct core_pending *pending, int64_t timeout_ns)
{
    struct core_connection *connection = pending->connection;
    struct awaiting awaiting = {
        .step = {.waiting = {.connection = connection, .run = run_next}, .pending = pending}};
    struct core_lease *reply = pending->reply;
    int rc;

    pending->reply = NULL;
    if (reply || !pending->open)
        return reply;
    if (can_wait(pending) < 0)
        return NULL;
    awaiting.step.waiting.box = core_box_take(connection);
    if (!awaiting.step.waiting.box)
        return NULL;
    pending->busy = true;
    rc = core_wait(&awaiting.step.waiting, timeout_ns);
    pending->busy = false;
    if (rc < 0) {
        core_box_give(connection, awaiting.step.waiting.box);
        if (rc == -RINGSIDE_ETIMEOUT)
            return NULL;
        raise_failure(&awaiting, rc);
        cancel_pending(pending);
        return NULL;
    }
    if (rc == 0)
        close_pending(pending);
    reply =
        core_lease_create(connection, connection->state->message_type, awaiting.step.waiting.box);
    if (reply)
        reply->is_reply = true;
    if (reply && core_usable(connection) < 0)
        Py_CLEAR(reply); /* closed while it waited */
    return reply;
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
    pending = create(connection, values, 1);
    if (!pending)
        return NULL;
    reply = start(pending) < 0 ? NULL : next(pending, RINGSIDE_FOREVER);
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
        core_unsigned(values[5], "credits", MOST_AWAITED, &credits) < 0)
        return NULL;
    if (credits == 0) {
        core_raise_own(connection->state, RINGSIDE_EINVALID, "credits is 0; it is 1..%d",
                       MOST_AWAITED);
        return NULL;
    }
    return (PyObject *)create(connection, values, (uint32_t)credits);
}

/* ---- the type ---- */

static PyObject *step(PyObject *self, PyObject *wait,
                      int (*function)(struct core_pending *pending, int64_t wait_ns))
{
    struct core_pending *pending = (struct core_pending *)self;
    int64_t wait_ns;
    int rc;

    if (core_timeout(wait, &wait_ns) < 0 || can_wait(pending) < 0)
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
    return step(self, wait, reserve);
}

static PyObject *pending_load(PyObject *self, PyObject *wait)
{
    return step(self, wait, load);
}

static PyObject *pending_send(PyObject *self, PyObject *wait)
{
    return step(self, wait, send_request);
}

static PyObject *pending_start(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    if (start((struct core_pending *)self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* The next reply, or None: none will come any more. */
static PyObject *pending_next(PyObject *self, PyObject *ignored)
{
    struct core_pending *pending = (struct core_pending *)self;
    struct core_lease *reply = next(pending, RINGSIDE_FOREVER);

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
    struct core_lease *reply = next(pending, 0);

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
    pending->reply = next(pending, 0);
    if (!pending->reply && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(pending->reply || !pending->open);
}

static PyObject *pending_cancel(PyObject *self, PyObject *ignored)
{
    struct core_pending *pending = (struct core_pending *)self;

    (void)ignored;
    cancel_pending(pending);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the extension share: the module's state, connections, leases, and the helpers between them. */
#ifndef RINGSIDE_PYTHON_CORE_H
#define RINGSIDE_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/c/ringside.h"

#define CORE_DTYPES       32 /* more than the highest dtype code */
#define CORE_MOST_AWAITED 64 /* replies of one connection */

/* The C errors plus one of our own: a Python exception is already set. */
enum {
    CORE_RAISED = -0x7fff,
    CORE_OVER = -0x7ffe /* the call that was waited for has ended with an error */
};

struct core_state {
    PyTypeObject *connection_type;
    PyTypeObject *slot_type;
    PyTypeObject *message_type;
    PyTypeObject *view_type;
    PyTypeObject *inbox_type;
    PyTypeObject *call_type;
    PyTypeObject *tensor_type;             /* a struct sequence: shape, dtype, nbytes */
    PyObject *ticket_type;                 /* ringside.Ticket */
    PyObject *make_error;                  /* _errors.make */
    PyObject *support;                     /* the module ringside._support */
    PyObject *dtype_codes;                 /* dict: whatever was accepted as a dtype -> code */
    PyObject *dtype_names[CORE_DTYPES];    /* str by code */
    PyObject *numpy_dtypes[CORE_DTYPES];   /* numpy.dtype by code; NULL until it is first needed */
    PyObject *ndarray;                     /* numpy.ndarray; NULL until it is first needed */
};

union core_box {
    struct ringside_slot slot;
    struct ringside_message message;
    union core_box *next_free;
};

struct core_lease;
struct core_pending;

struct core_connection {
    PyObject_HEAD
    struct ringside *ringside;             /* NULL once it is really closed */
    struct core_state *state;              /* lives as long as the type does */
    PyObject *stage;                       /* str */
    PyObject *socket;                      /* str: path of the sidecar's socket */
    PyObject *weak_references;             /* the interpreter's */
    struct core_connection *next;          /* of all of the process, for fault.c */
    PyObject *watchers;                    /* list of functions that close() calls, or NULL */
    struct core_lease *leases;             /* that pin the mappings: held, or with views alive */
    struct core_pending *pending;          /* calls in flight */
    _Atomic uint32_t awaited;              /* replies that they set room aside for */
    union core_box *free_boxes;            /* so that a message costs no malloc of its 5 KiB */
    unsigned free_box_count;               /* at most 16 */
    unsigned waiting;                      /* calls that run without the GIL */
    unsigned forks;                        /* core_forks() when it was opened */
    bool closed;                           /* close() was called; the end comes with the last view */
};

enum core_phase {
    CORE_HELD,                             /* the caller may use it */
    CORE_BUSY,                             /* a call on it runs without the GIL */
    CORE_ENDING,                           /* `ending` happens when the last view is gone */
    CORE_ENDED
};

enum core_ending { CORE_RELEASE, CORE_NACK, CORE_ABANDON };

/* A Slot or a Message. */
struct core_lease {
    PyObject_HEAD
    struct core_connection *connection;    /* a strong reference */
    struct core_lease *previous, *next;    /* in connection->leases, while `pinned` */
    union core_box *box;
    PyObject *metadata;                    /* what `meta` gave first, or NULL */
    Py_ssize_t views;                      /* live View objects */
    bool pinned;
    bool is_slot;
    bool is_reading;                       /* a message read by ticket: it cannot be nacked */
    bool is_reply;                         /* to a call of ours: the same */
    bool answered;                         /* a call that had its last reply */
    uint8_t phase;                         /* enum core_phase */
    uint8_t ending;                        /* enum core_ending, while CORE_ENDING */
};

/* One tensor of a lease, exported: the owner behind memoryviews, arrays and DLPack capsules. */
struct core_view {
    PyObject_HEAD
    struct core_lease *lease;              /* a strong reference; counted in lease->views */
    struct ringside_tensor tensor;
    Py_ssize_t strides[RINGSIDE_MAX_RANK]; /* bytes */
    bool raw;                              /* exported as bytes: the dtype has no letter in the buffer protocol */
};

/* A call that may wait: `run` gets how long it may block, as ringside.h counts it. */
struct core_call {
    struct core_connection *connection;
    int (*run)(struct core_call *call, int64_t timeout_ns);
    union core_box *box;
    const char *route;
    struct ringside_options *options;
    const struct ringside_tensor *tensors;
    size_t tensor_count;
    uint32_t metadata_bytes;
    struct core_lease *request;            /* when nobody waits for its replies any more, the waiting ends; or NULL */
};

/* Options of a message, taken from Python arguments; core_options_finish when done. */
struct core_options {
    struct ringside_options options;
    Py_buffer metadata;                    /* what options.metadata points into */
    bool has_metadata;
};

/* A call: begun in three steps, each of which may have to wait; then in flight. */
struct core_pending {
    PyObject_HEAD
    struct core_connection *connection;    /* a strong reference */
    struct core_pending *previous, *next;  /* in connection->pending, while `open` */
    struct ringside_call call;             /* once it is `open` */
    struct core_lease *reply;              /* taken, and not asked for yet; or NULL */
    PyObject *data, *metadata, *trace;     /* until they are loaded; or NULL */
    struct core_lease *slot;               /* loaded, until it is sent */
    struct core_options options;           /* while there is a slot */
    int64_t deadline_ns;                   /* as core_deadline gives it */
    uint32_t credits;                      /* counted in connection->awaited while `has_room` */
    _Atomic bool is_unwanted;              /* cancelled while another thread waits */
    bool has_room;
    bool open;                             /* replies may come */
    bool busy;                             /* a thread is in a call on it */
    bool late;                             /* its time was over before it was sent */
    char route[64];
    char method[64];
};

/* A Ticket or its text, or a bare number; core_ticket_finish when done. */
struct core_ticket {
    PyObject *owner;                       /* of `text` */
    const char *text;                      /* NULL: by number */
    uint64_t number;
};

struct core_signature {
    const char *name;
    int required;
    int count;
    const char *names[12];
};

/* args.c. Functions that return int give 0, or -1 with an exception set. */
int core_parse(const struct core_signature *signature, PyObject *const *args, Py_ssize_t given,
               PyObject *kwnames, PyObject **values);
int core_timeout(PyObject *value, int64_t *timeout_ns);
int core_ttl(PyObject *value, uint64_t *ttl_ns);
int core_unsigned(PyObject *value, const char *what, uint64_t most, uint64_t *number);
int core_ticket(struct core_state *state, PyObject *value, struct core_ticket *ticket);
void core_ticket_finish(struct core_ticket *ticket);
int core_readers(struct core_state *state, PyObject *readers, PyObject *kept, unsigned *number);
int core_options_init(struct core_state *state, struct core_options *options, PyObject *ttl,
                      PyObject *metadata, PyObject *stream, PyObject *sequence, PyObject *trace);
void core_options_finish(struct core_options *options);
int core_tensor(struct core_state *state, PyObject *shape, PyObject *dtype,
                struct ringside_tensor *tensor);
int core_dtype(struct core_state *state, PyObject *dtype);

/* errors.c. Each sets an exception; `own` with our text, the other with the library's. */
void core_raise(struct core_state *state, const struct ringside *ringside, int error);
void core_raise_own(struct core_state *state, int error, const char *format, ...);
/* As core_raise, of what a callee answered; `status` is a code of gRPC. */
void core_raise_status(struct core_state *state, const struct ringside *ringside, int error,
                       unsigned status);

/* wait.c */
int64_t core_now_ns(void);
int64_t core_deadline(int64_t timeout_ns);
int64_t core_left(int64_t deadline_ns);
/* First without blocking and with the GIL, then in slices without it. CORE_RAISED, or what `run` returned. */
int core_wait(struct core_call *call, int64_t timeout_ns);
/* 0, or -1 with an exception set: the connection is closed, or belongs to the parent of a fork. */
int core_usable(struct core_connection *connection);
void core_maybe_close(struct core_connection *connection);
unsigned core_forks(void);
int core_watch_forks(void);

/* lease.c */
union core_box *core_box_take(struct core_connection *connection);
void core_box_give(struct core_connection *connection, union core_box *box);
/* Takes over the box, also on failure. */
struct core_lease *core_lease_create(struct core_connection *connection, PyTypeObject *type,
                                     union core_box *box);
void core_lease_dealloc(PyObject *self);
int core_lease_held(struct core_lease *lease);
int core_lease_end(struct core_lease *lease, enum core_ending ending);
void core_lease_ended(struct core_lease *lease);
void core_lease_view_gone(struct core_lease *lease);
void core_connection_end_leases(struct core_connection *connection);
const struct ringside_tensor *core_lease_tensors(const struct core_lease *lease, uint32_t *count);
PyObject *core_lease_numpy(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_lease_buffer(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_lease_torch(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_lease_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_lease_tensor_list(PyObject *self, void *closure);
PyObject *core_lease_first_field(PyObject *self, void *closure);
PyObject *core_lease_no_pickle(PyObject *self, PyObject *ignored);
PyObject *core_lease_self(PyObject *self, PyObject *ignored);
int core_lease_getbuffer(PyObject *self, Py_buffer *buffer, int flags);

/* view.c */
struct core_view *core_view_create(struct core_lease *lease, uint32_t index);
PyObject *core_view_numpy(struct core_view *view);
PyObject *core_shape_tuple(const struct ringside_tensor *tensor);
/* dlpack.c */
PyObject *core_view_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_view_dlpack_device(PyObject *self, PyObject *ignored);

/* fault.c */
void core_fault_add(struct core_connection *connection);
void core_fault_remove(struct core_connection *connection);
void core_fault_watch(void);

/* call.c */
void core_pending_open(struct core_pending *pending);
void core_pending_close(struct core_pending *pending);
/* While a thread waits for its reply, that one ends it. */
void core_pending_cancel(struct core_pending *pending);
int core_pending_usable(struct core_pending *pending);
void core_connection_end_calls(struct core_connection *connection);
/* request.c */
/* values: target, data, meta, timeout, trace. Not begun yet. */
struct core_pending *core_pending_create(struct core_connection *connection, PyObject **values, uint32_t credits);
/* The three steps, and all of them. After -1 the slot is still held unless it was lost. */
int core_pending_reserve(struct core_pending *pending, int64_t wait_ns);
int core_pending_load(struct core_pending *pending, int64_t wait_ns);
int core_pending_send(struct core_pending *pending, int64_t wait_ns);
int core_pending_start(struct core_pending *pending);
/* What was not sent. */
void core_pending_drop(struct core_pending *pending);
/* await.c */
/* The next reply. NULL without an exception: there is none any more, or none came in time. */
struct core_lease *core_pending_next(struct core_pending *pending, int64_t timeout_ns);

/* slot.c, message.c, send.c, ticket.c, call.c, reply.c */
/* `request`: the call that the slot is to answer, or NULL. */
struct core_lease *core_loan(struct core_connection *connection, const struct ringside_tensor *tensors,
                             size_t count, uint32_t metadata_bytes, int64_t timeout_ns,
                             struct core_lease *request);
/* 0, or -1 with an exception set and the slot still held. */
int core_slot_send(struct core_lease *slot, const char *route, struct ringside_options *options,
                   int64_t timeout_ns);
/* The new Ticket, or NULL with an exception set; the slot is spent when it was shared. */
PyObject *core_slot_share(struct core_lease *slot, unsigned readers, struct ringside_options *options);
/* What a call or a reply carries: arrays, a dict as a tree, None, or a loaned slot as it is; `more_bytes` of room behind it.
 * A new reference, and options to be finished; or NULL with an exception set. */
struct core_lease *core_load(struct core_connection *connection, PyObject *data, PyObject *metadata,
                             PyObject *trace, uint32_t more_bytes, int64_t timeout_ns,
                             struct core_lease *request, struct core_options *options);
struct core_lease *core_receive(struct core_connection *connection, int64_t timeout_ns, bool none_is_fine);
PyObject *core_inbox_create(struct core_connection *connection, int64_t timeout_ns);
PyObject *core_connection_loan(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_connection_send(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_connection_call(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_connection_begin_call(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_message_reply(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_message_reply_error(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_message_method(PyObject *self, void *closure);
PyObject *core_message_cancelled(PyObject *self, void *closure);
PyObject *core_message_time_left(PyObject *self, void *closure);
PyObject *core_message_answered(PyObject *self, void *closure);
PyObject *core_connection_load(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_connection_put(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames);
PyObject *core_connection_read(PyObject *self, PyObject *ticket);
PyObject *core_connection_read_added(PyObject *self, PyObject *ticket);
PyObject *core_connection_free(PyObject *self, PyObject *ticket);
PyObject *core_connection_ticket_text(PyObject *self, PyObject *ticket);
PyObject *core_message_pickle(PyObject *self, PyObject *ignored);

extern PyType_Spec core_connection_spec;
extern PyType_Spec core_slot_spec;
extern PyType_Spec core_message_spec;
extern PyType_Spec core_view_spec;
extern PyType_Spec core_inbox_spec;
extern PyType_Spec core_call_spec;

#define CORE_FUNCTION(function) ((PyCFunction)(void (*)(void))(function))
#define CORE_FAST (METH_FASTCALL | METH_KEYWORDS)

static inline struct core_state *core_state_of(const struct core_lease *lease)
{
    return lease->connection->state;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Ringside's C API: move tensors between the workers of a pipeline through shared memory, by 64-bit tickets. */
#ifndef RINGSIDE_H
#define RINGSIDE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Conventions
 *   - Functions return >= 0 on success and a negative errno or -RINGSIDE_E_* on failure; ringside_strerror explains
 *     the number, ringside_explain what went wrong in this connection's last failed call on this thread.
 *   - Times are nanoseconds. A timeout is how long a call may block: 0 never blocks, negative waits for ever.
 *   - struct ringside is thread-safe: any number of threads may use one connection. A struct ringside_slot and a
 *     struct ringside_message belong to one thread at a time; hand them over with your own synchronisation.
 *   - Slots and messages are caller-allocated values; the library allocates nothing on the heap between loan and
 *     release and makes no system call there while the other side is awake.
 *   - A connection cannot be used in a forked child: calls fail with -RINGSIDE_E_FORKED there. Connect anew.
 *   - Bodies of other stages are mapped read-only: writing to a received tensor ends the process.
 */

#define RINGSIDE_MAX_TENSORS 64
#define RINGSIDE_MAX_RANK 8
#define RINGSIDE_TICKET_TEXT_BYTES 40
#define RINGSIDE_FOREVER ((int64_t)-1)

/* Our own errors; the rest are errno values. Numbers are part of the ABI. */
enum ringside_error {
    RINGSIDE_EINVALID = 1000,          /* an argument is out of range */
    RINGSIDE_ETIMEOUT = 1001,          /* nothing came, or no room appeared, within the timeout */
    RINGSIDE_EFULL = 1002,             /* no free slot, or the inbox of a route is full */
    RINGSIDE_ETOO_BIG = 1003,          /* fits no slot class */
    RINGSIDE_ESTALE_TICKET = 1004,     /* the message was freed or its slot reused */
    RINGSIDE_EFOREIGN_TICKET = 1005,   /* of a ring that is not attached here */
    RINGSIDE_EMALFORMED_TICKET = 1006, /* not a ticket */
    RINGSIDE_EEXPIRED_TICKET = 1007,   /* its time to live is over */
    RINGSIDE_ENO_ROUTE = 1008,
    RINGSIDE_EUNAVAILABLE = 1009,      /* sidecar or peer not reachable now */
    RINGSIDE_EDRAINING = 1010,
    RINGSIDE_EVERSION = 1011,
    RINGSIDE_EDENIED = 1012,
    RINGSIDE_EFORKED = 1013,
    RINGSIDE_ELIMIT = 1014,
    RINGSIDE_ESTATE = 1015,            /* the slot or message was sent, released or lost already */
    RINGSIDE_EDTYPE = 1016,
    RINGSIDE_ECORRUPT = 1017,
    RINGSIDE_EINTERNAL = 1018,
    RINGSIDE_EPROTOCOL = 1019,
    RINGSIDE_ECANCELLED = 1020,
    RINGSIDE_ESHAPE = 1021,
    RINGSIDE_EIN_USE = 1022,
    RINGSIDE_EUNIMPLEMENTED = 1023
};

enum ringside_dtype {
    RINGSIDE_BOOL = 1,
    RINGSIDE_UINT8,
    RINGSIDE_UINT16,
    RINGSIDE_UINT32,
    RINGSIDE_UINT64,
    RINGSIDE_INT8,
    RINGSIDE_INT16,
    RINGSIDE_INT32,
    RINGSIDE_INT64,
    RINGSIDE_FLOAT16,
    RINGSIDE_BFLOAT16,
    RINGSIDE_FLOAT32,
    RINGSIDE_FLOAT64,
    RINGSIDE_COMPLEX64,
    RINGSIDE_COMPLEX128,
    RINGSIDE_FLOAT8_E4M3FN,
    RINGSIDE_FLOAT8_E5M2,
    RINGSIDE_FLOAT8_E4M3FNUZ,
    RINGSIDE_FLOAT8_E5M2FNUZ,
    RINGSIDE_FLOAT8_E8M0FNU,
    RINGSIDE_BYTES
};

enum ringside_metadata_kind { RINGSIDE_OPAQUE = 0, RINGSIDE_JSON = 1, RINGSIDE_TREE = 2 };

/* A dense, row-major tensor. dtype, rank and shape are given to ringside_loan; the library fills data and bytes. */
struct ringside_tensor {
    uint8_t dtype;                     /* enum ringside_dtype */
    uint8_t rank;                      /* 0..8 */
    int64_t shape[RINGSIDE_MAX_RANK];  /* each >= 0 */
    void *data;                        /* 256-byte aligned (a single tensor: page-aligned); valid while the lease lasts */
    uint64_t bytes;                    /* product(shape) * item size */
};

struct ringside; /* a connection to a sidecar */

/* A loaned slot: the caller may write its tensors. Fields below `private_` are the library's. */
struct ringside_slot {
    uint32_t tensor_count;
    uint32_t metadata_capacity;        /* bytes reserved by ringside_loan */
    uint64_t slot_bytes;               /* size of the whole slot */
    uint64_t ticket;                   /* of the message this becomes */
    uint64_t private_[6];
    struct ringside_tensor tensors[RINGSIDE_MAX_TENSORS]; /* only tensor_count are set */
};

/* A received message, or one read by ticket. Nothing in it can change under the reader: it was copied and checked. */
struct ringside_message {
    uint64_t ticket;
    uint32_t tensor_count;
    uint32_t attempts;                 /* earlier deliveries that were not acknowledged */
    const void *metadata;              /* in shared memory, metadata_bytes long, no terminator */
    uint32_t metadata_bytes;
    uint32_t metadata_kind;            /* enum ringside_metadata_kind */
    uint64_t publish_ns;               /* CLOCK_MONOTONIC; to a tick of the kernel (some ms) when ttl_ns is 0 or 1 s and more */
    uint64_t ttl_ns;                   /* after publish_ns; 0: lives until acknowledged */
    uint64_t stream_id;
    uint64_t sequence;
    uint8_t trace_id[16];              /* zeroes when not given */
    uint64_t origin_ticket;            /* 0 unless it came from another node */
    uint64_t private_[8];              /* the library's */
    uint64_t call_id;                  /* 0 unless it is a call or a reply to one */
    const char *method;                /* of a call, else NULL: in shared memory, method_bytes long, no terminator */
    uint32_t method_bytes;
    struct ringside_tensor tensors[RINGSIDE_MAX_TENSORS]; /* only tensor_count are set; data is read-only for messages of other stages */
};

struct ringside_connect_options {
    const char *socket;                /* path of the sidecar's socket; NULL: environment RINGSIDE_SOCKET */
    const char *name;                  /* shown by `ringside status`; NULL: the program's name */
    int64_t timeout_ns;                /* to reach the sidecar; 0: 5 s */
    void (*log)(void *data, const char *line); /* NULL: silent. Called from any thread that uses the connection; must not
                                                * call the library */
    void *log_data;
};

/* Of a message that is sent, shared or forwarded. NULL instead: all defaults, and a route with when_full "block" waits for
 * ever. A message forwarded with options other than timeout_ns is copied, because a sealed header never changes. */
struct ringside_options {
    uint64_t ttl_ns;                   /* 0: the route's default (send) or the stage's (share), which is also its longest */
    const void *metadata;
    uint32_t metadata_bytes;           /* fits metadata_capacity, or the room that the slot has left */
    uint32_t metadata_kind;
    uint64_t stream_id;
    uint64_t sequence;
    uint8_t trace_id[16];
    int64_t timeout_ns;                /* for a route with when_full "block"; 0: does not block, negative: for ever */
    uint32_t credits;                  /* of a call: replies that may wait for the caller, 1..64; 0: 1 */
};

/* Connects and attaches; blocks at most options->timeout_ns. options may be NULL. The connection is the caller's. */
int ringside_connect(struct ringside **connection, const struct ringside_connect_options *options);
/* Ends the session: loans are abandoned, leases still open go back to their inbox. No slot, message or view of this
 * connection may be used afterwards. NULL is allowed. */
void ringside_close(struct ringside *connection);
/* Name of the stage; static while the connection lives. */
const char *ringside_stage(const struct ringside *connection);

/* A descriptor that polls readable when a message may be waiting. Then call ringside_receive with timeout 0 until it
 * returns -RINGSIDE_ETIMEOUT, and poll again. Owned by the connection.
 * It polls readable for replies as well once ringside_call_wait with timeout 0 has returned -RINGSIDE_ETIMEOUT, and then at
 * least each second, because what wakes it may have died with a callee or a sidecar. Whoever waits for both calls ringside_fd_clear when it was readable, and then looks for messages and for replies to each call. */
int ringside_fd(struct ringside *connection);
/* The descriptor is not readable any more, until something comes after that. 0, or an error of every call. */
int ringside_fd_clear(struct ringside *connection);

/* Takes a free slot for tensors (dtype, rank, shape of each; 1..64) and at most metadata_bytes of metadata.
 * -RINGSIDE_ETIMEOUT (or -RINGSIDE_EFULL with timeout 0) when none became free; -RINGSIDE_ETOO_BIG, -RINGSIDE_ESHAPE, -RINGSIDE_EDTYPE. */
int ringside_loan(struct ringside *connection, const struct ringside_tensor *tensors, size_t count,
                  uint32_t metadata_bytes, int64_t timeout_ns, struct ringside_slot *slot);
/* Publishes on a route; the slot is spent. A route whose next stage is not connected yet is -RINGSIDE_EUNAVAILABLE, or is
 * waited for like a full inbox (-RINGSIDE_ETIMEOUT) when it blocks. options may be NULL. On any error the slot is still the caller's, unless it says
 * -RINGSIDE_ESTATE. The shape of the last tensor may be made smaller between loan and send. -RINGSIDE_ENO_ROUTE;
 * -RINGSIDE_EFULL (at once) or -RINGSIDE_ETIMEOUT (after waiting) when an inbox of the route has no room;
 * -RINGSIDE_EINVALID for the options. */
int ringside_send(struct ringside *connection, struct ringside_slot *slot, const char *route,
                  const struct ringside_options *options);
/* Publishes for reading by ticket: `readers` reads (1..255), or until freed with 0; always with a time to live. */
int ringside_share(struct ringside *connection, struct ringside_slot *slot, unsigned readers,
                   const struct ringside_options *options, uint64_t *ticket);
/* memcpy for what fills a slot: from 8 MiB on past the caches, which is faster for this core and for the reader. No
 * overlap. The stores are complete when it returns. */
void ringside_copy(void *to, const void *from, uint64_t bytes);
/* Gives a loan back unpublished. */
int ringside_abandon(struct ringside *connection, struct ringside_slot *slot);

/* Waits for the next message. -RINGSIDE_ETIMEOUT when none came. Expired ones are counted and skipped. -RINGSIDE_EINTERNAL
 * when the inbox was damaged and its sidecar has not mended it within 2 s. */
int ringside_receive(struct ringside *connection, struct ringside_message *message, int64_t timeout_ns);
/* Up to `count` messages: waits for the first, takes what is there. Returns how many (>= 1) or an error. */
int ringside_receive_batch(struct ringside *connection, struct ringside_message *messages, size_t count,
                           int64_t timeout_ns);
/* Begins reading by ticket, of the own stage or of one that a route joins it with; ends with ringside_release. The first
 * time that a stage's ticket is read its ring is opened through the sidecar (-RINGSIDE_EUNAVAILABLE). Distinct errors for stale, foreign, malformed and expired. */
int ringside_read(struct ringside *connection, uint64_t ticket, struct ringside_message *message);
int ringside_read_text(struct ringside *connection, const char *text, struct ringside_message *message);
/* Adds `count` reads to the ticket by which this message is read, for those it is passed on to; nothing to do for one that
 * is kept. Each takes its read with ringside_read_added_text. -RINGSIDE_ESTALE_TICKET when the ticket was freed meanwhile,
 * -RINGSIDE_ELIMIT over 255 reads; -RINGSIDE_EUNAVAILABLE when this process reads through its sidecar, which is away. */
int ringside_add_readers(struct ringside *connection, struct ringside_message *message, unsigned count);
/* As ringside_read_text, for a read that was added: where this connection reads the message already, the two are one
 * reading, and the added read is given back. */
int ringside_read_added_text(struct ringside *connection, const char *text, struct ringside_message *message);

/* Acknowledges a received message, or ends a reading. The tensors may no longer be touched. -RINGSIDE_ECORRUPT: released,
 * but the ring's file was cut meanwhile and the tensors may have read as zeroes. */
int ringside_release(struct ringside *connection, struct ringside_message *message);
/* Gives a received message back to its inbox, attempts + 1; past the route's limit it is dead-lettered. */
int ringside_nack(struct ringside *connection, struct ringside_message *message);
/* Passes a received message on to a route and releases it: in place where the rings allow it (returns 1), by a copy
 * into the stage's own ring otherwise (returns 0). On error the message is still held. */
int ringside_forward(struct ringside *connection, struct ringside_message *message, const char *route,
                     const struct ringside_options *options);
/*
 * Calls. A worker calls a method of the stage that a route leads to (one stage; also its own) and gets one reply or many.
 * The request is a message of that route; replies come to the caller alone, in order, and are released like messages. No
 * system call is made while both sides are awake.
 *
 *   - The time to live is the call's timeout: it travels, a request that is older is not delivered, and the caller gets
 *     -RINGSIDE_ETIMEOUT. 0 and a route without one: no timeout.
 *   - A request is delivered at most once. When its callee dies or lets it go, the caller gets -RINGSIDE_EUNAVAILABLE.
 *   - At most 64 replies can be awaited at a time by one connection: calls in flight x credits.
 *   - A callee that serves in the thread that calls waits for itself: call the own stage only where another worker serves.
 */

/* Codes of gRPC; more may be used. */
enum ringside_status {
    RINGSIDE_STATUS_OK = 0,
    RINGSIDE_STATUS_CANCELLED = 1,
    RINGSIDE_STATUS_UNKNOWN = 2,
    RINGSIDE_STATUS_INVALID_ARGUMENT = 3,
    RINGSIDE_STATUS_DEADLINE_EXCEEDED = 4,
    RINGSIDE_STATUS_NOT_FOUND = 5,
    RINGSIDE_STATUS_ALREADY_EXISTS = 6,
    RINGSIDE_STATUS_PERMISSION_DENIED = 7,
    RINGSIDE_STATUS_RESOURCE_EXHAUSTED = 8,
    RINGSIDE_STATUS_FAILED_PRECONDITION = 9,
    RINGSIDE_STATUS_ABORTED = 10,
    RINGSIDE_STATUS_OUT_OF_RANGE = 11,
    RINGSIDE_STATUS_UNIMPLEMENTED = 12,
    RINGSIDE_STATUS_INTERNAL = 13,
    RINGSIDE_STATUS_UNAVAILABLE = 14,
    RINGSIDE_STATUS_DATA_LOSS = 15,
    RINGSIDE_STATUS_UNAUTHENTICATED = 16
};

/* A call in flight: the caller's value; must not be copied or moved to another connection. One thread at a time. */
struct ringside_call {
    uint64_t id;                       /* also call_id of the request and of its replies */
    uint32_t open;                     /* 1 while replies may come */
    uint32_t status;                   /* enum ringside_status of the last reply */
    uint64_t private_[6];              /* the library's */
};

/* Sends a request; the slot is spent and *call open. `method`: 1..63 bytes. It stands behind the tensors, where a loan of
 * metadata_bytes (8 more than its length will do) or the slot's own room keeps place. options may be NULL. Errors as
 * ringside_send, then the slot is still the caller's; -RINGSIDE_ELIMIT when 64 replies are awaited already;
 * -RINGSIDE_EUNAVAILABLE when the stage cannot be reached. End each call: with its last reply, or ringside_call_cancel. */
int ringside_call(struct ringside *connection, struct ringside_slot *slot, const char *route,
                  const char *method, const struct ringside_options *options,
                  struct ringside_call *call);
/* Waits for the next reply. 1: a reply, and another may come. 0: the last one. Both are released by ringside_release.
 * -RINGSIDE_ETIMEOUT with call->open still 1: none came within timeout_ns, the call goes on. Any other error ends the call:
 * -RINGSIDE_ETIMEOUT, its time is over, and the callee is told; -RINGSIDE_EUNAVAILABLE, the callee is gone or let it go;
 * what the callee answered with ringside_reply_error, then call->status is its code and ringside_explain its text. */
int ringside_call_wait(struct ringside *connection, struct ringside_call *call,
                       struct ringside_message *reply, int64_t timeout_ns);
/* Ends a call: the callee is told, replies that come yet are dropped. Of a call that is not open: does nothing. 0 or
 * -RINGSIDE_ESTATE for what is no call of this connection. */
int ringside_call_cancel(struct ringside *connection, struct ringside_call *call);

/* Whether a received message is a call, which wants ringside_reply or ringside_reply_error before ringside_release. */
int ringside_is_call(const struct ringside_message *message);
/* Whether nobody waits for replies to a held call any more (cancelled, caller gone, time over): 1 or 0, or
 * -RINGSIDE_ESTATE. */
int ringside_cancelled(struct ringside *connection, const struct ringside_message *message);
/* Sends a reply; `last`: no other follows. A stream whose end is known only behind its last item ends with a reply of one empty
 * tensor of RINGSIDE_BYTES without metadata, which those who take streams do not show. The slot is spent. Waits for room while as many replies as the call has credits
 * are unread, at most options->timeout_ns. ttl_ns means nothing here. On error the slot is still the caller's, unless it
 * says -RINGSIDE_ESTATE or -RINGSIDE_ECANCELLED (nobody waits any more); -RINGSIDE_ETIMEOUT (or -RINGSIDE_EFULL with
 * timeout 0) when there was no room. The call itself is released by ringside_release, which answers INTERNAL when no last
 * reply was sent. */
int ringside_reply(struct ringside *connection, struct ringside_message *call,
                   struct ringside_slot *slot, const struct ringside_options *options, int last);
/* Sends a last reply with a status other than OK and a text (NULL: none; cut to 1,024 bytes). Waits for a slot and for room
 * as long as the call has time, at most 2 s. Several errors share a status: where the text begins with the name of one that
 * has this status and ": " ("NO_ROUTE: ..."), the caller gets that error, and the text behind it. */
int ringside_reply_error(struct ringside *connection, struct ringside_message *call,
                         unsigned status, const char *text);

/* A method that is served. The handler replies; what it leaves unanswered is answered with the error that it returns, or
 * INTERNAL. It may release the message itself, else it is released afterwards. */
struct ringside_method {
    const char *name;                  /* NULL: of all messages that are no calls */
    int (*handler)(struct ringside *connection, struct ringside_message *message, void *data);
    void *data;
};

/* Receives one message and hands it to its method. A call of an unknown method is answered UNIMPLEMENTED with the names of
 * those that there are; a message that is no call and has no handler is given back (ringside_nack). 0, or an error of
 * ringside_receive, -RINGSIDE_ETIMEOUT among them. */
int ringside_serve(struct ringside *connection, const struct ringside_method *methods, size_t count,
                   int64_t timeout_ns);

/* Ends a ticket: no new readers; its memory goes with the last reader. */
int ringside_free(struct ringside *connection, uint64_t ticket);
int ringside_free_text(struct ringside *connection, const char *text);

/* The safe text form of a ticket of an attached ring, for JSON and orchestrators (a JSON number ends at 2^53). */
int ringside_ticket_text(struct ringside *connection, uint64_t ticket, char text[RINGSIDE_TICKET_TEXT_BYTES]);
/* The bare ticket of a text form. */
int ringside_ticket_parse(const char *text, uint64_t *ticket);

/* What this client did since it attached. Counts of threads that race may be a little low. */
struct ringside_counters {
    uint64_t sent, received, released, forwarded, forward_copies, nacked, shared, reads, expired, dropped;
    uint64_t dead_lettered, requeued, sent_bytes, overflows;
};
int ringside_counters(struct ringside *connection, struct ringside_counters *counters);

/* Bytes per item, 0 when unknown; canonical name, NULL when unknown; code for a canonical, NumPy, torch, safetensors
 * or Triton name, or -RINGSIDE_EDTYPE. */
size_t ringside_dtype_bytes(unsigned dtype);
const char *ringside_dtype_name(unsigned dtype);
int ringside_dtype_from_name(const char *name);

/* Text for an error number; static. */
const char *ringside_strerror(int error);
/* Symbolic name ("STALE_TICKET", "ENOENT"); static. */
const char *ringside_error_name(int error);
/* What went wrong in this thread's last failed call on a connection (or in ringside_connect, with NULL), with cause
 * and fix; valid until this thread's next call. Never NULL. */
const char *ringside_explain(const struct ringside *connection);
const char *ringside_version(void);

#ifdef __cplusplus
}
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif

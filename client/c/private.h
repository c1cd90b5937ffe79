/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of libringside share: the connection, the rings it maps, the inboxes it pushes into. */
#ifndef RINGSIDE_CLIENT_PRIVATE_H
#define RINGSIDE_CLIENT_PRIVATE_H

#include <pthread.h>
#include <sys/epoll.h>

#include "client/c/ringside.h"
#include "proto/box.h"
#include "proto/control.pb-c.h"
#include "proto/err.h"
#include "proto/fdpass.h"
#include "proto/inbox.h"
#include "proto/tensor.h"
#include "proto/ttrpc_client.h"
#include "proto/wait.h"

#define CALL_TIMEOUT_NS  INT64_C(2000000000) /* for one call to the sidecar within another operation */
#define READING_LOCKS    16                  /* slots share them by their low bits */
#define POLLED_FDS       4                   /* in the epoll: eventfd, two timers, socket */
#define UNLIKELY(value)  __builtin_expect((value) != 0, 0)
#define LIKELY(value)    __builtin_expect((value) != 0, 1)
/* The hand-off crosses some thirty small functions of ours and of proto/. In one piece, without what it seldom needs, it
 * takes a quarter less. */
#define IN_ONE_PIECE     __attribute__((flatten))
#define SELDOM           __attribute__((noinline, cold))
#define APART            __attribute__((noinline)) /* from the hand-off, which would grow by it */
/* The inbox's eventfd is shared by all who consume: by edges, each is woken for itself, and nobody ever reads it. */
#define INBOX_EVENTS     (EPOLLIN | EPOLLET)

/* This process's readings by ticket of one slot: one bit and one count in the ring, however many threads. */
struct reading {
    uint32_t count;      /* readings that have begun and not ended */
    uint32_t generation; /* of the message that they read; valid while count > 0 */
    bool counted;        /* one that has ended counts; valid while count > 0 */
};

/* What became of a ring's body. */
enum { BODY_MAPPED, BODY_DOUBTFUL /* being looked at by drop_bodies */, BODY_GONE };

/* A mapped ring whose messages this process may hold. Never freed before the connection ends. */
struct peer {
    struct rs_ring ring;                         /* first: a lease's ring leads back here */
    int control_fd;                              /* owned; its description locks this client's byte */
    int bell_fd;                                 /* owned, or -1 */
    int event_fd;                                /* owned, or -1: of that ring's own inbox, for replies to its workers */
    uint64_t nonce;                              /* of this client's entry there */
    uint16_t destination;                        /* of the stage's inbox in that ring's table */
    rs_word entry_state;                         /* of the inbox's entry when it was last found to name this ring; of an
                                                  * answerer: of the destination */
    struct reading *readings;                    /* by slot, owned */
    pthread_mutex_t reading_locks[READING_LOCKS]; /* guard readings */
    rs_word32 remote_readings;                   /* begun for us by the sidecar and not ended */
    rs_word32 broken;                            /* lost pages were reported already */
    rs_word32 body_fate;                         /* BODY_... */
    struct peer *next;                           /* in the list of retired rings */
};

/* An inbox that a route leads to: a view of the control file of its owner. */
struct outlet {
    struct rs_inbox inbox;
    struct rs_ring ring;       /* the owner's; its body is not mapped */
    int control_fd;            /* owned */
    int event_fd;              /* owned, or -1 */
    rs_word state;             /* destination state for which `number` holds */
    rs_word32 number;          /* of the own ring in that inbox */
    rs_word32 guests;          /* further rings that were admitted, by forwards */
    rs_word guest_bits[RS_MAX_RINGS / 64]; /* their numbers */
    rs_word bound[RS_MAX_RINGS]; /* by ring number: state of the inbox's entry when it was last found to name the
                                  * admitted ring; 0: none is admitted */
    struct outlet *next;       /* in the list of retired views */
};

/* Whether the admission under that number still holds: see outlets.c. */
static inline bool outlet_holds(const struct outlet *outlet, unsigned number)
{
    uint64_t bound = rs_load_relaxed(&outlet->bound[number]);

    return bound != 0 && bound == rs_load_relaxed(&outlet->inbox.table[number].state);
}

struct route {
    char name[RS_NAME_BYTES];
    uint16_t destinations[RS_MAX_DELIVERIES]; /* indexes in the own ring's table */
    unsigned destination_count;
    Ringside__V1__Route__WhenFull when_full;
    uint64_t ttl_ns;                          /* 0: none */
};

/* What the sidecar decides; replaced as a whole when it comes back with other routes. */
struct settings {
    struct settings *next;    /* an earlier one, kept for threads that still look at it */
    int64_t spin_ns;
    uint64_t ticket_ttl_ns;   /* default and longest */
    unsigned route_count;
    struct route routes[];
};

/* When a ring that could not be opened is tried again. */
struct retry {
    int64_t at_ns;        /* not before, unless the inbox's entry changed */
    int64_t pause_ns;     /* the last one; 0: it did not fail of late */
    uint64_t entry_state; /* at the last try */
};

/* A call that ended before its callee let go of the request: replies may still come into its cells. */
struct ended_call {
    struct peer *peer;    /* ring of the callee */
    uint32_t slot;        /* of the request, with its generation */
    uint32_t generation;
    uint32_t credits;
};

/* The calls of this connection. Cells are those of its box in the own ring. */
struct calls {
    rs_word free_cells;                     /* bits of those that are not set aside */
    rs_word lingering;                      /* bits of the first cells of calls in `ended` */
    rs_word32 count;                        /* calls begun: the low half of the next id */
    rs_word32 polled;                       /* calls in flight whose replies somebody polls for */
    struct ended_call ended[RS_BOX_CELLS];  /* by first cell; of who has taken the bit off */
    _Atomic(struct peer *) callees[RS_BOX_CELLS]; /* by first cell: whose ring replies will be in; of cells set aside */
};

/* Rings of the stages that routes lead to, opened when first needed. */
struct far_rings {
    _Atomic(struct peer *) rings[RS_MAX_DESTINATIONS]; /* by the stage's destination */
    int64_t retry_ns[RS_MAX_DESTINATIONS];             /* no Open before; guarded by the connection's lock */
};

struct ringside {
    rs_word32 down;                                   /* 0, or the error number of every further call */
    rs_word32 polled;                                 /* ringside_fd was asked for */
    _Atomic(struct settings *) settings;
    _Atomic(struct peer *) peers[RS_MAX_RINGS];       /* by number in the own inbox; [0] is `own` */
    _Atomic(struct outlet *) outlets[RS_MAX_DESTINATIONS];
    struct far_rings answerers;                       /* in which replies are held */
    struct far_rings ticketed;                        /* whose tickets are read */
    struct calls calls;
    struct peer own;
    struct rs_inbox inbox;                            /* of the stage */
    rs_word32 taken;                                  /* messages taken, about: for what is done once in a while */
    rs_word hints_wrong_ns;                           /* since when takes have failed for wrong hints */
    rs_word hints_failed_ns;                          /* the last time that one did */

    struct retry peer_retry[RS_MAX_RINGS];            /* guarded by `lock` */
    int64_t outlet_retry_ns[RS_MAX_DESTINATIONS];     /* no Open before; guarded by `lock` */

    pthread_mutex_t lock;                             /* guards what follows, and changes of the tables above */
    struct rs_ttrpc_client control;
    bool linked;                                      /* the sidecar's socket is there */
    int64_t link_retry_ns;                            /* no attempt to re-attach before */
    int64_t link_backoff_ns;
    char *socket_path;
    char name[RS_NAME_BYTES];
    uint8_t token[64];
    size_t token_bytes;
    int event_fd;                                     /* of the stage's inbox; keeps its number to the end */
    int epoll_fd;                                     /* -1 until asked for */
    int timer_fd;                                     /* in the epoll: next attempt to re-attach */
    int look_timer_fd;                                /* in the epoll: look again, see look_and_arm_event */
    pthread_mutex_t look_lock;                        /* guards look_ns and what the timer is set to */
    int64_t look_ns;                                  /* when it goes off or went off; 0: it does not */
    int arriving[RS_FDPASS_MAX];                      /* descriptors of the answer being handled */
    size_t arriving_count;
    struct peer *retired_peers;
    rs_word32 retired_bodies;                         /* of them that still have their body */
    int64_t drop_bodies_ns;                           /* they are not looked at before */
    struct outlet *retired_outlets;
    void (*log)(void *data, const char *line);
    void *log_data;

    struct ringside *next;                            /* of all connections of the process */
    bool held_still;                                  /* `lock` was taken for a fork */
};

/* Where the body of a slot begins and how large it is: one search for its class. */
struct body {
    uint8_t *base;
    uint64_t bytes;
};

static inline struct body body_of(const struct rs_ring *ring, uint32_t slot)
{
    for (uint32_t i = 0; i < ring->layout.class_count; i++) {
        const struct rs_class_layout *class = &ring->layout.classes[i];
        uint32_t index = slot - class->first_slot;

        if (index < class->slots)
            return (struct body){ring->body + class->body_offset + index * class->slot_bytes,
                                 class->slot_bytes};
    }
    return (struct body){ring->body, 0};
}

/* ---- explain.c ---- */

/* Notes what went wrong for ringside_explain and returns `error`. fail_with keeps a static text: no formatting. */
SELDOM int fail(const struct ringside *connection, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
SELDOM int fail_with(const struct ringside *connection, int error, const char *text);
SELDOM void report(struct ringside *connection, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- connection.c ---- */

SELDOM int fail_down(const struct ringside *connection);

static inline bool is_down(struct ringside *connection)
{
    return UNLIKELY(rs_load_relaxed(&connection->down) != 0);
}

static inline struct settings *settings_of(struct ringside *connection)
{
    return rs_load_acquire(&connection->settings);
}

/* The moment when a timeout is over; INT64_MAX for a negative one. */
int64_t deadline_after(int64_t timeout_ns);
/* Time left, at least 0; RINGSIDE_FOREVER for INT64_MAX. */
int64_t time_left(int64_t deadline_ns);

/* ---- link.c: the socket ---- */

/* Connects and attaches for the first time. Returns with an explanation on failure. */
int link_open(struct ringside *connection, int64_t timeout_ns);
/* Before a sleep: notices that the sidecar went, and attaches again when it is back. Never waits long; `patient` allows
 * CALL_TIMEOUT_NS. Any thread, without the lock. */
void link_tend(struct ringside *connection, bool patient);
/* Whether a call that the sidecar may have carried out before it went is made again. */
enum link_repeat { LINK_ONCE, LINK_REPEAT };
/* One call; the lock is held. Attaches again first where the sidecar went and is back. Descriptors go to
 * connection->arriving. */
int link_call(struct ringside *connection, const char *method, const ProtobufCMessage *request,
              const ProtobufCMessageDescriptor *type, ProtobufCMessage **response,
              int64_t timeout_ns, enum link_repeat repeat);
/* Takes a descriptor of one kind out of connection->arriving: the caller's, or -1. */
int link_take_fd(struct ringside *connection, size_t kind_count,
                 const Ringside__V1__Descriptor *kinds, Ringside__V1__Descriptor kind);
void link_drop_fds(struct ringside *connection);
/* Makes the descriptor that is polled readable at the next attempt, or never while the sidecar is there. Also takes back that
 * it is. The lock is held. */
void link_set_timer(struct ringside *connection);

/* ---- poll.c ---- */

#define POLL_NEVER INT64_MAX
/* After a look by a poller that found nothing: makes the descriptor that is polled readable at that moment, or earlier where
 * replies are polled for. */
SELDOM void poll_look_again(struct ringside *connection, int64_t at_ns);

/* ---- rings.c ---- */

/* Maps a ring that the sidecar described; descriptors are taken from connection->arriving. The lock is held. */
int peer_map(struct ringside *connection, struct peer *peer, const Ringside__V1__Ring *info,
             size_t kind_count, const Ringside__V1__Descriptor *kinds, bool writable);
void peer_unmap(struct peer *peer);
/* Opens the ring with that number in the stage's inbox. 0, or an error, also while it is too early to try again; *again_ns
 * is then lowered to the moment of the next try. Without the lock. */
SELDOM int peer_open(struct ringside *connection, unsigned number, int64_t *again_ns);
/* Notices rings that left the inbox or whose number means another ring now, and gives back bodies of which nothing is
 * held any more. Without the lock. */
SELDOM void peers_refresh(struct ringside *connection);
/* A ring is not used any more but by the views and leases that live. The lock is held. */
void peer_retire(struct ringside *connection, struct peer *peer);
/* Whether pages of the ring were lost (its file was cut). */
bool peer_is_broken(struct ringside *connection, struct peer *peer);
/* After a message of the ring was taken: whether its body was given back just before, because the ring was retired. */
bool peer_lost_body(struct ringside *connection, struct peer *peer);
/* Whether an entry of an inbox's ring table, in that state, means this ring. */
bool entry_names(const struct rs_ring_entry *entry, uint64_t state, const struct rs_ring *ring);
/* In a forked child, where nothing of it is mapped: closes descriptors; with `still` (no other thread was in the library)
 * leaves what peer_unmap and outlet_destroy can free. */
void peer_disown(struct peer *peer, bool still);
void ring_disown(struct rs_ring *ring);
/* Maps a ring and guards it. Descriptors stay the caller's. */
int ring_map(struct ringside *connection, struct rs_ring *ring, int control_fd, int body_fd, bool writable,
             const Ringside__V1__Ring *info);
void ring_unmap(struct rs_ring *ring);
/* Control.Open. The answer goes to free_open. The lock is held. */
int call_open(struct ringside *connection, const Ringside__V1__OpenRequest *request,
              Ringside__V1__OpenResponse **answer);
void free_open(struct ringside *connection, Ringside__V1__OpenResponse *answer);

/* ---- outlets.c ---- */

/* Whether the admissions of all further rings still hold. */
SELDOM bool outlet_guests_hold(const struct outlet *outlet);
/* The inbox of a destination of the own ring, opened when needed: 0 or -RINGSIDE_E_UNAVAILABLE and others. */
int outlet_get(struct ringside *connection, unsigned destination, struct outlet **outlet);
/* The same when there is nothing to do for it, else NULL. */
static inline struct outlet *outlet_at_hand(struct ringside *connection, unsigned destination)
{
    struct outlet *outlet = rs_load_acquire(&connection->outlets[destination]);

    if (outlet == NULL ||
        rs_load_relaxed(&connection->own.ring.destinations[destination].state) !=
            rs_load_relaxed(&outlet->state) ||
        !outlet_holds(outlet, rs_load_relaxed(&outlet->number)) ||
        (rs_load_relaxed(&outlet->guests) != 0 && !outlet_guests_hold(outlet)))
        return NULL;
    return outlet;
}
/* Makes messages of another ring judgeable in that inbox. False when the number means another ring there. */
bool outlet_admit_guest(struct ringside *connection, struct outlet *outlet, unsigned number,
                        struct rs_ring *ring, uint16_t destination);
void outlet_destroy(struct outlet *outlet);
void outlet_disown(struct outlet *outlet, bool still);

/* ---- answerer.c ---- */

/* The ring in which replies of the one stage that a route leads to are held, opened when needed. While the stage is not
 * connected a route that blocks waits at most timeout_ns. */
SELDOM int answerer_get(struct ringside *connection, const struct route *route, int64_t timeout_ns,
                        struct peer **answerer);
/* The same when there is nothing to do for it, else NULL. */
static inline struct peer *answerer_at_hand(struct ringside *connection, unsigned destination)
{
    struct peer *peer = rs_load_acquire(&connection->answerers.rings[destination]);

    if (peer != NULL && rs_load_relaxed(&connection->own.ring.destinations[destination].state) ==
                            rs_load_relaxed(&peer->entry_state))
        return peer;
    return destination == connection->own.destination ? &connection->own : NULL;
}

/* The ring that a ticket names, of the stages that routes lead to, opened when needed; NULL: of none. An error where one that
 * it may be of cannot be looked at. */
SELDOM int ticketed_find(struct ringside *connection, const struct rs_ticket *ticket, struct peer **ring);

/* ---- route.c ---- */

struct outgoing {
    const struct route *route;
    struct outlet *outlets[RS_MAX_DELIVERIES]; /* one for each destination of the route */
};

SELDOM void pause_for(int64_t time_ns);
int route_find(struct ringside *connection, const char *name, const struct route **route);
/* Waits until every inbox of the route has room, as the route's policy says. */
int outgoing_reserve(struct ringside *connection, struct outgoing *outgoing, int64_t timeout_ns);

/* ---- produce.c ---- */

/* A loan for `bytes`; waits at most timeout_ns. */
int loan_take(struct ringside *connection, uint64_t bytes, int64_t timeout_ns, struct rs_loan *loan);
/* Header, seal, push for destinations [first, count) of the route. `base`: of the slot's body. */
int loan_publish(struct ringside *connection, const struct rs_loan *loan, uint8_t *base,
                 struct rs_message *message, const struct outgoing *outgoing, unsigned first);

/* private_ of a slot */
enum { SLOT_TAG, SLOT_LOAN };

/* The loan that a slot is. */
int slot_loan(struct ringside *connection, const struct ringside_slot *slot, struct rs_loan *loan);
/* The header for a loaned slot, with a method (or NULL) and the options' metadata behind the tensors. */
int slot_describe(struct ringside *connection, const struct ringside_slot *slot,
                  const struct body *body, const struct ringside_options *options,
                  const char *method, size_t method_bytes, struct rs_message *message);
uint64_t message_data_bytes(const struct rs_message *message);

/* ---- consume.c ---- */

/* private_ of a message */
enum {
    MESSAGE_TAG, MESSAGE_PEER, MESSAGE_WORD, MESSAGE_SLOT, MESSAGE_LEASE, MESSAGE_REMOTE,
    MESSAGE_CALL,    /* of a request (it has a method): its call word */
    MESSAGE_REPLIES, /* of a request: how many went out, and MESSAGE_ANSWERED */
};
#define MESSAGE_ANSWERED (UINT64_C(1) << 63) /* the last one did */
/* What a message is to us, mixed with the connection's address: anything else in its place is refused. */
#define TAG_HELD   UINT64_C(0x68656c6400000000) /* a lease */
#define TAG_READ   UINT64_C(0x7265616400000000) /* a reading by ticket */
#define TAG_REMOTE UINT64_C(0x72656d6f00000000) /* a reading that the sidecar began for us */
#define TAG_LOAN   UINT64_C(0x6c6f616e00000000) /* of a slot */
#define TAG_CALL   UINT64_C(0x63616c6c00000000) /* of a call */

static inline uint64_t tag_of(const struct ringside *connection, uint64_t kind)
{
    return (uint64_t)(uintptr_t)connection ^ kind;
}

/* Fills the public message from a validated header. `base`: of the slot's body. */
void message_fill(struct ringside_message *message, const struct rs_message *header,
                  const struct peer *peer, uint8_t *base, uint32_t slot, uint32_t generation);
bool message_expired(const struct rs_message *header);
void message_keep_lease(struct ringside *connection, struct ringside_message *message,
                        const struct rs_lease *lease);
void lease_of(const struct ringside_message *message, struct rs_lease *lease);
/* The end of a lease, counted; what ringside_release says of it. */
int lease_release(struct ringside *connection, const struct rs_lease *lease);
/* Pushes a delivery that this process made QUEUED again, and rings when it has no cell. */
void push_delivery(struct ringside *connection, struct rs_inbox *inbox, unsigned ring_number,
                   struct rs_ring *ring, uint32_t slot, unsigned delivery);

/* ---- call.c ---- */

/* Frees the cells of calls that ended early whose callees are done with them. */
void calls_reap(struct ringside *connection);
/* Whether a reply may still come that is in that ring. */
SELDOM bool calls_await(struct ringside *connection, const struct peer *peer);

/* ---- reply.c ---- */

/* ringside_release of a call: answers it when it has no last reply. */
APART int request_release(struct ringside *connection, struct ringside_message *message);
/* After a request is let go without an answer. */
SELDOM void request_wake_caller(struct ringside *connection, struct peer *peer, uint64_t call);

/* ---- ticket_rings.c ---- */

/* The ring that a ticket names, of this stage and of those next to it, opened when needed: 0 and *peer, or an error. A text
 * form names one incarnation, a bare ticket the one that is there now: of several in the inbox with its id the one where it
 * is alive, else the first. */
int ticket_ring(struct ringside *connection, const struct rs_ticket *ticket, struct peer **peer);

/* ---- tickets.c ---- */

SELDOM int reading_end(struct ringside *connection, struct ringside_message *message);

#endif

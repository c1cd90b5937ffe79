/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the peers share: links to the stages downstream, and the upstream rings of the
 * own inbox. */
#ifndef RINGSIDE_PROXY_PEERS_PRIVATE_H
#define RINGSIDE_PROXY_PEERS_PRIVATE_H

#include <uv.h>

#include "proto/fdpass.h"
#include "proto/peer.pb-c.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"

#define PEER_SERVICE      "ringside.peer.v1.Peer"
#define PEER_CALL_NS      INT64_C(5000000000) /* the other sidecar answers by then */
#define PEER_TICK_MS      1000
#define PEER_PING_TICKS   5
#define PEER_RETRY_MIN_MS 50
#define PEER_RETRY_MAX_MS 2000
#define PEER_TEXT_BYTES   256
#define PEER_ATTEMPTS     3 /* of a destination that no route of the config names */

enum link_state { LINK_CONNECTING, LINK_CONNECTED, LINK_REFUSED };

/* A mapped inbox of another stage. */
struct view {
    struct rs_ring ring;   /* of the stage that owns the inbox; no body */
    struct rs_inbox inbox; /* lies in `ring`; the own ring is admitted as `number` */
    int control_fd;        /* owned; without a lock, so workers may have copies of it */
    int event_fd;          /* owned; the inbox's eventfd */
    uint8_t number;        /* of the own ring in that inbox */
    char stage[RS_NAME_BYTES];
};

/* The way to one destination: this sidecar connects, and the other one may call back on the same
 * connection. */
struct link {
    struct peers *peers;
    unsigned destination; /* index in the own ring's table */
    enum link_state state;
    bool introduced;   /* made known by another stage, not by a route */
    bool draining;     /* the other side said so */
    unsigned failures; /* connects in a row without a Hello that was answered */
    struct conn *conn; /* NULL: none */
    struct view *view; /* owned; stays when the connection is lost */
    uv_timer_t retry;
    uint64_t admitted[RS_MAX_CLIENTS /
                      64]; /* numbers of the own ring given to that stage since the link is up */
    struct answer_place *answers; /* places of sessions that call the stage; peer_answerer.c's */
    char path[RS_CONFIG_SOCKET_PATH_BYTES];
    char error[PEER_TEXT_BYTES]; /* why it is not connected; empty when it is */
};

struct waiter {
    struct waiter *next;
    peers_admitted_cb *callback;
};

enum place_state {
    PLACE_ASKED, /* an Admit is under way */
    PLACE_READY,
    PLACE_GONE, /* to be given back as soon as the upstream sidecar can be told */
};

/* A number in an upstream ring for a session that works through this sidecar. */
struct place {
    struct place *next;
    enum place_state state;
    uint16_t number; /* of the session, in the own ring; 0 when PLACE_GONE */
    uint64_t serial; /* tells it from an earlier place at its address */
    uint16_t client; /* in the upstream ring */
    uint64_t nonce;  /* of the admission */
    bool has_token;
    uint8_t token[16];
    int pidfd; /* of the worker, owned; -1 */
    struct waiter *waiters;
};

/* A ring whose messages may stand in the own inbox. */
struct upstream {
    struct peers *peers;
    uint8_t number; /* in the own inbox */
    uint64_t incarnation[2];
    uint32_t sidecar_id;
    char stage[RS_NAME_BYTES];
    struct conn *conn;    /* that it called Hello on; NULL: none */
    bool asking;          /* an Admit for this sidecar is under way */
    bool mapped;          /* `ring` is there and admitted to proxy->inbox */
    bool damaged;         /* its files lost pages: not used any more */
    bool gone;            /* its files are unlinked: nobody will ever adopt it */
    struct rs_ring ring;  /* client 0 of this stage there: ring.client */
    int control_fd;       /* owned; its description locks the byte of ring.client. -1 */
    int body_fd;          /* owned; tells its size. -1 */
    int bell_fd;          /* owned; -1 */
    int event_fd;         /* of its own inbox, for callers that wait by it; owned; -1: none was passed */
    uint16_t destination; /* of the own inbox in its table */
    bool has_token;
    uint8_t token[16];
    char body_path[PATH_MAX];
    struct place *places;
    uint64_t admitted[RS_MAX_CLIENTS / 64]; /* numbers of the own ring given to that stage's callers on this connection */
    char error[PEER_TEXT_BYTES];
};

struct peers {
    struct proxy *proxy;
    bool closed;
    uv_timer_t tick;
    unsigned ticks;
    unsigned last_number;                     /* of a ring, given last */
    uint64_t last_serial;                     /* of a place */
    struct link *links[RS_MAX_DESTINATIONS];  /* owned, by destination */
    struct upstream *upstreams[RS_MAX_RINGS]; /* owned, by ring number; [0] is NULL */
    uint64_t locked[RS_MAX_CLIENTS / 64]; /* foreign clients whose lock byte tells their death */
};

static inline bool bit_get(const uint64_t *bits, unsigned i)
{
    return (bits[i / 64] >> i % 64 & 1) != 0;
}
static inline void bit_set(uint64_t *bits, unsigned i)
{
    bits[i / 64] |= UINT64_C(1) << i % 64;
}
static inline void bit_clear(uint64_t *bits, unsigned i)
{
    bits[i / 64] &= ~(UINT64_C(1) << i % 64);
}

/* ---- peers.c ---- */

/* 16 bytes of the wire. False when it is not a ring's incarnation. */
bool peers_incarnation(const ProtobufCBinaryData *bytes, uint64_t incarnation[2]);
ProtobufCBinaryData peers_bytes(const void *data, size_t bytes);
/* Refuses another layout. 0 or -RINGSIDE_E_VERSION with a text. */
int peers_check_layout(uint32_t version, uint64_t hash, uint64_t features, char *text,
                       size_t bytes);
/* Whether the descriptor is a plain file of the process at the other end of the socket, or of root:
 * what a sidecar made. */
bool peers_file_is_theirs(struct conn *conn, int fd);
/* Makes a NUL-terminated name of whole UTF-8 characters out of a peer's text. */
void peers_name(char *to, size_t bytes, const char *from);
/* A pidfd of the process that connected, or -1. */
int peers_pidfd_of(int socket);
int peers_dup(int fd);
/* Whether the descriptor is an eventfd, so that a write to it cannot be made to wait; sets it so.
 */
bool peers_is_event(int fd);
/* Tells it of a destination of ours. */
void upstream_introduce(struct upstream *upstream, const struct link *link);
void peers_random(uint64_t *number);

/* ---- peer_link.c: downstream ---- */
int link_create(struct peers *peers, unsigned destination, const char *path, bool introduced);
void link_close(struct link *link);
void link_destroy(struct link *link);
void link_tick(struct link *link, bool ping);
/* The link that made the connection, or NULL. */
struct link *link_of(struct conn *conn);
/* Another stage tells of one that the own workers' messages may be forwarded to. 0 or a negative
 * error. */
int link_introduce(struct peers *peers, const char *path, const uint64_t incarnation[2],
                   unsigned attempts);

/* ---- peer_upstream.c: upstream ---- */
/* The entry of that incarnation, made when there is none. NULL and *error -RINGSIDE_E_LIMIT or
 * -ENOMEM. */
struct upstream *upstream_get(struct peers *peers, const uint64_t incarnation[2], int *error);
/* The upstream whose connection it is, or NULL. */
struct upstream *upstream_of(struct conn *conn);
/* Puts it in the own inbox's table with a new nonce, which is returned. */
uint64_t upstream_publish(struct upstream *upstream);
/* Reads the own inbox's table as an earlier sidecar left it. 0 or -ENOMEM. */
int upstream_adopt_all(struct peers *peers);
/* Its Hello was answered on that connection: asks for the places. */
void upstream_connected(struct upstream *upstream, struct conn *conn);
void upstream_tick(struct upstream *upstream);
/* At the end, when no session is left. */
void upstream_destroy(struct upstream *upstream);

/* ---- peer_place.c: places of workers in upstream rings ---- */
/* Asks the other sidecar for a place; takes the pidfd over. And gives one back. 0 or a negative error. */
int place_admit(struct conn *conn, const char *name, const uint8_t *token, int pidfd,
                bool wants_lock, bool for_replies, conn_response_cb *callback, void *data);
int place_leave(struct conn *conn, uint32_t client, uint64_t nonce);
/* After a reconnect: every place is asked for again by its token. */
void place_renew_all(struct upstream *upstream);
void place_drop_all(struct upstream *upstream);

/* ---- peer_answerer.c: places of sessions in the rings of stages that they call ---- */
void answers_renew(struct link *link);
void answers_session_gone(struct link *link, uint16_t number);
void answers_tick(struct link *link);
void answers_destroy(struct link *link);

/* ---- peer_service.c ---- */
void service_hello(struct conn_call *call);
void service_admit(struct conn_call *call);
void service_leave(struct conn_call *call);
void service_introduce(struct conn_call *call);
void service_ping(struct conn_call *call);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Places of this stage's workers in upstream rings: asked for at the upstream sidecar, handed on,
 * given back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/err.h"
#include "proxy/peers_private.h"

int place_admit(struct conn *conn, const char *name, const uint8_t *token, int pidfd,
                bool wants_lock, bool for_replies, conn_response_cb *callback, void *data)
{
    Ringside__Peer__V1__AdmitRequest request = RINGSIDE__PEER__V1__ADMIT_REQUEST__INIT;

    request.name = (char *)(uintptr_t)name;
    request.wants_lock = wants_lock;
    request.for_replies = for_replies;
    if (token)
        request.session_token = peers_bytes(token, 16);
    return conn_call_out(conn, PEER_SERVICE, "Admit", &request.base,
                         &ringside__peer__v1__admit_response__descriptor, &pidfd, pidfd >= 0,
                         PEER_CALL_NS, callback, data);
}

static void on_left(struct conn *conn, int error, const char *text,
                    const ProtobufCMessage *response, int *fds, size_t fd_count, void *data)
{
    (void)conn;
    (void)error;
    (void)text;
    (void)response;
    (void)data;
    rs_fd_close(fds, fd_count);
}

int place_leave(struct conn *conn, uint32_t client, uint64_t nonce)
{
    Ringside__Peer__V1__LeaveRequest request = RINGSIDE__PEER__V1__LEAVE_REQUEST__INIT;

    request.client = client;
    request.nonce = nonce;
    return conn_call_out(conn, PEER_SERVICE, "Leave", &request.base,
                         &ringside__peer__v1__leave_response__descriptor, NULL, 0, PEER_CALL_NS,
                         on_left, NULL);
}

/* ---- workers that map the ring themselves: Control.Open ---- */

struct opening {
    struct conn_call *call; /* NULL: cancelled */
    bool downstream;        /* the ring of a stage that a route leads to; else one of the inbox */
    unsigned number;        /* of the ring, or of the destination */
    char stage[RS_NAME_BYTES];
};

static void on_cancelled(struct conn_call *call)
{
    struct opening *opening = call->data;

    opening->call = NULL;
}

static bool hand_on(struct opening *opening, const Ringside__Peer__V1__AdmitResponse *response,
                    const int *fds, size_t fd_count)
{
    Ringside__V1__Ring ring = RINGSIDE__V1__RING__INIT;
    Ringside__V1__OpenResponse open = RINGSIDE__V1__OPEN_RESPONSE__INIT;
    Ringside__V1__Descriptor kinds[] = {RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE,
                                        RINGSIDE__V1__DESCRIPTOR__BODY_FILE,
                                        RINGSIDE__V1__DESCRIPTOR__BELL_EVENT,
                                        RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT};

    ring.incarnation = response->incarnation;
    ring.sidecar_id = response->sidecar_id;
    ring.epoch = response->epoch;
    ring.client = response->client;
    ring.reader = response->reader;
    ring.destination = response->destination;
    ring.nonce = response->nonce;
    ring.control_path = response->control_path;
    ring.body_path = response->body_path;
    ring.control_bytes = response->control_bytes;
    ring.body_bytes = response->body_bytes;
    ring.stage = opening->stage;
    open.ring = &ring;
    open.ring_number = opening->downstream ? 0 : opening->number;
    open.descriptors = kinds;
    open.n_descriptors = fd_count;
    return conn_reply(opening->call, &open.base, fds, fd_count) == 0;
}

static void on_opened(struct conn *conn, int error, const char *text,
                      const ProtobufCMessage *message, int *fds, size_t fd_count, void *data)
{
    struct opening *opening = data;
    const Ringside__Peer__V1__AdmitResponse *response = (const void *)message;

    if (error == 0 && (fd_count < 3 || fd_count > 4)) {
        error = -RINGSIDE_E_PROTOCOL;
        text = "its sidecar passed no descriptors";
    }
    if (error < 0) {
        rs_fd_close(fds, fd_count);
        if (opening->call)
            conn_reply_error(opening->call, error, "%s %u: %s",
                             opening->downstream ? "ring of destination" : "ring", opening->number,
                             text && text[0] ? text : rs_strerror(error));
    } else if (!opening->call) {
        /* The worker went away meanwhile: so does its number. */
        rs_fd_close(fds, fd_count);
        place_leave(conn, response->client, response->nonce);
    } else if (!hand_on(opening, response, fds, fd_count)) {
        place_leave(conn, response->client, response->nonce);
    }
    free(opening);
}

static struct upstream *find(struct proxy *proxy, unsigned ring_number)
{
    return ring_number > 0 && ring_number < RS_MAX_RINGS ? proxy->peers->upstreams[ring_number]
                                                         : NULL;
}

/* Asks the other sidecar for a place, and answers the call with what it passes. */
static void open_at(struct conn *conn, struct conn_call *call, const char *name, const char *stage,
                    bool downstream, bool for_replies, unsigned number)
{
    struct opening *opening = calloc(1, sizeof(*opening));

    if (!opening) {
        conn_reply_error(call, -ENOMEM, "out of memory");
        return;
    }
    *opening = (struct opening){.call = call, .downstream = downstream, .number = number};
    snprintf(opening->stage, sizeof(opening->stage), "%s", stage);
    call->data = opening;
    call->cancelled = on_cancelled;
    int rc = place_admit(conn, name, NULL, peers_pidfd_of(conn_socket(call->conn)), true,
                         for_replies, on_opened, opening);
    if (rc < 0) {
        call->cancelled = NULL;
        conn_reply_error(call, rc, "the sidecar of stage %s cannot be asked", stage);
        free(opening);
    }
}

void peers_open_ring(struct proxy *proxy, struct conn_call *call, uint16_t number, const char *name,
                     unsigned ring_number)
{
    struct upstream *upstream = find(proxy, ring_number);

    (void)number; /* the upstream sidecar gives it one of its own */
    if (!upstream) {
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "no other stage's ring has the number %u in this inbox", ring_number);
        return;
    }
    if (!upstream->conn) {
        conn_reply_error(call, -RINGSIDE_E_UNAVAILABLE,
                         "the sidecar of stage %s is away; its ring can be opened when it is back",
                         upstream->stage);
        return;
    }
    open_at(upstream->conn, call, name, upstream->stage, false, false, ring_number);
}

void peers_open_answering(struct proxy *proxy, struct conn_call *call, const char *name,
                          unsigned destination, bool for_replies)
{
    struct link *link = proxy->peers->links[destination];

    if (destination == proxy->routes.self)
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "the own stage's ring was passed with Attach");
    else if (!link)
        conn_reply_error(call, -RINGSIDE_E_NO_ROUTE, "no route leads to destination %u",
                         destination);
    else if (link->state != LINK_CONNECTED || !link->conn || !link->view)
        conn_reply_error(call, -RINGSIDE_E_UNAVAILABLE, "unix:%s is not connected: %s", link->path,
                         link->error[0] ? link->error : "connecting");
    else
        open_at(link->conn, call, name, link->view->stage, true, for_replies, destination);
}

/* ---- sessions that work through this sidecar ---- */

static void tell(struct proxy *proxy, struct upstream *upstream, uint16_t number,
                 struct waiter *waiters, int error, const struct place *place)
{
    struct peers_admission admission;

    if (place)
        admission = (struct peers_admission){&upstream->ring, place->client, upstream->destination,
                                             upstream->body_path};
    while (waiters) {
        struct waiter *waiter = waiters;

        waiters = waiter->next;
        waiter->callback(proxy, number, upstream->number, error, place ? &admission : NULL);
        free(waiter);
    }
}

static void free_place(struct place *place)
{
    while (place->waiters) {
        struct waiter *waiter = place->waiters;

        place->waiters = waiter->next;
        free(waiter);
    }
    if (place->pidfd >= 0)
        close(place->pidfd);
    free(place);
}

static bool unlink_place(struct upstream *upstream, const struct place *place)
{
    for (struct place **at = &upstream->places; *at; at = &(*at)->next) {
        if (*at == place) {
            *at = place->next;
            return true;
        }
    }
    return false;
}

void place_drop_all(struct upstream *upstream)
{
    while (upstream->places) {
        struct place *place = upstream->places;

        upstream->places = place->next;
        free_place(place);
    }
}

/* What an Admit under way points at: the place may be freed before the answer comes. */
struct asking {
    struct peers *peers;
    uint8_t ring_number;
    uint64_t serial; /* of the place */
};

static struct place *asked_for(struct upstream *upstream, const struct asking *asking)
{
    for (struct place *place = upstream ? upstream->places : NULL; place; place = place->next) {
        if (place->serial == asking->serial)
            return place;
    }
    return NULL;
}

static void settle(struct upstream *upstream, struct place *place, int error,
                   const Ringside__Peer__V1__AdmitResponse *response)
{
    struct proxy *proxy = upstream->peers->proxy;
    struct waiter *waiters = place->waiters;
    uint16_t number = place->number;

    place->waiters = NULL;
    if (error < 0) {
        /* An older place is kept: its messages are held under its number. */
        if (place->state != PLACE_READY && !place->has_token) {
            unlink_place(upstream, place);
            free_place(place);
        }
        tell(proxy, upstream, number, waiters, error, NULL);
        return;
    }
    if (place->state == PLACE_GONE) {
        place_leave(upstream->conn, response->client, response->nonce);
        unlink_place(upstream, place);
        free_place(place);
        return;
    }
    if (place->state == PLACE_READY && place->client != response->client) {
        /* Its sidecar lost the tokens: the session's messages are held under the number it has. */
        place_leave(upstream->conn, response->client, response->nonce);
        tell(proxy, upstream, number, waiters, 0, place);
        return;
    }
    place->client = (uint16_t)response->client;
    place->nonce = response->nonce;
    place->has_token = response->session_token.len == sizeof(place->token);
    if (place->has_token)
        memcpy(place->token, response->session_token.data, sizeof(place->token));
    place->state = PLACE_READY;
    tell(proxy, upstream, number, waiters, 0, place);
}

static void on_place(struct conn *conn, int error, const char *text,
                     const ProtobufCMessage *message, int *fds, size_t fd_count, void *data)
{
    struct asking *asking = data;
    const Ringside__Peer__V1__AdmitResponse *response = (const void *)message;
    struct upstream *upstream = asking->peers->upstreams[asking->ring_number];
    struct place *place = asked_for(upstream, asking);

    (void)text;
    rs_fd_close(fds, fd_count);
    free(asking);
    if (error == 0 && (response->client == 0 || response->client >= RS_MAX_CLIENTS))
        error = -RINGSIDE_E_PROTOCOL;
    if (place)
        settle(upstream, place, error, response);
    else if (error == 0)
        place_leave(conn, response->client, response->nonce);
}

static int ask(struct upstream *upstream, struct place *place, const char *name)
{
    struct asking *asking = calloc(1, sizeof(*asking));

    if (!asking)
        return -ENOMEM;
    *asking = (struct asking){upstream->peers, upstream->number, place->serial};
    int rc = place_admit(upstream->conn, name, place->has_token ? place->token : NULL,
                         place->pidfd >= 0 ? peers_dup(place->pidfd) : -1, false, false, on_place,
                         asking);
    if (rc < 0)
        free(asking);
    return rc;
}

void place_renew_all(struct upstream *upstream)
{
    struct place *next;

    for (struct place *place = upstream->places; place; place = next) {
        next = place->next;
        if (place->state == PLACE_READY || place->state == PLACE_GONE)
            (void)ask(upstream, place, "");
    }
}

static struct place *place_of(struct upstream *upstream, uint16_t number)
{
    for (struct place *place = upstream->places; place; place = place->next) {
        if (place->number == number && place->state != PLACE_GONE)
            return place;
    }
    return NULL;
}

static struct place *create_place(struct upstream *upstream, uint16_t number, int socket)
{
    struct place *place = calloc(1, sizeof(*place));

    if (!place)
        return NULL;
    place->serial = ++upstream->peers->last_serial;
    place->number = number;
    place->pidfd = peers_pidfd_of(socket);
    place->next = upstream->places;
    upstream->places = place;
    return place;
}

int peers_admit_session(struct proxy *proxy, uint16_t number, const char *name, int socket,
                        unsigned ring_number, peers_admitted_cb *callback)
{
    struct upstream *upstream = find(proxy, ring_number);
    struct place *place = upstream ? place_of(upstream, number) : NULL;

    if (!upstream)
        return -RINGSIDE_E_INVALID;
    if (upstream->damaged)
        return -RINGSIDE_E_CORRUPT;
    if (!upstream->mapped || (!place && !upstream->conn))
        return -RINGSIDE_E_UNAVAILABLE;
    struct waiter *waiter = calloc(1, sizeof(*waiter));
    if (!waiter)
        return -ENOMEM;
    waiter->callback = callback;
    if (place && place->state == PLACE_READY) {
        tell(proxy, upstream, number, waiter, 0, place);
        return 0;
    }
    if (place) {
        waiter->next = place->waiters;
        place->waiters = waiter;
        return 0;
    }
    place = create_place(upstream, number, socket);
    int rc = place ? ask(upstream, place, name) : -ENOMEM;
    if (rc < 0) {
        free(waiter);
        if (place) {
            unlink_place(upstream, place);
            free_place(place);
        }
        return rc;
    }
    place->waiters = waiter;
    return 0;
}

static void give_back(struct upstream *upstream, struct place *place)
{
    while (place->waiters) {
        struct waiter *waiter = place->waiters;

        place->waiters = waiter->next;
        free(waiter);
    }
    place->number = 0;
    if (place->state == PLACE_READY && upstream->conn &&
        place_leave(upstream->conn, place->client, place->nonce) == 0) {
        unlink_place(upstream, place);
        free_place(place);
        return;
    }
    place->state = PLACE_GONE; /* told with the answer that is awaited, or after a reconnect */
}

void peers_session_gone(struct proxy *proxy, uint16_t number)
{
    for (unsigned i = 1; proxy->peers && i < RS_MAX_RINGS; i++) {
        struct upstream *upstream = proxy->peers->upstreams[i];

        if (!upstream)
            continue;
        struct place *place = place_of(upstream, number);
        if (place)
            give_back(upstream, place);
    }
    for (unsigned i = 0; proxy->peers && i < RS_MAX_DESTINATIONS; i++) {
        if (proxy->peers->links[i])
            answers_session_gone(proxy->peers->links[i], number);
    }
}

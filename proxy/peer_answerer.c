/* SPDX-License-Identifier: Apache-2.0 */
/* Places of sessions in the rings of stages that they call or whose tickets they read: asked for at
 * that stage's sidecar, mapped once for all of them, given back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/guard.h"
#include "proxy/peers_private.h"
#include "proxy/session.h"

/* A mapped ring, with or without a later one at its stage. */
struct answer_files {
    struct rs_ring ring;
    int control_fd, body_fd, bell_fd; /* owned */
    unsigned places;
    bool damaged; /* its files lost pages */
    char body_path[PATH_MAX];
};

enum answer_state {
    ANSWER_ASKED, /* the first Admit is under way */
    ANSWER_READY,
    ANSWER_FAILED, /* `error` says why; gone when it was told */
    ANSWER_GONE,   /* to be given back as soon as the other sidecar can be told */
};

struct answer_place {
    struct answerer answerer; /* first; in the session's list while ready */
    struct answer_place *next;
    struct answer_files *files; /* NULL before it is ready */
    enum answer_state state;
    int error;
    uint16_t number; /* of the session in the own ring */
    bool reads;      /* takes a reader number */
    uint64_t serial; /* tells it from an earlier place at its address */
    bool has_token;
    uint8_t token[16];
    int pidfd; /* of the worker, owned; -1 */
};

/* ---- files ---- */

static void drop_files(struct answer_files *files)
{
    if (!files || --files->places > 0)
        return;
    rs_guard_remove(files->ring.body);
    rs_guard_remove(files->ring.control);
    rs_ring_unmap(&files->ring);
    int fds[] = {files->control_fd, files->body_fd, files->bell_fd};
    rs_fd_close(fds, 3);
    free(files);
}

static const char *map(struct link *link, const Ringside__Peer__V1__AdmitResponse *response,
                       const int fds[3], struct answer_files *files)
{
    struct rs_ring *ring = &files->ring;
    const char *why;

    if (!peers_file_is_theirs(link->conn, fds[0]) || !peers_file_is_theirs(link->conn, fds[1]))
        return "its files are not those that its sidecar made";
    if (!peers_is_event(fds[2]))
        return "its bell is no eventfd";
    if (rs_ring_map(ring, fds[0], fds[1], false, &why) < 0)
        return why;
    why = NULL;
    if (!link->view ||
        memcmp(ring->layout.incarnation, link->view->ring.layout.incarnation, 16) != 0)
        why = "it passed another ring than its own";
    else if (rs_guard_add(ring->control, ring->layout.control_bytes) < 0 ||
             rs_guard_add(ring->body, ring->layout.body_bytes) < 0)
        why = "too many rings are mapped";
    if (why) {
        rs_guard_remove(ring->body);
        rs_guard_remove(ring->control);
        rs_ring_unmap(ring);
        return why;
    }
    ring->bell_fd = ring->space_fd = fds[2];
    ring->reader = RS_NO_READER;
    files->control_fd = fds[0];
    files->body_fd = fds[1];
    files->bell_fd = fds[2];
    peers_name(files->body_path, sizeof(files->body_path), response->body_path);
    return NULL;
}

static struct answer_files *mapped(const struct link *link, const ProtobufCBinaryData *incarnation)
{
    for (struct answer_place *place = link->answers; place; place = place->next) {
        if (place->files && incarnation->len == 16 &&
            memcmp(place->files->ring.layout.incarnation, incarnation->data, 16) == 0)
            return place->files;
    }
    return NULL;
}

/* The ring of an answer to Admit, by its descriptors or as it is mapped already. Takes the
 * descriptors over. */
static struct answer_files *take_files(struct link *link,
                                       const Ringside__Peer__V1__AdmitResponse *response,
                                       const int fds[3], const char **why)
{
    struct answer_files *files = mapped(link, &response->incarnation);

    *why = NULL;
    if (files && peers_is_event(fds[2])) {
        /* Its sidecar has a new bell after a restart. */
        rs_fd_close(fds, 2);
        close(files->bell_fd);
        files->bell_fd = files->ring.bell_fd = files->ring.space_fd = fds[2];
    } else if (files) {
        rs_fd_close(fds, 3);
    } else if (!(files = calloc(1, sizeof(*files))) || (*why = map(link, response, fds, files))) {
        rs_fd_close(fds, 3);
        free(files);
        *why = *why ? *why : "out of memory";
        return NULL;
    }
    return files;
}

/* ---- places ---- */

static void unlink_place(struct link *link, const struct answer_place *place)
{
    struct answer_place **at = &link->answers;

    while (*at != place)
        at = &(*at)->next;
    *at = place->next;
}

static void free_place(struct answer_place *place)
{
    drop_files(place->files);
    if (place->pidfd >= 0)
        close(place->pidfd);
    free(place);
}

static void remove_place(struct link *link, struct answer_place *place)
{
    unlink_place(link, place);
    free_place(place);
}

/* Nothing of the session leads to it any more. */
static void take_from_session(struct proxy *proxy, struct answer_place *place)
{
    struct session *session = session_find(proxy, place->number);
    struct answerer **at = session ? &session->answerers : NULL;

    while (at && *at && *at != &place->answerer)
        at = &(*at)->next;
    if (!at || !*at)
        return;
    *at = place->answerer.next;
    for (unsigned i = 0; i < SESSION_REMEMBERED; i++) {
        if (session->requests[i].lease.ring == place->answerer.ring)
            session->requests[i].id = 0;
    }
}

/* Whether its ring is the one that the stage has now. */
static bool is_current(const struct link *link, const struct answer_place *place)
{
    return link->view && place->files &&
           memcmp(link->view->ring.layout.incarnation, place->files->ring.layout.incarnation, 16) ==
               0;
}

/* What an Admit under way points at: the place may be freed before the answer comes. */
struct asking {
    struct peers *peers;
    unsigned destination;
    uint64_t serial;
};

static struct answer_place *asked_for(const struct link *link, const struct asking *asking)
{
    struct answer_place *place = link ? link->answers : NULL;

    while (place && place->serial != asking->serial)
        place = place->next;
    return place;
}

static void get_ready(struct link *link, struct answer_place *place,
                      const Ringside__Peer__V1__AdmitResponse *response, const int fds[3])
{
    struct proxy *proxy = link->peers->proxy;
    struct session *session = session_find(proxy, place->number);
    const char *why;
    struct answer_files *files = take_files(link, response, fds, &why);

    place->state = ANSWER_FAILED;
    place->error = -RINGSIDE_E_UNAVAILABLE;
    if (files && (response->client == 0 || response->client >= files->ring.layout.client_count ||
                  rs_load_acquire(&files->ring.clients[response->client].nonce) != response->nonce))
        why = "the memory behind its descriptors is not the memory that it works in";
    if (files)
        files->places++; /* the last one unmaps it, so also when it is refused */
    if (!why && session) {
        place->files = files;
        place->state = ANSWER_READY;
        place->answerer = (struct answerer){.next = session->answerers,
                                            .ring = &files->ring,
                                            .body_path = files->body_path,
                                            .nonce = response->nonce,
                                            .destination = (uint16_t)link->destination,
                                            .client = (uint16_t)response->client,
                                            .reads = place->reads};
        session->answerers = &place->answerer;
        return;
    }
    if (why)
        log_warn(&proxy->log, "peers", conn_serial(link->conn),
                 "%s: sessions of this sidecar get no place in the ring of its stage: %s",
                 link->path, why);
    drop_files(files);
    place_leave(link->conn, response->client, response->nonce);
}

static void keep_token(struct answer_place *place,
                       const Ringside__Peer__V1__AdmitResponse *response)
{
    place->has_token = response->session_token.len == sizeof(place->token);
    if (place->has_token)
        memcpy(place->token, response->session_token.data, sizeof(place->token));
}

static void on_admitted(struct conn *conn, int error, const char *text,
                        const ProtobufCMessage *message, int *fds, size_t fd_count, void *data)
{
    const Ringside__Peer__V1__AdmitResponse *response = (const void *)message;
    struct asking asking = *(struct asking *)data;
    struct link *link = asking.peers->links[asking.destination];
    struct answer_place *place = asked_for(link, &asking);

    (void)text;
    free(data);
    if (fd_count > 3) {
        rs_fd_close(fds + 3, fd_count - 3); /* the inbox's event is for callees */
        fd_count = 3;
    }
    bool usable = error == 0 && fd_count == 3 && place && link->conn == conn;
    if (usable && place->state == ANSWER_ASKED) {
        keep_token(place, response);
        get_ready(link, place, response, fds);
        return;
    }
    if (usable && place->state == ANSWER_READY && response->client == place->answerer.client &&
        is_current(link, place)) {
        const char *why;

        keep_token(place, response);
        place->answerer.nonce = response->nonce;
        (void)take_files(link, response, fds, &why); /* the bell */
        return;
    }
    rs_fd_close(fds, fd_count);
    if (error == 0) /* of nobody, or another number than the replies are held under */
        place_leave(conn, response->client, response->nonce);
    if (place && place->state == ANSWER_ASKED) {
        place->state = ANSWER_FAILED;
        place->error = error < 0 ? error : -RINGSIDE_E_PROTOCOL;
    } else if (place && place->state == ANSWER_GONE && (error == 0 || !place->has_token)) {
        remove_place(link, place);
    }
}

static int ask(struct link *link, struct answer_place *place, const char *name)
{
    struct asking *asking = calloc(1, sizeof(*asking));

    if (!asking)
        return -ENOMEM;
    *asking = (struct asking){link->peers, link->destination, place->serial};
    int rc = place_admit(link->conn, name, place->has_token ? place->token : NULL,
                         place->pidfd >= 0 ? peers_dup(place->pidfd) : -1, false, !place->reads,
                         on_admitted, asking);
    if (rc < 0)
        free(asking);
    return rc;
}

static struct answer_place *find(const struct link *link, uint16_t number, bool reads)
{
    for (struct answer_place *place = link->answers; place; place = place->next) {
        if (place->number == number && place->reads == reads && place->state != ANSWER_GONE &&
            (place->state != ANSWER_READY || is_current(link, place)))
            return place;
    }
    return NULL;
}

static int begin(struct link *link, struct session *session, bool reads)
{
    struct answer_place *place = calloc(1, sizeof(*place));

    if (!place)
        return -ENOMEM;
    place->serial = ++link->peers->last_serial;
    place->number = session->number;
    place->reads = reads;
    place->pidfd = peers_pidfd_of(conn_socket(session->conn));
    place->next = link->answers;
    link->answers = place;
    int rc = ask(link, place, session->name);
    if (rc < 0)
        remove_place(link, place);
    return rc;
}

int peers_answerer(struct session *session, unsigned destination, bool reads, bool may_ask,
                   struct answerer **answerer)
{
    struct proxy *proxy = session->proxy;
    struct link *link = proxy->peers ? proxy->peers->links[destination] : NULL;
    struct answer_place *place = link ? find(link, session->number, reads) : NULL;

    if (!link)
        return -RINGSIDE_E_UNAVAILABLE;
    if (place && place->state == ANSWER_READY) {
        *answerer = &place->answerer;
        return place->files->damaged ? -RINGSIDE_E_CORRUPT : 1;
    }
    if (place && place->state == ANSWER_ASKED)
        return 0;
    if (place) {
        int error = place->error;

        remove_place(link, place);
        return error;
    }
    if (!may_ask || link->state != LINK_CONNECTED || !link->conn)
        return -RINGSIDE_E_UNAVAILABLE;
    return begin(link, session, reads);
}

unsigned peers_ticket_destination(const struct proxy *proxy, const struct rs_ticket *ticket)
{
    for (unsigned i = 0; proxy->peers && i < RS_MAX_DESTINATIONS; i++) {
        const struct link *link = proxy->peers->links[i];

        if (link && link->view &&
            rs_ring_ticket_slot(&link->view->ring, ticket) != -RINGSIDE_E_FOREIGN_TICKET)
            return i;
    }
    return RS_NO_DESTINATION;
}

struct rs_ring *peers_ticket_ring(const struct proxy *proxy, const struct rs_ticket *ticket)
{
    unsigned destination = peers_ticket_destination(proxy, ticket);

    return destination != RS_NO_DESTINATION ? &proxy->peers->links[destination]->view->ring : NULL;
}

/* ---- the end ---- */

static void give_back(struct link *link, struct answer_place *place)
{
    if (place->state == ANSWER_READY && is_current(link, place) && link->conn &&
        place_leave(link->conn, place->answerer.client, place->answerer.nonce) == 0) {
        remove_place(link, place);
        return;
    }
    if (place->state == ANSWER_FAILED ||
        (place->state == ANSWER_READY && !is_current(link, place))) {
        remove_place(link, place);
        return;
    }
    place->state = ANSWER_GONE; /* told with the answer that is awaited, or after a reconnect */
}

void answers_session_gone(struct link *link, uint16_t number)
{
    struct answer_place *next;

    for (struct answer_place *place = link->answers; place; place = next) {
        next = place->next;
        if (place->number == number && place->state != ANSWER_GONE) {
            take_from_session(link->peers->proxy, place);
            give_back(link, place);
        }
    }
}

void answers_renew(struct link *link)
{
    struct answer_place *next;

    for (struct answer_place *place = link->answers; place; place = next) {
        next = place->next;
        if (place->state == ANSWER_GONE && !is_current(link, place))
            remove_place(link, place);
        else if (place->has_token && is_current(link, place))
            (void)ask(link, place, "");
    }
}

static void look_for_damage(struct link *link, struct answer_files *files)
{
    const struct rs_ring *ring = &files->ring;

    if (files->damaged || (!rs_guard_hit(ring->control) && !rs_guard_hit(ring->body) &&
                           !ring_file_is_cut(files->control_fd, ring->layout.control_bytes) &&
                           !ring_file_is_cut(files->body_fd, ring->layout.body_bytes)))
        return;
    files->damaged = true;
    log_error(&link->peers->proxy->log, "peers", 0,
              "%s: the ring lost pages: somebody truncated its files. Sessions of this sidecar do "
              "not call its stage any more",
              link->path);
}

/* A ring that its stage has no more goes with the last reply that is held in it. */
void answers_tick(struct link *link)
{
    struct proxy *proxy = link->peers->proxy;
    struct answer_place *next;

    for (struct answer_place *place = link->answers; place; place = next) {
        struct session *session = session_find(proxy, place->number);

        next = place->next;
        if (place->files)
            look_for_damage(link, place->files);
        if (place->state != ANSWER_READY || is_current(link, place))
            continue;
        if (session)
            session_calls_reap(session);
        if (place->answerer.uses == 0) {
            take_from_session(proxy, place);
            remove_place(link, place);
        }
    }
}

void answers_destroy(struct link *link)
{
    while (link->answers)
        remove_place(link, link->answers);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's life: connect, fork, close. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_NS INT64_C(5000000000)
#define FORK_PATIENCE_S    1

static pthread_mutex_t connections_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ringside *connections; /* of the process, for a child that forks off */

int64_t deadline_after(int64_t timeout_ns)
{
    int64_t deadline_ns;

    if (timeout_ns < 0 || __builtin_add_overflow(rs_now_ns(), timeout_ns, &deadline_ns))
        return INT64_MAX;
    return deadline_ns;
}

int64_t time_left(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return RINGSIDE_FOREVER;
    int64_t left_ns = deadline_ns - rs_now_ns();
    return left_ns > 0 ? left_ns : 0;
}

int fail_down(const struct ringside *connection)
{
    switch (rs_load_relaxed(&connection->down)) {
    case RINGSIDE_E_FORKED:
        return fail_with(connection, -RINGSIDE_E_FORKED,
                         "this process was forked off the one that connected; connect anew here");
    case RINGSIDE_E_CORRUPT:
        return fail_with(connection, -RINGSIDE_E_CORRUPT,
                         "the ring's files were cut or lost their pages; restart the sidecar, then "
                         "connect anew");
    default:
        return fail_with(connection, -RINGSIDE_E_UNAVAILABLE,
                         "the sidecar came back with a new ring; release what is held, close and "
                         "connect anew");
    }
}

/* ---- fork ---- */

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Descriptors on their way from the socket to their place are known to one thread alone: the fork waits until they have
 * come there. Not for ever: a call may wait for a sidecar that hangs. */
static void before_fork(void)
{
    struct timespec deadline;

    pthread_mutex_lock(&connections_lock);
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += FORK_PATIENCE_S;
    for (struct ringside *each = connections; each != NULL; each = each->next)
        each->held_still = pthread_mutex_clocklock(&each->lock, CLOCK_MONOTONIC, &deadline) == 0;
}

static void let_go(void)
{
    for (struct ringside *each = connections; each != NULL; each = each->next) {
        if (each->held_still)
            pthread_mutex_unlock(&each->lock);
    }
}

static void after_fork_parent(void)
{
    let_go();
    pthread_mutex_unlock(&connections_lock);
}

/* A control file's description holds the lock of this client's byte: a child that kept it would keep a dead parent
 * alive. The mappings are not inherited. Nothing here may take a lock that another thread held. */
static void disown(struct ringside *connection)
{
    bool still = connection->held_still;

    rs_store_relaxed(&connection->down, RINGSIDE_E_FORKED);
    close_if_open(&connection->control.socket);
    rs_fd_queue_close_all(&connection->control.reader.fds);
    rs_fd_close(connection->arriving, connection->arriving_count);
    connection->arriving_count = 0;
    close_if_open(&connection->event_fd);
    close_if_open(&connection->epoll_fd);
    close_if_open(&connection->timer_fd);
    close_if_open(&connection->look_timer_fd);
    peer_disown(&connection->own, still);
    for (unsigned i = 1; i < RS_MAX_RINGS; i++)
        peer_disown(rs_load_relaxed(&connection->peers[i]), still);
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++) {
        peer_disown(rs_load_relaxed(&connection->answerers.rings[i]), still);
        peer_disown(rs_load_relaxed(&connection->ticketed.rings[i]), still);
    }
    for (struct peer *peer = connection->retired_peers; peer != NULL; peer = peer->next)
        peer_disown(peer, still);
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++)
        outlet_disown(rs_load_relaxed(&connection->outlets[i]), still);
    for (struct outlet *outlet = connection->retired_outlets; outlet; outlet = outlet->next)
        outlet_disown(outlet, still);
}

static void after_fork_child(void)
{
    for (struct ringside *each = connections; each != NULL; each = each->next)
        disown(each);
    let_go();
    connections = NULL;
    pthread_mutex_unlock(&connections_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* ---- connect ---- */

static struct ringside *create(const struct ringside_connect_options *options, const char *path)
{
    struct ringside *connection = calloc(1, sizeof *connection);

    if (connection == NULL)
        return NULL;
    connection->socket_path = strdup(path);
    if (connection->socket_path == NULL) {
        free(connection);
        return NULL;
    }
    snprintf(connection->name, sizeof connection->name, "%s",
             options->name != NULL ? options->name : program_invocation_short_name);
    connection->log = options->log;
    connection->log_data = options->log_data;
    connection->control.socket = -1;
    connection->event_fd = -1;
    connection->epoll_fd = -1;
    connection->timer_fd = -1;
    connection->look_timer_fd = -1;
    connection->own.control_fd = -1;
    connection->own.bell_fd = -1;
    connection->own.event_fd = -1;
    rs_store_relaxed(&connection->calls.free_cells, UINT64_MAX);
    pthread_mutex_init(&connection->lock, NULL);
    pthread_mutex_init(&connection->look_lock, NULL);
    return connection;
}

static void destroy_peer(struct peer *peer)
{
    if (peer != NULL)
        peer_unmap(peer);
    free(peer);
}

/* Only process memory and descriptors: what shared memory says was settled before, or is not ours (a forked child). */
static void destroy(struct ringside *connection)
{
    for (unsigned i = 1; i < RS_MAX_RINGS; i++)
        destroy_peer(rs_load_relaxed(&connection->peers[i]));
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++) {
        destroy_peer(rs_load_relaxed(&connection->answerers.rings[i]));
        destroy_peer(rs_load_relaxed(&connection->ticketed.rings[i]));
    }
    for (struct peer *peer = connection->retired_peers, *next; peer != NULL; peer = next) {
        next = peer->next;
        destroy_peer(peer);
    }
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++)
        outlet_destroy(rs_load_relaxed(&connection->outlets[i]));
    for (struct outlet *outlet = connection->retired_outlets, *next; outlet; outlet = next) {
        next = outlet->next;
        outlet_destroy(outlet);
    }
    for (struct settings *each = rs_load_relaxed(&connection->settings), *next; each; each = next) {
        next = each->next;
        free(each);
    }
    peer_unmap(&connection->own);
    close_if_open(&connection->event_fd);
    close_if_open(&connection->epoll_fd);
    close_if_open(&connection->timer_fd);
    close_if_open(&connection->look_timer_fd);
    /* Last: when the sidecar sees the end of the socket, the lock of our byte must be gone. */
    rs_ttrpc_client_finish(&connection->control);
    pthread_mutex_destroy(&connection->lock);
    pthread_mutex_destroy(&connection->look_lock);
    free(connection->socket_path);
    free(connection);
}

int ringside_connect(struct ringside **connection, const struct ringside_connect_options *options)
{
    static const struct ringside_connect_options none;
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (connection == NULL)
        return fail_with(NULL, -RINGSIDE_E_INVALID, "no place for the connection was given");
    *connection = NULL;
    if (options == NULL)
        options = &none;
    const char *path = options->socket != NULL ? options->socket : getenv("RINGSIDE_SOCKET");
    if (path == NULL || path[0] == '\0')
        return fail_with(NULL, -RINGSIDE_E_INVALID,
                         "no socket: give its path, or set RINGSIDE_SOCKET to the path of the "
                         "sidecar's socket");
    pthread_once(&once, watch_forks);
    struct ringside *fresh = create(options, path);
    if (fresh == NULL)
        return fail_with(NULL, -ENOMEM, "out of memory");
    /* From here on a child that forks off closes what it inherits. */
    pthread_mutex_lock(&connections_lock);
    fresh->next = connections;
    connections = fresh;
    pthread_mutex_unlock(&connections_lock);
    int rc = link_open(fresh, options->timeout_ns != 0 ? options->timeout_ns : CONNECT_TIMEOUT_NS);
    if (rc < 0) {
        rc = fail(NULL, rc, "%s", ringside_explain(fresh));
        ringside_close(fresh);
        return rc;
    }
    *connection = fresh;
    return 0;
}

const char *ringside_stage(const struct ringside *connection)
{
    return connection->own.ring.layout.stage;
}

/* ---- close ---- */

static void return_delivery(struct ringside *connection, struct peer *peer, uint32_t slot,
                            unsigned delivery, uint64_t word)
{
    struct rs_lease lease = {
        .ring = &peer->ring,
        .word = word,
        .slot = slot,
        .generation = rs_delivery_generation(word),
        .holder = peer->ring.client,
        .delivery = (uint8_t)delivery,
    };
    unsigned destination = rs_delivery_destination(word);
    unsigned limit = RS_MAX_ATTEMPTS + 1;
    uint64_t call = rs_message_is_request(&peer->ring.slots[slot])
                        ? rs_load_relaxed(&peer->ring.slots[slot].header[RS_HEADER_CALL])
                        : 0;

    if (destination < peer->ring.layout.destination_count)
        limit = rs_destination_attempts(rs_load_relaxed(&peer->ring.destinations[destination].state));
    int rc = rs_ring_nack(&lease, limit);
    if (call != 0)
        request_wake_caller(connection, peer, call);
    if (rc != 0)
        return;
    /* The sidecar's audit gives it a cell when the ring is no longer in this inbox. */
    for (unsigned i = 0; i < RS_MAX_RINGS; i++) {
        if (rs_load_relaxed(&connection->peers[i]) == peer)
            push_delivery(connection, &connection->inbox, i, &peer->ring, slot, delivery);
    }
}

static void return_readings(struct peer *peer, uint32_t slot)
{
    uint64_t readers = rs_load_relaxed(&peer->ring.slots[slot].readers);

    if (peer->ring.reader != RS_NO_READER && (readers >> peer->ring.reader & 1) != 0)
        rs_ring_read_end(&peer->ring, peer->ring.reader, slot, 0, false);
}

/* The ring's words say what this client holds, so nothing needs to keep a list. */
static void return_everything(struct ringside *connection, struct peer *peer)
{
    struct rs_ring *ring = &peer->ring;

    for (uint32_t slot = 0; ring->control != NULL && slot < ring->layout.slot_count; slot++) {
        uint64_t state = rs_load_acquire(&ring->slots[slot].state);
        struct rs_loan loan = {.slot = slot, .generation = rs_state_generation(state)};

        if (rs_state_phase(state) == RS_LOANED && rs_state_owner(state) == ring->client)
            rs_ring_abandon(ring, ring->client, &loan);
        if (rs_state_phase(state) != RS_SEALED)
            continue;
        for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
            uint64_t word = rs_load_acquire(&ring->slots[slot].delivery[i]);

            if (rs_delivery_phase(word) == RS_HELD && rs_delivery_holder(word) == ring->client &&
                rs_delivery_generation(word) == loan.generation)
                return_delivery(connection, peer, slot, i, word);
        }
        if ((rs_state_flags(state) & RS_FLAG_TICKET) != 0)
            return_readings(peer, slot);
    }
}

void ringside_close(struct ringside *connection)
{
    if (connection == NULL)
        return;
    bool forked = rs_load_relaxed(&connection->down) == RINGSIDE_E_FORKED;
    if (forked && !connection->held_still)
        return; /* another thread was in the middle of it when this process was made: its memory is lost */
    for (unsigned i = 0; !forked && i < RS_MAX_RINGS; i++) {
        struct peer *peer = rs_load_relaxed(&connection->peers[i]);

        if (peer != NULL)
            return_everything(connection, peer);
    }
    for (unsigned i = 0; !forked && i < 2 * RS_MAX_DESTINATIONS; i++) {
        struct far_rings *far = i % 2 == 0 ? &connection->answerers : &connection->ticketed;
        struct peer *peer = rs_load_relaxed(&far->rings[i / 2]);

        if (peer != NULL)
            return_everything(connection, peer);
    }
    for (struct peer *peer = connection->retired_peers; !forked && peer; peer = peer->next)
        return_everything(connection, peer);
    /* Until its descriptors are closed, a child that forks off must find them; and no range of it may be half guarded. */
    pthread_mutex_lock(&connections_lock);
    for (struct ringside **at = &connections; *at != NULL; at = &(*at)->next) {
        if (*at == connection) {
            *at = connection->next;
            break;
        }
    }
    RS_FAILPOINT(close_returned);
    destroy(connection);
    pthread_mutex_unlock(&connections_lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of other stages whose messages come to the own inbox: their numbers, their mapping, their
 * end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/guard.h"
#include "proto/failpoint.h"
#include "proxy/peers_private.h"
#include "proxy/control.h"
#include "proxy/tables.h"

static uint64_t entry_state(const struct rs_ring_entry *entry, uint32_t sidecar_id, unsigned phase)
{
    uint64_t version = (rs_load_relaxed(&entry->state) >> 32) + 1;

    return version << 32 | (uint64_t)(sidecar_id & 0xffff) << 16 | phase;
}

static struct rs_ring_entry *entry_of(const struct upstream *upstream)
{
    return &upstream->peers->proxy->inbox.table[upstream->number];
}

static void store_entry(struct rs_ring_entry *entry, const char *stage, uint32_t sidecar_id,
                        const uint64_t incarnation[2], uint64_t nonce)
{
    uint64_t name[4] = {0};

    memcpy(name, stage, strnlen(stage, sizeof(name) - 1));
    for (unsigned i = 0; i < 4; i++)
        rs_store_relaxed(&entry->name[i], name[i]);
    for (unsigned i = 0; i < 2; i++)
        rs_store_relaxed(&entry->incarnation[i], incarnation[i]);
    rs_store_relaxed(&entry->nonce, nonce);
    rs_store_release(&entry->state, entry_state(entry, sidecar_id, RS_RING_KNOWN));
}

uint64_t upstream_publish(struct upstream *upstream)
{
    uint64_t nonce;

    RS_FAILPOINT(peer_known_before);
    peers_random(&nonce);
    store_entry(entry_of(upstream), upstream->stage, upstream->sidecar_id, upstream->incarnation,
                nonce);
    tables_changed(upstream->peers->proxy, entry_of(upstream));
    RS_FAILPOINT(peer_known);
    return nonce;
}

/* ---- the end of a ring ---- */

static bool cell_names(const struct rs_inbox *inbox, unsigned number)
{
    for (uint32_t i = 0; i < inbox->cell_count; i++) {
        uint64_t cell = rs_load_seq_cst(&inbox->cells[i]);

        if ((cell & RS_CELL_FULL) && rs_cell_ring(cell) == number)
            return true;
    }
    return false;
}

static bool is_ours(const struct upstream *upstream, unsigned holder)
{
    if (holder == upstream->ring.client)
        return true;
    for (const struct place *place = upstream->places; place; place = place->next) {
        if (place->client == holder)
            return true;
    }
    return false;
}

/* What is left of a ring here; a message that waits counts more than one that is held. */
enum left { LEFT_NOTHING, LEFT_HELD, LEFT_QUEUED };

/*
 * Whether a message of that ring still waits for this stage, with or without a cell, or is held by
 * this sidecar or one of its living workers.
 */

static enum left message_left(struct upstream *upstream)
{
    struct rs_ring *ring = &upstream->ring;
    enum left left = LEFT_NOTHING;

    for (uint32_t i = 0; upstream->mapped && i < ring->layout.slot_count; i++) {
        for (unsigned d = 0; d < RS_MAX_DELIVERIES; d++) {
            uint64_t word;

            if (rs_ring_takeable(ring, i, d, upstream->destination, &word))
                return LEFT_QUEUED;
            if (rs_delivery_phase(word) == RS_HELD &&
                rs_delivery_destination(word) == upstream->destination &&
                is_ours(upstream, rs_delivery_holder(word)))
                left = LEFT_HELD;
        }
    }
    return left;
}

/* Sessions have pointers to the mapping in their views and in what they remember of leases that are
 * over. */
static void take_from_sessions(struct upstream *upstream)
{
    struct sessions *sessions = control_sessions(upstream->peers->proxy);
    unsigned number = upstream->number;

    for (unsigned i = 0; sessions && i < RS_MAX_CLIENTS; i++) {
        struct session *session = sessions->by_number[i];

        if (!session)
            continue;
        if (session->inbox && rs_load_relaxed(&session->inbox->rings[number]) == &upstream->ring)
            rs_inbox_forget(session->inbox, number);
        session->body_paths[number] = NULL;
        bit_clear(session->asked, number);
        for (unsigned r = 0; r < SESSION_REMEMBERED; r++) {
            if (session->requests[r].lease.ring == &upstream->ring)
                session->requests[r].id = 0;
        }
    }
}

static void close_files(struct upstream *upstream)
{
    int fds[] = {upstream->control_fd, upstream->body_fd, upstream->bell_fd, upstream->event_fd};

    rs_fd_close(fds, 4);
}

void upstream_destroy(struct upstream *upstream)
{
    if (!upstream)
        return;
    place_drop_all(upstream);
    if (upstream->mapped) {
        rs_guard_remove(upstream->ring.control);
        rs_guard_remove(upstream->ring.body);
        rs_ring_unmap(&upstream->ring);
    }
    close_files(upstream);
    free(upstream);
}

/*
 * Its sidecar is away and nothing of it is left here: no cell, then no word, for a nack makes its
 * word queued before it pushes the cell. A number must not change its meaning while a
 * cell names it. Workers that have the ring mapped under the number see in the table that it is
 * unused.
 */
static bool is_spent(struct upstream *upstream)
{
    return !upstream->conn && (upstream->gone || !upstream->mapped) &&
           !cell_names(&upstream->peers->proxy->inbox, upstream->number) &&
           message_left(upstream) == LEFT_NOTHING;
}

static void give_back(struct upstream *upstream)
{
    struct peers *peers = upstream->peers;
    struct rs_ring_entry *entry = entry_of(upstream);

    rs_store_release(&entry->state, entry_state(entry, 0, RS_RING_UNUSED));
    tables_changed(peers->proxy, entry);
    RS_FAILPOINT(peer_unused);
    rs_inbox_forget(&peers->proxy->inbox, upstream->number);
    take_from_sessions(upstream);
    peers->upstreams[upstream->number] = NULL;
    upstream_destroy(upstream);
}

/* ---- numbers ---- */

static struct upstream *create(struct peers *peers, unsigned number, const uint64_t incarnation[2])
{
    struct upstream *upstream = calloc(1, sizeof(*upstream));

    if (!upstream)
        return NULL;
    upstream->peers = peers;
    upstream->number = (uint8_t)number;
    upstream->control_fd = upstream->body_fd = upstream->bell_fd = upstream->event_fd = -1;
    memcpy(upstream->incarnation, incarnation, sizeof(upstream->incarnation));
    peers->upstreams[number] = upstream;
    return upstream;
}

/* In turn, so that a number rests before it gets another meaning. */
static int free_number(struct peers *peers)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        for (unsigned i = 1; i < RS_MAX_RINGS; i++) {
            unsigned number = (peers->last_number + i - 1) % (RS_MAX_RINGS - 1) + 1;

            if (pass == 1 && peers->upstreams[number] && is_spent(peers->upstreams[number]))
                give_back(peers->upstreams[number]);
            if (!peers->upstreams[number]) {
                peers->last_number = number;
                return (int)number;
            }
        }
    }
    return -RINGSIDE_E_LIMIT;
}

struct upstream *upstream_get(struct peers *peers, const uint64_t incarnation[2], int *error)
{
    for (int i = 1; i < RS_MAX_RINGS; i++) {
        struct upstream *upstream = peers->upstreams[i];

        if (upstream &&
            memcmp(upstream->incarnation, incarnation, sizeof(upstream->incarnation)) == 0)
            return upstream;
    }
    int number = free_number(peers);
    if (number < 0) {
        *error = number;
        return NULL;
    }
    struct upstream *upstream = create(peers, (unsigned)number, incarnation);
    if (!upstream)
        *error = -ENOMEM;
    return upstream;
}

int upstream_adopt_all(struct peers *peers)
{
    const struct proxy *proxy = peers->proxy;

    store_entry(&proxy->inbox.table[0], proxy->config.stage, proxy->ring.layout.sidecar_id,
                proxy->ring.layout.incarnation, 0);
    tables_changed(peers->proxy, &peers->proxy->inbox.table[0]);
    for (unsigned i = 1; i < RS_MAX_RINGS; i++) {
        struct rs_ring_entry *entry = &peers->proxy->inbox.table[i];
        uint64_t state = rs_load_acquire(&entry->state);
        uint64_t incarnation[2] = {rs_load_relaxed(&entry->incarnation[0]),
                                   rs_load_relaxed(&entry->incarnation[1])};
        uint64_t name[4];

        if ((state & 0xff) == RS_RING_UNUSED)
            continue;
        struct upstream *upstream = create(peers, i, incarnation);
        if (!upstream)
            return -ENOMEM;
        for (unsigned n = 0; n < 4; n++)
            name[n] = rs_load_relaxed(&entry->name[n]);
        ((char *)name)[sizeof(name) - 1] = '\0';
        peers_name(upstream->stage, sizeof(upstream->stage), (const char *)name);
        upstream->sidecar_id = (uint32_t)(state >> 16) & 0xffff;
    }
    return 0;
}

/* ---- the own place in it ---- */

/* Descriptors: control, body, bell, event of its inbox (-1: none). NULL or what is wrong. */
static const char *files_fault(const struct upstream *upstream, const int fds[4])
{
    if (!peers_file_is_theirs(upstream->conn, fds[0]) ||
        !peers_file_is_theirs(upstream->conn, fds[1]))
        return "its files are not those that its sidecar made";
    if (!peers_is_event(fds[2]))
        return "its bell is no eventfd";
    return fds[3] < 0 || peers_is_event(fds[3]) ? NULL : "the event of its inbox is no eventfd";
}

static bool is_client(const struct rs_ring *ring, uint32_t number)
{
    return number > 0 && number < ring->layout.client_count;
}

/* Checked descriptors, which stay the caller's. NULL or what is wrong. */
static const char *map(struct upstream *upstream, const Ringside__Peer__V1__AdmitResponse *response,
                       const int fds[3])
{
    struct rs_ring *ring = &upstream->ring;
    const char *why;

    if (rs_ring_map(ring, fds[0], fds[1], false, &why) < 0)
        return why;
    why = NULL;
    if (memcmp(ring->layout.incarnation, upstream->incarnation, 16) != 0)
        why = "it passed another ring than its own";
    else if (!is_client(ring, response->client) ||
             response->destination >= ring->layout.destination_count)
        why = "it told numbers out of range";
    else if (rs_guard_add(ring->control, ring->layout.control_bytes) < 0 ||
             rs_guard_add(ring->body, ring->layout.body_bytes) < 0)
        why = "too many rings are mapped";
    else if (rs_load_acquire(&ring->clients[response->client].nonce) != response->nonce)
        why = "the memory behind its descriptors is not the memory that it works in: both sidecars "
              "must "
              "run on one kernel";
    if (why) {
        rs_guard_remove(ring->body);
        rs_guard_remove(ring->control);
        rs_ring_unmap(ring);
        return why;
    }
    ring->client = (uint16_t)response->client;
    ring->reader = RS_NO_READER;
    upstream->destination = (uint16_t)response->destination;
    upstream->mapped = true;
    return NULL;
}

static void admitted(struct upstream *upstream, const Ringside__Peer__V1__AdmitResponse *response,
                     const int fds[4])
{
    struct proxy *proxy = upstream->peers->proxy;
    const char *why = files_fault(upstream, fds);

    if (!why && !upstream->mapped)
        why = map(upstream, response, fds);
    else if (!why && !is_client(&upstream->ring, response->client))
        why = "it told numbers out of range";
    if (why) {
        rs_fd_close(fds, 4);
        if (strcmp(upstream->error, why) == 0)
            return; /* told before */
        peers_name(upstream->error, sizeof(upstream->error), why);
        log_warn(&proxy->log, "peers", conn_serial(upstream->conn),
                 "the ring of stage %s cannot be used by this sidecar: %s", upstream->stage, why);
        return;
    }
    /* Its sidecar has a new bell after a restart; the description with the lock is the newest one.
     */
    close_files(upstream);
    upstream->control_fd = fds[0];
    upstream->body_fd = fds[1];
    upstream->bell_fd = fds[2];
    upstream->event_fd = fds[3];
    upstream->ring.bell_fd = upstream->ring.space_fd = fds[2];
    upstream->ring.client = (uint16_t)response->client;
    upstream->error[0] = '\0';
    upstream->has_token = response->session_token.len == sizeof(upstream->token);
    if (upstream->has_token)
        memcpy(upstream->token, response->session_token.data, sizeof(upstream->token));
    peers_name(upstream->body_path, sizeof(upstream->body_path), response->body_path);
    rs_inbox_admit(&proxy->inbox, upstream->number, &upstream->ring, upstream->destination,
                   upstream->ring.client);
    log_info(&proxy->log, "peers", conn_serial(upstream->conn),
             "ring %u is that of stage %s: this sidecar is its client %u", upstream->number,
             upstream->stage, response->client);
    place_renew_all(upstream);
    control_look_again(proxy);
}

static void on_admitted(struct conn *conn, int error, const char *text,
                        const ProtobufCMessage *response, int *fds, size_t fd_count, void *data)
{
    struct upstream *upstream = data;

    /* A connection that was replaced or lost; its upstream may be gone as well. */
    if (upstream_of(conn) != upstream || upstream->conn != conn) {
        rs_fd_close(fds, fd_count);
        return;
    }
    upstream->asking = false;
    if (error == 0 && fd_count >= 3) {
        int passed[4] = {fds[0], fds[1], fds[2], fd_count > 3 ? fds[3] : -1};

        if (fd_count > 4)
            rs_fd_close(fds + 4, fd_count - 4);
        admitted(upstream, (const Ringside__Peer__V1__AdmitResponse *)response, passed);
        return;
    }
    rs_fd_close(fds, fd_count);
    if (error == -RINGSIDE_E_UNAVAILABLE) /* the connection closes, which is told elsewhere */
        return;
    if (error == 0)
        text = "it passed no descriptors";
    else if (!text || !text[0])
        text = rs_strerror(error);
    if (strcmp(upstream->error, text) != 0)
        log_warn(&upstream->peers->proxy->log, "peers", conn_serial(conn),
                 "stage %s does not admit this sidecar: %s; asked again every second",
                 upstream->stage, text);
    peers_name(upstream->error, sizeof(upstream->error), text);
}

static void ask(struct upstream *upstream)
{
    Ringside__Peer__V1__AdmitRequest request = RINGSIDE__PEER__V1__ADMIT_REQUEST__INIT;
    char name[RS_NAME_BYTES + 16];
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    snprintf(name, sizeof(name), "%.40s sidecar", upstream->peers->proxy->config.stage);
    request.name = name;
    request.pid = (uint32_t)getpid();
    request.wants_lock = true;
    if (upstream->has_token)
        request.session_token = peers_bytes(upstream->token, sizeof(upstream->token));
    upstream->asking = conn_call_out(upstream->conn, PEER_SERVICE, "Admit", &request.base,
                                     &ringside__peer__v1__admit_response__descriptor, &pidfd,
                                     pidfd >= 0, PEER_CALL_NS, on_admitted, upstream) == 0;
}

/* ---- the connection ---- */

static void on_closed(struct conn *conn, void *data)
{
    struct upstream *upstream = data;

    if (upstream->conn != conn)
        return;
    upstream->conn = NULL;
    upstream->asking = false;
    peers_name(upstream->error, sizeof(upstream->error), "the connection is closed");
    if (!upstream->peers->closed)
        log_info(&upstream->peers->proxy->log, "peers", conn_serial(conn),
                 "the sidecar of stage %s is away: its messages here are received as before",
                 upstream->stage);
}

struct upstream *upstream_of(struct conn *conn)
{
    return conn_owner_of(conn, on_closed);
}

void upstream_connected(struct upstream *upstream, struct conn *conn)
{
    struct conn *old = upstream->conn;

    upstream->conn = conn;
    upstream->gone = false;
    memset(upstream->admitted, 0, sizeof(upstream->admitted));
    conn_on_closed(conn, on_closed, upstream);
    if (old)
        conn_close(old, "its sidecar connected anew");
    ask(upstream);
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++) {
        if (upstream->peers->links[i])
            upstream_introduce(upstream, upstream->peers->links[i]);
    }
}

/* ---- every second ---- */

static void look_for_damage(struct upstream *upstream)
{
    const struct rs_ring *ring = &upstream->ring;

    if (!upstream->mapped || upstream->damaged ||
        (!rs_guard_hit(ring->control) && !rs_guard_hit(ring->body) &&
         !ring_file_is_cut(upstream->control_fd, ring->layout.control_bytes) &&
         !ring_file_is_cut(upstream->body_fd, ring->layout.body_bytes)))
        return;
    upstream->damaged = true;
    rs_inbox_forget(&upstream->peers->proxy->inbox, upstream->number);
    take_from_sessions(upstream);
    peers_name(upstream->error, sizeof(upstream->error), "its files lost pages");
    log_error(&upstream->peers->proxy->log, "peers", 0,
              "the ring of stage %s lost pages: somebody truncated its files. Its messages are not "
              "received "
              "through this sidecar any more",
              upstream->stage);
}

void upstream_tick(struct upstream *upstream)
{
    struct stat status;

    look_for_damage(upstream);
    if (upstream->conn) {
        if (!upstream->mapped && !upstream->asking && !upstream->damaged)
            ask(upstream);
        return;
    }
    /* Files that have no name are adopted by nobody: their stage drained, or its pod is gone. */
    if (!upstream->gone && upstream->control_fd >= 0 && fstat(upstream->control_fd, &status) == 0 &&
        status.st_nlink == 0) {
        struct rs_ring_entry *entry = entry_of(upstream);

        upstream->gone = true;
        rs_store_release(&entry->state, entry_state(entry, upstream->sidecar_id, RS_RING_GONE));
        tables_changed(upstream->peers->proxy, entry);
    }
    /* Nobody audits its words any more: consumers are told to walk for those that have no cell. */
    if (upstream->gone && !cell_names(&upstream->peers->proxy->inbox, upstream->number) &&
        message_left(upstream) == LEFT_QUEUED)
        rs_inbox_overflow(&upstream->peers->proxy->inbox);
    if (upstream->gone && is_spent(upstream)) {
        log_info(&upstream->peers->proxy->log, "peers", 0,
                 "the ring of stage %s is gone for good and nothing of it is left here: unmapped",
                 upstream->stage);
        give_back(upstream);
    }
}

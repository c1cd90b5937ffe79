/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: attach and return, leases of the wire against the words of the ring, readings by
 * ticket. */
#include "proxy/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/fdpass.h"
#include "proto/layout.h"
#include "proxy/control.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"

#define HELD_MAX 65536u /* leases told after a return: keeps the answer under a frame */

static void on_conn_closed(struct conn *conn, void *data)
{
    struct session *session = data;

    (void)conn;
    session->conn = NULL;
    if (session->proxy->phase == PROXY_CLOSING)
        return; /* that was us: the next sidecar finds it alive */
    clients_detach(session->proxy, session->number, session->held == 0);
}

struct session *session_of(struct conn *conn)
{
    return conn_owner_of(conn, on_conn_closed);
}

struct session *session_find(struct proxy *proxy, uint16_t number)
{
    return control_sessions(proxy)->by_number[number];
}

/* ---- attach ---- */

static int check_version(struct conn_call *call, const Ringside__V1__AttachRequest *request)
{
    if (request->layout_version == 0 && !request->want_descriptors)
        return 0;
    if (request->layout_version >> 16 == RS_LAYOUT_MAJOR &&
        request->layout_hash == rs_layout_hash())
        return 0;
    conn_reply_error(call, -RINGSIDE_E_VERSION,
                     "the client has ring layout %u.%u (hash %016llx), this sidecar %u.%u (hash "
                     "%016llx): use libringside and ringside-proxy of one release",
                     request->layout_version >> 16, request->layout_version & 0xffff,
                     (unsigned long long)request->layout_hash, RS_LAYOUT_MAJOR, RS_LAYOUT_MINOR,
                     (unsigned long long)rs_layout_hash());
    return -RINGSIDE_E_VERSION;
}

static void refuse(struct conn_call *call, int error)
{
    struct proxy *proxy = conn_proxy(call->conn);

    switch (error) {
    case -RINGSIDE_E_LIMIT:
        conn_reply_error(call, error,
                         "all %u clients of stage %s are in use (clients.max); end one or raise it",
                         proxy->config.clients.max, proxy->config.stage);
        break;
    case -RINGSIDE_E_DRAINING:
        conn_reply_error(call, error, "stage %s is draining; connect again after its restart",
                         proxy->config.stage);
        break;
    case -RINGSIDE_E_STATE:
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "the session began with other want_descriptors; come back as it began");
        break;
    case -RINGSIDE_E_DENIED:
        conn_reply_error(call, error, "the session token belongs to a worker of another stage");
        break;
    default:
        conn_reply_error(call, error, "cannot give a client number: %s", rs_strerror(error));
    }
}

static int peer_process(struct conn *conn, uint32_t *pid)
{
    struct ucred peer = {0};

    if (rs_peer_credentials(conn_socket(conn), &peer) < 0 || peer.pid < 0)
        peer.pid = 0;
    *pid = (uint32_t)peer.pid;
    int pidfd = rs_peer_pidfd(conn_socket(conn));
    if (pidfd < 0 && peer.pid > 0)
        pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    return pidfd;
}

void session_fill_ring(struct proxy *proxy, Ringside__V1__Ring *ring, uint8_t incarnation[16])
{
    const struct rs_superblock *layout = &proxy->ring.layout;

    ringside__v1__ring__init(ring);
    memcpy(incarnation, layout->incarnation, 16);
    ring->incarnation = (ProtobufCBinaryData){.len = 16, .data = incarnation};
    ring->sidecar_id = layout->sidecar_id;
    ring->epoch = rs_load_relaxed(&layout->epoch);
    ring->reader = RS_NO_READER;
    ring->destination = proxy->routes.self;
    ring->control_path = proxy->files.control_path;
    ring->body_path = proxy->files.body_path;
    ring->control_bytes = layout->control_bytes;
    ring->body_bytes = layout->body_bytes;
    ring->stage = proxy->config.stage;
}

/* Leases for the answer to an Attach that resumed. */
struct held {
    Ringside__V1__Lease *storage, **leases; /* HELD_MAX; owned */
    size_t count;
    uint32_t again; /* readings of what is in the list already */
};

static void add_held(struct held *held, struct rs_ring *ring, bool own, uint32_t slot,
                     uint32_t generation, int delivery)
{
    struct rs_superblock *layout = &ring->layout;

    if (held->count >= HELD_MAX)
        return;
    Ringside__V1__Lease *lease = &held->storage[held->count];
    ringside__v1__lease__init(lease);
    lease->ticket = rs_ticket_pack((uint16_t)layout->sidecar_id, slot, generation);
    lease->delivery = delivery;
    if (!own)
        lease->ring = (ProtobufCBinaryData){.len = 16, .data = (uint8_t *)layout->incarnation};
    held->leases[held->count++] = lease;
}

static void find_deliveries(struct held *held, struct rs_ring *ring, bool own, uint32_t slot,
                            uint64_t state, uint16_t holder)
{
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_seq_cst(&ring->slots[slot].delivery[i]);

        if (rs_delivery_phase(word) == RS_HELD && rs_delivery_holder(word) == holder &&
            rs_delivery_generation(word) == rs_state_generation(state))
            add_held(held, ring, own, slot, rs_state_generation(state), (int)i);
    }
}

/* What the own ring says that the client holds. */
static int find_held(struct session *session, struct held *held)
{
    struct proxy *proxy = session->proxy;
    struct rs_ring *ring = &proxy->ring;
    unsigned reader = clients_reader(proxy, session->number);
    uint64_t bit = reader < RS_MAX_READERS ? UINT64_C(1) << reader : 0;

    for (uint32_t slot = 0; slot < ring->layout.slot_count; slot++) {
        struct rs_slot *record = &ring->slots[slot];
        uint64_t state = rs_load_seq_cst(&record->state);
        uint32_t generation = rs_state_generation(state);

        if (rs_state_phase(state) == RS_LOANED && rs_state_owner(state) == session->number)
            add_held(held, ring, true, slot, generation, -1);
        if (rs_state_phase(state) != RS_SEALED)
            continue;
        find_deliveries(held, ring, true, slot, state, session->number);
        if (session->fresh && control_adopt_request(session, slot) < 0)
            return -ENOMEM;
        if ((rs_state_flags(state) & RS_FLAG_TICKET) && (rs_load_seq_cst(&record->readers) & bit)) {
            add_held(held, ring, true, slot, generation, -1);
            session_read_adopt(session, slot, generation);
        }
    }
    return 0;
}

/* And the rings of peers, as far as this sidecar has let the session into them. */
static void find_held_of_peers(struct session *session, struct held *held)
{
    for (struct answerer *answerer = session->answerers; answerer != NULL;
         answerer = answerer->next) {
        struct rs_ring *ring = answerer->ring;

        for (uint32_t slot = 0; slot < ring->layout.slot_count; slot++) {
            uint64_t state = rs_load_seq_cst(&ring->slots[slot].state);
            if (rs_state_phase(state) == RS_SEALED)
                find_deliveries(held, ring, false, slot, state, answerer->client);
        }
    }
    for (unsigned i = 1; session->inbox != NULL && i < RS_MAX_RINGS; i++) {
        struct rs_ring *ring = rs_load_acquire(&session->inbox->rings[i]);

        for (uint32_t slot = 0; ring != NULL && slot < ring->layout.slot_count; slot++) {
            uint64_t state = rs_load_seq_cst(&ring->slots[slot].state);
            if (rs_state_phase(state) == RS_SEALED)
                find_deliveries(held, ring, false, slot, state, session->inbox->holder[i]);
        }
    }
}

static int held_init(struct held *held, struct session *session)
{
    *held = (struct held){.storage = calloc(HELD_MAX, sizeof *held->storage),
                          .leases = calloc(HELD_MAX, sizeof *held->leases)};
    if (held->storage == NULL || held->leases == NULL || find_held(session, held) < 0)
        return -ENOMEM;
    find_held_of_peers(session, held);
    for (uint32_t i = 0; i < session->reading_count; i++) {
        const struct session_reading *reading = &session->readings[i];
        const struct session_lease lease = session_lease_read(reading);

        if (!session_has_ring(session, &lease))
            continue;
        held->again += reading->count - 1;
        /* No bit of its own tells of it, or one that was not looked at. */
        bool own = reading->ring == &session->proxy->ring;
        if (session->reader == CLIENTS_SHARED_READER || !own)
            add_held(held, reading->ring, own, reading->slot, reading->generation, -1);
    }
    return 0;
}

static void held_finish(struct held *held)
{
    free(held->storage);
    free(held->leases);
}

static size_t fill_routes(struct proxy *proxy, Ringside__V1__Route *routes,
                          Ringside__V1__Route **pointers, uint32_t indexes[][RS_CONFIG_TARGETS_MAX])
{
    for (uint32_t i = 0; i < proxy->routes.count; i++) {
        const struct route *route = &proxy->routes.routes[i];

        ringside__v1__route__init(&routes[i]);
        for (uint32_t j = 0; j < route->config->to_count; j++)
            indexes[i][j] = route->destinations[j];
        routes[i].name = (char *)route->config->name;
        routes[i].n_destinations = route->config->to_count;
        routes[i].destinations = indexes[i];
        routes[i].when_full = (Ringside__V1__Route__WhenFull)route->config->when_full;
        routes[i].ttl_ns = route->config->ttl_ms * 1000000;
        routes[i].attempts = route->config->attempts;
        pointers[i] = &routes[i];
    }
    return proxy->routes.count;
}

/* Takes the admission's control descriptor over. Returns how many were put in `fds`, or a negative
 * error. */
static int gather_fds(struct proxy *proxy, int control_fd, int fds[4],
                      Ringside__V1__Descriptor kinds[4])
{
    fds[0] = control_fd;
    fds[1] = ring_files_body_fd(&proxy->files, true);
    fds[2] = fcntl(proxy->inbox_event, F_DUPFD_CLOEXEC, 0);
    fds[3] = fcntl(proxy->bell_event, F_DUPFD_CLOEXEC, 0);
    for (int i = 1; i < 4; i++) {
        if (fds[i] < 0) {
            int rc = i == 1 ? fds[i] : -EMFILE;
            rs_fd_close(fds, 4);
            return rc;
        }
    }
    kinds[0] = RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE;
    kinds[1] = RINGSIDE__V1__DESCRIPTOR__BODY_FILE;
    kinds[2] = RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT;
    kinds[3] = RINGSIDE__V1__DESCRIPTOR__BELL_EVENT;
    return 4;
}

static void answer(struct session *session, struct conn_call *call,
                   const struct clients_admission *admission)
{
    struct proxy *proxy = session->proxy;
    Ringside__V1__AttachResponse response = RINGSIDE__V1__ATTACH_RESPONSE__INIT;
    Ringside__V1__Ring ring;
    Ringside__V1__Route routes[RS_CONFIG_ROUTES_MAX], *route_pointers[RS_CONFIG_ROUTES_MAX];
    uint32_t indexes[RS_CONFIG_ROUTES_MAX][RS_CONFIG_TARGETS_MAX];
    Ringside__V1__Descriptor kinds[4];
    struct held held = {0};
    uint8_t incarnation[16];
    int fds[4], count = 0;

    if (session->locked)
        count = gather_fds(proxy, admission->control_fd, fds, kinds);
    else
        close(admission->control_fd);
    int rc = count < 0 ? count : admission->resumed ? held_init(&held, session) : 0;
    session->fresh = session->fresh && rc < 0;
    if (rc < 0) {
        rs_fd_close(fds, count > 0 ? (size_t)count : 0);
        conn_reply_error(call, rc, "cannot pass the ring's descriptors");
        held_finish(&held);
        return;
    }
    session_fill_ring(proxy, &ring, incarnation);
    ring.client = session->number;
    ring.reader = admission->reader;
    ring.nonce = admission->nonce;
    response.session_token =
        (ProtobufCBinaryData){.len = sizeof admission->token, .data = (uint8_t *)admission->token};
    response.resumed = admission->resumed;
    response.ring = &ring;
    response.n_routes = fill_routes(proxy, routes, route_pointers, indexes);
    response.routes = route_pointers;
    response.held = held.leases;
    response.n_held = held.count;
    response.n_descriptors = (size_t)count;
    response.descriptors = kinds;
    response.spin_us = proxy->config.clients.spin_us;
    response.ticket_ttl_ns = proxy->config.tickets.ttl_ms * 1000000;
    if (admission->resumed)
        session->held = (uint32_t)held.count + held.again;
    conn_reply(call, &response.base, fds, (size_t)count);
    RS_FAILPOINT(attach_replied);
    held_finish(&held);
}

static struct session *make_session(struct proxy *proxy, uint16_t number)
{
    struct session *session = session_find(proxy, number);

    if (session == NULL && (session = calloc(1, sizeof *session)) != NULL) {
        session->proxy = proxy;
        session->number = number;
        session->fresh = true;
        control_sessions(proxy)->by_number[number] = session;
    }
    return session;
}

static void attach(struct conn_call *call, const Ringside__V1__AttachRequest *message)
{
    struct proxy *proxy = conn_proxy(call->conn);
    struct clients_request request = {.name = message->name,
                                      .wants_lock = message->want_descriptors};
    struct clients_admission admission;

    if (message->session_token.len != 0 && message->session_token.len != sizeof admission.token) {
        conn_reply_error(call, -RINGSIDE_E_INVALID, "a session token has 16 bytes, not %zu",
                         message->session_token.len);
        return;
    }
    if (message->session_token.len != 0)
        request.token = message->session_token.data;
    if (message->want_descriptors && message->call_cells > RS_BOX_CELLS) {
        conn_reply_error(call, -RINGSIDE_E_INVALID, "call_cells is %u; a reply box has %d cells",
                         message->call_cells, RS_BOX_CELLS);
        return;
    }
    request.pidfd = peer_process(call->conn, &request.pid);
    int rc = clients_admit(proxy, &request, &admission);
    if (rc < 0) {
        refuse(call, rc);
        return;
    }
    bool fresh = session_find(proxy, admission.number) == NULL;
    struct session *session = make_session(proxy, admission.number);
    if (session == NULL) {
        close(admission.control_fd);
        clients_detach(proxy, admission.number, true);
        conn_reply_error(call, -ENOMEM, "out of memory");
        return;
    }
    if (session->conn !=
        NULL) { /* its process came back before the old connection was seen to end */
        struct conn *old = session->conn;
        conn_on_closed(old, NULL, NULL);
        conn_close(old, "its session went on in another connection");
    }
    session->conn = call->conn;
    session->locked = request.wants_lock;
    if (session->calls == NULL)
        session->call_cells = (uint8_t)(request.wants_lock ? message->call_cells : RS_BOX_CELLS);
    if (fresh && admission.resumed && request.wants_lock && session->call_cells > 0)
        control_adopt_calls(proxy, session);
    session->reader = admission.reader == RS_NO_READER || request.wants_lock ? CLIENTS_SHARED_READER
                                                                             : admission.reader;
    memcpy(session->name, clients_name(proxy, admission.number), RS_NAME_BYTES);
    conn_on_closed(call->conn, on_conn_closed, session);
    log_info(&proxy->log, "clients", conn_serial(call->conn), "client %u (%s, pid %u) %s",
             session->number, session->name, request.pid,
             admission.resumed ? "came back" : "attached");
    answer(session, call, &admission);
}

void session_attach(struct conn_call *call)
{
    if (conn_owner(call->conn) != NULL) {
        conn_reply_error(call, -RINGSIDE_E_STATE,
                         "this connection is in use already; attach on a new one");
        return;
    }
    Ringside__V1__AttachRequest *message =
        (Ringside__V1__AttachRequest *)conn_decode(call, &ringside__v1__attach_request__descriptor);
    if (message == NULL)
        return;
    if (check_version(call, message) == 0)
        attach(call, message);
    conn_free_message(&message->base);
}

/* ---- the end ---- */

static void destroy(struct session *session)
{
    free(session->readings);
    free(session->inbox);
    free(session->calls);
    free(session->served);
    free(session);
}

void session_over(struct proxy *proxy, uint16_t number, const char *why)
{
    struct session *session = session_find(proxy, number);

    if (session == NULL)
        return;
    if (session->conn != NULL) {
        struct conn *conn = session->conn;
        session->conn = NULL;
        conn_on_closed(conn, NULL, NULL);
        conn_close(conn, why);
    }
    while (session->reading_count > 0) {
        struct session_lease lease =
            session_lease_read(&session->readings[session->reading_count - 1]);
        session_read_end(session, &lease, false);
    }
    control_sessions(proxy)->by_number[number] = NULL;
    destroy(session);
}

void sessions_destroy(struct proxy *proxy)
{
    struct sessions *sessions = control_sessions(proxy);

    for (unsigned i = 0; i < RS_MAX_CLIENTS; i++) {
        if (sessions->by_number[i] != NULL)
            destroy(sessions->by_number[i]);
    }
    free(sessions->shared);
    free(sessions);
}

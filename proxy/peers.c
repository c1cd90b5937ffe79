/* SPDX-License-Identifier: Apache-2.0 */
/* The peers of a sidecar as a whole: life, dispatch, status, and what all their files need. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/decode.h"
#include "proto/err.h"
#include "proto/layout.h"
#include "proxy/peers_private.h"

/* ---- helpers ---- */

bool peers_incarnation(const ProtobufCBinaryData *bytes, uint64_t incarnation[2])
{
    if (bytes->len != 16)
        return false;
    memcpy(incarnation, bytes->data, 16);
    return incarnation[0] != 0 || incarnation[1] != 0;
}

ProtobufCBinaryData peers_bytes(const void *data, size_t bytes)
{
    return (ProtobufCBinaryData){.len = bytes, .data = (uint8_t *)(uintptr_t)data};
}

int peers_check_layout(uint32_t version, uint64_t hash, uint64_t features, char *text, size_t bytes)
{
    if (version >> 16 == RS_LAYOUT_MAJOR && hash == rs_layout_hash() && features == 0)
        return 0;
    snprintf(text, bytes,
             "ring layouts differ: version %u.%u, hash %016llx, features %llx there; %u.%u, "
             "%016llx, 0 here. "
             "Run the same release in both sidecars",
             version >> 16, version & 0xffff, (unsigned long long)hash,
             (unsigned long long)features, RS_LAYOUT_MAJOR, RS_LAYOUT_MINOR,
             (unsigned long long)rs_layout_hash());
    return -RINGSIDE_E_VERSION;
}

bool peers_file_is_theirs(struct conn *conn, int fd)
{
    struct ucred peer;
    struct stat status;

    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
           rs_peer_credentials(conn_socket(conn), &peer) == 0 &&
           (status.st_uid == peer.uid || status.st_uid == 0);
}

void peers_name(char *to, size_t bytes, const char *from)
{
    snprintf(to, bytes, "%s", from ? from : "");
    for (size_t left = strlen(to); left > 0;) {
        size_t step = rs_utf8_character((const uint8_t *)to, left);

        if (step == 0 || (unsigned char)*to < 0x20 || *to == 0x7f)
            *to = '?';
        step = step > 0 ? step : 1;
        to += step;
        left -= step;
    }
}

int peers_pidfd_of(int socket)
{
    struct ucred peer;
    int pidfd = rs_peer_pidfd(socket);

    if (pidfd >= 0)
        return pidfd;
    /* Older kernels: by pid, which is right as long as the process that connected is there. */
    if (rs_peer_credentials(socket, &peer) < 0 || peer.pid <= 0)
        return -1;
    return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

int peers_dup(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

    return copy < 0 ? -errno : copy;
}

bool peers_is_event(int fd)
{
    static const char wanted[] = "anon_inode:[eventfd]";
    char path[48], target[sizeof(wanted)];
    int flags = fcntl(fd, F_GETFL);

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return readlink(path, target, sizeof(target)) == (ssize_t)sizeof(wanted) - 1 &&
           memcmp(target, wanted, sizeof(wanted) - 1) == 0 && flags >= 0 &&
           fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

void peers_random(uint64_t *number)
{
    RS_REQUIRE(getrandom(number, sizeof(*number), 0) == (ssize_t)sizeof(*number));
}

/* ---- requests ---- */

void peers_dispatch(struct conn_call *call)
{
    static const struct {
        const char *method;
        void (*handle)(struct conn_call *call);
    } methods[] = {
        {"Hello", service_hello},         {"Admit", service_admit}, {"Leave", service_leave},
        {"Introduce", service_introduce}, {"Ping", service_ping},
    };
    const struct peers *peers = conn_proxy(call->conn)->peers;

    if (!peers || peers->closed) {
        conn_reply_error(call, -RINGSIDE_E_UNAVAILABLE, "this sidecar starts or stops");
        return;
    }
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        if (strcmp(call->method, methods[i].method) == 0) {
            methods[i].handle(call);
            return;
        }
    }
    conn_reply_error(call, -RINGSIDE_E_UNIMPLEMENTED, "%s has no method %s", call->service,
                     call->method);
}

/* ---- introductions ---- */

static void on_introduced(struct conn *conn, int error, const char *text,
                          const ProtobufCMessage *response, int *fds, size_t fd_count, void *data)
{
    struct upstream *upstream = upstream_of(conn);

    (void)response;
    (void)data;
    rs_fd_close(fds, fd_count);
    if (error < 0 && upstream)
        log_info(&upstream->peers->proxy->log, "peers", conn_serial(conn),
                 "stage %s does not connect to where its messages may be forwarded: %s; forwarding "
                 "copies",
                 upstream->stage, text && text[0] ? text : rs_strerror(error));
}

void upstream_introduce(struct upstream *upstream, const struct link *link)
{
    const struct rs_ring *own = &upstream->peers->proxy->ring;
    Ringside__Peer__V1__IntroduceRequest request = RINGSIDE__PEER__V1__INTRODUCE_REQUEST__INIT;
    char address[RS_CONFIG_SOCKET_PATH_BYTES + 8];

    if (!upstream->conn || link->state != LINK_CONNECTED || !link->view ||
        memcmp(link->view->ring.layout.incarnation, upstream->incarnation, 16) == 0)
        return;
    snprintf(address, sizeof(address), "unix:%s", link->path);
    request.stage = link->view->stage;
    request.address = address;
    request.incarnation = peers_bytes(link->view->ring.layout.incarnation, 16);
    request.attempts =
        rs_destination_attempts(rs_load_relaxed(&own->destinations[link->destination].state));
    conn_call_out(upstream->conn, PEER_SERVICE, "Introduce", &request.base,
                  &ringside__peer__v1__introduce_response__descriptor, NULL, 0, PEER_CALL_NS,
                  on_introduced, NULL);
}

/* ---- Control.Open of a destination ---- */

static void answer_open(struct conn_call *call, const struct rs_superblock *layout,
                        const char *stage, const char *control_path, unsigned ring_number,
                        int control_fd, int event_fd)
{
    Ringside__V1__Ring ring = RINGSIDE__V1__RING__INIT;
    Ringside__V1__OpenResponse response = RINGSIDE__V1__OPEN_RESPONSE__INIT;
    Ringside__V1__Descriptor kinds[] = {RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE,
                                        RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT};
    int fds[2] = {control_fd, event_fd};

    if (control_fd < 0 || event_fd < 0) {
        rs_fd_close(fds, 2);
        conn_reply_error(call, control_fd < 0 ? control_fd : event_fd,
                         "no descriptor left to pass");
        return;
    }
    ring.incarnation = peers_bytes(layout->incarnation, 16);
    ring.sidecar_id = layout->sidecar_id;
    ring.epoch = rs_load_relaxed(&layout->epoch);
    ring.reader = RS_NO_READER;
    ring.destination = RS_NO_DESTINATION;
    ring.control_path = (char *)(uintptr_t)control_path;
    ring.control_bytes = layout->control_bytes;
    ring.stage = (char *)(uintptr_t)stage;
    response.ring = &ring;
    response.ring_number = ring_number;
    response.descriptors = kinds;
    response.n_descriptors = 2;
    conn_reply(call, &response.base, fds, 2);
}

void peers_open_destination(struct proxy *proxy, struct conn_call *call, uint16_t number,
                            unsigned destination)
{
    const struct link *link =
        proxy->peers && destination < RS_MAX_DESTINATIONS ? proxy->peers->links[destination] : NULL;

    (void)number; /* pushing into an inbox takes no number in its ring */
    if (destination == proxy->routes.self && destination != RS_NO_DESTINATION) {
        answer_open(call, &proxy->ring.layout, proxy->config.stage, proxy->files.control_path, 0,
                    ring_files_control_fd(&proxy->files, -1), peers_dup(proxy->inbox_event));
        return;
    }
    if (!link) {
        conn_reply_error(call, -RINGSIDE_E_NO_ROUTE, "no route leads to destination %u",
                         destination);
        return;
    }
    if (!link->view) {
        conn_reply_error(call, -RINGSIDE_E_UNAVAILABLE, "unix:%s is not connected yet: %s",
                         link->path, link->error[0] ? link->error : "connecting");
        return;
    }
    /* Copies of one description do: there is no lock on it. */
    answer_open(call, &link->view->ring.layout, link->view->stage, "", link->view->number,
                peers_dup(link->view->control_fd), peers_dup(link->view->event_fd));
}

/* ---- status ---- */

static Ringside__V1__PeerStatus *row(const char *address, const char *stage, const char *state,
                                     const char *direction, const uint64_t *incarnation,
                                     const char *error)
{
    Ringside__V1__PeerStatus *status = malloc(sizeof(*status));

    if (!status)
        return NULL;
    ringside__v1__peer_status__init(status);
    status->address = strdup(address);
    status->stage = strdup(stage);
    status->state = strdup(state);
    status->direction = strdup(direction);
    status->last_error = strdup(error);
    status->incarnation.data = incarnation ? malloc(16) : NULL;
    if (status->incarnation.data) {
        memcpy(status->incarnation.data, incarnation, 16);
        status->incarnation.len = 16;
    }
    if (status->address && status->stage && status->state && status->direction &&
        status->last_error)
        return status;
    protobuf_c_message_free_unpacked(&status->base, NULL);
    return NULL;
}

static Ringside__V1__PeerStatus *link_row(const struct link *link)
{
    static const char *const states[] = {"connecting", "connected", "refused"};
    const struct view *view = link->view;
    char address[RS_CONFIG_SOCKET_PATH_BYTES + 8];

    snprintf(address, sizeof(address), "unix:%s", link->path);
    Ringside__V1__PeerStatus *status =
        row(address, view ? view->stage : "", states[link->state], "downstream",
            view ? view->ring.layout.incarnation : NULL, link->error);
    if (status && view)
        status->inbox_depth = rs_inbox_depth_now(&view->inbox);
    return status;
}

const char *peers_path(const struct proxy *proxy, unsigned destination)
{
    const struct link *link =
        proxy->peers && destination < RS_MAX_DESTINATIONS ? proxy->peers->links[destination] : NULL;

    if (destination == RS_REPLY_DESTINATION)
        return "its caller";
    if (destination < RS_MAX_DESTINATIONS && proxy->routes.paths[destination][0] != '\0')
        return proxy->routes.paths[destination];
    return link != NULL ? link->path : "?";
}

int peers_ring_event(const struct proxy *proxy, unsigned ring_number)
{
    const struct upstream *upstream = proxy->peers ? proxy->peers->upstreams[ring_number] : NULL;

    if (ring_number == 0)
        return proxy->inbox_event;
    return upstream ? upstream->event_fd : -1;
}

bool peers_linked(const struct proxy *proxy)
{
    for (unsigned i = 0; proxy->peers && i < RS_MAX_DESTINATIONS; i++) {
        if (proxy->peers->links[i] && proxy->peers->links[i]->state == LINK_CONNECTED)
            return true;
    }
    return false;
}

int peers_status(struct proxy *proxy, Ringside__V1__PeerStatus ***rows, size_t *count)
{
    const struct peers *peers = proxy->peers;
    size_t used = 0;

    *count = 0;
    *rows = calloc(RS_MAX_DESTINATIONS + RS_MAX_RINGS, sizeof(**rows));
    if (!*rows)
        return -ENOMEM;
    for (unsigned i = 0; peers && i < RS_MAX_DESTINATIONS; i++) {
        if (peers->links[i] && !((*rows)[used++] = link_row(peers->links[i])))
            goto err_after_rows;
    }
    for (unsigned i = 1; peers && i < RS_MAX_RINGS; i++) {
        const struct upstream *upstream = peers->upstreams[i];

        if (upstream && !((*rows)[used++] =
                              row("", upstream->stage, upstream->conn ? "connected" : "connecting",
                                  "upstream", upstream->incarnation, upstream->error)))
            goto err_after_rows;
    }
    *count = used;
    return 0;

err_after_rows:
    for (size_t i = 0; i + 1 < used; i++)
        protobuf_c_message_free_unpacked(&(*rows)[i]->base, NULL);
    free(*rows);
    *rows = NULL;
    return -ENOMEM;
}

/* ---- life ---- */

/* Foreign workers with a lock: their own sidecar may never say that they went. */
static void look_after_locked(struct peers *peers)
{
    struct proxy *proxy = peers->proxy;

    for (uint32_t i = 1; i < clients_end(proxy); i++) {
        if (!bit_get(peers->locked, i))
            continue;
        if (clients_phase(proxy, (uint16_t)i) == CLIENT_FREE ||
            !clients_is_foreign(proxy, (uint16_t)i)) {
            bit_clear(peers->locked, i);
        } else if (!ring_files_byte_locked(&proxy->files, (int)i)) {
            bit_clear(peers->locked, i);
            clients_died(proxy, (uint16_t)i);
        }
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct peers *peers = timer->data;
    bool ping = ++peers->ticks % PEER_PING_TICKS == 0;

    look_after_locked(peers);
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++) {
        if (peers->links[i])
            link_tick(peers->links[i], ping);
    }
    for (unsigned i = 1; i < RS_MAX_RINGS; i++) {
        if (peers->upstreams[i])
            upstream_tick(peers->upstreams[i]);
    }
}

int peers_open(struct proxy *proxy)
{
    struct peers *peers = calloc(1, sizeof(*peers));

    if (!peers)
        return -ENOMEM;
    peers->proxy = proxy;
    proxy->peers = peers;
    uv_timer_init(&proxy->loop, &peers->tick);
    peers->tick.data = peers;
    uv_timer_start(&peers->tick, on_tick, PEER_TICK_MS, PEER_TICK_MS);
    int rc = upstream_adopt_all(peers);

    for (unsigned i = 0; rc == 0 && i < proxy->routes.destination_count; i++) {
        if (proxy->routes.paths[i][0] != '\0' && i != proxy->routes.self)
            rc = link_create(peers, i, proxy->routes.paths[i], false);
    }
    return rc;
}

void peers_close(struct proxy *proxy)
{
    struct peers *peers = proxy->peers;

    if (!peers || peers->closed)
        return;
    peers->closed = true;
    uv_close((uv_handle_t *)&peers->tick, NULL);
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++) {
        if (peers->links[i])
            link_close(peers->links[i]);
    }
    for (unsigned i = 1; i < RS_MAX_RINGS; i++) {
        struct upstream *upstream = peers->upstreams[i];

        if (upstream && upstream->conn)
            conn_close(upstream->conn, "this sidecar stops");
    }
}

void peers_destroy(struct proxy *proxy)
{
    struct peers *peers = proxy->peers;

    if (!peers)
        return;
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++)
        link_destroy(peers->links[i]);
    for (unsigned i = 1; i < RS_MAX_RINGS; i++)
        upstream_destroy(peers->upstreams[i]);
    free(peers);
    proxy->peers = NULL;
}

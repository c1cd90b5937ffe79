/* SPDX-License-Identifier: Apache-2.0 */
/* The link to a destination: connect, Hello, mapping of its inbox, and all of it again after a
 * loss. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "config/address.h"
#include "proto/err.h"
#include "proto/failpoint.h"
#include "proto/guard.h"
#include "proxy/mend.h"
#include "proxy/peers_private.h"
#include "proxy/tables.h"

static void connect_now(struct link *link);

static void on_retry(uv_timer_t *timer)
{
    connect_now(timer->data);
}

/* Doubled up to the cap, and only then spread: where a fleet waits at its cap, it must not connect
 * in lockstep. */
static uint64_t retry_ms(const struct link *link)
{
    uint64_t delay = PEER_RETRY_MAX_MS;
    uint32_t random = 0;

    if (link->failures < 6)
        delay = (uint64_t)PEER_RETRY_MIN_MS << link->failures;
    if (delay > PEER_RETRY_MAX_MS || link->state == LINK_REFUSED)
        delay = PEER_RETRY_MAX_MS;
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
        random = (uint32_t)uv_hrtime();
    return delay / 2 + random % (delay + 1);
}

/* Not connected for that reason; tries again later. What is mapped stays: workers go on exchanging.
 */
static void lost(struct link *link, enum link_state state, const char *text)
{
    struct log *log = &link->peers->proxy->log;
    bool told = strcmp(link->error, text) == 0;

    if (!told && state == LINK_REFUSED)
        log_warn(log, "peers", 0, "%s: refused: %s", link->path, text);
    else if (!told && link->state == LINK_CONNECTED)
        log_warn(log, "peers", 0, "%s: lost: %s; trying again", link->path, text);
    else if (!told)
        log_info(log, "peers", 0, "%s: not reached: %s; trying again", link->path, text);
    peers_name(link->error, sizeof(link->error), text);
    link->state = state;
    if (!link->peers->closed)
        uv_timer_start(&link->retry, on_retry, retry_ms(link), 0);
    link->failures++;
}

static void on_closed(struct conn *conn, void *data)
{
    struct link *link = data;

    if (link->conn != conn)
        return;
    link->conn = NULL;
    link->draining = false;
    if (link->state != LINK_REFUSED)
        lost(link, LINK_CONNECTING, "the connection is closed");
}

struct link *link_of(struct conn *conn)
{
    return conn_owner_of(conn, on_closed);
}

static void leave(struct link *link, enum link_state state, const char *text)
{
    struct conn *conn = link->conn;

    link->conn = NULL;
    lost(link, state, text);
    if (conn)
        conn_close(conn, "refused");
}

static void refuse(struct link *link, const char *text)
{
    leave(link, LINK_REFUSED, text);
}

/* ---- views ---- */

static void view_destroy(struct view *view)
{
    if (!view)
        return;
    if (view->ring.control)
        rs_guard_remove(view->ring.control);
    rs_ring_unmap(&view->ring);
    if (view->control_fd >= 0)
        close(view->control_fd);
    if (view->event_fd >= 0)
        close(view->event_fd);
    free(view);
}

/* Nothing of it may be used from here on. Only this thread has pointers to it, and none over a turn
 * of the loop. */
static void drop_view(struct link *link)
{
    struct proxy *proxy = link->peers->proxy;

    if (!link->view)
        return;
    proxy->repair.inboxes[link->destination] = NULL;
    routes_set_connected(&proxy->ring, link->destination, false, 0, NULL, NULL);
    tables_changed(proxy, &proxy->ring.destinations[link->destination]);
    view_destroy(link->view);
    link->view = NULL;
}

/* The number that the other sidecar told must stand in the memory that it passed. */
static bool memory_is_shared(const struct view *view, const struct proxy *proxy, uint64_t nonce)
{
    struct rs_ring_entry *entry = &view->inbox.table[view->number];

    return (rs_load_acquire(&entry->state) & 0xff) == RS_RING_KNOWN &&
           rs_load_relaxed(&entry->nonce) == nonce &&
           rs_load_relaxed(&entry->incarnation[0]) == proxy->ring.layout.incarnation[0] &&
           rs_load_relaxed(&entry->incarnation[1]) == proxy->ring.layout.incarnation[1];
}

/* Takes over both descriptors, also on failure. */
static struct view *view_create(struct link *link, const Ringside__Peer__V1__HelloResponse *hello,
                                const int fds[2], const char **why)
{
    struct view *view = calloc(1, sizeof(*view));
    uint64_t incarnation[2];

    if (!view) {
        rs_fd_close(fds, 2);
        *why = "out of memory";
        return NULL;
    }
    view->control_fd = fds[0];
    view->event_fd = fds[1];
    view->number = (uint8_t)hello->ring_number;
    peers_name(view->stage, sizeof(view->stage), hello->stage);
    if (!peers_file_is_theirs(link->conn, view->control_fd)) {
        *why = "its control file is not one that its sidecar made";
        goto err_after_alloc;
    }
    if (!peers_is_event(view->event_fd)) {
        *why = "the event of its inbox is no eventfd";
        goto err_after_alloc;
    }
    if (rs_ring_map(&view->ring, view->control_fd, -1, false, why) < 0)
        goto err_after_alloc;
    if (rs_guard_add(view->ring.control, view->ring.layout.control_bytes) < 0) {
        *why = "too many rings are mapped";
        goto err_after_alloc;
    }
    rs_inbox_init(&view->inbox, &view->ring, view->event_fd);
    if (!peers_incarnation(&hello->incarnation, incarnation) ||
        memcmp(incarnation, view->ring.layout.incarnation, sizeof(incarnation)) != 0 ||
        !memory_is_shared(view, link->peers->proxy, hello->nonce)) {
        *why = "the memory behind its descriptors is not the memory that it works in: both "
               "sidecars must "
               "run on one kernel";
        goto err_after_alloc;
    }
    rs_inbox_admit(&view->inbox, view->number, &link->peers->proxy->ring,
                   (uint16_t)link->destination, 0);
    return view;

err_after_alloc:
    view_destroy(view);
    return NULL;
}

/* ---- Hello ---- */

static void use_view(struct link *link)
{
    struct proxy *proxy = link->peers->proxy;
    struct view *view = link->view;

    RS_FAILPOINT(link_mapped);
    proxy->repair.ring_number[link->destination] = view->number;
    proxy->repair.inboxes[link->destination] = &view->inbox;
    routes_set_connected(&proxy->ring, link->destination, true, view->number,
                         view->ring.layout.incarnation, view->stage);
    tables_changed(proxy, &proxy->ring.destinations[link->destination]);
    RS_FAILPOINT(link_connected);
    link->state = LINK_CONNECTED;
    link->failures = 0;
    link->error[0] = '\0';
    log_info(&proxy->log, "peers", conn_serial(link->conn),
             "%s: connected to stage %s, its inbox takes messages as ring %u", link->path,
             view->stage, view->number);
    /* Words queued for an inbox that is no more have no cell in this one. */
    mend_audit(proxy);
    for (unsigned i = 1; i < RS_MAX_RINGS; i++) {
        if (link->peers->upstreams[i])
            upstream_introduce(link->peers->upstreams[i], link);
    }
    answers_renew(link);
}

static const char *hello_fault(const struct link *link,
                               const Ringside__Peer__V1__HelloResponse *hello, size_t fd_count,
                               char *text, size_t bytes)
{
    uint64_t incarnation[2];

    if (peers_check_layout(hello->layout_version, hello->layout_hash, hello->features, text,
                           bytes) < 0)
        return text;
    if (!peers_incarnation(&hello->incarnation, incarnation))
        return "it told no incarnation";
    if (fd_count != 2)
        return "it passed no descriptors";
    if (hello->ring_number == 0 || hello->ring_number >= RS_MAX_RINGS)
        return "it told a ring number out of range";
    if (hello->sidecar_id == link->peers->proxy->ring.layout.sidecar_id)
        log_warn(&link->peers->proxy->log, "peers", 0,
                 "stage %s has the same sidecar id %u as this one: set different ids in their "
                 "configs, else "
                 "the 64-bit form of their tickets cannot be told apart",
                 hello->stage, hello->sidecar_id);
    return NULL;
}

static void on_hello(struct conn *conn, int error, const char *text,
                     const ProtobufCMessage *response, int *fds, size_t fd_count, void *data)
{
    struct link *link = data;
    const Ringside__Peer__V1__HelloResponse *hello = (const void *)response;
    char buffer[PEER_TEXT_BYTES];
    const char *why;

    if (link->conn != conn || link->peers->closed) {
        rs_fd_close(fds, fd_count);
        return;
    }
    if (error < 0) {
        /* A sidecar that ends or starts meanwhile is away and has refused nothing. */
        bool away = error == -RINGSIDE_E_UNAVAILABLE || error == -RINGSIDE_E_TIMEOUT;

        leave(link, away ? LINK_CONNECTING : LINK_REFUSED,
              text && text[0] ? text : rs_strerror(error));
        return;
    }
    why = hello_fault(link, hello, fd_count, buffer, sizeof(buffer));
    if (why) {
        rs_fd_close(fds, fd_count);
        refuse(link, why);
        return;
    }
    struct view *view = view_create(link, hello, fds, &why);
    if (!view) {
        refuse(link, why);
        return;
    }
    /* The same inbox is mapped anew as well: its sidecar's eventfd and our number may be others.
     * Swapped in one step, so that no worker sees the destination unconnected. */
    struct view *old = link->view;
    link->view = view;
    use_view(link);
    view_destroy(old);
}

static void say_hello(struct link *link)
{
    const struct rs_superblock *layout = &link->peers->proxy->ring.layout;
    Ringside__Peer__V1__HelloRequest request = RINGSIDE__PEER__V1__HELLO_REQUEST__INIT;

    request.stage = link->peers->proxy->config.stage;
    request.sidecar_id = layout->sidecar_id;
    request.incarnation = peers_bytes(layout->incarnation, sizeof(layout->incarnation));
    request.layout_version = RS_LAYOUT_VERSION;
    request.layout_hash = layout->layout_hash;
    request.epoch = rs_load_relaxed(&layout->epoch);
    int rc = conn_call_out(link->conn, PEER_SERVICE, "Hello", &request.base,
                           &ringside__peer__v1__hello_response__descriptor, NULL, 0, PEER_CALL_NS,
                           on_hello, link);
    if (rc < 0)
        refuse(link, rs_strerror(rc));
}

static void on_connected(struct conn *conn, int error, void *data)
{
    struct link *link = data;

    if (!conn || link->peers->closed) {
        if (conn)
            conn_close(conn, "this sidecar stops");
        else
            lost(link, LINK_CONNECTING, rs_strerror(error));
        return;
    }
    memset(link->admitted, 0, sizeof(link->admitted));
    link->conn = conn;
    conn_on_closed(conn, on_closed, link);
    say_hello(link);
}

static void connect_now(struct link *link)
{
    if (link->peers->closed || link->conn)
        return;
    int rc = conn_connect(link->peers->proxy, link->path, on_connected, link);

    if (rc < 0)
        lost(link, LINK_CONNECTING,
             rc == -ENOENT || rc == -ECONNREFUSED ? "no sidecar serves that socket"
                                                  : rs_strerror(rc));
}

/* ---- ping ---- */

static void on_ping(struct conn *conn, int error, const char *text,
                    const ProtobufCMessage *response, int *fds, size_t fd_count, void *data)
{
    struct link *link = data;
    const Ringside__Peer__V1__PingResponse *ping = (const void *)response;

    (void)text;
    rs_fd_close(fds, fd_count);
    if (link->conn != conn || link->state != LINK_CONNECTED)
        return;
    /* Silence is told, not punished: it may be stopped in a debugger, and its memory works on. */
    link->draining = error == 0 && ping->draining;
    peers_name(link->error, sizeof(link->error),
               error < 0        ? "its sidecar does not answer"
               : link->draining ? "its sidecar drains"
                                : "");
}

static void ping(struct link *link)
{
    Ringside__Peer__V1__PingRequest request = RINGSIDE__PEER__V1__PING_REQUEST__INIT;

    request.draining = proxy_is_draining(link->peers->proxy);
    conn_call_out(link->conn, PEER_SERVICE, "Ping", &request.base,
                  &ringside__peer__v1__ping_response__descriptor, NULL, 0, PEER_CALL_NS / 2,
                  on_ping, link);
}

void link_tick(struct link *link, bool with_ping)
{
    if (link->view &&
        (rs_guard_hit(link->view->ring.control) ||
         ring_file_is_cut(link->view->control_fd, link->view->ring.layout.control_bytes))) {
        log_error(&link->peers->proxy->log, "peers", 0,
                  "%s: the control file of stage %s lost pages: somebody truncated it. Its inbox "
                  "is not used "
                  "until it has a new one",
                  link->path, link->view->stage);
        drop_view(link);
        refuse(link, "its control file lost pages");
    }
    answers_tick(link);
    if (with_ping && link->conn && link->state == LINK_CONNECTED)
        ping(link);
}

/* ---- life ---- */

int link_create(struct peers *peers, unsigned destination, const char *path, bool introduced)
{
    struct link *link = calloc(1, sizeof(*link));

    if (!link)
        return -ENOMEM;
    link->peers = peers;
    link->destination = destination;
    link->introduced = introduced;
    peers_name(link->path, sizeof(link->path), path);
    uv_timer_init(&peers->proxy->loop, &link->retry);
    link->retry.data = link;
    peers->links[destination] = link;
    connect_now(link);
    return 0;
}

void link_close(struct link *link)
{
    struct conn *conn = link->conn;

    link->conn = NULL;
    uv_close((uv_handle_t *)&link->retry, NULL);
    if (conn)
        conn_close(conn, "this sidecar stops");
}

void link_destroy(struct link *link)
{
    if (!link)
        return;
    /* The table says what it said: workers go on while the next sidecar comes. */
    view_destroy(link->view);
    answers_destroy(link);
    free(link);
}

/* ---- stages that another one made known ---- */

static bool is_known(const struct peers *peers, const char *path, const uint64_t incarnation[2])
{
    const struct proxy *proxy = peers->proxy;

    if (rs_address_same_path(path, proxy->config.socket.path) ||
        memcmp(incarnation, proxy->ring.layout.incarnation, 16) == 0)
        return true;
    for (unsigned i = 0; i < RS_MAX_DESTINATIONS; i++) {
        const struct link *link = peers->links[i];

        if (link && (rs_address_same_path(link->path, path) ||
                     (link->view && link->state == LINK_CONNECTED &&
                      memcmp(link->view->ring.layout.incarnation, incarnation, 16) == 0)))
            return true;
    }
    return false;
}

/* The entry that the address had before, or an unused one. */
static int take_entry(struct peers *peers, const char *path)
{
    struct rs_ring *ring = &peers->proxy->ring;
    uint64_t hash[2];
    int unused = -RINGSIDE_E_LIMIT;

    routes_address_hash(path, hash);
    for (unsigned i = 0; i < ring->layout.destination_count; i++) {
        struct rs_destination *entry = &ring->destinations[i];

        if (rs_destination_kind(rs_load_acquire(&entry->state)) == RS_DEST_UNUSED) {
            if (unused < 0 && !peers->links[i] && peers->proxy->routes.paths[i][0] == '\0')
                unused = (int)i;
        } else if (rs_load_relaxed(&entry->address[0]) == hash[0] &&
                   rs_load_relaxed(&entry->address[1]) == hash[1]) {
            return (int)i;
        }
    }
    for (int i = 0; unused >= 0 && i < 2; i++)
        rs_store_relaxed(&ring->destinations[unused].address[i], hash[i]);
    return unused;
}

int link_introduce(struct peers *peers, const char *path, const uint64_t incarnation[2],
                   unsigned attempts)
{
    struct proxy *proxy = peers->proxy;

    if (is_known(peers, path, incarnation))
        return 0;
    int index = take_entry(peers, path);
    if (index < 0)
        return index;
    struct rs_destination *entry = &proxy->ring.destinations[index];
    uint32_t version = (uint32_t)(rs_load_relaxed(&entry->state) >> 32) + 1;
    if (attempts == 0 || attempts > RS_MAX_ATTEMPTS)
        attempts = PEER_ATTEMPTS;
    rs_store_release(&entry->state,
                     rs_destination_state(version, attempts, 0, RS_DEST_INBOX, false));
    tables_changed(proxy, entry);
    return link_create(peers, (unsigned)index, path, true);
}

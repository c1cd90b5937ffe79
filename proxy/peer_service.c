/* SPDX-License-Identifier: Apache-2.0 */
/* What another sidecar asks: Hello, places in the own ring for its workers, and further destinations. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proxy/peers_private.h"

/* ---- Hello of an upstream sidecar ---- */

static const char *hello_fault(struct conn_call *call,
                               const Ringside__Peer__V1__HelloRequest *hello,
                               uint64_t incarnation[2], int *error, char *text, size_t bytes)
{
    struct proxy *proxy = conn_proxy(call->conn);

    *error = -RINGSIDE_E_INVALID;
    if (conn_owner(call->conn))
        return "this connection is a session or a link already; open another one";
    if (!peers_incarnation(&hello->incarnation, incarnation))
        return "incarnation must be 16 bytes, not all zero";
    if (hello->sidecar_id == 0 || hello->sidecar_id > UINT16_MAX)
        return "sidecar_id must be 1..65535";
    if (memcmp(incarnation, proxy->ring.layout.incarnation, 16) == 0)
        return "the route leads to the stage itself by another path; write its path as in "
               "socket.path";
    *error =
        peers_check_layout(hello->layout_version, hello->layout_hash, hello->features, text, bytes);
    return *error < 0 ? text : NULL;
}

void service_hello(struct conn_call *call)
{
    struct conn *conn = call->conn;
    struct proxy *proxy = conn_proxy(conn);
    Ringside__Peer__V1__HelloRequest *hello =
        (void *)conn_decode(call, &ringside__peer__v1__hello_request__descriptor);
    Ringside__Peer__V1__HelloResponse response = RINGSIDE__PEER__V1__HELLO_RESPONSE__INIT;
    const struct rs_superblock *layout = &proxy->ring.layout;
    uint64_t incarnation[2];
    char text[PEER_TEXT_BYTES];
    int error;

    if (!hello)
        return;
    const char *fault = hello_fault(call, hello, incarnation, &error, text, sizeof(text));
    struct upstream *upstream = fault ? NULL : upstream_get(proxy->peers, incarnation, &error);
    if (!fault && !upstream)
        fault =
            error == -RINGSIDE_E_LIMIT ? "255 rings appear in this inbox already" : "out of memory";
    if (fault) {
        conn_reply_error(call, error, "%s", fault);
        conn_free_message(&hello->base);
        return;
    }
    peers_name(upstream->stage, sizeof(upstream->stage), hello->stage);
    upstream->sidecar_id = hello->sidecar_id;
    conn_free_message(&hello->base);
    if (upstream->sidecar_id == layout->sidecar_id)
        log_warn(&proxy->log, "peers", conn_serial(conn),
                 "stage %s has the same sidecar id %u as this one: set different ids in their "
                 "configs, else "
                 "the 64-bit form of their tickets cannot be told apart",
                 upstream->stage, upstream->sidecar_id);
    response.nonce = upstream_publish(upstream);

    int fds[2] = {ring_files_control_fd(&proxy->files, -1), peers_dup(proxy->inbox_event)};
    if (fds[0] < 0 || fds[1] < 0) {
        conn_reply_error(call, fds[0] < 0 ? fds[0] : fds[1], "no descriptor left to pass");
        rs_fd_close(fds, 2);
        return;
    }
    response.stage = proxy->config.stage;
    response.sidecar_id = layout->sidecar_id;
    response.incarnation = peers_bytes(layout->incarnation, 16);
    response.layout_version = RS_LAYOUT_VERSION;
    response.layout_hash = layout->layout_hash;
    response.epoch = rs_load_relaxed(&layout->epoch);
    response.ring_number = upstream->number;
    response.control_bytes = layout->control_bytes;
    RS_FAILPOINT(peer_hello_answered);
    if (conn_reply(call, &response.base, fds, 2) == 0)
        upstream_connected(upstream, conn);
}

/* The link, or NULL and the call is answered. */
static struct link *require_link(struct conn_call *call)
{
    struct link *link = link_of(call->conn);

    if (!link || link->state != LINK_CONNECTED) {
        conn_reply_error(call, -RINGSIDE_E_STATE,
                         "%s is only for a sidecar that this one connected to and said Hello to",
                         call->method);
        return NULL;
    }
    return link;
}

/* The pid behind a pidfd as this namespace sees it: 0 when it does not, -1 when it is no pidfd at
 * all. */
static int pid_of(int pidfd)
{
    char path[48], line[128];
    int pid = -1;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "Pid: %d", &pid) == 1)
            break;
    }
    if (file)
        fclose(file);
    return pid;
}

/* ---- Admit ---- */

/* Who asks for places: downstream for its consumers, upstream for its callers. */
struct admitter {
    uint64_t *admitted;   /* numbers given to it on this connection */
    unsigned destination; /* of its inbox; RS_NO_DESTINATION: upstream */
};

/* False: the call is answered. */
static bool require_peer(struct conn_call *call, struct admitter *admitter)
{
    struct upstream *upstream = upstream_of(call->conn);

    if (upstream && upstream->conn == call->conn) {
        *admitter = (struct admitter){upstream->admitted, RS_NO_DESTINATION};
        return true;
    }
    struct link *link = require_link(call);
    if (link)
        *admitter = (struct admitter){link->admitted, link->destination};
    return link != NULL;
}

static int admit(struct proxy *proxy, struct conn_call *call,
                 const Ringside__Peer__V1__AdmitRequest *request,
                 struct clients_admission *admission)
{
    struct clients_request client = {
        .name = request->name,
        .token = request->session_token.len == 16 ? request->session_token.data : NULL,
        .pidfd = conn_take_fd(call->conn),
        .wants_lock = request->wants_lock,
        .foreign = true,
        .reads_nothing = request->for_replies,
    };

    if (client.pidfd >= 0) {
        int pid = pid_of(client.pidfd);

        if (pid < 0) {
            close(client.pidfd);
            return -RINGSIDE_E_INVALID;
        }
        /* Not the request's: a pid means something in one namespace only. */
        client.pid = (uint32_t)pid;
    }
    return clients_admit(proxy, &client, admission);
}

static int answer(struct proxy *proxy, struct conn_call *call, unsigned destination,
                  struct clients_admission *admission)
{
    const struct rs_superblock *layout = &proxy->ring.layout;
    Ringside__Peer__V1__AdmitResponse response = RINGSIDE__PEER__V1__ADMIT_RESPONSE__INIT;
    int fds[4] = {admission->control_fd, ring_files_body_fd(&proxy->files, false),
                  peers_dup(proxy->bell_event), peers_dup(proxy->inbox_event)};

    if (fds[1] < 0 || fds[2] < 0 || fds[3] < 0) {
        int rc = fds[1] < 0 ? fds[1] : fds[2] < 0 ? fds[2] : fds[3];

        rs_fd_close(fds, 4);
        conn_reply_error(call, rc, "no descriptor left to pass");
        return rc;
    }
    response.client = admission->number;
    response.reader = admission->reader;
    response.destination = destination;
    response.nonce = admission->nonce;
    response.incarnation = peers_bytes(layout->incarnation, 16);
    response.sidecar_id = layout->sidecar_id;
    response.epoch = rs_load_relaxed(&layout->epoch);
    response.control_bytes = layout->control_bytes;
    response.body_bytes = layout->body_bytes;
    response.control_path = proxy->files.control_path;
    response.body_path = proxy->files.body_path;
    response.session_token = peers_bytes(admission->token, sizeof(admission->token));
    return conn_reply(call, &response.base, fds, 4);
}

void service_admit(struct conn_call *call)
{
    struct proxy *proxy = conn_proxy(call->conn);
    struct admitter admitter;
    Ringside__Peer__V1__AdmitRequest *request =
        require_peer(call, &admitter)
            ? (void *)conn_decode(call, &ringside__peer__v1__admit_request__descriptor)
            : NULL;
    struct clients_admission admission;

    if (!request)
        return;
    int rc = admit(proxy, call, request, &admission);
    bool lock = request->wants_lock;
    conn_free_message(&request->base);
    if (rc < 0) {
        conn_reply_error(call, rc, "stage %s: %s", proxy->config.stage,
                         rc == -RINGSIDE_E_LIMIT
                             ? "no client number is free: raise clients.max there"
                         : rc == -RINGSIDE_E_INVALID ? "the descriptor passed is no pidfd"
                                                     : rs_strerror(rc));
        return;
    }
    rc = answer(proxy, call, admitter.destination, &admission);
    RS_FAILPOINT(peer_admit_replied);
    if (rc < 0 && !admission.resumed) {
        clients_died(proxy, admission.number); /* nobody ever had it */
        return;
    }
    bit_set(admitter.admitted, admission.number);
    /* Either way: the number's last owner may have been of the other kind. */
    if (lock)
        bit_set(proxy->peers->locked, admission.number);
    else
        bit_clear(proxy->peers->locked, admission.number);
}

void service_leave(struct conn_call *call)
{
    struct proxy *proxy = conn_proxy(call->conn);
    struct admitter admitter;
    Ringside__Peer__V1__LeaveRequest *request =
        require_peer(call, &admitter)
            ? (void *)conn_decode(call, &ringside__peer__v1__leave_request__descriptor)
            : NULL;
    Ringside__Peer__V1__LeaveResponse response = RINGSIDE__PEER__V1__LEAVE_RESPONSE__INIT;

    if (!request)
        return;
    uint32_t number = request->client;
    uint64_t nonce = request->nonce;
    conn_free_message(&request->base);
    if (number >= clients_end(proxy) || !bit_get(admitter.admitted, number) ||
        (nonce != 0 && nonce != rs_load_relaxed(&proxy->ring.clients[number].nonce))) {
        conn_reply_error(call, -RINGSIDE_E_INVALID,
                         "client %u was not admitted on this link, or is somebody else by now",
                         number);
        return;
    }
    bit_clear(admitter.admitted, number);
    /* One with a lock is judged by it: its memory is not taken while it lives. */
    if (clients_is_foreign(proxy, (uint16_t)number))
        clients_detach(proxy, (uint16_t)number, !bit_get(proxy->peers->locked, number));
    conn_reply(call, &response.base, NULL, 0);
}

/* ---- Introduce, Ping ---- */

static int introduce(struct proxy *proxy, const Ringside__Peer__V1__IntroduceRequest *request)
{
    static const char scheme[] = "unix:";
    const char *path = request->address + sizeof(scheme) - 1;
    uint64_t incarnation[2];

    if (strncmp(request->address, scheme, sizeof(scheme) - 1) != 0 || path[0] != '/' ||
        strlen(path) >= RS_CONFIG_SOCKET_PATH_BYTES ||
        !peers_incarnation(&request->incarnation, incarnation))
        return -RINGSIDE_E_INVALID;
    return link_introduce(proxy->peers, path, incarnation, request->attempts);
}

void service_introduce(struct conn_call *call)
{
    struct proxy *proxy = conn_proxy(call->conn);
    Ringside__Peer__V1__IntroduceRequest *request =
        require_link(call)
            ? (void *)conn_decode(call, &ringside__peer__v1__introduce_request__descriptor)
            : NULL;
    Ringside__Peer__V1__IntroduceResponse response = RINGSIDE__PEER__V1__INTRODUCE_RESPONSE__INIT;

    if (!request)
        return;
    int rc = introduce(proxy, request);
    conn_free_message(&request->base);
    if (rc < 0)
        conn_reply_error(call, rc, "%s",
                         rc == -RINGSIDE_E_INVALID
                             ? "address must be unix: and an absolute path, incarnation "
                               "16 bytes"
                         : rc == -RINGSIDE_E_LIMIT ? "the destination table is full"
                                                   : rs_strerror(rc));
    else
        conn_reply(call, &response.base, NULL, 0);
}

void service_ping(struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__peer__v1__ping_request__descriptor);
    Ringside__Peer__V1__PingResponse response = RINGSIDE__PEER__V1__PING_RESPONSE__INIT;

    if (!request)
        return;
    conn_free_message(request);
    response.draining = proxy_is_draining(conn_proxy(call->conn));
    conn_reply(call, &response.base, NULL, 0);
}

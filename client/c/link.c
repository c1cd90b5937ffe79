/* SPDX-License-Identifier: Apache-2.0 */
/* The socket to the sidecar: attach, calls, and coming back after the sidecar went away. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "proto/guard.h"
#include "proto/layout.h"

#define SERVICE          "ringside.v1.Control"
#define BACKOFF_FIRST_NS INT64_C(10000000)
#define BACKOFF_LAST_NS  INT64_C(1000000000)
#define IMPATIENT_NS     INT64_C(20000000) /* an attach within a call that must not block */
#define TEXT_BYTES       400

/* ---- calls ---- */

void link_drop_fds(struct ringside *connection)
{
    rs_fd_close(connection->arriving, connection->arriving_count);
    connection->arriving_count = 0;
}

int link_take_fd(struct ringside *connection, size_t kind_count,
                 const Ringside__V1__Descriptor *kinds, Ringside__V1__Descriptor kind)
{
    for (size_t i = 0; i < kind_count && i < connection->arriving_count; i++) {
        int fd = connection->arriving[i];

        if (kinds[i] == kind && fd >= 0) {
            connection->arriving[i] = -1;
            return fd;
        }
    }
    return -1;
}

static void set_retry(struct ringside *connection)
{
    uint32_t random = 0;
    int64_t delay_ns;

    (void)getrandom(&random, sizeof random, GRND_NONBLOCK);
    if (connection->link_backoff_ns == 0)
        connection->link_backoff_ns = BACKOFF_FIRST_NS;
    /* Half to whole of the interval: workers that lost the same sidecar come back apart. */
    delay_ns = connection->link_backoff_ns / 2 + random % (connection->link_backoff_ns / 2);
    connection->link_backoff_ns *= 2;
    if (connection->link_backoff_ns > BACKOFF_LAST_NS)
        connection->link_backoff_ns = BACKOFF_LAST_NS;
    connection->link_retry_ns = rs_now_ns() + delay_ns;
    link_set_timer(connection);
}

void link_set_timer(struct ringside *connection)
{
    int64_t at_ns = connection->linked ? 0 : connection->link_retry_ns; /* 0: never */
    struct itimerspec timer = {.it_value = {at_ns / 1000000000, at_ns % 1000000000}};

    if (connection->timer_fd >= 0)
        (void)timerfd_settime(connection->timer_fd, TFD_TIMER_ABSTIME, &timer, NULL);
}

/* The socket is of no further use. Messages go on without it. */
static void lose(struct ringside *connection, const char *why)
{
    if (connection->linked)
        report(connection, "lost the sidecar at %s: %s", connection->socket_path, why);
    connection->linked = false;
    rs_ttrpc_client_finish(&connection->control);
    connection->link_backoff_ns = 0;
    set_retry(connection);
}

static int call(struct ringside *connection, const char *method, const ProtobufCMessage *request,
                const ProtobufCMessageDescriptor *type, ProtobufCMessage **response,
                int64_t timeout_ns)
{
    char text[TEXT_BYTES] = "";

    link_drop_fds(connection);
    connection->arriving_count = RS_FDPASS_MAX;
    int rc = rs_ttrpc_call(&connection->control, SERVICE, method, request, type, response,
                           connection->arriving, &connection->arriving_count, timeout_ns, text,
                           sizeof text);
    if (rc < 0)
        fail(connection, rc, "%s: %s", method, text[0] != '\0' ? text : rs_strerror(rc));
    return rc;
}

/* ---- attach ---- */

static bool route_from(struct route *route, const Ringside__V1__Route *from,
                       uint32_t destination_count)
{
    if (from->name == NULL || strlen(from->name) >= sizeof route->name ||
        from->n_destinations < 1 || from->n_destinations > RS_MAX_DELIVERIES)
        return false;
    strcpy(route->name, from->name);
    for (size_t i = 0; i < from->n_destinations; i++) {
        if (from->destinations[i] >= destination_count)
            return false;
        route->destinations[i] = (uint16_t)from->destinations[i];
    }
    route->destination_count = (unsigned)from->n_destinations;
    route->when_full = from->when_full;
    route->ttl_ns = from->ttl_ns;
    return true;
}

/* Threads may still look at the settings before: they are kept. */
static int take_settings(struct ringside *connection, const Ringside__V1__AttachResponse *answer)
{
    size_t count = answer->n_routes;
    uint32_t destination_count = connection->own.ring.layout.destination_count;
    struct settings *settings = calloc(1, sizeof *settings + count * sizeof settings->routes[0]);

    if (settings == NULL)
        return fail_with(connection, -ENOMEM, "out of memory");
    settings->spin_ns = (int64_t)answer->spin_us * 1000;
    settings->ticket_ttl_ns = answer->ticket_ttl_ns;
    settings->route_count = (unsigned)count;
    for (size_t i = 0; i < count; i++) {
        if (!route_from(&settings->routes[i], answer->routes[i], destination_count)) {
            free(settings);
            return fail_with(connection, -RINGSIDE_E_PROTOCOL,
                             "the sidecar described a route that makes no sense");
        }
    }
    settings->next = rs_load_relaxed(&connection->settings);
    rs_store_release(&connection->settings, settings);
    return 0;
}

static int ask_attach(struct ringside *connection, Ringside__V1__AttachResponse **answer,
                      int64_t timeout_ns)
{
    Ringside__V1__AttachRequest request = RINGSIDE__V1__ATTACH_REQUEST__INIT;
    ProtobufCMessage *response;

    request.name = connection->name;
    request.session_token.data = connection->token;
    request.session_token.len = connection->token_bytes;
    request.want_descriptors = 1;
    request.layout_version = RS_LAYOUT_VERSION;
    request.layout_hash = rs_layout_hash();
    int rc = call(connection, "Attach", &request.base, &ringside__v1__attach_response__descriptor,
                  &response, timeout_ns);
    *answer = (Ringside__V1__AttachResponse *)response;
    if (rc == 0 && ((*answer)->ring == NULL ||
                    (*answer)->session_token.len > sizeof connection->token))
        rc = fail_with(connection, -RINGSIDE_E_PROTOCOL,
                       "the sidecar's answer to Attach lacks a ring or has an endless token");
    return rc;
}

static void keep_token(struct ringside *connection, const Ringside__V1__AttachResponse *answer)
{
    connection->token_bytes = answer->session_token.len;
    if (connection->token_bytes > 0)
        memcpy(connection->token, answer->session_token.data, connection->token_bytes);
}

static int attach_first(struct ringside *connection, const Ringside__V1__AttachResponse *answer)
{
    struct peer *own = &connection->own;
    int rc = peer_map(connection, own, answer->ring, answer->n_descriptors, answer->descriptors,
                      true);

    if (rc < 0)
        return rc;
    connection->event_fd = link_take_fd(connection, answer->n_descriptors, answer->descriptors,
                                        RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT);
    if (connection->event_fd < 0)
        return fail_with(connection, -RINGSIDE_E_PROTOCOL,
                         "the sidecar passed no eventfd of the inbox");
    int flags = fcntl(connection->event_fd, F_GETFL);
    if (flags < 0 || fcntl(connection->event_fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return fail(connection, -errno, "cannot use the inbox's eventfd: %s", strerror(errno));
    rs_inbox_init(&connection->inbox, &own->ring, connection->event_fd);
    own->destination = (uint16_t)answer->ring->destination;
    rs_inbox_admit(&connection->inbox, 0, &own->ring, own->destination, own->ring.client);
    rs_store_release(&connection->peers[0], own);
    return take_settings(connection, answer);
}

int link_open(struct ringside *connection, int64_t timeout_ns)
{
    Ringside__V1__AttachResponse *answer = NULL;
    int64_t deadline_ns = deadline_after(timeout_ns);
    char text[TEXT_BYTES] = "";

    pthread_mutex_lock(&connection->lock);
    int rc = rs_ttrpc_client_connect(&connection->control, connection->socket_path, timeout_ns,
                                     text, sizeof text);
    if (rc < 0)
        fail(connection, rc, "%s", text);
    else
        rc = ask_attach(connection, &answer, time_left(deadline_ns));
    RS_FAILPOINT(attach_answered);
    if (rc == 0)
        rc = attach_first(connection, answer);
    RS_FAILPOINT(attached);
    if (rc == 0) {
        keep_token(connection, answer);
        connection->linked = true;
    }
    link_drop_fds(connection);
    if (answer != NULL)
        protobuf_c_message_free_unpacked(&answer->base, NULL);
    pthread_mutex_unlock(&connection->lock);
    return rc;
}

/* ---- coming back ---- */

/* Descriptors of a sidecar that restarted take the numbers of the old ones, which other threads may be using. */
static void replace_fd(int *place, int fresh)
{
    if (fresh < 0)
        return;
    if (*place < 0) {
        *place = fresh;
        return;
    }
    (void)dup3(fresh, *place, O_CLOEXEC);
    close(fresh);
}

static void replace_event(struct ringside *connection, int fresh)
{
    struct epoll_event event = {.events = INBOX_EVENTS, .data.fd = connection->event_fd};

    if (fresh < 0)
        return;
    (void)fcntl(fresh, F_SETFL, fcntl(fresh, F_GETFL) | O_NONBLOCK);
    /* A registration belongs to the description, not to the number. */
    if (connection->epoll_fd >= 0)
        (void)epoll_ctl(connection->epoll_fd, EPOLL_CTL_DEL, connection->event_fd, NULL);
    replace_fd(&connection->event_fd, fresh);
    if (connection->epoll_fd >= 0) {
        (void)epoll_ctl(connection->epoll_fd, EPOLL_CTL_ADD, connection->event_fd, &event);
        rs_event_write(connection->event_fd);
    }
}

static bool same_ring(const struct rs_ring *ring, const Ringside__V1__Ring *info)
{
    return info->incarnation.len == sizeof ring->layout.incarnation &&
           memcmp(info->incarnation.data, ring->layout.incarnation, info->incarnation.len) == 0 &&
           info->client == ring->client;
}

/* The ring was adopted: mappings, loans and leases hold; only descriptors are new. */
static int attach_again(struct ringside *connection, const Ringside__V1__AttachResponse *answer)
{
    size_t count = answer->n_descriptors;
    const Ringside__V1__Descriptor *kinds = answer->descriptors;

    if (!answer->resumed || !same_ring(&connection->own.ring, answer->ring)) {
        rs_store_relaxed(&connection->down, RINGSIDE_E_UNAVAILABLE);
        report(connection, "the sidecar at %s came back with a new ring or has forgotten this "
                           "session; connect anew", connection->socket_path);
        return -RINGSIDE_E_UNAVAILABLE;
    }
    replace_event(connection,
                  link_take_fd(connection, count, kinds, RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT));
    replace_fd(&connection->own.bell_fd,
               link_take_fd(connection, count, kinds, RINGSIDE__V1__DESCRIPTOR__BELL_EVENT));
    connection->own.ring.bell_fd = connection->own.bell_fd;
    keep_token(connection, answer);
    return take_settings(connection, answer);
}

static void come_back(struct ringside *connection, int64_t timeout_ns)
{
    Ringside__V1__AttachResponse *answer = NULL;
    char text[TEXT_BYTES] = "";
    int rc = rs_ttrpc_client_connect(&connection->control, connection->socket_path, 0, text,
                                     sizeof text);

    if (rc == 0)
        rc = ask_attach(connection, &answer, timeout_ns);
    if (rc == 0)
        rc = attach_again(connection, answer);
    link_drop_fds(connection);
    if (answer != NULL)
        protobuf_c_message_free_unpacked(&answer->base, NULL);
    if (rc < 0) {
        rs_ttrpc_client_finish(&connection->control);
        set_retry(connection);
        return;
    }
    RS_FAILPOINT(attached_again);
    connection->linked = true;
    connection->link_backoff_ns = 0;
    link_set_timer(connection); /* it would go off later, for an attempt that is made already */
    if (connection->epoll_fd >= 0) {
        struct epoll_event event = {.events = EPOLLRDHUP, .data.fd = connection->control.socket};

        (void)epoll_ctl(connection->epoll_fd, EPOLL_CTL_ADD, connection->control.socket, &event);
    }
    report(connection, "attached again to the sidecar at %s", connection->socket_path);
}

static bool socket_ended(int socket)
{
    char byte;
    ssize_t bytes = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR);
}

/* Who needs the sidecar now does not wait for the next attempt: it may be back already, or have restarted unnoticed. */
static int be_linked(struct ringside *connection, const char *method)
{
    if (connection->linked && socket_ended(connection->control.socket))
        lose(connection, "its socket was closed");
    if (!connection->linked && rs_load_relaxed(&connection->down) == 0)
        come_back(connection, CALL_TIMEOUT_NS);
    if (connection->linked)
        return 0;
    if (rs_load_relaxed(&connection->down) != 0)
        return fail_down(connection);
    return fail(connection, -RINGSIDE_E_UNAVAILABLE,
                "%s: the sidecar at %s is away; is it running? It is tried again by itself", method,
                connection->socket_path);
}

static int call_linked(struct ringside *connection, const char *method,
                       const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                       ProtobufCMessage **response, int64_t timeout_ns)
{
    int rc = call(connection, method, request, type, response, timeout_ns);

    if (connection->control.error != 0)
        lose(connection, ringside_explain(connection));
    return rc;
}

int link_call(struct ringside *connection, const char *method, const ProtobufCMessage *request,
              const ProtobufCMessageDescriptor *type, ProtobufCMessage **response,
              int64_t timeout_ns, enum link_repeat repeat)
{
    *response = NULL;
    int rc = be_linked(connection, method);
    if (rc == 0)
        rc = call_linked(connection, method, request, type, response, timeout_ns);
    else
        return rc;
    if (rc == 0 || connection->linked || repeat == LINK_ONCE || be_linked(connection, method) < 0)
        return rc;
    return call_linked(connection, method, request, type, response, timeout_ns);
}

void link_tend(struct ringside *connection, bool patient)
{
    if (UNLIKELY(rs_load_relaxed(&connection->calls.lingering) != 0))
        calls_reap(connection);
    /* Whoever holds the lock is talking to the sidecar already. */
    if (pthread_mutex_trylock(&connection->lock) != 0)
        return;
    if (rs_guard_hit(connection->own.ring.control))
        rs_store_relaxed(&connection->down, RINGSIDE_E_CORRUPT);
    if (connection->linked && socket_ended(connection->control.socket))
        lose(connection, "its socket was closed");
    if (!connection->linked && rs_load_relaxed(&connection->down) == 0 &&
        rs_now_ns() >= connection->link_retry_ns)
        come_back(connection, patient ? CALL_TIMEOUT_NS : IMPATIENT_NS);
    pthread_mutex_unlock(&connection->lock);
}

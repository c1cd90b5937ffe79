/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket: who may have its path, who may connect, and when to pause. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/fdpass.h"
#include "proxy/conn_private.h"
#include "proxy/proxy.h"

#define BACKLOG        1024
#define ACCEPTS        16  /* per event, so that old connections get their turn */
#define ACCEPT_REST_MS 100 /* after descriptor exhaustion */
#define LOCK_TRIES     100

static void lock_path(const struct proxy *proxy, char path[RS_CONFIG_SOCKET_PATH_BYTES + 8])
{
    snprintf(path, RS_CONFIG_SOCKET_PATH_BYTES + 8, "%s.lock", proxy->config.socket.path);
}

static int make_parent(const char *path)
{
    char parent[RS_CONFIG_SOCKET_PATH_BYTES];
    char *slash;

    snprintf(parent, sizeof parent, "%s", path);
    slash = strrchr(parent, '/');
    if (slash == NULL || slash == parent)
        return 0;
    *slash = '\0';
    return mkdir(parent, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

/* One try: a locked description of the file that is there now, -EAGAIN when it was replaced
 * meanwhile. */
static int try_lock(const char *path)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat held, there;

    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int rc = 0;
    if (fcntl(fd, F_OFD_SETLK, &lock) < 0)
        rc = errno == EAGAIN || errno == EACCES ? -RINGSIDE_E_IN_USE : -errno;
    else if (fstat(fd, &held) < 0)
        rc = -errno;
    else if (lstat(path, &there) < 0 || held.st_dev != there.st_dev || held.st_ino != there.st_ino)
        rc = -EAGAIN; /* its owner took it away between open and lock */
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

/* Whether anybody listens: 0 nobody, -RINGSIDE_E_IN_USE somebody, or -errno. */
static int probe(const char *path)
{
    struct sockaddr_un address;
    socklen_t bytes;

    int rc = rs_socket_address(&address, path, &bytes);
    if (rc < 0)
        return rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, bytes) == 0 || errno == EAGAIN)
        rc = -RINGSIDE_E_IN_USE;
    else
        rc = errno == ECONNREFUSED || errno == ENOENT ? 0 : -errno;
    close(fd);
    return rc;
}

/* Only a socket that nobody answers on is taken away. */
static int clear_path(struct proxy *proxy)
{
    const char *path = proxy->config.socket.path;
    struct stat there;

    if (lstat(path, &there) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(there.st_mode)) {
        log_error(&proxy->log, "socket", 0,
                  "%s is there and is no socket; it is left alone: move it away or set another "
                  "socket.path",
                  path);
        return -EEXIST;
    }
    int rc = probe(path);
    if (rc < 0)
        return rc;
    if (unlink(path) < 0 && errno != ENOENT) {
        rc = -errno;
        log_error(&proxy->log, "socket", 0,
                  "cannot remove the stale socket %s: %s (if it is mounted as a single file, mount "
                  "its directory instead)",
                  path, strerror(-rc));
        return rc;
    }
    log_info(&proxy->log, "socket", 0, "removed the stale socket %s", path);
    return 0;
}

int conn_claim(struct proxy *proxy)
{
    const char *path = proxy->config.socket.path;
    char lock[RS_CONFIG_SOCKET_PATH_BYTES + 8];
    struct listener *listener = calloc(1, sizeof *listener);

    if (listener == NULL)
        return -ENOMEM;
    proxy->listener = listener;
    listener->proxy = proxy;
    listener->lock = listener->socket = -1;
    lock_path(proxy, lock);
    int rc = make_parent(path);
    for (int i = 0; rc == 0 && listener->lock < 0 && i < LOCK_TRIES; i++) {
        int fd = try_lock(lock);
        if (fd >= 0)
            listener->lock = fd;
        else if (fd != -EAGAIN)
            rc = fd;
    }
    if (rc == 0 && listener->lock < 0)
        rc = -RINGSIDE_E_IN_USE;
    if (rc == 0)
        rc = clear_path(proxy);
    if (rc == -RINGSIDE_E_IN_USE)
        log_error(&proxy->log, "socket", 0,
                  "another sidecar serves %s; stop it, or set another socket.path", path);
    else if (rc < 0 && rc != -EEXIST)
        log_error(&proxy->log, "socket", 0, "cannot claim %s: %s", path, rs_strerror(rc));
    return rc;
}

static int find_group(const char *name, gid_t *gid)
{
    struct group group, *found;
    char buffer[4096];
    char *end;

    unsigned long number = strtoul(name, &end, 10);
    if (*name != '\0' && *end == '\0' && number < (gid_t)-1) {
        *gid = (gid_t)number;
        return 0;
    }
    int rc = getgrnam_r(name, &group, buffer, sizeof buffer, &found);
    if (rc != 0)
        return -rc;
    if (found == NULL)
        return -ENOENT;
    *gid = found->gr_gid;
    return 0;
}

/* Mode and group are set between bind and listen: nobody can connect in between. */
static int permit(struct proxy *proxy)
{
    const char *path = proxy->config.socket.path;
    const char *group = proxy->config.socket.group;
    gid_t gid;

    if (group[0] != '\0') {
        int rc = find_group(group, &gid);
        if (rc == 0 && lchown(path, (uid_t)-1, gid) < 0)
            rc = -errno;
        if (rc < 0) {
            log_error(&proxy->log, "socket", 0, "cannot give %s to group \"%s\" (socket.group): %s",
                      path, group, rc == -ENOENT ? "no such group" : strerror(-rc));
            return rc;
        }
    }
    if (chmod(path, proxy->config.socket.mode) < 0) {
        int rc = -errno;
        log_error(&proxy->log, "socket", 0, "cannot set mode %04o on %s: %s",
                  (unsigned)proxy->config.socket.mode, path, strerror(-rc));
        return rc;
    }
    return 0;
}

static int bind_socket(struct proxy *proxy)
{
    struct listener *listener = proxy->listener;
    const char *path = proxy->config.socket.path;
    struct sockaddr_un address;
    socklen_t bytes;
    struct stat there;

    int rc = rs_socket_address(&address, path, &bytes);
    if (rc < 0)
        return rc;
    listener->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener->socket < 0 || fchmod(listener->socket, 0600) < 0)
        return -errno;
    if (bind(listener->socket, (struct sockaddr *)&address, bytes) < 0)
        return -errno;
    if (lstat(path, &there) < 0)
        return -errno;
    listener->device = there.st_dev;
    listener->inode = there.st_ino;
    return 0;
}

static bool uid_allowed(const struct rs_config *config, uid_t uid)
{
    for (uint32_t i = 0; i < config->socket.allow_uid_count; i++) {
        if (config->socket.allow_uids[i] == uid)
            return true;
    }
    return config->socket.allow_uid_count == 0;
}

/* Makes room among those who neither attached nor peered, the longest idle first. */
static bool make_room(struct listener *listener)
{
    if (listener->unowned < listener->proxy->config.clients.max + CONN_SPARE)
        return true;
    for (struct conn *conn = listener->first; conn != NULL; conn = conn->next) {
        if (!conn->outgoing && conn->closed == NULL && conn->calls == NULL) {
            log_warn(&listener->proxy->log, "socket", conn->serial,
                     "too many connections that are no session: the oldest is closed");
            conn_close(conn, "too many connections without a session");
            return true;
        }
    }
    log_warn(&listener->proxy->log, "socket", 0,
             "connection refused: %u connections without a session wait for answers",
             listener->unowned);
    return false;
}

static void greet(struct listener *listener, int fd)
{
    struct proxy *proxy = listener->proxy;
    struct ucred peer = {0};

    int rc = rs_peer_credentials(fd, &peer);
    if (!make_room(listener)) {
        close(fd);
        return;
    }
    struct conn *conn = conn_create(proxy, fd, false);
    if (conn == NULL) {
        log_error(&proxy->log, "socket", 0, "connection refused: out of memory");
        return;
    }
    conn->denied = rc < 0 || !uid_allowed(&proxy->config, peer.uid);
    if (conn->denied)
        log_warn(&proxy->log, "socket", conn->serial,
                 "user id %u (pid %d) is not in socket.allow_uids: refused", (unsigned)peer.uid,
                 (int)peer.pid);
    else
        log_debug(&proxy->log, "socket", conn->serial, "connection from pid %d, user id %u",
                  (int)peer.pid, (unsigned)peer.uid);
}

static void on_connect(uv_poll_t *poll, int status, int events);

static void on_rested(uv_timer_t *timer)
{
    struct listener *listener = timer->data;

    uv_poll_start(&listener->poll, UV_READABLE, on_connect);
}

static void on_connect(uv_poll_t *poll, int status, int events)
{
    struct listener *listener = poll->data;

    (void)events;
    for (int i = 0; status == 0 && i < ACCEPTS; i++) {
        int fd = accept4(listener->socket, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            greet(listener, fd);
            continue;
        }
        if (errno == EAGAIN)
            return;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_warn(&listener->proxy->log, "socket", 0,
                     "cannot accept: %s; trying again in %d ms (raise the limit of open files)",
                     strerror(errno), ACCEPT_REST_MS);
            uv_poll_stop(&listener->poll);
            uv_timer_start(&listener->pause, on_rested, ACCEPT_REST_MS, 0);
            return;
        }
    }
}

int conn_listen(struct proxy *proxy)
{
    struct listener *listener = proxy->listener;
    const char *path = proxy->config.socket.path;

    int rc = bind_socket(proxy);
    if (rc < 0) {
        log_error(&proxy->log, "socket", 0, "cannot bind %s: %s", path, rs_strerror(rc));
        return rc;
    }
    rc = permit(proxy);
    if (rc < 0)
        return rc;
    if (listen(listener->socket, BACKLOG) < 0)
        rc = -errno;
    if (rc == 0)
        rc = uv_poll_init(&proxy->loop, &listener->poll, listener->socket);
    if (rc < 0) {
        log_error(&proxy->log, "socket", 0, "cannot listen on %s: %s", path, rs_strerror(rc));
        return rc;
    }
    uv_timer_init(&proxy->loop, &listener->pause);
    listener->poll.data = listener->pause.data = listener;
    listener->polling = true;
    return uv_poll_start(&listener->poll, UV_READABLE, on_connect);
}

void conn_listen_close(struct proxy *proxy)
{
    struct listener *listener = proxy->listener;
    char lock[RS_CONFIG_SOCKET_PATH_BYTES + 8];
    struct stat there;

    if (listener == NULL || listener->closed)
        return;
    listener->closed = true;
    if (listener->polling) {
        uv_close((uv_handle_t *)&listener->poll, NULL);
        uv_close((uv_handle_t *)&listener->pause, NULL);
    }
    if (listener->inode != 0 && lstat(proxy->config.socket.path, &there) == 0 &&
        there.st_dev == listener->device && there.st_ino == listener->inode)
        unlink(proxy->config.socket.path);
    if (listener->socket >= 0)
        close(listener->socket);
    if (listener->lock >= 0) {
        lock_path(proxy, lock);
        unlink(lock);
        close(listener->lock);
    }
}

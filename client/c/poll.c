/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor that is polled: an epoll of the inbox's eventfd, of timers and of the socket. */
#include "client/c/private.h"

#include <errno.h>
#include <sys/timerfd.h>

/* Between two looks for replies, as of those who sleep for one: a callee may die before it wakes us, or write the
 * eventfd of a sidecar that another one has replaced. */
#define REPLY_LOOK_NS INT64_C(1000000000)

/* Also takes back that it went off. */
static void set_look_timer(struct ringside *connection, int64_t at_ns)
{
    struct itimerspec timer = {{0, 0}, {at_ns / 1000000000, at_ns % 1000000000}};

    if (at_ns == POLL_NEVER)
        timer.it_value = (struct timespec){0, 0};
    connection->look_ns = at_ns == POLL_NEVER ? 0 : at_ns;
    (void)timerfd_settime(connection->look_timer_fd, TFD_TIMER_ABSTIME, &timer, NULL);
}

void poll_look_again(struct ringside *connection, int64_t at_ns)
{
    pthread_mutex_lock(&connection->look_lock);
    int64_t now_ns = rs_now_ns();
    if (rs_load_relaxed(&connection->calls.polled) != 0 && at_ns > now_ns + REPLY_LOOK_NS)
        at_ns = now_ns + REPLY_LOOK_NS;
    bool due = connection->look_ns <= now_ns;
    if (at_ns == POLL_NEVER ? connection->look_ns != 0 : due || connection->look_ns > at_ns)
        set_look_timer(connection, at_ns);
    pthread_mutex_unlock(&connection->look_lock);
}

/* Who clears the descriptor looks for everything, and sets it anew. */
static void clear_look_timer(struct ringside *connection)
{
    pthread_mutex_lock(&connection->look_lock);
    if (connection->look_ns != 0 && connection->look_ns <= rs_now_ns())
        set_look_timer(connection, POLL_NEVER);
    pthread_mutex_unlock(&connection->look_lock);
}

static int watch(int epoll_fd, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};

    if (fd >= 0 && epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 && errno != EEXIST)
        return -errno;
    return 0;
}

static int open_epoll(struct ringside *connection)
{
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int look_timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int rc = epoll_fd < 0 || timer_fd < 0 || look_timer_fd < 0 ? -errno : 0;

    if (rc == 0)
        rc = watch(epoll_fd, connection->event_fd, INBOX_EVENTS);
    if (rc == 0)
        rc = watch(epoll_fd, timer_fd, EPOLLIN);
    if (rc == 0)
        rc = watch(epoll_fd, look_timer_fd, EPOLLIN);
    /* Only its end matters: bytes on the socket are for whoever makes the next call. */
    if (rc == 0 && connection->linked)
        rc = watch(epoll_fd, connection->control.socket, EPOLLRDHUP);
    if (rc < 0) {
        int fds[] = {epoll_fd, timer_fd, look_timer_fd};

        rs_fd_close(fds, 3);
        return rc;
    }
    connection->timer_fd = timer_fd;
    connection->look_timer_fd = look_timer_fd;
    connection->epoll_fd = epoll_fd;
    link_set_timer(connection);
    rs_store_release(&connection->polled, 1);
    /* Whoever polls before the first look must be woken for what is there already. */
    rs_wait_arm(&connection->inbox.shared->not_empty, RS_WAIT_EVENT);
    rs_event_write(connection->event_fd);
    return 0;
}

int ringside_fd_clear(struct ringside *connection)
{
    struct epoll_event events[POLLED_FDS];

    if (is_down(connection))
        return fail_down(connection);
    if (rs_load_acquire(&connection->polled) != 0) {
        (void)epoll_wait(connection->epoll_fd, events, POLLED_FDS, 0);
        clear_look_timer(connection);
    }
    return 0;
}

int ringside_fd(struct ringside *connection)
{
    int rc = 0;

    if (is_down(connection))
        return fail_down(connection);
    pthread_mutex_lock(&connection->lock);
    if (connection->epoll_fd < 0)
        rc = open_epoll(connection);
    if (rc == 0)
        rc = connection->epoll_fd;
    pthread_mutex_unlock(&connection->lock);
    if (rc < 0)
        fail(connection, rc, "cannot make a descriptor to poll: %s", rs_strerror(rc));
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that wait for a message or for room, without holding up the loop. */
#include <stdlib.h>
#include <sys/epoll.h>
#include <uv.h>

#include "proto/err.h"
#include "proto/fdpass.h"
#include "proto/wait.h"
#include "proxy/control.h"
#include "proxy/proxy.h"

#define ROOM_LOOK_MS  1    /* room is looked for this often while somebody waits for it */
#define INBOX_LOOK_MS 1000 /* nobody sleeps longer without looking */

struct waits {
    struct proxy *proxy;
    struct wait *first, **end; /* oldest first */
    int edge_fd;     /* epoll with the inbox's eventfd, edge-triggered: nobody reads that, for it is
                        shared */
    uv_poll_t inbox; /* of edge_fd */
    uv_timer_t timer;
    bool polling, closed;
    bool soon; /* the timer runs out in a moment whatever the intervals are */
};

static void forget(struct waits *waits, struct wait *wait)
{
    struct wait **link = &waits->first;

    while (*link != wait)
        link = &(*link)->next;
    *link = wait->next;
    if (waits->end == &wait->next)
        waits->end = link;
}

static bool anybody(const struct waits *waits, enum wait_kind kind)
{
    const struct wait *wait = waits->first;

    while (wait != NULL && (wait->idle || wait->kind != kind))
        wait = wait->next;
    return wait != NULL;
}

static void discard(struct wait *wait)
{
    if (wait->copy.begun)
        rs_ring_abandon(&wait->session->proxy->ring, wait->session->number, &wait->copy.loan);
    if (wait->made != NULL)
        session_call_cancel(wait->session, wait->made);
    conn_free_message(wait->request);
    free(wait);
}

/* No answer closes a connection before a later turn, so that `next` stays. */
static void try_all(struct waits *waits, enum wait_kind kind)
{
    struct wait *wait, *next;

    for (wait = waits->first; wait != NULL; wait = next) {
        next = wait->next;
        if (!wait->idle && wait->kind == kind && wait->again(wait) != 0) {
            forget(waits, wait);
            discard(wait);
        }
    }
}

static void on_timer(uv_timer_t *timer);
static void on_event(uv_poll_t *poll, int status, int events);

/* Wakes up only while somebody waits. */
static void update(struct waits *waits)
{
    bool for_event = anybody(waits, WAIT_MESSAGE) || anybody(waits, WAIT_REPLY);
    bool for_room = anybody(waits, WAIT_ROOM);
    uint64_t interval = for_room ? ROOM_LOOK_MS : INBOX_LOOK_MS;
    uv_timer_t *timer = &waits->timer;

    if (waits->closed)
        return;
    if (waits->polling != for_event) {
        waits->polling = for_event;
        if (waits->polling)
            uv_poll_start(&waits->inbox, UV_READABLE, on_event);
        else
            uv_poll_stop(&waits->inbox);
    }
    if (waits->soon)
        return;
    if (!for_event && !for_room)
        uv_timer_stop(timer);
    else if (!uv_is_active((uv_handle_t *)timer) || uv_timer_get_repeat(timer) != interval)
        uv_timer_start(timer, on_timer, interval, interval);
}

static void look_at_inbox(struct waits *waits)
{
    if (!anybody(waits, WAIT_MESSAGE))
        return;
    rs_wait_arm(&waits->proxy->inbox.shared->not_empty, RS_WAIT_EVENT);
    try_all(waits, WAIT_MESSAGE);
}

/* The inbox's event is also that of the reply boxes of this ring; who waits for a reply arms its box. */
static void look_for_what_came(struct waits *waits)
{
    look_at_inbox(waits);
    try_all(waits, WAIT_REPLY);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct waits *waits = poll->data;
    struct epoll_event edge;

    (void)status;
    (void)events;
    (void)epoll_wait(waits->edge_fd, &edge, 1, 0);
    look_for_what_came(waits);
    update(waits);
}

static void on_timer(uv_timer_t *timer)
{
    struct waits *waits = timer->data;

    waits->soon = false;
    try_all(waits, WAIT_ROOM);
    look_for_what_came(waits);
    update(waits);
}

static void on_cancelled(struct conn_call *call)
{
    struct wait *wait = call->data;
    struct waits *waits = control_waits(wait->session->proxy);

    forget(waits, wait);
    discard(wait);
    update(waits);
}

void control_wait(struct session *session, struct conn_call *call, ProtobufCMessage *request,
                  wait_try *again, enum wait_kind kind)
{
    struct waits *waits = control_waits(session->proxy);
    struct wait now = {.session = session,
                       .call = call,
                       .request = request,
                       .again = again,
                       .kind = kind};

    struct wait *wait = malloc(sizeof now);

    if (wait == NULL) {
        conn_free_message(request);
        conn_reply_error(call, -ENOMEM, "out of memory");
        return;
    }
    *wait = now;
    if (again(wait) != 0) {
        discard(wait);
        return;
    }
    call->cancelled = on_cancelled;
    call->data = wait;
    *waits->end = wait;
    waits->end = &wait->next;
    update(waits);
    if (wait->kind != WAIT_ROOM) {
        look_for_what_came(waits);
        update(waits);
    }
}

void control_wait_again(struct wait *wait)
{
    struct waits *waits = control_waits(wait->session->proxy);

    wait->idle = false;
    if (wait->again(wait) != 0) {
        forget(waits, wait);
        discard(wait);
    }
    /* An event may have been consumed while nobody waited. */
    look_for_what_came(waits);
    update(waits);
}

struct wait *control_find_stream(struct session *session, uint64_t id)
{
    struct wait *wait = control_waits(session->proxy)->first;

    while (wait != NULL && (wait->session != session || wait->stream.id != id))
        wait = wait->next;
    return wait;
}

void control_end_stream(struct wait *wait)
{
    struct waits *waits = control_waits(wait->session->proxy);

    conn_stream_end(wait->call);
    forget(waits, wait);
    discard(wait);
    update(waits);
}

/* Later, because the caller may stand in the middle of a try. */
void control_look_again(struct proxy *proxy)
{
    struct waits *waits = control_waits(proxy);

    if (waits->closed || waits->first == NULL)
        return;
    waits->soon = true;
    uv_timer_start(&waits->timer, on_timer, ROOM_LOOK_MS, 0);
}

struct waits *waits_create(struct proxy *proxy)
{
    struct waits *waits = calloc(1, sizeof *waits);

    if (waits == NULL)
        return NULL;
    waits->proxy = proxy;
    waits->end = &waits->first;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    waits->edge_fd = epoll_create1(EPOLL_CLOEXEC);
    if (waits->edge_fd < 0 ||
        epoll_ctl(waits->edge_fd, EPOLL_CTL_ADD, proxy->inbox_event, &event) < 0 ||
        uv_poll_init(&proxy->loop, &waits->inbox, waits->edge_fd) < 0) {
        rs_fd_close(&waits->edge_fd, 1);
        free(waits);
        return NULL;
    }
    uv_timer_init(&proxy->loop, &waits->timer);
    waits->inbox.data = waits->timer.data = waits;
    return waits;
}

void waits_close(struct waits *waits)
{
    if (waits == NULL || waits->closed)
        return;
    waits->closed = true;
    uv_close((uv_handle_t *)&waits->inbox, NULL);
    rs_fd_close(&waits->edge_fd, 1);
    uv_close((uv_handle_t *)&waits->timer, NULL);
}

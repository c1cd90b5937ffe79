/* SPDX-License-Identifier: Apache-2.0 */
/* libringside in a loop that polls its descriptor, and hints that wake nobody. */
#include "tests/unit/client_fixture.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>

/* Done once, after the next epoll_wait. */
static _Atomic(void (*)(void)) after_epoll;

/* The library's, too: it stands in front of the C library's. */
__attribute__((visibility("default"))) int epoll_wait(int fd, struct epoll_event *events, int count,
                                                      int timeout_ms)
{
    int rc = (int)syscall(SYS_epoll_pwait, fd, events, count, timeout_ms, NULL, 0);

    do_once(&after_epoll);
    return rc;
}

static void client_descriptor_polls(void **state)
{
    int fd = ringside_fd(b);
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(ringside_fd(b), fd);
    assert_int_equal(poll(&poll_fd, 1, 0), 1); /* the first look */
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(poll(&poll_fd, 1, 0), 0);
    OK(send_byte(a, "1", 1));
    OK(send_byte(a, "1", 2));
    assert_int_equal(poll(&poll_fd, 1, 1000), 1);
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    assert_int_equal(poll(&poll_fd, 1, 0), 1); /* another one is there */
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(poll(&poll_fd, 1, 0), 0);
}

static int readable(struct ringside *connection)
{
    struct pollfd poll_fd = {.fd = ringside_fd(connection), .events = POLLIN};

    return poll(&poll_fd, 1, 0);
}

static void await_byte(struct ringside *connection, int value)
{
    struct pollfd poll_fd = {.fd = ringside_fd(connection), .events = POLLIN};
    int rc;

    do {
        assert_int_equal(poll(&poll_fd, 1, 20000), 1);
        rc = ringside_receive(connection, &message, 0);
    } while (rc == -RINGSIDE_ETIMEOUT);
    OK(rc);
    assert_int_equal(value_of(&message), value);
    OK(ringside_release(connection, &message));
}

static void begin_to_poll(struct ringside *connection)
{
    assert_int_equal(readable(connection), 1);
    while (ringside_receive(connection, &message, 0) == 0)
        OK(ringside_release(connection, &message));
    assert_int_equal(readable(connection), 0);
}

/* A message that this worker cannot take yet is another one's to take; this one sleeps, and looks again by itself. */
static void client_poller_leaves_what_it_cannot_take(void **state)
{
    struct ringside *other = join(1);
    bool slept = false;

    (void)state;
    OK(send_byte(a, "1", 1));
    take_byte(other, 1);
    begin_to_poll(b);
    begin_to_poll(other);
    fake_unlinked_peers = true;
    OK(send_byte(a, "1", 2));
    assert_int_equal(readable(b), 1);
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(readable(other), 1);
    for (int i = 0; i < 50 && !slept; i++) { /* its pauses grow, so one of them is longer than this takes */
        slept = readable(b) == 0;
        if (!slept)
            assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    }
    assert_true(slept);
    fake_unlinked_peers = false;
    await_byte(b, 2);
    assert_int_equal(ringside_receive(other, &message, 0), -RINGSIDE_ETIMEOUT);
    OK(send_byte(a, "1", 3));
    await_byte(other, 3);
    ringside_close(other);
}

static void send_two(void)
{
    OK(send_byte(a, "1", 5));
    OK(send_byte(a, "1", 6));
}

/* Messages that come between consuming the edge and arming the event make none: who finds the first of them makes one, for
 * the other threads that poll this connection. */
static void client_poller_raises_what_it_consumed(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 1));
    take_byte(b, 1);
    begin_to_poll(b);
    OK(send_byte(a, "1", 2)); /* takes the event, and nobody arms it for the next */
    take_byte(b, 2);
    after_epoll = send_two;
    take_byte(b, 5);
    assert_null(after_epoll);
    assert_int_equal(readable(b), 1);
    take_byte(b, 6);
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(readable(b), 0);
}

static void *mend_later(void *data)
{
    struct timespec time = {0, 20000000};

    while (rs_load_seq_cst(&fake_stages[1].ring.shared->bell) == 0)
        nanosleep(&time, NULL);
    nanosleep(&time, NULL);
    rs_ring_bell_clear(&fake_stages[1].ring);
    assert_true(rs_inbox_mend_hints(&fake_stages[1].inbox));
    return data;
}

static void break_hints(void)
{
    rs_word *head = &fake_stages[1].inbox.shared->head;

    rs_store_relaxed(head, rs_load_relaxed(head) + 5 * 16);
}

/* Hints that make no sense are the sidecar's to mend: the caller waits for that, within its timeout. */
static void client_wrong_hints_are_waited_out(void **state)
{
    pthread_t thread;

    (void)state;
    OK(send_byte(a, "1", 1));
    break_hints();
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    pthread_create(&thread, NULL, mend_later, NULL);
    OK(ringside_receive(b, &message, 10000 * MS));
    assert_int_equal(value_of(&message), 1);
    OK(ringside_release(b, &message));
    pthread_join(thread, NULL);
    begin_to_poll(b);
    break_hints();
    OK(send_byte(a, "1", 2));
    pthread_create(&thread, NULL, mend_later, NULL);
    await_byte(b, 2);
    pthread_join(thread, NULL);
    break_hints(); /* nobody mends these */
    assert_int_equal(ringside_receive(b, &message, RINGSIDE_FOREVER), -RINGSIDE_EINTERNAL);
    assert_non_null(strstr(ringside_explain(b), "hints"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_descriptor_polls),
        CASE(client_poller_leaves_what_it_cannot_take),
        CASE(client_poller_raises_what_it_consumed),
        CASE(client_wrong_hints_are_waited_out),
    };

    return cmocka_run_group_tests_name("client_poll", tests, NULL, NULL);
}

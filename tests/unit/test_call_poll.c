/* SPDX-License-Identifier: Apache-2.0 */
/* Callers of libringside that poll their descriptor. */
#include "tests/unit/call_fixture.h"

static void call_polled(void **state)
{
    struct pollfd poller = {.events = POLLIN};

    (void)state;
    poller.fd = ringside_fd(a);
    assert_true(poller.fd >= 0);
    begin("x", 0, NULL, &call);
    while (ringside_receive(a, &request, 0) == 0) /* the first edge */
        ringside_release(a, &request);
    assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(poll(&poller, 1, 0), 0);
    OK(ringside_receive(b, &request, LONG));
    answer(&request, 4, 1);
    OK(ringside_release(b, &request));
    assert_int_equal(poll(&poller, 1, 5000), 1);
    assert_int_equal(wait_reply(0), 0);
    OK(ringside_release(a, &reply));
}

static bool is_readable(int fd)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};

    return poll(&poller, 1, 0) == 1;
}

/* Messages and replies on one descriptor: no look at the one takes away what the other is woken by. */
static void call_polled_beside_an_inbox(void **state)
{
    struct ringside_call other;
    int fd = ringside_fd(a);

    (void)state;
    begin("x", 1, NULL, &call);
    begin("x", 2, NULL, &other);
    OK(ringside_fd_clear(a));
    assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_call_wait(a, &other, &reply, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_receive(a, &request, 0), -RINGSIDE_ETIMEOUT);
    assert_false(is_readable(fd)); /* nobody spins */

    /* A message; a caller looks first. */
    loan(b, 7);
    OK(ringside_send(b, &slot, "0", NULL));
    assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
    assert_true(is_readable(fd));
    OK(ringside_receive(a, &request, 0));
    OK(ringside_release(a, &request));
    OK(ringside_fd_clear(a));
    assert_int_equal(ringside_receive(a, &request, 0), -RINGSIDE_ETIMEOUT);
    assert_false(is_readable(fd));

    /* A reply; a consumer and another call look first, more than once. */
    OK(ringside_receive(b, &request, LONG));
    answer(&request, 1, 1);
    OK(ringside_release(b, &request));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ringside_receive(a, &request, 0), -RINGSIDE_ETIMEOUT);
        assert_int_equal(ringside_call_wait(a, &other, &reply, 0), -RINGSIDE_ETIMEOUT);
        assert_true(is_readable(fd));
    }
    OK(ringside_fd_clear(a));
    assert_false(is_readable(fd));
    assert_int_equal(wait_reply(0), 0);
    OK(ringside_release(a, &reply));

    /* When no reply is polled for any more, a look for messages is enough again. */
    OK(ringside_call_cancel(a, &other));
    loan(b, 8);
    OK(ringside_send(b, &slot, "0", NULL));
    assert_true(is_readable(fd));
    OK(ringside_receive(a, &request, 0));
    OK(ringside_release(a, &request));
    assert_int_equal(ringside_receive(a, &request, 0), -RINGSIDE_ETIMEOUT);
    assert_false(is_readable(fd));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(call_polled),
        CASE(call_polled_beside_an_inbox),
    };

    return cmocka_run_group_tests_name("call_poll", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* libringside as it connects, and as it comes back to a sidecar that was away. */
#include "tests/unit/client_fixture.h"

#include <errno.h>

static void client_comes_back_after_a_restart(void **state)
{
    int fd = ringside_fd(b);
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    (void)state;
    assert_int_equal(ringside_receive(b, &message, 0), -RINGSIDE_ETIMEOUT);
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    fake_stop(&fake_stages[1]);
    assert_int_equal(poll(&poll_fd, 1, 1000), 1);
    OK(send_byte(a, "1", 2)); /* messages need no sidecar */
    OK(ringside_release(b, &message));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(value_of(&message), 2);
    close(fake_stages[1].event_fd); /* the next sidecar has another one */
    fake_stages[1].event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    unsigned attaches = fake_stages[1].attaches;
    fake_start(&fake_stages[1]);
    for (int i = 0; i < 1000 && fake_stages[1].attaches == attaches; i++) {
        poll(&poll_fd, 1, 100);
        static struct ringside_message none;
        assert_int_equal(ringside_receive(b, &none, 0), -RINGSIDE_ETIMEOUT);
    }
    assert_int_equal(fake_stages[1].attaches, attaches + 1);
    assert_int_equal(ringside_receive(b, &message + 0, 0), -RINGSIDE_ETIMEOUT);
    OK(ringside_release(b, &message)); /* leases outlive the sidecar */
    rs_wait_arm(&fake_stages[1].inbox.shared->not_empty, RS_WAIT_EVENT);
    while (poll(&poll_fd, 1, 0) == 1)
        (void)ringside_receive(b, &message, 0);
    rs_event_write(fake_stages[1].event_fd); /* the new eventfd is watched */
    assert_int_equal(poll(&poll_fd, 1, 1000), 1);
}

static void client_new_ring_needs_a_new_connection(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    fake_stop(&fake_stages[1]);
    fake_forget_sessions = true;
    fake_start(&fake_stages[1]);
    static struct ringside_message none;
    int rc;
    do {
        rc = ringside_receive(b, &none, 50 * MS);
    } while (rc == -RINGSIDE_ETIMEOUT);
    assert_int_equal(rc, -RINGSIDE_EUNAVAILABLE);
    assert_non_null(strstr(ringside_explain(b), "connect anew"));
    OK(ringside_release(b, &message)); /* what is held can be given back */
}

static void client_truncated_body_is_reported(void **state)
{
    (void)state;
    loan_bytes(a, 4096);
    OK(ringside_send(a, &slot, "1", NULL));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(ftruncate(fake_stages[0].body_fd, 0), 0);
    volatile const uint8_t *data = message.tensors[0].data;
    assert_int_equal(data[0], 0); /* no SIGBUS */
    assert_int_equal(ringside_release(b, &message), -RINGSIDE_ECORRUPT);
    assert_non_null(strstr(last_log, "cut"));
    OK(send_byte(c, "1", 3)); /* other rings go on */
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
}

static void client_connect_fails_with_a_reason(void **state)
{
    struct ringside_connect_options options = {.socket = "/nonexistent/socket", .timeout_ns = 1};
    struct ringside *connection;
    char long_path[200];

    (void)state;
    unsetenv("RINGSIDE_SOCKET");
    assert_int_equal(ringside_connect(&connection, NULL), -RINGSIDE_EINVALID);
    assert_non_null(strstr(ringside_explain(NULL), "RINGSIDE_SOCKET"));
    assert_int_equal(ringside_connect(&connection, &options), -RINGSIDE_EUNAVAILABLE);
    assert_non_null(strstr(ringside_explain(NULL), "/nonexistent/socket"));
    assert_null(connection);
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    options.socket = long_path;
    assert_int_equal(ringside_connect(&connection, &options), -ENAMETOOLONG);
    ringside_close(NULL);
    setenv("RINGSIDE_SOCKET", fake_stages[2].path, 1);
    OK(ringside_connect(&connection, NULL));
    assert_string_equal(ringside_stage(connection), "stage2");
    ringside_close(connection);
    unsetenv("RINGSIDE_SOCKET");
}

static void client_rejects_memory_that_is_not_shared(void **state)
{
    struct ringside_connect_options options = {.socket = fake_stages[2].path};
    struct ringside *connection;
    struct rs_ring real = fake_stages[2].ring;
    static uint8_t elsewhere[64 * 256];

    (void)state;
    fake_stages[2].ring.clients = (struct rs_client *)(void *)elsewhere; /* nonces go where nobody sees */
    int rc = ringside_connect(&connection, &options);
    fake_stages[2].ring.clients = real.clients;
    assert_int_equal(rc, -RINGSIDE_EDENIED);
    assert_non_null(strstr(ringside_explain(NULL), "nonce"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_comes_back_after_a_restart),
        CASE(client_new_ring_needs_a_new_connection),
        CASE(client_truncated_body_is_reported),
        CASE(client_connect_fails_with_a_reason),
        CASE(client_rejects_memory_that_is_not_shared),
    };

    return cmocka_run_group_tests_name("client_connect", tests, NULL, NULL);
}

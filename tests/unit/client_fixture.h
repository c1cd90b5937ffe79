/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of libringside: three workers on rings that no real sidecar serves. */
#ifndef RINGSIDE_TESTS_CLIENT_FIXTURE_H
#define RINGSIDE_TESTS_CLIENT_FIXTURE_H

#include "tests/unit/worker_fixture.h"

#include <dirent.h>

static struct ringside *c; /* worker of stage 2 */
static struct ringside_message message;

static int open_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static int fds_before;

static void start_with(unsigned slots, unsigned cells, unsigned depth)
{
    const struct rs_class_spec classes[] = {{4096, slots}, {65536, 4}};

    fds_before = open_fds();
    fake_start_all(classes, 2, cells, depth);
    a = join(0);
    b = join(1);
    c = join(2);
}

static int start(void **state)
{
    (void)state;
    fake_when_full = RINGSIDE__V1__ROUTE__WHEN_FULL__BLOCK;
    fake_ttl_ns = 0;
    fake_ticket_ttl_ns = 60000 * (uint64_t)MS;
    fake_attempts = 3;
    fake_no_readers = fake_unlinked_peers = fake_forget_sessions = false;
    fake_unlinked_ring = 0;
    memset(fake_meaning, 0, sizeof fake_meaning);
    atomic_store(&after_log, NULL);
    start_with(8, 16, 8);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    ringside_close(a);
    ringside_close(b);
    ringside_close(c);
    for (unsigned i = 0; i < FAKE_STAGES; i++)
        assert_int_equal(fake_count(i, RS_LOANED), 0);
    fake_stop_all();
    assert_int_equal(open_fds(), fds_before);
    return 0;
}

FAKE_UNUSED static void loan_bytes(struct ringside *connection, int64_t bytes)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {bytes}};

    OK(ringside_loan(connection, &tensor, 1, 0, 0, &slot));
}

FAKE_UNUSED static int send_byte(struct ringside *connection, const char *route, uint8_t value)
{
    struct ringside_options none = {.timeout_ns = 0};

    loan_bytes(connection, 1);
    *(uint8_t *)slot.tensors[0].data = value;
    int rc = ringside_send(connection, &slot, route, &none);
    if (rc < 0)
        ringside_abandon(connection, &slot);
    return rc;
}

FAKE_UNUSED static int value_of(const struct ringside_message *from)
{
    return *(const uint8_t *)from->tensors[0].data;
}

FAKE_UNUSED static void take_byte(struct ringside *connection, int value)
{
    OK(ringside_receive(connection, &message, 0));
    assert_int_equal(value_of(&message), value);
    OK(ringside_release(connection, &message));
}

FAKE_UNUSED static void restart(Ringside__V1__Route__WhenFull when_full, unsigned cells,
                                unsigned depth)
{
    ringside_close(a);
    ringside_close(b);
    ringside_close(c);
    fake_stop_all();
    fake_when_full = when_full;
    start_with(8, cells, depth);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

#endif

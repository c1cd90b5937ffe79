/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of calls: a caller and a callee on rings that no real sidecar serves. */
#ifndef RINGSIDE_TESTS_CALL_FIXTURE_H
#define RINGSIDE_TESTS_CALL_FIXTURE_H

#include "tests/unit/worker_fixture.h"

#define LONG (20000 * MS) /* never reached when all is well */

FAKE_UNUSED static struct ringside_message request;
static struct ringside_message reply;
static struct ringside_call call;

static int start(void **state)
{
    const struct rs_class_spec classes[] = {{4096, 80}, {65536, 4}};

    (void)state;
    fake_ttl_ns = 0;
    fake_start_all(classes, 2, 128, 100);
    a = join(0);
    b = join(1);
    return 0;
}

static void assert_all_free(void)
{
    for (unsigned i = 0; i < FAKE_STAGES; i++)
        assert_int_equal(fake_count(i, RS_FREE), 84);
}

static int stop(void **state)
{
    (void)state;
    ringside_close(a);
    ringside_close(b);
    assert_all_free();
    fake_stop_all();
    return 0;
}

static void loan(struct ringside *worker, uint32_t value)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT32, .rank = 1, .shape = {16}};

    OK(ringside_loan(worker, &tensor, 1, 0, LONG, &slot));
    *(uint32_t *)slot.tensors[0].data = value;
}

FAKE_UNUSED static uint32_t value_of(const struct ringside_message *message)
{
    return *(const uint32_t *)message->tensors[0].data;
}

static void begin(const char *method, uint32_t value, const struct ringside_options *options,
                  struct ringside_call *into)
{
    loan(a, value);
    OK(ringside_call(a, &slot, "1", method, options, into));
}

FAKE_UNUSED static void answer(struct ringside_message *to, uint32_t value, int last)
{
    loan(b, value);
    OK(ringside_reply(b, to, &slot, NULL, last));
}

static int wait_reply(int64_t timeout_ns)
{
    return ringside_call_wait(a, &call, &reply, timeout_ns);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

#endif

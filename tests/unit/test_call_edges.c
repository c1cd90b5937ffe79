/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of libringside at their edges: in a child that was forked off in the middle of one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/c/ringside.h"
#include "proto/repair.h"
#include "tests/unit/fake_sidecar.h"

#define LONG INT64_C(20000000000) /* never reached when all is well */

static struct ringside *a, *b; /* workers of stages 0 and 1 */
static struct ringside_slot slot;
static struct ringside_message request, reply;
static struct ringside_call call;

#define OK(expression)                                                         \
    do {                                                                       \
        int ok_ = (expression);                                                \
        if (ok_ < 0)                                                           \
            fail_msg("%s: %s: %s / %s", #expression, ringside_error_name(ok_), \
                     ringside_explain(a), ringside_explain(b));                \
    } while (0)

static struct ringside *join(unsigned stage)
{
    struct ringside_connect_options options = {.socket = fake_stages[stage].path, .name = "test"};
    struct ringside *connection = NULL;

    if (ringside_connect(&connection, &options) != 0)
        fail_msg("%s", ringside_explain(NULL));
    return connection;
}

static int start(void **state)
{
    const struct rs_class_spec classes[] = {{4096, 16}};

    (void)state;
    fake_start_all(classes, 1, 32, 16);
    a = join(0);
    b = join(1);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    ringside_close(a);
    ringside_close(b);
    for (unsigned i = 0; i < FAKE_STAGES; i++)
        assert_int_equal(fake_count(i, RS_FREE), 16);
    fake_stop_all();
    return 0;
}

static void loan(struct ringside *worker)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};

    OK(ringside_loan(worker, &tensor, 1, 16, LONG, &slot));
}

static void begin(void)
{
    loan(a);
    OK(ringside_call(a, &slot, "1", "m", NULL, &call));
    OK(ringside_receive(b, &request, LONG));
}

/* Bits of what did not say so. */
static int what_is_not_refused(void)
{
    const int codes[] = {
        ringside_cancelled(b, &request),
        ringside_reply(b, &request, &slot, NULL, 1),
        ringside_reply_error(b, &request, 3, "text"),
        ringside_nack(b, &request),
        ringside_release(b, &request),
        ringside_call(a, &slot, "1", "m", NULL, &call),
        ringside_call_cancel(a, &call),
        ringside_call_wait(a, &call, &reply, 0),
    };
    int bits = 0;

    for (unsigned i = 0; i < sizeof codes / sizeof codes[0]; i++)
        bits |= (codes[i] != -RINGSIDE_EFORKED) << i;
    return bits;
}

static void forked_child_of_caller_and_callee_is_told(void **state)
{
    int status;

    (void)state;
    begin();
    loan(b);
    pid_t child = fork();
    if (child == 0)
        _exit(what_is_not_refused());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    OK(ringside_reply(b, &request, &slot, NULL, 1)); /* the parent goes on */
    OK(ringside_release(b, &request));
    assert_int_equal(ringside_call_wait(a, &call, &reply, LONG), 0);
    OK(ringside_release(a, &reply));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(forked_child_of_caller_and_callee_is_told, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

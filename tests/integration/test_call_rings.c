/* SPDX-License-Identifier: Apache-2.0 */
/* A stage that is called comes back with a new ring: the old one is given back, but not while a
 * call in it is awaited. */
#include <stdbool.h>
#include <string.h>

#define STAGES 2
#include "tests/integration/daemons.h"

static struct ringside *caller;
static struct ringside_slot slot;
static struct ringside_message request, reply;

#define OK(expression)                                                    \
    do {                                                                  \
        int ok_ = (expression);                                           \
        if (ok_ < 0)                                                      \
            fail_msg("%s: %s: %s", #expression, ringside_error_name(ok_), \
                     ringside_explain(caller));                           \
    } while (0)

static int start(void **state)
{
    (void)state;
    start_callers(16, "debug", "error");
    caller = join(0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    ringside_close(caller);
    return end_daemons();
}

/* ---- callees in processes of their own, which hold no mapping of this one ---- */

static void loan(struct ringside *worker, uint8_t value)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};

    OK(ringside_loan(worker, &tensor, 1, 16, LONG, &slot));
    *(uint8_t *)slot.tensors[0].data = value;
}

struct callee {
    pid_t pid;
    int told, tells; /* pipes: a byte to answer with, or nothing; a byte when it has a call */
};

static void serve(int told, int tells)
{
    char byte = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct ringside *worker = join(1);
    (void)!write(tells, "x", 1);
    while (ringside_receive(worker, &request, RINGSIDE_FOREVER) == 0) {
        (void)!write(tells, "x", 1);
        (void)!read(told, &byte, 1);
        loan(worker, (uint8_t)byte);
        if (ringside_reply(worker, &request, &slot, NULL, 1) < 0)
            (void)ringside_abandon(worker, &slot);
        (void)ringside_release(worker, &request);
    }
    _exit(0);
}

static void expect(const struct callee *callee)
{
    char byte;

    assert_int_equal(read(callee->tells, &byte, 1), 1);
}

/* At once: it answers all calls with 0, as it is told nothing. */
static struct callee start_callee(bool at_once)
{
    int told[2], tells[2];

    assert_int_equal(pipe(told), 0);
    assert_int_equal(pipe(tells), 0);
    struct callee callee = {.pid = fork(), .told = told[1], .tells = tells[0]};
    if (callee.pid == 0) {
        close(told[1]);
        serve(told[0], tells[1]);
    }
    close(told[0]);
    close(tells[1]);
    if (at_once) {
        close(callee.told);
        callee.told = -1;
    }
    expect(&callee);
    return callee;
}

static void end_callee(const struct callee *callee)
{
    kill(callee->pid, SIGKILL);
    assert_int_equal(waitpid(callee->pid, NULL, 0), callee->pid);
    if (callee->told >= 0)
        close(callee->told);
    close(callee->tells);
}

/* ---- calls ---- */

/* Once the sidecars have found each other. */
static int begin(struct ringside_call *call)
{
    int64_t give_up_ns = now_ns() + LONG;
    int rc;

    do {
        loan(caller, 0);
        rc = ringside_call(caller, &slot, "next", "m", NULL, call);
        if (rc < 0)
            OK(ringside_abandon(caller, &slot));
    } while (rc == -RINGSIDE_EUNAVAILABLE && now_ns() < give_up_ns);
    return rc;
}

static void finish(struct ringside_call *call, char value)
{
    OK(ringside_call_wait(caller, call, &reply, LONG));
    assert_int_equal(*(const char *)reply.tensors[0].data, value);
    OK(ringside_release(caller, &reply));
}

/* The new ring may not be known yet, and what was sent before goes to nobody. */
static void call_the_new_ring(void)
{
    int64_t give_up_ns = now_ns() + LONG;
    struct ringside_call call = {0};

    for (;;) {
        if (begin(&call) == 0 && ringside_call_wait(caller, &call, &reply, 1000 * MS) == 0)
            break;
        OK(ringside_call_cancel(caller, &call));
        assert_true(now_ns() < give_up_ns);
    }
    OK(ringside_release(caller, &reply));
}

static bool has_old_body(void)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        found |= strstr(line, "s1.body") != NULL && strstr(line, "(deleted)") != NULL;
    fclose(maps);
    return found;
}

/* A caller that waits looks about itself each second at the latest. */
static void wait_in_vain(struct ringside_call *call, int64_t timeout_ns)
{
    assert_int_equal(ringside_call_wait(caller, call, &reply, timeout_ns), -RINGSIDE_ETIMEOUT);
}

/* Without its files, as in a container that was made anew. */
static void restart_the_callees_stage(void)
{
    char command[128];

    end_daemon(1, SIGKILL);
    snprintf(command, sizeof command, "rm %s/ring/s1.*", directory);
    assert_int_equal(system(command), 0);
    start_daemon(1);
}

static void ring_of_a_stage_that_is_only_called_is_given_back(void **state)
{
    struct ringside_call call;

    (void)state;
    struct callee old = start_callee(true);
    OK(begin(&call));
    finish(&call, 0);
    end_callee(&old);
    restart_the_callees_stage();
    struct callee new = start_callee(true);
    call_the_new_ring();
    assert_int_equal(kill(new.pid, SIGSTOP), 0);
    OK(begin(&call));
    for (int64_t give_up_ns = now_ns() + LONG; has_old_body();) {
        assert_true(now_ns() < give_up_ns);
        wait_in_vain(&call, 100 * MS);
    }
    assert_int_equal(kill(new.pid, SIGCONT), 0);
    finish(&call, 0);
    end_callee(&new);
}

static void ring_in_which_a_reply_is_awaited_is_kept(void **state)
{
    struct ringside_call call;

    (void)state;
    struct callee old = start_callee(false);
    OK(begin(&call));
    expect(&old);
    restart_the_callees_stage();
    struct callee new = start_callee(true);
    call_the_new_ring();
    wait_in_vain(&call, 2500 * MS);
    assert_true(has_old_body());
    assert_int_equal(write(old.told, "a", 1), 1);
    finish(&call, 'a');
    end_callee(&old);
    end_callee(&new);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ring_of_a_stage_that_is_only_called_is_given_back, start,
                                        stop),
        cmocka_unit_test_setup_teardown(ring_in_which_a_reply_is_awaited_is_kept, start, stop),
    };

    if (getenv("RINGSIDE_PROXY") == NULL) {
        fprintf(stderr, "RINGSIDE_PROXY does not name the sidecar\n");
        return 1;
    }
    return cmocka_run_group_tests_name("call_rings", tests, NULL, NULL);
}

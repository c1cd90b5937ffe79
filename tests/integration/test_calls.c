/* SPDX-License-Identifier: Apache-2.0 */
/* Calls between two stages with real sidecars: whoever dies or restarts, nobody waits for nothing
 * and nothing leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STAGES 2
#include "tests/integration/daemons.h"

#define SLOTS  16
#define SOON   (5000 * MS)  /* in which a death is known */

static struct ringside *caller, *callee; /* in this process, of stages 0 and 1 */
static struct ringside_slot slot;
static struct ringside_message message, reply;
static struct ringside_call call;

#define OK(expression)                                                         \
    do {                                                                       \
        int ok_ = (expression);                                                \
        if (ok_ < 0)                                                           \
            fail_msg("%s: %s: %s / %s", #expression, ringside_error_name(ok_), \
                     ringside_explain(caller), ringside_explain(callee));      \
    } while (0)

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- sidecars ---- */

static int start(void **state)
{
    (void)state;
    start_callers(SLOTS, "debug", "block");
    caller = join(0);
    callee = join(1);
    return 0;
}

static void loan(struct ringside *worker, uint32_t value)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT32, .rank = 1, .shape = {1}};

    OK(ringside_loan(worker, &tensor, 1, 16, LONG, &slot));
    *(uint32_t *)slot.tensors[0].data = value;
}

/* All slots of a ring can be loaned at once, soon. */
static void assert_nothing_leaked(struct ringside *worker)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 0};
    struct ringside_slot all[SLOTS];
    int rc = 0, count;

    for (count = 0; count < SLOTS && rc == 0; count++)
        rc = ringside_loan(worker, &tensor, 1, 0, SOON, &all[count]);
    if (rc < 0)
        fail_msg("stage %s: slot %d of %d: %s", ringside_stage(worker), count, SLOTS,
                 ringside_explain(worker));
    while (count > 0)
        OK(ringside_abandon(worker, &all[--count]));
}

static int stop(void **state)
{
    (void)state;
    assert_nothing_leaked(caller);
    assert_nothing_leaked(callee);
    ringside_close(caller);
    ringside_close(callee);
    return end_daemons();
}

static uint32_t value_of(const struct ringside_message *of)
{
    return *(const uint32_t *)of->tensors[0].data;
}

static void begin(uint32_t value, const struct ringside_options *options)
{
    static const struct ringside_options none = {.timeout_ns = LONG};

    loan(caller, value);
    OK(ringside_call(caller, &slot, "next", "method", options != NULL ? options : &none, &call));
}

static void answer(struct ringside_message *to, uint32_t value, int last)
{
    loan(callee, value);
    OK(ringside_reply(callee, to, &slot, NULL, last));
}

static void receive(void)
{
    OK(ringside_receive(callee, &message, LONG));
}

/* ---- workers that die ---- */

/* Another worker of a stage: does its work, says so, and waits to be killed. */
static pid_t victim(int stage, void (*work)(struct ringside *worker))
{
    int pipes[2];
    char byte;

    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(join(stage));
        (void)!write(pipes[1], "x", 1);
        for (;;)
            pause();
    }
    assert_true(pid > 0);
    close(pipes[1]);
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    close(pipes[0]);
    return pid;
}

static void end(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

static void take_only(struct ringside *worker)
{
    OK(ringside_receive(worker, &message, LONG));
}

static void take_and_reply_twice(struct ringside *worker)
{
    callee = worker;
    take_only(worker);
    answer(&message, 1, 0);
    answer(&message, 2, 0);
}

static void take_and_answer(struct ringside *worker)
{
    callee = worker;
    take_only(worker);
    answer(&message, 3, 1);
}

static void call_only(struct ringside *worker)
{
    caller = worker;
    begin(5, &(struct ringside_options){.credits = 2, .timeout_ns = LONG});
}

static void assert_unavailable(void)
{
    int64_t start_ns = now_ns();

    assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), -RINGSIDE_EUNAVAILABLE);
    assert_true(now_ns() - start_ns < SOON);
    assert_int_equal(call.open, 0);
}

/* ---- cases ---- */

static void calls_between_stages(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        begin(i, NULL);
        receive();
        answer(&message, i + 1, 1);
        OK(ringside_release(callee, &message));
        assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), 0);
        assert_int_equal(value_of(&reply), i + 1);
        OK(ringside_release(caller, &reply));
    }
}

static void calls_to_the_own_stage(void **state)
{
    struct ringside *other = join(1);

    (void)state;
    loan(callee, 1);
    OK(ringside_call(callee, &slot, "next", "method", NULL, &call));
    OK(ringside_receive(other, &message, LONG));
    loan(other, 2);
    OK(ringside_reply(other, &message, &slot, NULL, 1));
    OK(ringside_release(other, &message));
    assert_int_equal(ringside_call_wait(callee, &call, &reply, LONG), 0);
    assert_int_equal(value_of(&reply), 2);
    OK(ringside_release(callee, &reply));
    ringside_close(other);
}

static void callee_dies_with_the_call(void **state)
{
    (void)state;
    begin(1, NULL);
    pid_t pid = victim(1, take_only);
    assert_int_equal(ringside_call_wait(caller, &call, &reply, 0), -RINGSIDE_ETIMEOUT);
    end(pid);
    assert_unavailable();
    assert_int_equal(ringside_receive(callee, &message, 0), -RINGSIDE_ETIMEOUT); /* at most once */
}

static void callee_dies_while_it_streams(void **state)
{
    (void)state;
    begin(1, &(struct ringside_options){.credits = 2, .timeout_ns = LONG});
    end(victim(1, take_and_reply_twice));
    for (uint32_t i = 1; i <= 2; i++) {
        assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), 1);
        assert_int_equal(value_of(&reply), i);
        OK(ringside_release(caller, &reply));
    }
    assert_unavailable();
}

/* What is out stands, whoever dies then. */
static void callee_dies_after_its_answer(void **state)
{
    (void)state;
    begin(1, NULL);
    end(victim(1, take_and_answer));
    pause_ms(100);
    assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), 0);
    assert_int_equal(value_of(&reply), 3);
    OK(ringside_release(caller, &reply));
}

static void caller_dies_before_the_answer(void **state)
{
    (void)state;
    pid_t pid = victim(0, call_only);
    receive();
    assert_int_equal(ringside_cancelled(callee, &message), 0);
    end(pid);
    for (int64_t give_up_ns = now_ns() + SOON; ringside_cancelled(callee, &message) == 0;)
        assert_true(now_ns() < give_up_ns);
    loan(callee, 1);
    assert_int_equal(ringside_reply(callee, &message, &slot, NULL, 1), -RINGSIDE_ECANCELLED);
    OK(ringside_release(callee, &message));
}

static void caller_dies_with_replies(void **state)
{
    (void)state;
    pid_t pid = victim(0, call_only);
    receive();
    answer(&message, 1, 0);
    answer(&message, 2, 0);
    end(pid);
    loan(callee, 3); /* there is no room, and nobody will make any */
    assert_int_equal(ringside_reply(callee, &message, &slot, NULL, 1), -RINGSIDE_ECANCELLED);
    OK(ringside_release(callee, &message));
}

/* Its request waits, is for nobody, and so is dropped: all slots are free in the end though no
 * callee comes. */
static void caller_dies_before_anybody_takes_it(void **state)
{
    (void)state;
    end(victim(0, call_only));
    assert_nothing_leaked(caller);
    assert_int_equal(ringside_receive(callee, &message, 0), -RINGSIDE_ETIMEOUT);
}

static void cancel_reaches_the_callee(void **state)
{
    (void)state;
    begin(1, NULL);
    receive();
    OK(ringside_call_cancel(caller, &call));
    assert_int_equal(ringside_cancelled(callee, &message), 1);
    OK(ringside_release(callee, &message));
}

static void timeout_travels(void **state)
{
    const struct ringside_options options = {.ttl_ns = 30 * MS, .timeout_ns = LONG};

    (void)state;
    begin(1, &options);
    receive();
    assert_int_equal(message.ttl_ns, 30 * MS);
    assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_cancelled(callee, &message), 1);
    OK(ringside_release(callee, &message));
}

/* Both sidecars are killed in the middle of a call and start again: memory is enough for what runs,
 * and what is new finds them. */
static void sidecars_restart_in_the_middle(void **state)
{
    (void)state;
    begin(1, NULL);
    receive();
    for (int i = 0; i < STAGES; i++)
        end_daemon(i, SIGKILL);
    answer(&message, 2, 1);
    OK(ringside_release(callee, &message));
    assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), 0);
    assert_int_equal(value_of(&reply), 2);
    begin(3, NULL); /* the ring of the stage is known */
    for (int i = 0; i < STAGES; i++)
        start_daemon(i);
    receive();
    answer(&message, 4, 1);
    OK(ringside_release(callee, &message));
    OK(ringside_release(caller, &reply));
    assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), 0);
    assert_int_equal(value_of(&reply), 4);
    OK(ringside_release(caller, &reply));
    /* A death after the restart is known as well. */
    begin(1, NULL);
    end(victim(1, take_only));
    assert_unavailable();
}

/* One try, while the callee's stage may not be known to have a new ring. */
static bool try_call(void)
{
    const struct ringside_options options = {.timeout_ns = LONG, .ttl_ns = 500 * MS};

    loan(caller, 7);
    int rc = ringside_call(caller, &slot, "next", "method", &options, &call);
    if (rc < 0) {
        assert_int_equal(rc, -RINGSIDE_EUNAVAILABLE);
        OK(ringside_abandon(caller, &slot));
        return false;
    }
    if (ringside_receive(callee, &message, 300 * MS) < 0) {
        OK(ringside_call_cancel(caller, &call));
        return false;
    }
    loan(callee, value_of(&message) + 1);
    rc = ringside_reply(callee, &message, &slot, NULL, 1);
    OK(ringside_release(callee, &message));
    if (rc == 0)
        return true;
    /* The caller could not hold it: it has no place in this ring yet. */
    assert_int_equal(rc, -RINGSIDE_ECANCELLED);
    assert_unavailable();
    return false;
}

/* The callee's stage comes back with another ring: what was underway is lost, and a new call finds
 * it. */
static void callee_stage_comes_back_anew(void **state)
{
    (void)state;
    begin(1, NULL);
    receive();
    answer(&message, 2, 1);
    OK(ringside_release(callee, &message));
    assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), 0);
    OK(ringside_release(caller, &reply));
    ringside_close(callee);
    end_daemon(1, SIGTERM);
    start_daemon(1);
    callee = join(1);
    for (int64_t give_up_ns = now_ns() + LONG; !try_call();)
        assert_true(now_ns() < give_up_ns);
    assert_int_equal(ringside_call_wait(caller, &call, &reply, LONG), 0);
    assert_int_equal(value_of(&reply), 8);
    OK(ringside_release(caller, &reply));
}

/* ---- many at once, and deaths among them ---- */

static void serve_for_ever(struct ringside *worker)
{
    pid_t pid = fork(); /* a connection of the child's own */

    if (pid != 0) {
        ringside_close(worker);
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    callee = join(1);
    for (uint32_t count = 0;; count++) {
        take_only(callee);
        if (count % 50 == 49)
            raise(SIGKILL); /* with the call in its hands */
        answer(&message, value_of(&message) + 1, 1);
        OK(ringside_release(callee, &message));
    }
}

static void callees_die_all_the_time(void **state)
{
    unsigned answered = 0, lost = 0;

    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        pid_t servers[2];

        for (int i = 0; i < 2; i++)
            servers[i] = victim(1, serve_for_ever);
        for (unsigned i = 0; i < 120; i++) {
            begin(i, &(struct ringside_options){.ttl_ns = 300 * MS, .timeout_ns = LONG});
            int rc = ringside_call_wait(caller, &call, &reply, LONG);
            if (rc == 0) {
                assert_int_equal(value_of(&reply), i + 1);
                OK(ringside_release(caller, &reply));
                answered++;
            } else {
                /* None is left to take it, or its callee died. */
                assert_true(rc == -RINGSIDE_EUNAVAILABLE || rc == -RINGSIDE_ETIMEOUT);
                lost++;
                if (rc == -RINGSIDE_ETIMEOUT)
                    break;
            }
        }
        for (int i = 0; i < 2; i++)
            end(servers[i]);
    }
    assert_true(answered >= 6 * 90);
    assert_true(lost >= 6);
    while (ringside_receive(callee, &message, 10 * MS) == 0)
        OK(ringside_release(callee, &message));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(calls_between_stages),           CASE(calls_to_the_own_stage),
        CASE(callee_dies_with_the_call),      CASE(callee_dies_while_it_streams),
        CASE(callee_dies_after_its_answer),   CASE(caller_dies_before_the_answer),
        CASE(caller_dies_with_replies),       CASE(caller_dies_before_anybody_takes_it),
        CASE(cancel_reaches_the_callee),      CASE(timeout_travels),
        CASE(sidecars_restart_in_the_middle), CASE(callee_stage_comes_back_anew),
        CASE(callees_die_all_the_time),
    };

    if (getenv("RINGSIDE_PROXY") == NULL) {
        fprintf(stderr, "RINGSIDE_PROXY does not name the sidecar\n");
        return 1;
    }
    return cmocka_run_group_tests_name("calls", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/wait.c: arming, waking by futex and eventfd, and no lost wake-up in many rounds. */
#include "tests/unit/slots_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>

static void nobody_armed_is_not_touched(void **state)
{
    rs_word32 word = 40;

    (void)state;
    rs_wait_wake(&word, -1);
    assert_int_equal(rs_load_relaxed(&word), 40);
}

static void arming_twice_keeps_the_sequence(void **state)
{
    rs_word32 word = 40;

    (void)state;
    assert_int_equal(rs_wait_arm(&word, RS_WAIT_FUTEX), 41);
    assert_int_equal(rs_wait_arm(&word, RS_WAIT_FUTEX), 41);
    assert_int_equal(rs_wait_arm(&word, RS_WAIT_EVENT), 43);
    rs_wait_wake(&word, -1);
    assert_int_equal(rs_load_relaxed(&word), 44);
}

static void event_is_written_only_when_armed(void **state)
{
    rs_word32 word = 0;
    uint64_t value;
    int event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    (void)state;
    rs_wait_arm(&word, RS_WAIT_FUTEX);
    rs_wait_wake(&word, event_fd);
    assert_int_equal(read(event_fd, &value, sizeof value), -1);
    rs_wait_arm(&word, RS_WAIT_EVENT);
    rs_wait_wake(&word, event_fd);
    assert_int_equal(read(event_fd, &value, sizeof value), sizeof value);
    close(event_fd);
}

static void saturated_event_counter_does_not_block(void **state)
{
    rs_word32 word = 0;
    uint64_t most = UINT64_MAX - 1, value;
    int event_fd = eventfd(0, EFD_CLOEXEC); /* whoever shares it may have made it block */

    (void)state;
    assert_int_equal(write(event_fd, &most, sizeof most), sizeof most);
    rs_wait_arm(&word, RS_WAIT_EVENT);
    rs_wait_wake(&word, event_fd);
    assert_int_equal(read(event_fd, &value, sizeof value), sizeof value);
    assert_true(value == most);
    close(event_fd);
}

static void sleep_returns_at_once_when_the_word_moved(void **state)
{
    rs_word32 word = 0;
    uint32_t armed = rs_wait_arm(&word, RS_WAIT_FUTEX);

    (void)state;
    rs_wait_wake(&word, -1);
    rs_wait_sleep(&word, armed, -1);
    assert_int_not_equal(rs_load_relaxed(&word), armed);
}

/* Two threads hand a counter to and fro, each asleep while it is the other's turn: a lost wake-up would cost a second. */
#define ROUNDS 100000
static rs_word turn;
static rs_word32 words[2];

static void await_turn(unsigned side, uint64_t wanted)
{
    while (rs_load_seq_cst(&turn) != wanted) {
        uint32_t armed = rs_wait_arm(&words[side], RS_WAIT_FUTEX);

        if (rs_load_seq_cst(&turn) != wanted)
            rs_wait_sleep(&words[side], armed, -1);
    }
}

static void *other_side(void *data)
{
    (void)data;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        await_turn(1, 2 * i + 1);
        rs_exchange_seq_cst(&turn, 2 * i + 2);
        rs_wait_wake(&words[0], -1);
    }
    return NULL;
}

static void no_wake_up_is_lost(void **state)
{
    pthread_t thread;
    int64_t longest = 0;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, other_side, NULL), 0);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        int64_t start = rs_now_ns();

        rs_exchange_seq_cst(&turn, 2 * i + 1);
        rs_wait_wake(&words[1], -1);
        await_turn(0, 2 * i + 2);
        if (rs_now_ns() - start > longest)
            longest = rs_now_ns() - start;
    }
    pthread_join(thread, NULL);
    print_message("longest round: %lld us\n", (long long)longest / 1000);
    assert_int_equal(rs_load_relaxed(&turn), 2 * ROUNDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_armed_is_not_touched),
        cmocka_unit_test(arming_twice_keeps_the_sequence),
        cmocka_unit_test(event_is_written_only_when_armed),
        cmocka_unit_test(saturated_event_counter_does_not_block),
        cmocka_unit_test(sleep_returns_at_once_when_the_word_moved),
        cmocka_unit_test(no_wake_up_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

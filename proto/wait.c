/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping on a wait word by futex or eventfd, and waking whoever armed it. */
#include "proto/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/failpoint.h"
#include "proto/ring_layout.h"

static long futex(rs_word32 *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t rs_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t rs_now_coarse_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

uint32_t rs_wait_arm(rs_word32 *word, uint32_t bits)
{
    uint32_t value = rs_load_relaxed(word);

    /* An RMW also when the bits are set already: the sleeper's half of the Dekker pair. */
    while (!rs_cas_seq_cst(word, &value, value | bits))
        ;
    RS_FAILPOINT(wait_armed);
    return value | bits;
}

void rs_wait_sleep(rs_word32 *word, uint32_t armed, int64_t timeout_ns)
{
    struct timespec timeout;

    if (timeout_ns < 0 || timeout_ns > RS_WAIT_SLICE_NS)
        timeout_ns = RS_WAIT_SLICE_NS;
    timeout.tv_sec = timeout_ns / 1000000000;
    timeout.tv_nsec = timeout_ns % 1000000000;
    (void)futex(word, FUTEX_WAIT, armed, &timeout);
}

void rs_event_write(int event_fd)
{
    const uint64_t one = 1;
    struct pollfd ready = {.fd = event_fd, .events = POLLOUT};

    /* A full counter is readable all the same. All who have the descriptor share its flags, so anybody may have made it
     * one that blocks: it is written only when it has room. */
    if (event_fd < 0 || poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0)
        return;
    ssize_t written = write(event_fd, &one, sizeof one);
    (void)written;
}

static void wake(rs_word32 *word, uint32_t armed, int event_fd)
{
    if (armed & RS_WAIT_EVENT)
        rs_event_write(event_fd);
    if (armed & RS_WAIT_FUTEX)
        (void)futex(word, FUTEX_WAKE, INT_MAX, NULL);
}

void rs_wait_wake(rs_word32 *word, int event_fd)
{
    uint32_t value = rs_load_seq_cst(word);

    /* The CAS fails when another waker was first (then nothing is armed), or when a second sleeper armed its bit: that
     * one looks again, but may wait for something else than the first, so the first is woken all the same. */
    while ((value & RS_WAIT_ARMED) != 0) {
        RS_FAILPOINT(wake_before);
        if (rs_cas_seq_cst(word, &value, (value + RS_WAIT_STEP) & ~RS_WAIT_ARMED)) {
            RS_FAILPOINT(wake_cleared);
            wake(word, value, event_fd);
            return;
        }
    }
}

void rs_wait_wake_all(rs_word32 *word, int event_fd)
{
    uint32_t value = rs_load_relaxed(word);

    while (!rs_cas_seq_cst(word, &value, (value + RS_WAIT_STEP) & ~RS_WAIT_ARMED))
        ;
    RS_FAILPOINT(wake_all);
    wake(word, RS_WAIT_ARMED, event_fd);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping on a wait word by futex or eventfd, and waking whoever armed it. */
#ifndef RINGSIDE_PROTO_WAIT_H
#define RINGSIDE_PROTO_WAIT_H

#include "proto/atomic.h"

#define RS_WAIT_SLICE_NS 1000000000 /* nobody sleeps longer without looking again */

/* Sets the bits (RS_WAIT_FUTEX and/or RS_WAIT_EVENT) and returns the word as armed. The caller must look again with a
 * whole look (take, loan, room) before it sleeps. */
uint32_t rs_wait_arm(rs_word32 *word, uint32_t bits);

/* Sleeps while *word == armed, at most min(timeout_ns, 1 s). Spurious returns are normal. */
void rs_wait_sleep(rs_word32 *word, uint32_t armed, int64_t timeout_ns);

/* After a change that a sleeper may wait for (made by a seq_cst read-modify-write). One load when nobody is armed.
 * event_fd is the eventfd of those who armed the event bit, or -1. */
void rs_wait_wake(rs_word32 *word, int event_fd);

/* Wakes every sleeper whether armed or not (after a death). */
void rs_wait_wake_all(rs_word32 *word, int event_fd);

/* Makes an eventfd readable; -1 is allowed. */
void rs_event_write(int event_fd);

int64_t rs_now_ns(void);        /* CLOCK_MONOTONIC */
int64_t rs_now_coarse_ns(void); /* the same clock at its last tick: a few ms behind, a few ns to read */

#endif

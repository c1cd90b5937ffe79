/* SPDX-License-Identifier: Apache-2.0 */
/* What processes do in scenarios, and what must hold at the end. Each act is the running thread's.
 */
#ifndef RINGSIDE_TESTS_WEAK_ACTS_H
#define RINGSIDE_TESTS_WEAK_ACTS_H

#include "fixture.h"

/* Notes that threads keep. */
enum note { RECEIVED, SENT, DROPPED, READ, ENDED };

/* The process of the running thread. */
struct process *me(void);

/* ---- producing, by way of the first inbox ---- */

/* Writes and seals a message in a loaned slot. */
void seal_message(const struct rs_loan *loan, unsigned flags, uint64_t readers);
bool loan_and_seal(struct rs_loan *loan);
void publish(void);
/* The same in the slot with the thread's own number, which setup has loaned to it. Returns what the
 * push said. */
int publish_loaned(void);
/* Takes a slot for a new message, of which only the body matters. */
void reuse(void);
void loan_hinted(void);
void loan_asleep(void);
void wait_for_room(void);

/* ---- consuming ---- */

bool look(struct rs_inbox *inbox, struct rs_lease *lease);
void read_and_release(const struct rs_lease *lease);
/* What a lease of that word would be; setup has made it HELD by this thread's client. */
struct rs_lease lease_on(unsigned delivery);
void take(void);
void take_twice(void);
void take_reuse(void);
void take_from_next(void);
/* Whatever it says of the hints. */
void take_any(void);
/* Waits as libringside does: by futex, by event 1. */
void sleep_and_take(void);
void poll_and_take(void);
void release_0(void);
void release_1(void);
void release_0_reuse(void);

/* ---- the ring's sidecar, in memory of its own thread ---- */

struct sidecar {
    struct rs_repair repair;
    uint64_t suspect[4];
};

void start_sidecar(struct sidecar *sidecar);
void audit_all(struct sidecar *sidecar);
void sweep_all(struct sidecar *sidecar, unsigned reader); /* of DEAD_CLIENT */
void audit(void);
void sweep_and_audit(void);

/* ---- what must hold at the end ---- */

uint64_t noted(enum note note); /* by all threads */
unsigned drain(struct rs_inbox *inbox);
void all_awake(void);
/* So many messages came, or are there for a consumer that looks now. */
void all_delivered(uint64_t messages);
/* Every slot is FREE and found by its bit, but those that a thread has loaned. */
void all_free(void);
void freed(void);       /* all_awake, all_free */
void delivered_1(void); /* all_awake, all_delivered */
void delivered_2(void);
void well_1(void); /* all three */
void well_2(void);
void well_as_sent(void);

/* ---- where it begins ---- */

void one_slot(void);   /* one FREE slot, two cells */
void one_loan(void);   /* loaned by thread 0 */
void one_holder(void); /* its message is held by thread 0 under the first word */

#endif

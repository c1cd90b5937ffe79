/* SPDX-License-Identifier: Apache-2.0 */
/* What the roles of a chaos worker share: the connection, the ledger, and what a fault explains. */
#ifndef RINGSIDE_TESTS_CHAOS_WORKER_H
#define RINGSIDE_TESTS_CHAOS_WORKER_H

#include "client/c/ringside.h"
#include "tests/chaos/ledger.h"

#define MS INT64_C(1000000)
#define TIMEOUT_NS \
    (100 * MS)  /* of one call: the beat comes at least that often while nothing happens */
#define BATCH 4 /* messages taken at once, at most LEDGER_HELD */

extern struct ringside *connection;
extern struct ledger *ledger;
extern struct ledger_worker *self; /* its line */

uint64_t now_ns(void);
void beat(void);
uint64_t draw(uint64_t below);
void tell(const char *what, const char *why);
void corrupt(const char *what, const char *why);
/* Whether rc is an error; one that none of the faults explains is told and counted. */
bool failed(const char *what, int rc);
/* Until the driver closes stdin. */
bool goes_on(void);
/* Where a death would show, and would be rare. */
void linger(void);
void note_held(unsigned place, uint64_t id);
/* Its id, or 0 when its body is none: counted. */
uint64_t check(const struct ringside_message *message);
int loan(struct ringside_slot *slot, uint64_t bytes, int64_t timeout_ns);
uint64_t some_bytes(void);

/* Keeps some calls in flight, begins others when `more`. */
void caller_step(bool more);
void callee_step(void);

/* What a caller asks for: "one" reply, "many", or that its callee "refuse". */
#define REPLIES_MAX 6
#define REFUSAL     "call %llu is refused"
static inline unsigned replies_to(const char *method, uint64_t id)
{
    return method[0] == 'm' ? 1 + (unsigned)(id % REPLIES_MAX) : 1;
}

/* Whose body the reply has. */
static inline uint64_t reply_id(uint64_t id, unsigned number)
{
    return id | (uint64_t)number << 48;
}

#endif

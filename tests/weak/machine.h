/* SPDX-License-Identifier: Apache-2.0 */
/* A machine with weak memory that runs threads of real code through every execution. README.md has
 * the model. */
#ifndef RINGSIDE_TESTS_WEAK_MACHINE_H
#define RINGSIDE_TESTS_WEAK_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/atomic.h"

#define WEAK_THREADS 4
#define WEAK_BODIES  4
#define WEAK_NOTES   8

/* What is run. Everything that a thread changes must be its own local variables, or words changed
 * through the macros of atomic.h, or one of the notes below; all else stays as setup left it. */
struct weak_scenario {
    const char *name;
    const char *what;                   /* one line */
    void (*setup)(void);                /* before each run; plain memory, one thread */
    void (*thread[WEAK_THREADS])(void); /* NULL: fewer */
    void (*check)(void); /* at the end of each execution, or NULL; sees the newest values */
    bool deep;           /* only with --deep */
};

enum weak_model {
    WEAK_C20, /* the default */
    WEAK_C17, /* a seq_cst load does not bind later seq_cst loads of another thread */
    WEAK_SC   /* every access is sequentially consistent: no weak memory, all interleavings */
};

enum weak_accesses { WEAK_ALL, WEAK_LOADS, WEAK_SWAPS };

/* A fault to be shown: the accesses of `function` whose address text contains `what` (NULL: all)
 * get `order` where it is weaker than their own. */
struct weak_mutation {
    const char *name;
    const char *scenario;
    const char *function;
    const char *what;
    enum weak_accesses which;
    enum weak_order order;
    const char *holds; /* why it is no fault, or NULL */
    int mutant;        /* number in mutate.py, without a function; else 0 */
};

struct weak_result {
    uint64_t states;     /* partial executions */
    uint64_t executions; /* complete ones, all different */
    unsigned shared;     /* words on which threads meet */
    bool failed;         /* something was found; it has been printed when `verbose` */
    bool mutated;        /* an access was weakened, or a mutant was reached */
    bool exhausted;      /* the budget of states was used up */
    char text[160];      /* what was found */
};

/* Runs a scenario through all executions or up to that many states; stops at the first fault. */
void weak_run(const struct weak_scenario *scenario, enum weak_model model,
              const struct weak_mutation *mutation, uint64_t budget, bool verbose,
              struct weak_result *result);

/* ---- for scenarios ---- */

/* The running thread, 0..3; in check another number. */
unsigned weak_thread(void);
/* A note of the running thread (in check: of any): kept per execution. */
void weak_note(unsigned index, uint64_t value);
uint64_t weak_noted(unsigned thread, unsigned index);
/* Whether a thread sleeps for ever at the end. */
bool weak_asleep(unsigned thread);
/* Says that the execution is wrong; in a thread it does not return. */
void weak_fail(const char *text);
#define weak_require(condition, text) ((condition) ? (void)0 : weak_fail(text))

/* Bytes of a body, as plain accesses: reported when not ordered with another's write, or when not
 * of that generation. */
void weak_body_write(uint32_t slot, uint32_t generation);
void weak_body_read(uint32_t slot, uint32_t generation);

/* Event `fd`, 0..3, as an eventfd: written by rs_event_write. */
void weak_event_clear(int fd);
void weak_event_wait(int fd);

/* Names a word for the printed interleaving. */
void weak_name(const volatile void *address, const char *name, unsigned index);

#endif

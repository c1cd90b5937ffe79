/* SPDX-License-Identifier: Apache-2.0 */
/* State of the machine, shared by the memory (memory.c) and the search (search.c). */
#ifndef RINGSIDE_TESTS_WEAK_PRIVATE_H
#define RINGSIDE_TESTS_WEAK_PRIVATE_H

#include <setjmp.h>

#include "machine.h"

#define SHARED   48           /* words on which threads meet */
#define MESSAGES 48           /* stores to one word in one execution */
#define DEPTH    1000         /* steps of one execution */
#define ORDERED  192          /* seq_cst events of one execution */
#define CHECKER  WEAK_THREADS /* the number under which `check` runs */
#define SWAP     255          /* choice: the compare-and-swap succeeds */

/* What a thread knows: of each shared word the oldest message that it may still read, of each
 * thread how far it has been seen (happens-before). */
struct view {
    uint8_t seen[SHARED];
    uint8_t clock[WEAK_THREADS + 1];
};

struct message {
    uint64_t value;
    uint64_t id;      /* of the storing event; 0: what setup left */
    struct view view; /* what an acquiring reader learns */
};

struct location {
    const volatile void *address; /* NULL: unused entry */
    const char *name;             /* a format for name_index, or NULL */
    unsigned name_index;
    unsigned bytes;          /* 4 or 8 */
    int index;               /* in views; -1 while threads do not meet here */
    unsigned users, writers; /* bits of threads, over all executions */
    unsigned count;          /* of the history, in order of modification */
    struct message history[MESSAGES];
};

struct operation {
    const struct weak_site *site;
    struct location *at;
    enum weak_order order;
    uint64_t value, expected, result;
    bool won;
};

enum status { READY, ASLEEP, WOKEN, DONE };

struct thread {
    jmp_buf context;
    char *low; /* lowest stack address in use */
    enum status status;
    struct operation operation; /* next step when READY; the last one else */
    struct view view;
    uint64_t notes[WEAK_NOTES];
};

struct body {
    uint32_t generation;
    unsigned writer;
    uint8_t written, read[WEAK_THREADS + 1]; /* clocks */
};

struct set {
    uint64_t bits[ORDERED / 64];
};

/* A seq_cst event. All of them must fit into one total order; `before` is what the order is known
 * to put first. */
struct ordered {
    uint8_t thread, clock, index,
        message; /* index of the word in views; the message read or written */
    bool writes;
    struct set before;
};

/* All that a step may change, but stacks and histories. */
struct machine {
    struct thread threads[WEAK_THREADS + 1];
    struct body bodies[WEAK_BODIES];
    uint64_t
        hash; /* of the execution so far: same events, same sources, same orders of modification */
    unsigned log_length, depth, ordered_count;
    struct ordered ordered[ORDERED];
};

struct engine {
    const struct weak_scenario *scenario;
    const struct weak_mutation *mutation;
    struct weak_result *result;
    enum weak_model model;
    enum { PLAIN, THREADS, CHECK } phase;
    bool verbose, restart;
    unsigned current; /* running thread */
    uint64_t budget, *visited, mask, stored, salt;
    jmp_buf home;
};

extern struct machine machine;
extern struct engine engine;

_Noreturn void die(const char *text);
/* Finds the word, and its value of after setup when it is new. bytes 0: only the entry. */
struct location *locate(const volatile void *address, unsigned bytes);
/* Forgets all histories. */
void forget_histories(void);
const struct message *newest(const struct location *at);
uint64_t mix(uint64_t a, uint64_t b);
struct thread *running(void);
/* The messages that a thread's next step may read, newest first, or SWAP. Returns how many; 0: it
 * cannot run. */
unsigned choices(const struct thread *thread, uint8_t *choice);
/* What a store or read-modify-write leaves. */
uint64_t modified(enum weak_kind kind, uint64_t old, uint64_t value);
/* Does the operation as the running thread. */
void perform(struct operation *op, unsigned choice);
/* What a step must save, and back. */
size_t machine_bytes(void);
void undo(const void *saved, size_t bytes);
void print_trace(void);
/* Ends the running thread for this execution. */
_Noreturn void end_thread(void);

#endif

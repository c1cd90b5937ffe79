/* SPDX-License-Identifier: Apache-2.0 */
/* What the workers of a test note for each message in memory that outlives them, and bodies that
 * tell whose they are. */
#ifndef RINGSIDE_TESTS_CHAOS_LEDGER_H
#define RINGSIDE_TESTS_CHAOS_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define LEDGER_STAGES  4
#define LEDGER_TICKETS 32
#define LEDGER_HELD    8
#define LEDGER_WORKERS 64
#define LEDGER_WORDS   16 /* counters of the head; test_kill.py and chaos.py know them by index */
#define LEDGER_HEAD    16384 /* bytes before the messages */

enum ledger_sent { SENT_NO, SENT_TRIED, SENT_ACCEPTED, SENT_REFUSED };
enum ledger_word {
    LEDGER_NEXT,    /* id of the next message; ids begin at 1 */
    LEDGER_CORRUPT, /* bodies that were not those of their ticket */
    LEDGER_FAILED,  /* calls that gave an error which none of the faults explains */
    LEDGER_STOP,    /* sources end */
    LEDGER_LIMIT,   /* ids below it have a place */
    LEDGER_REPLIES, /* that callers got */
    /* One for each route of calls. */
    LEDGER_OK,                     /* calls that ended well */
    LEDGER_DEATHS = LEDGER_OK + 2, /* of callees: odd while one is being killed */
    /* What socket_worker.py has for its calls: 5 words. Their ids come before the others. */
    LEDGER_SOCKET = LEDGER_DEATHS + 2,
    LEDGER_WORDS_USED = LEDGER_SOCKET + 5
};

/* 8 bytes: one message's history. Counters stop at 255. */
struct ledger_message {
    _Atomic uint8_t sent;   /* enum ledger_sent */
    uint8_t kind;           /* the test's */
    _Atomic uint8_t wanted; /* bit of each stage that it was accepted for */
    _Atomic uint8_t
        turned; /* kill: bits of stages it was forwarded to instead. chaos: deaths of its holders */
    _Atomic uint8_t
        arrived[LEDGER_STAGES]; /* how often a consumer of that stage was done with it */
};

enum call_outcome {
    CALL_NONE,
    CALL_OK,
    CALL_REFUSED, /* the callee answered with an error, as it was asked to */
    CALL_UNAVAILABLE,
    CALL_TIMED_OUT,
    CALL_CANCELLED,
    CALL_ABANDONED, /* the caller was killed; the driver's note */
    CALL_STUCK,     /* the caller gave up waiting */
    CALL_FAILED     /* with an error that nothing explains */
};

#define LEDGER_CALL 4 /* kind of what is a call: its entry is a struct ledger_call */

/* 8 bytes: one call's history. */
struct ledger_call {
    _Atomic uint8_t sent; /* enum ledger_sent */
    uint8_t kind;         /* LEDGER_CALL */
    _Atomic uint8_t outcome;
    _Atomic uint8_t orphaned;   /* deaths of callees that had noted it as held */
    _Atomic uint8_t executed;   /* how often a callee began with it */
    _Atomic uint8_t answered;   /* how often a callee was about to send its last reply */
    _Atomic uint8_t near_death; /* 1: a callee of its stage was killed while it was in flight */
    uint8_t spare;
};

/* A process's own line of the head, 128 bytes. */
struct ledger_worker {
    _Atomic uint64_t pid;
    _Atomic uint64_t beat_ns;           /* CLOCK_MONOTONIC of its last step */
    _Atomic uint64_t sent, received;    /* messages */
    _Atomic uint64_t held[LEDGER_HELD]; /* ids that it has and has not given up; 0: none */
    uint64_t spare[4];
};

struct ledger {
    _Atomic uint64_t words[LEDGER_WORDS];
    _Atomic uint64_t tickets[LEDGER_TICKETS]
                            [4]; /* ticket, its message's id, the same twice again when complete */
    struct ledger_worker workers[LEDGER_WORKERS];
    uint8_t spare[LEDGER_HEAD - LEDGER_WORDS * 8 - LEDGER_TICKETS * 32 - LEDGER_WORKERS * 128];
    struct ledger_message messages[];
};

_Static_assert(sizeof(struct ledger_message) == 8 && sizeof(struct ledger_call) == 8 &&
                   (int)LEDGER_WORDS_USED <= LEDGER_WORDS && sizeof(struct ledger_worker) == 128 &&
                   sizeof(struct ledger) == LEDGER_HEAD,
               "the tests read it by these sizes");

/* Ends the process with a message when it cannot be mapped. */
struct ledger *ledger_open(const char *path);
/* A fresh id, or 0 when there is no place for another. */
uint64_t ledger_id(struct ledger *ledger);
struct ledger_call *ledger_call(struct ledger *ledger, uint64_t id);
void ledger_count(_Atomic uint8_t *counter);

/* A body of `bytes`, at least 32 and a multiple of 8, that no other id and ticket give. */
void ledger_fill(void *data, uint64_t bytes, uint64_t id, uint64_t ticket);
/* The id; 0 and *why set when the body is not one of ledger_fill whole, or of another ticket of the
 * same sidecar. */
uint64_t ledger_check(const void *data, uint64_t bytes, uint64_t ticket, const char **why);

#endif

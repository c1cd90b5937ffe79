/* SPDX-License-Identifier: Apache-2.0 */
/* One side of a hand-off: loan, write, send; receive, validate, read, release. */
#ifndef TESTS_BENCH_LINK_H
#define TESTS_BENCH_LINK_H

#include "tests/bench/stages.h"

#define MIB     (INT64_C(1) << 20)
#define WAIT_NS INT64_C(10000000000)

struct link {
    struct ringside *rs;
    struct ringside_tensor tensor;
    uint8_t mark;               /* what the next payload begins and ends with */
    struct ringside_slot *slot; /* what the next loan fills */
    struct ringside_message message;
    struct ringside_slot *
        *held; /* loans that are sent in turn, each replaced by the next loan; or NULL */
    uint32_t held_count, turn;
    void *slots; /* where all these slots are, owned */
};

/* What both sides of one measurement get. */
struct experiment {
    struct bench_stages stages;
    struct bench_plan plan;
    int64_t bytes;       /* of the one tensor */
    uint32_t held_count; /* loans to hold; 0: none */
};

/* Connects; 0 or -1 with the reason set. link_close also after a failure. */
int link_open(struct bench *bench, const struct experiment *experiment, int side,
              struct link *link);
void link_close(struct link *link);

int link_send(struct bench *bench, struct link *link);
int link_receive(struct bench *bench, struct link *link);
/* A bench_round; ctx is the link. link_call_round: side 0 calls, side 1 answers. */
int link_round(struct bench *bench, int side, void *ctx);
int link_call_round(struct bench *bench, int side, void *ctx);

/* Starts the sidecars (their config as for bench_stages_start), runs both sides, ends the sidecars.
 */
int link_run(struct bench *bench, struct experiment *experiment, bench_side *side, const char *ring,
             const char *clients);

#endif

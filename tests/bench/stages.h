/* SPDX-License-Identifier: Apache-2.0 */
/* Two real sidecars, each other's route, in a private directory: where the hand-off is measured. */
#ifndef TESTS_BENCH_STAGES_H
#define TESTS_BENCH_STAGES_H

#include "client/c/ringside.h"
#include "tests/bench/bench.h"

struct bench_stages {
    char dir[64];       /* private, with the sockets, configs and logs; empty: none */
    char ring_dir[64];  /* private, on tmpfs, with the ring files; empty: none */
    char socket[2][96]; /* of stage 0 and stage 1 */
    pid_t sidecar[2];   /* 0: none */
};

/* Starts both sidecars and waits for their sockets. `ring` and `clients` are JSON objects' insides
 * that replace the defaults, or NULL. 0, BENCH_SKIP or -1 with the reason set; bench_stages_stop is
 * due in every case. */
int bench_stages_start(struct bench *bench, struct bench_stages *stages, const char *ring,
                       const char *clients);
void bench_stages_stop(struct bench_stages *stages);

/* Connects side `side` to its own stage; the route to the other is named "other". NULL: reason set.
 */
struct ringside *bench_stages_connect(struct bench *bench, const struct bench_stages *stages,
                                      int side);

/* For measurements in other languages: starts both with the default config, prints their sockets
 * and stops them when standard input ends or an interrupt comes. 0, BENCH_SKIP or -1. */
int bench_stages_serve(struct bench *bench);

#endif

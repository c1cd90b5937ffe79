/* SPDX-License-Identifier: Apache-2.0 */
/* A body's whole way: one core copies it in, the other reads all of it. By memcpy and by our copy. */
#include "proto/copy.h"
#include "tests/bench/bench.h"

#include <string.h>
#include <sys/mman.h>

#define LARGE_BYTES (UINT64_C(16) << 20)
#define SMALL_BYTES (UINT64_C(8) << 20)
#define PLACES      4 /* as many slots as the default config has of 16 MiB */

enum { SOURCE, PLACE, MAPPED = PLACE + PLACES };

/* Of one way through one size, a side's own. */
struct passage {
    uint8_t *bodies; /* shared: the source, then the places, LARGE_BYTES apart */
    uint64_t bytes;
    uint64_t sequence;
    uint64_t sum; /* so that the reads are not left out */
};

static uint64_t read_all(const uint8_t *body, uint64_t bytes)
{
    const uint64_t *words = (const uint64_t *)(const void *)body;
    uint64_t sum[8] = {0};

    for (uint64_t i = 0; i < bytes / 8; i += 8)
        for (unsigned k = 0; k < 8; k++)
            sum[k] ^= words[i + k];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

/* `ours` is a literal at each call. */
static inline __attribute__((always_inline)) int copy_round(struct bench *bench, int side,
                                                            struct passage *passage, bool ours)
{
    uint64_t turn = ++passage->sequence;
    uint8_t *source = passage->bodies + SOURCE * LARGE_BYTES;
    uint8_t *place = passage->bodies + (PLACE + turn % PLACES) * LARGE_BYTES;
    _Atomic uint64_t *there = &bench->word[0], *back = &bench->word[BENCH_LINE / 8];

    if (side == 0) {
        source[0] = source[passage->bytes - 1] = (uint8_t)turn;
        if (ours)
            rs_copy(place, source, passage->bytes);
        else
            memcpy(place, source, passage->bytes);
        atomic_store(there, turn);
        while (atomic_load(back) != turn)
            bench_relax();
        return 0;
    }
    while (atomic_load(there) != turn)
        bench_relax();
    passage->sum += read_all(place, passage->bytes);
    bool arrived = place[0] == (uint8_t)turn && place[passage->bytes - 1] == (uint8_t)turn;
    atomic_store(back, turn);
    return arrived ? 0 : bench_fail(bench, "another body than the one that was copied");
}

static int by_memcpy(struct bench *bench, int side, void *passage)
{
    return copy_round(bench, side, passage, false);
}

static int by_copy(struct bench *bench, int side, void *passage)
{
    return copy_round(bench, side, passage, true);
}

static int copy_side(struct bench *bench, int side, void *bodies)
{
    static bench_round *const rounds[] = {by_memcpy, by_copy, by_memcpy, by_copy};
    uint64_t turns = 0, sum = 0;

    for (unsigned i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        struct passage passage = {
            .bodies = bodies, .bytes = i < 2 ? SMALL_BYTES : LARGE_BYTES, .sequence = turns};
        struct bench_plan plan = {
            .warmup = 2 * PLACES, .batches = bench_scaled(bench, i < 2 ? 200 : 100), .per_batch = 1};

        if (bench_rounds(bench, side, &plan, rounds[i], &passage) < 0)
            return -1;
        if (side == 0)
            bench->value[i] = bench_batch_p50(bench);
        turns = passage.sequence;
        sum += passage.sum;
    }
    return sum == 1 ? -1 : 0;
}

int bench_copy(struct bench *bench, double *out)
{
    uint8_t *bodies = mmap(NULL, MAPPED * LARGE_BYTES, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (bodies == MAP_FAILED)
        return bench_fail(bench, "no memory for %u bodies of 16 MiB", (unsigned)MAPPED);
    memset(bodies, 1, MAPPED * LARGE_BYTES);
    int rc = bench_fork(bench, 2, copy_side, bodies);
    munmap(bodies, MAPPED * LARGE_BYTES);
    out[0] = bench->value[0];
    out[1] = bench->value[1];
    out[2] = bench->value[2] / 1e6;
    out[3] = bench->value[3] / 1e6;
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Stress of slots and inbox: producers and consumers, as processes or as threads that share one mapping, on a ring so small that
 * it is full most of the time. Every message must arrive exactly once with the body that was written, and every slot be free again.
 * --broken writes a body after its seal: proof that a thread sanitizer would report such a race here. */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/inbox.h"
#include "proto/layout.h"
#include "proto/repair.h"
#include "proto/wait.h"

#define STAGE 1
#define BODY_WORDS 32
#define MAX_WORKERS 32

static struct {
    unsigned producers, consumers, messages, slots, cells;
    bool threads, broken, nack, mend;
} options = {.producers = 2, .consumers = 2, .messages = 20000, .slots = 6, .cells = 8};

/* Shared by all workers, threads and processes alike. */
struct tally {
    rs_word delivered;          /* acknowledged messages */
    rs_word wrong;              /* bodies that were not as written, or deliveries twice */
    _Atomic uint8_t seen[];     /* per message */
};

static int control_fd, body_fd;
static struct tally *tally;
static struct rs_ring shared_ring; /* of --threads: TSan sees races within one mapping only */

static uint64_t mix(uint64_t value)
{
    value ^= value >> 33;
    value *= UINT64_C(0xff51afd7ed558ccd);
    return value ^ value >> 29;
}

static void make_ring(void)
{
    struct rs_geometry geometry = {
        .stage = "stress", .classes = {{4096, options.slots}}, .class_count = 1, .client_count = 64,
        .inbox_cells = options.cells, .inbox_depth = options.cells, .sidecar_id = 1, .page_bytes = 4096,
        .incarnation = {1, 2},
    };
    struct rs_superblock plan;

    RS_REQUIRE(rs_layout_plan(&plan, &geometry) == 0);
    control_fd = memfd_create("control", MFD_CLOEXEC);
    body_fd = memfd_create("body", MFD_CLOEXEC);
    RS_REQUIRE(ftruncate(control_fd, (off_t)plan.control_bytes) == 0 &&
               ftruncate(body_fd, (off_t)plan.body_bytes) == 0);
    void *control = mmap(NULL, plan.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    RS_REQUIRE(control != MAP_FAILED);
    rs_layout_format(control, &plan);
    munmap(control, plan.control_bytes);
}

struct worker {
    struct rs_ring own_ring, *ring;
    struct rs_inbox inbox;
    uint16_t client;
    unsigned index;
};

static void worker_init(struct worker *worker, unsigned index, uint16_t client)
{
    const char *why;

    worker->index = index;
    worker->client = client;
    worker->ring = options.threads ? &shared_ring : &worker->own_ring;
    if (!options.threads)
        RS_REQUIRE(rs_ring_map(worker->ring, control_fd, body_fd, true, &why) == 0);
    rs_inbox_init(&worker->inbox, worker->ring, -1);
    rs_store_relaxed(&worker->inbox.table[0].state, RS_RING_KNOWN);
    rs_inbox_admit(&worker->inbox, 0, worker->ring, STAGE, client);
}

static uint64_t *body_of(struct worker *worker, uint32_t slot)
{
    return (uint64_t *)(worker->ring->body + rs_ring_slot_offset(worker->ring, slot));
}

static void loan(struct worker *worker, struct rs_loan *out)
{
    rs_word32 *word = &worker->ring->shared->slot_free;

    for (int spin = 0; rs_ring_loan(worker->ring, worker->client, 0, out) < 0; spin++) {
        if (spin < 50)
            continue;
        uint32_t armed = rs_wait_arm(word, RS_WAIT_FUTEX);
        if (rs_ring_loan(worker->ring, worker->client, 0, out) == 0)
            return;
        rs_wait_sleep(word, armed, -1);
    }
}

static void *produce(void *data)
{
    struct worker *worker = data;
    uint16_t destination = STAGE;

    for (unsigned i = 0; i < options.messages; i++) {
        uint64_t id = (uint64_t)worker->index * options.messages + i;
        struct rs_loan slot;

        loan(worker, &slot);
        uint64_t *body = body_of(worker, slot.slot);
        for (unsigned k = 0; k < BODY_WORDS; k++)
            body[k] = k == 0 ? id : mix(id + k);
        rs_ring_prepare(worker->ring, &slot, &destination, 1, 0);
        if (rs_ring_seal(worker->ring, worker->client, &slot, 0) < 0)
            rs_fetch_add_relaxed(&tally->wrong, 1);
        if (options.broken)
            body[BODY_WORDS - 1] = mix(id + BODY_WORDS - 1);
        rs_inbox_push(&worker->inbox, 0, slot.slot, 0); /* no depth check: overflow is part of the stress */
    }
    return NULL;
}

static void check(struct worker *worker, const struct rs_lease *lease)
{
    const uint64_t *body = body_of(worker, lease->slot);
    uint64_t id = body[0];

    for (unsigned k = 1; k < BODY_WORDS; k++) {
        if (body[k] != mix(id + k)) {
            rs_fetch_add_relaxed(&tally->wrong, 1);
            return;
        }
    }
    /* Now and then given back once: the nack's push is one more way for a cell to be doubled or missing. */
    if (options.nack && id % 7 == 0 && rs_delivery_attempts(lease->word) == 0) {
        if (rs_ring_nack(lease, 3) != 0)
            rs_fetch_add_relaxed(&tally->wrong, 1);
        rs_inbox_push(&worker->inbox, 0, lease->slot, lease->delivery);
        return;
    }
    if (id >= (uint64_t)options.producers * options.messages ||
        atomic_fetch_add_explicit(&tally->seen[id], 1, memory_order_relaxed) != 0)
        rs_fetch_add_relaxed(&tally->wrong, 1);
    if (rs_ring_release(lease) < 0)
        rs_fetch_add_relaxed(&tally->wrong, 1);
    rs_fetch_add_relaxed(&tally->delivered, 1);
}

static void *consume(void *data)
{
    struct worker *worker = data;
    rs_word32 *word = &worker->inbox.shared->not_empty;
    uint64_t total = (uint64_t)options.producers * options.messages;

    while (rs_load_acquire(&tally->delivered) < total) {
        struct rs_lease lease;
        int unmapped;

        if (rs_inbox_take(&worker->inbox, &lease, &unmapped) == 1) {
            check(worker, &lease);
            continue;
        }
        uint32_t armed = rs_wait_arm(word, RS_WAIT_FUTEX);
        if (rs_inbox_take(&worker->inbox, &lease, &unmapped) == 1)
            check(worker, &lease);
        else if (rs_load_acquire(&tally->delivered) < total)
            rs_wait_sleep(word, armed, -1);
    }
    rs_wait_wake_all(word, -1);
    return NULL;
}

/* A sidecar that looks at the hints all the time must never find them wrong, nor a cell that no head comes by. */
static void *mend(void *data)
{
    struct worker *worker = data;
    uint64_t total = (uint64_t)options.producers * options.messages;

    while (rs_load_acquire(&tally->delivered) < total) {
        if (rs_inbox_mend_hints(&worker->inbox))
            rs_fetch_add_relaxed(&tally->wrong, 1);
    }
    return NULL;
}

static void *(*role(unsigned i))(void *)
{
    return i < options.producers ? produce : i < options.producers + options.consumers ? consume : mend;
}

static void run_threads(struct worker *workers, unsigned count)
{
    pthread_t threads[MAX_WORKERS];

    for (unsigned i = 0; i < count; i++)
        RS_REQUIRE(pthread_create(&threads[i], NULL, role(i), &workers[i]) == 0);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static bool run_processes(struct worker *workers, unsigned count)
{
    bool clean = true;

    for (unsigned i = 0; i < count; i++) {
        if (fork() == 0) {
            worker_init(&workers[i], i, (uint16_t)(i + 1));
            role(i)(&workers[i]);
            _exit(0);
        }
    }
    for (unsigned i = 0; i < count; i++) {
        int status;

        if (wait(&status) < 0 || status != 0)
            clean = false;
    }
    return clean;
}

static int verdict(bool clean)
{
    uint64_t total = (uint64_t)options.producers * options.messages, lost = 0;
    struct worker worker = {0};
    uint32_t busy = 0;

    options.threads = false;
    worker_init(&worker, 0, 60);
    for (uint64_t i = 0; i < total; i++)
        lost += tally->seen[i] == 0;
    for (uint32_t i = 0; i < worker.ring->layout.slot_count; i++)
        busy += rs_state_phase(rs_load_acquire(&worker.ring->slots[i].state)) != RS_FREE;
    printf("%llu messages: %llu lost, %llu wrong, %u slots not free\n", (unsigned long long)total,
           (unsigned long long)lost, (unsigned long long)rs_load_relaxed(&tally->wrong), busy);
    rs_ring_unmap(worker.ring);
    return clean && lost == 0 && busy == 0 && rs_load_relaxed(&tally->wrong) == 0 ? 0 : 1;
}

static void parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"producers", required_argument, NULL, 'p'}, {"consumers", required_argument, NULL, 'c'},
        {"messages", required_argument, NULL, 'm'},  {"slots", required_argument, NULL, 's'},
        {"cells", required_argument, NULL, 'l'},     {"threads", no_argument, NULL, 't'},
        {"broken", no_argument, NULL, 'b'},          {"nack", no_argument, NULL, 'n'},
        {"mend", no_argument, NULL, 'e'},
        {0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        unsigned value = optarg != NULL ? (unsigned)strtoul(optarg, NULL, 10) : 0;

        switch (option) {
        case 'p': options.producers = value; break;
        case 'c': options.consumers = value; break;
        case 'm': options.messages = value; break;
        case 's': options.slots = value; break;
        case 'l': options.cells = value; break;
        case 't': options.threads = true; break;
        case 'b': options.broken = true; break;
        case 'n': options.nack = true; break;
        case 'e': options.mend = true; break;
        default: exit(2);
        }
    }
    if (options.producers + options.consumers + options.mend > MAX_WORKERS)
        exit(2);
}

int main(int argc, char **argv)
{
    const char *why;
    bool clean = true;

    parse(argc, argv);
    unsigned count = options.producers + options.consumers + options.mend;
    size_t bytes = sizeof *tally + (size_t)options.producers * options.messages;
    struct worker *workers = calloc(count, sizeof *workers);

    make_ring();
    tally = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RS_REQUIRE(tally != MAP_FAILED && workers != NULL);
    if (options.threads) {
        RS_REQUIRE(rs_ring_map(&shared_ring, control_fd, body_fd, true, &why) == 0);
        for (unsigned i = 0; i < count; i++)
            worker_init(&workers[i], i, (uint16_t)(i + 1));
        run_threads(workers, count);
        rs_ring_unmap(&shared_ring);
    } else {
        clean = run_processes(workers, count);
    }
    free(workers);
    return verdict(clean);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Between loan and release libringside makes no system call and no allocation: counted, for every verb that has a hot path. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/c/ringside.h"
#include "tests/bench/bench.h"
#include "tests/unit/fake_sidecar.h"

#define SKIPPED 77
#define WARM_UP 500
#define ROUNDS  5000

static struct ringside *a, *b, *c; /* workers of stages 0, 1, 2, all awake: one thread plays them in turn */
static struct ringside_slot slot;
static struct ringside_message messages[4];

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int rc_ = (call);                                                                          \
        if (rc_ < 0) {                                                                             \
            fprintf(stderr, "%s: %s\n", #call, ringside_error_name(rc_));                          \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static struct ringside *join(unsigned stage)
{
    struct ringside_connect_options options = {.socket = fake_stages[stage].path, .name = "test"};
    struct ringside *connection;

    MUST(ringside_connect(&connection, &options));
    return connection;
}

static void loan(struct ringside *from, size_t count)
{
    static const struct ringside_tensor tensors[] = {
        {.dtype = RINGSIDE_FLOAT32, .rank = 2, .shape = {4, 4}},
        {.dtype = RINGSIDE_INT64, .rank = 3, .shape = {2, 2, 2}},
    };

    MUST(ringside_loan(from, tensors, count, 0, RINGSIDE_FOREVER, &slot));
    memset(slot.tensors[0].data, 0x5a, slot.tensors[0].bytes);
}

static void plain(void)
{
    loan(a, 1);
    MUST(ringside_send(a, &slot, "1", NULL));
    MUST(ringside_receive(b, &messages[0], RINGSIDE_FOREVER));
    MUST(ringside_release(b, &messages[0]));
}

static void with_everything(void)
{
    const struct ringside_options options = {
        .ttl_ns = 60000000000, .metadata = "{}", .metadata_bytes = 2, .metadata_kind = RINGSIDE_JSON,
        .stream_id = 1, .sequence = 2, .trace_id = {3}, .timeout_ns = 1000000000};

    for (int i = 0; i < 3; i++) {
        loan(a, 2);
        MUST(ringside_send(a, &slot, "all", &options));
    }
    MUST(ringside_receive_batch(b, messages, 4, RINGSIDE_FOREVER));
    MUST(ringside_nack(b, &messages[1]));
    MUST(ringside_receive(b, &messages[1], 0));
    for (int i = 0; i < 3; i++) {
        MUST(ringside_release(b, &messages[i]));
        MUST(ringside_receive(c, &messages[3], 0));
        MUST(ringside_release(c, &messages[3]));
    }
}

static void passed_on(void)
{
    const struct ringside_options changed = {.sequence = 5};

    for (int i = 0; i < 2; i++) {
        loan(a, 1);
        MUST(ringside_send(a, &slot, "1", NULL));
        MUST(ringside_receive(b, &messages[0], 0));
        MUST(ringside_forward(b, &messages[0], "2", i == 0 ? NULL : &changed));
        MUST(ringside_receive(c, &messages[0], 0));
        MUST(ringside_release(c, &messages[0]));
    }
}

static void by_ticket(void)
{
    uint64_t ticket;

    loan(a, 1);
    MUST(ringside_share(a, &slot, 1, NULL, &ticket));
    MUST(ringside_read(b, ticket, &messages[0]));
    MUST(ringside_release(b, &messages[0]));
    loan(a, 1);
    MUST(ringside_share(a, &slot, 0, NULL, &ticket));
    MUST(ringside_free(a, ticket));
    loan(a, 1);
    MUST(ringside_abandon(a, &slot));
}

static void called(void)
{
    struct ringside_call call;
    struct ringside_options many = {.credits = 2};

    for (int replies = 1; replies <= 2; replies++) {
        loan(a, 1);
        MUST(ringside_call(a, &slot, "1", "method", replies == 1 ? NULL : &many, &call));
        MUST(ringside_receive(b, &messages[0], RINGSIDE_FOREVER));
        for (int i = 0; i < replies; i++) {
            loan(b, 1);
            MUST(ringside_reply(b, &messages[0], &slot, NULL, i + 1 == replies));
        }
        MUST(ringside_release(b, &messages[0]));
        for (int i = 0; i < replies; i++) {
            MUST(ringside_call_wait(a, &call, &messages[1], RINGSIDE_FOREVER));
            MUST(ringside_release(a, &messages[1]));
        }
    }
    loan(a, 1);
    MUST(ringside_call(a, &slot, "1", "method", NULL, &call));
    MUST(ringside_call_cancel(a, &call));
}

static int check_once(const char *name, void (*round)(void))
{
    uint64_t calls = bench_syscalls_seen(), mallocs = bench_mallocs_seen();

    for (int i = 0; i < ROUNDS; i++)
        round();
    calls = bench_syscalls_seen() - calls;
    mallocs = bench_mallocs_seen() - mallocs;
    printf("%-16s %d rounds: %lu system calls, %lu allocations\n", name, ROUNDS, (unsigned long)calls,
           (unsigned long)mallocs);
    return calls != 0 || mallocs != 0;
}

/* The clock is read without a system call but for the moments in which the kernel adjusts it: so one clean run is proof. */
static int check(const char *name, void (*round)(void))
{
    return check_once(name, round) && check_once(name, round) && check_once(name, round);
}

/* The counters see what there is to see. */
static int check_counters(void)
{
    uint64_t calls = bench_syscalls_seen(), mallocs = bench_mallocs_seen();
    void *volatile memory = malloc(16);

    free(memory);
    syscall(SYS_getppid);
    if (bench_syscalls_seen() - calls == 1 && bench_mallocs_seen() - mallocs == 1)
        return 0;
    printf("the counters do not count\n");
    return 1;
}

int main(void)
{
    const struct rs_class_spec classes[] = {{4096, 16}};
    int failed;

    setvbuf(stdout, NULL, _IONBF, 0);
    fake_start_all(classes, 1, 64, 32);
    a = join(0);
    b = join(1);
    c = join(2);
    for (int i = 0; i < WARM_UP; i++) {
        plain();
        with_everything();
        passed_on();
        by_ticket();
        called();
    }
    if (bench_mallocs_watch(true) < 0 || bench_syscalls_watch() < 0) {
        printf("skipped: a sanitizer has the allocator, or there is no seccomp filter here\n");
        fake_stop_all();
        return SKIPPED;
    }
    failed = check_counters() + check("plain", plain) + check("with everything", with_everything) +
             check("passed on", passed_on) + check("by ticket", by_ticket) +
             check("called", called);
    for (unsigned i = 0; i < FAKE_STAGES; i++)
        unlink(fake_stages[i].path);
    rmdir(fake_dir);
    _exit(failed != 0); /* no thread may end while its calls are counted */
}

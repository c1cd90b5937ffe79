/* SPDX-License-Identifier: Apache-2.0 */
/* Callers and callees in memory while somebody writes anything into the control files of both
 * stages: calls may fail, and replies be lost; nobody crashes, hangs or ends a sidecar. */
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define STAGES 2
#include "tests/integration/daemons.h"

#include "proto/layout.h"
#include "proto/ring.h"

#define SLOTS 64
#define SPARED \
    32 /* the first of them, whose state and delivery words are left alone: they work on */
#define WORKERS 4 /* two callers, two callees */
#define HANG_NS (30000 * MS)

/* Shared with the workers: how far each is, and what came through at all. */
static struct {
    _Atomic uint64_t steps[WORKERS], replies;
} * progress;
static unsigned seed;

static unsigned chance(unsigned below)
{
    return (unsigned)rand_r(&seed) % below;
}

/* ---- workers ---- */

static int64_t some_time(void)
{
    static const int64_t times[] = {0, 1, 100000, 5 * MS, 20 * MS};

    return times[chance(sizeof times / sizeof times[0])];
}

static int loan(struct ringside *worker, struct ringside_slot *slot)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {16}};

    return ringside_loan(worker, &tensor, 1, 64, some_time(), slot);
}

/* What is told of a message can be read. */
static uint64_t read_all(const struct ringside_message *message)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < message->tensor_count; i++) {
        const uint8_t *data = message->tensors[i].data;

        for (uint64_t at = 0; at < message->tensors[i].bytes; at++)
            sum += data[at];
    }
    for (uint32_t i = 0; i < message->metadata_bytes; i++)
        sum += ((const uint8_t *)message->metadata)[i];
    for (uint32_t i = 0; i < message->method_bytes; i++)
        sum += (uint8_t)message->method[i];
    return sum;
}

static void call_once(struct ringside *worker)
{
    struct ringside_options options = {.timeout_ns = some_time(),
                                       .ttl_ns = chance(8) == 0 ? 0 : (uint64_t)(50 * MS),
                                       .credits = chance(4)};
    struct ringside_slot slot;
    struct ringside_message reply;
    struct ringside_call call = {0};

    if (loan(worker, &slot) < 0)
        return;
    if (ringside_call(worker, &slot, "next", "method", &options, &call) < 0) {
        (void)ringside_abandon(worker, &slot);
        return;
    }
    for (unsigned looks = 0; call.open && looks < 100 && chance(50) != 0; looks++) {
        if (ringside_call_wait(worker, &call, &reply, some_time()) < 0)
            continue;
        progress->replies++;
        (void)read_all(&reply);
        (void)ringside_release(worker, &reply);
    }
    (void)ringside_call_cancel(worker, &call);
    (void)ringside_call_cancel(worker, &call);
}

static void answer_once(struct ringside *worker)
{
    struct ringside_options options = {.timeout_ns = some_time()};
    struct ringside_message request;
    struct ringside_slot slot;

    if (ringside_receive(worker, &request, some_time()) < 0)
        return;
    (void)read_all(&request);
    for (unsigned replies = chance(5); replies > 0; replies--) {
        if (loan(worker, &slot) < 0)
            break;
        if (ringside_reply(worker, &request, &slot, &options, replies == 1) < 0)
            (void)ringside_abandon(worker, &slot);
    }
    (void)ringside_cancelled(worker, &request);
    if (chance(4) == 0)
        (void)ringside_reply_error(worker, &request, 1 + chance(255), "TIMEOUT: a text");
    if (chance(8) == 0)
        (void)ringside_nack(worker, &request);
    else
        (void)ringside_release(worker, &request);
}

static void work(int number)
{
    char path[128];
    struct ringside_connect_options options = {.socket = path, .timeout_ns = 100 * MS};
    int stage = number % 2;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    path_of(path, stage, "sock");
    for (;;) {
        struct ringside *worker;

        progress->steps[number]++;
        if (ringside_connect(&worker, &options) < 0)
            continue;
        for (int i = 0; i < 500; i++, progress->steps[number]++)
            stage == 0 ? call_once(worker) : answer_once(worker);
        ringside_close(worker);
    }
}

/* ---- who writes where it must not ---- */

struct victim {
    uint64_t *words;
    struct rs_superblock layout;
};

static void map_victim(int stage, struct victim *victim)
{
    char path[128];
    struct stat status;

    snprintf(path, sizeof path, "%s/ring/s%d.control", directory, stage);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &status), 0);
    victim->words = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(victim->words, MAP_FAILED);
    close(fd);
    memcpy(&victim->layout, victim->words, sizeof victim->layout);
}

/* Boxes, headers of calls and delivery words most often. */
static void spoil(struct victim *victim)
{
    const struct rs_superblock *layout = &victim->layout;
    uint64_t slot = layout->slots_offset + chance(SLOTS) * sizeof(struct rs_slot);
    uint64_t other =
        layout->slots_offset + (SPARED + chance(SLOTS - SPARED)) * sizeof(struct rs_slot);
    uint64_t client = chance(8), at;
    static const unsigned call_words[] = {RS_HEADER_CALL_ID, RS_HEADER_CALL, RS_HEADER_METHOD,
                                          RS_HEADER_ADMISSION, RS_HEADER_SUMMARY};

    switch (chance(12)) {
    case 0:
        at = other + 8 * chance(sizeof(struct rs_slot) / 8);
        break;
    case 1:
        at = layout->clients_offset + client * sizeof(struct rs_client) + 8 * chance(8);
        break;
    case 2:
        at = layout->inbox_offset + 8 * chance(3000);
        break;
    case 3:
    case 4:
    case 5:
    case 6:
        at = layout->boxes_offset + client * sizeof(struct rs_box) + 64 + 8 * chance(8);
        break;
    default:
        at = slot + offsetof(struct rs_slot, header) + 8 * call_words[chance(5)];
    }
    if (at / 8 >= layout->control_bytes / 8)
        return;
    uint64_t word = __atomic_load_n(&victim->words[at / 8], __ATOMIC_RELAXED);
    uint64_t values[] = {word ^ UINT64_C(1) << chance(64),
                         0,
                         UINT64_MAX,
                         (uint64_t)chance(1u << 30) << 34 ^ chance(1u << 30),
                         word ^ UINT64_C(3) << 56,
                         word & ~UINT64_C(0xff000000)};
    __atomic_store_n(&victim->words[at / 8], values[chance(6)], __ATOMIC_RELAXED);
}

/* One call from here to here. */
static int call_through(struct ringside *caller, struct ringside *callee)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {16}};
    struct ringside_options options = {.timeout_ns = 100 * MS, .ttl_ns = (uint64_t)(500 * MS)};
    struct ringside_message request, reply;
    struct ringside_slot slot;
    struct ringside_call call = {0};

    int rc = ringside_loan(caller, &tensor, 1, 64, 100 * MS, &slot);
    if (rc < 0)
        return rc;
    rc = ringside_call(caller, &slot, "next", "through", &options, &call);
    if (rc < 0) {
        (void)ringside_abandon(caller, &slot);
        return rc;
    }
    while (ringside_receive(callee, &request, 100 * MS) == 0) {
        bool ours = request.call_id == call.id;

        if (ours && ringside_loan(callee, &tensor, 1, 0, 100 * MS, &slot) == 0 &&
            ringside_reply(callee, &request, &slot, &options, 1) < 0)
            (void)ringside_abandon(callee, &slot);
        (void)ringside_release(callee, &request);
        if (ours)
            break;
    }
    rc = ringside_call_wait(caller, &call, &reply, 1000 * MS);
    if (rc == 0)
        (void)ringside_release(caller, &reply);
    (void)ringside_call_cancel(caller, &call);
    return rc;
}

/* Tables are put back within a second, and audits are up to 10 s apart. */
static void assert_calls_work_again(void)
{
    struct ringside *caller = join(0), *callee = join(1);
    int64_t end_ns = now_ns() + 40000 * MS;

    for (int in_a_row = 0; in_a_row < 1000;) {
        in_a_row = call_through(caller, callee) == 0 ? in_a_row + 1 : 0;
        if (now_ns() > end_ns)
            fail_msg("%s / %s; seed %u", ringside_explain(caller), ringside_explain(callee), seed);
    }
    ringside_close(caller);
    ringside_close(callee);
}

static void assert_alive(pid_t pid, const char *who)
{
    int status;

    if (waitpid(pid, &status, WNOHANG) != 0)
        fail_msg("a %s ended with status %#x; seed %u", who, status, seed);
}

static void calls_while_words_are_overwritten(void **state)
{
    const char *text = getenv("RINGSIDE_FLIPS_SECONDS");
    int64_t end_ns = now_ns() + (text != NULL ? atoi(text) : 10) * 1000 * MS, moved_ns[WORKERS];
    uint64_t seen[WORKERS] = {0};
    struct victim victims[STAGES];
    pid_t pids[WORKERS];

    (void)state;
    seed = (unsigned)now_ns();
    print_message("seed %u\n", seed);
    for (int i = 0; i < STAGES; i++) {
        ringside_close(join(i));
        map_victim(i, &victims[i]);
    }
    for (int i = 0; i < WORKERS; i++) {
        moved_ns[i] = now_ns();
        pids[i] = fork();
        seed += 7919;
        if (pids[i] == 0)
            work(i);
    }
    while (now_ns() < end_ns) {
        for (unsigned i = chance(20); i > 0; i--)
            spoil(&victims[chance(STAGES)]);
        nanosleep(&(struct timespec){0, (long)chance(3000000)}, NULL);
        for (int i = 0; i < WORKERS; i++) {
            assert_alive(pids[i], "worker");
            if (progress->steps[i] != seen[i])
                moved_ns[i] = now_ns();
            seen[i] = progress->steps[i];
            if (now_ns() - moved_ns[i] > HANG_NS)
                fail_msg("worker %d hangs; seed %u", i, seed);
        }
        for (int i = 0; i < STAGES; i++)
            assert_alive(daemons[i], "sidecar");
    }
    for (int i = 0; i < WORKERS; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        assert_true(seen[i] > 100);
    }
    print_message("%llu replies\n", (unsigned long long)progress->replies);
    assert_true(progress->replies > 100);
    assert_calls_work_again();
}

static int start(void **state)
{
    (void)state;
    progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    start_callers(SLOTS, "error", "error");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return end_daemons();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls_while_words_are_overwritten, start, stop),
    };

    if (getenv("RINGSIDE_PROXY") == NULL) {
        fprintf(stderr, "RINGSIDE_PROXY does not name the sidecar\n");
        return 1;
    }
    return cmocka_run_group_tests_name("call_flips", tests, NULL, NULL);
}

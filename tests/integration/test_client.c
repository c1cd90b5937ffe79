/* SPDX-License-Identifier: Apache-2.0 */
/* libringside with real sidecars: three stages in a row, their workers in one or several processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STAGES 3
#include "tests/integration/daemons.h"


static struct ringside *workers[STAGES];
static struct ringside_slot slot;
static struct ringside_message message;

#define OK(call)                                                                                   \
    do {                                                                                           \
        int ok_ = (call);                                                                          \
        if (ok_ < 0)                                                                               \
            fail_msg("%s: %s (%s)", #call, ringside_error_name(ok_), explain_any());               \
    } while (0)

static const char *explain_any(void)
{
    for (int i = 0; i < STAGES; i++) {
        if (workers[i] != NULL && ringside_explain(workers[i])[0] != '\0')
            return ringside_explain(workers[i]);
    }
    return ringside_explain(NULL);
}

/* ---- daemons ---- */

static void write_config(int stage)
{
    char path[128], sockets[STAGES][128];

    for (int i = 0; i < STAGES; i++)
        path_of(sockets[i], i, "sock");
    path_of(path, stage, "json");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"stage\":\"s%d\",\"socket\":{\"path\":\"%s\"},\"ring\":{\"control_dir\":\"%s/ring\","
            "\"body_dir\":\"%s/ring\",\"pages\":\"4Ki\",\"lock\":\"off\",\"classes\":["
            "{\"slot_bytes\":\"4Ki\",\"slots\":16},{\"slot_bytes\":\"1Mi\",\"slots\":4}]},"
            "\"inbox\":{\"cells\":64,\"depth\":32},\"log\":{\"level\":\"debug\"},"
            "\"drain_timeout_ms\":300",
            stage, sockets[stage], directory, directory);
    if (stage + 1 < STAGES)
        fprintf(file, ",\"routes\":{\"next\":{\"to\":[\"unix:%s\"],\"when_full\":\"block\"}}",
                sockets[stage + 1]);
    fprintf(file, "}\n");
    fclose(file);
}

static int start(void **state)
{
    (void)state;
    if (getenv("RINGSIDE_PROXY") == NULL) {
        fprintf(stderr, "RINGSIDE_PROXY does not name the sidecar\n");
        return -1;
    }
    make_directory();
    for (int i = 0; i < STAGES; i++) {
        write_config(i);
        start_daemon(i);
    }
    for (int i = 0; i < STAGES; i++)
        workers[i] = join(i);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (int i = 0; i < STAGES; i++) {
        ringside_close(workers[i]);
        workers[i] = NULL;
    }
    return end_daemons();
}

/* ---- messages ---- */

static void loan(struct ringside *worker, int64_t count)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT32, .rank = 1, .shape = {count}};

    OK(ringside_loan(worker, &tensor, 1, 0, LONG, &slot));
}

static void send_value(struct ringside *worker, uint32_t value)
{
    loan(worker, 1);
    *(uint32_t *)slot.tensors[0].data = value;
    OK(ringside_send(worker, &slot, "next", NULL));
}

static uint32_t take_value(struct ringside *worker)
{
    OK(ringside_receive(worker, &message, LONG));
    return *(const uint32_t *)message.tensors[0].data;
}

static void client_two_stages(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        send_value(workers[0], i);
        assert_int_equal(take_value(workers[1]), i);
        OK(ringside_release(workers[1], &message));
    }
    loan(workers[0], 250000);
    for (uint32_t i = 0; i < 250000; i++)
        ((uint32_t *)slot.tensors[0].data)[i] = i * 2654435761u;
    OK(ringside_send(workers[0], &slot, "next", NULL));
    OK(ringside_receive(workers[1], &message, LONG));
    for (uint32_t i = 0; i < 250000; i++)
        assert_int_equal(((const uint32_t *)message.tensors[0].data)[i], i * 2654435761u);
    OK(ringside_release(workers[1], &message));
}

/* Sidecars introduce their neighbours to each other, from when on a forward moves nothing. */
static void client_forward_becomes_in_place(void **state)
{
    int in_place = 0;
    int64_t end_ns = now_ns() + LONG;

    (void)state;
    for (uint32_t i = 0; in_place == 0 && now_ns() < end_ns; i++) {
        send_value(workers[0], i);
        assert_int_equal(take_value(workers[1]), i);
        uint64_t ticket = message.ticket;
        in_place = ringside_forward(workers[1], &message, "next", NULL);
        OK(in_place);
        assert_int_equal(take_value(workers[2]), i);
        assert_int_equal(message.ticket == ticket, in_place);
        OK(ringside_release(workers[2], &message));
    }
    assert_int_equal(in_place, 1);
}

static void client_nack_and_dead_letter(void **state)
{
    unsigned deliveries = 0;

    (void)state;
    send_value(workers[0], 7);
    while (ringside_receive(workers[1], &message, deliveries == 0 ? LONG : 100 * MS) == 0) {
        assert_int_equal(message.attempts, deliveries);
        deliveries++;
        OK(ringside_nack(workers[1], &message));
    }
    assert_int_equal(deliveries, 3); /* the default of attempts */
}

static void client_ticket_text_in_another_process(void **state)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    uint64_t ticket;
    int status;

    (void)state;
    loan(workers[0], 2);
    *(uint32_t *)slot.tensors[0].data = 4711;
    OK(ringside_share(workers[0], &slot, 1, NULL, &ticket));
    OK(ringside_ticket_text(workers[0], ticket, text));
    pid_t child = fork();
    if (child == 0) {
        struct ringside *own = join(0);
        int rc = ringside_read_text(own, text, &message);

        if (rc == 0 && *(const uint32_t *)message.tensors[0].data == 4711 &&
            ringside_release(own, &message) == 0)
            _exit(0);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(ringside_read_text(workers[0], text, &message), -RINGSIDE_ESTALE_TICKET);
}

static void client_fork_needs_its_own_connection(void **state)
{
    int status;

    (void)state;
    pid_t child = fork();
    if (child == 0)
        _exit(ringside_receive(workers[1], &message, 0) == -RINGSIDE_EFORKED ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    send_value(workers[0], 1);
    assert_int_equal(take_value(workers[1]), 1);
    OK(ringside_release(workers[1], &message));
}

/* Connects, lets a ring be opened, and closes, again and again. */
static _Atomic bool forking;

static void *come_and_go(void *data)
{
    static struct ringside_message taken;

    while (forking) {
        struct ringside *worker = join(1);

        send_value(workers[0], 3);
        OK(ringside_receive(worker, &taken, LONG));
        OK(ringside_release(worker, &taken));
        ringside_close(worker);
    }
    return data;
}

/* How many control files this process has open: each description may hold the lock of a client's byte. */
static int control_files(void)
{
    DIR *fds = opendir("/proc/self/fd");
    struct dirent *entry;
    int count = 0;

    while ((entry = readdir(fds)) != NULL) {
        char target[256];
        ssize_t length = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);

        target[length > 0 ? length : 0] = '\0';
        count += length > 8 && strstr(target, "control") != NULL;
    }
    closedir(fds);
    return count;
}

/* A child keeps no descriptor that a worker's lock hangs on, at whatever moment it was forked off. */
static void client_forks_while_rings_open(void **state)
{
    pthread_t thread;
    int leaks = 0;

    (void)state;
    assert_true(control_files() > 0);
    forking = true;
    pthread_create(&thread, NULL, come_and_go, NULL);
    for (int i = 0; i < 300; i++) {
        int status;
        pid_t child = fork();

        if (child == 0)
            _exit(control_files());
        assert_int_equal(waitpid(child, &status, 0), child);
        leaks += status != 0;
    }
    forking = false;
    pthread_join(thread, NULL);
    assert_int_equal(leaks, 0);
}

static void client_close_with_open_leases(void **state)
{
    struct ringside *leaver = join(1);

    (void)state;
    send_value(workers[0], 5);
    assert_int_equal(take_value(leaver), 5);
    loan(leaver, 1);
    ringside_close(leaver);
    assert_int_equal(take_value(workers[1]), 5);
    assert_int_equal(message.attempts, 1);
    OK(ringside_release(workers[1], &message));
}

/* A worker killed with a message in hand: another one gets it. */
static void client_killed_worker_loses_nothing(void **state)
{
    int status, pipes[2];
    char byte = 0;

    (void)state;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        struct ringside *own = join(1);

        if (ringside_receive(own, &message, LONG) != 0)
            _exit(1);
        (void)!write(pipes[1], &byte, 1);
        pause();
        _exit(0);
    }
    send_value(workers[0], 6);
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    assert_int_equal(ringside_receive(workers[1], &message, 50 * MS), -RINGSIDE_ETIMEOUT);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(take_value(workers[1]), 6);
    assert_int_equal(message.attempts, 1);
    OK(ringside_release(workers[1], &message));
    close(pipes[0]);
    close(pipes[1]);
}

/* The sidecar dies and comes back under a worker that waits, one that holds a message and one that loaned a slot. */
static void client_outlives_its_sidecar(void **state)
{
    struct ringside *other = join(1);

    (void)state;
    send_value(workers[0], 1);
    assert_int_equal(take_value(workers[1]), 1);
    loan(other, 1);
    static struct ringside_slot kept;
    kept = slot;
    end_daemon(1, SIGKILL);
    send_value(workers[0], 2); /* neighbours go on without it */
    static struct ringside_message second;
    OK(ringside_receive(workers[1], &second, LONG));
    assert_int_equal(*(const uint32_t *)second.tensors[0].data, 2);
    start_daemon(1);
    /* A new worker can attach when the sidecar is back, and the old ones have attached again by themselves. */
    struct ringside *late = join(1);
    static struct ringside_message none;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(ringside_receive(workers[1], &none, 50 * MS), -RINGSIDE_ETIMEOUT);
        assert_int_equal(ringside_receive(other, &none, 0), -RINGSIDE_ETIMEOUT);
    }
    OK(ringside_release(workers[1], &message));
    OK(ringside_release(workers[1], &second));
    *(uint32_t *)kept.tensors[0].data = 3;
    OK(ringside_send(other, &kept, "next", NULL));
    assert_int_equal(take_value(workers[2]), 3);
    OK(ringside_release(workers[2], &message));
    send_value(workers[0], 4);
    assert_int_equal(take_value(late), 4);
    OK(ringside_release(late, &message));
    ringside_close(late);
    ringside_close(other);
}

static void client_polls_a_descriptor(void **state)
{
    struct pollfd poll_fd = {.fd = ringside_fd(workers[1]), .events = POLLIN};

    (void)state;
    assert_true(poll_fd.fd >= 0);
    assert_int_equal(ringside_receive(workers[1], &message, 0), -RINGSIDE_ETIMEOUT);
    for (uint32_t i = 0; i < 50; i++) {
        send_value(workers[0], i);
        int rc;
        do {
            assert_int_equal(poll(&poll_fd, 1, 20000), 1);
            rc = ringside_receive(workers[1], &message, 0);
        } while (rc == -RINGSIDE_ETIMEOUT);
        OK(rc);
        assert_int_equal(*(const uint32_t *)message.tensors[0].data, i);
        OK(ringside_release(workers[1], &message));
        while (ringside_receive(workers[1], &message, 0) == 0)
            fail_msg("a message too many");
    }
}

/* ---- stress: producers, forwarders and consumers, several threads on each connection ---- */

#define THREADS  2
#define PER_EACH 3000

static _Atomic unsigned arrived;
static _Atomic uint64_t sum;

static void *produce(void *data)
{
    struct ringside_slot *mine = malloc(sizeof *mine);
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT32, .rank = 1, .shape = {2}};

    for (uint32_t i = 1; i <= PER_EACH; i++) {
        OK(ringside_loan(workers[0], &tensor, 1, 0, LONG, mine));
        ((uint32_t *)mine->tensors[0].data)[0] = i;
        ((uint32_t *)mine->tensors[0].data)[1] = ~i;
        OK(ringside_send(workers[0], mine, "next", NULL));
    }
    free(mine);
    return data;
}

static void *pass_on(void *data)
{
    struct ringside_message *mine = malloc(sizeof *mine);

    while (arrived < THREADS * PER_EACH) {
        int rc = ringside_receive(workers[1], mine, 50 * MS);

        if (rc == -RINGSIDE_ETIMEOUT)
            continue;
        OK(rc);
        OK(ringside_forward(workers[1], mine, "next", NULL));
    }
    free(mine);
    return data;
}

static void *consume(void *data)
{
    struct ringside_message *mine = malloc(sizeof *mine);

    while (arrived < THREADS * PER_EACH) {
        int rc = ringside_receive(workers[2], mine, 50 * MS);

        if (rc == -RINGSIDE_ETIMEOUT)
            continue;
        OK(rc);
        const uint32_t *values = mine->tensors[0].data;
        assert_int_equal(values[0], ~values[1]);
        sum += values[0];
        arrived++;
        OK(ringside_release(workers[2], mine));
    }
    free(mine);
    return data;
}

static void client_threads_through_three_stages(void **state)
{
    pthread_t threads[3 * THREADS];

    (void)state;
    arrived = 0;
    sum = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[3 * i], NULL, produce, NULL);
        pthread_create(&threads[3 * i + 1], NULL, pass_on, NULL);
        pthread_create(&threads[3 * i + 2], NULL, consume, NULL);
    }
    for (int i = 0; i < 3 * THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(arrived, THREADS * PER_EACH);
    assert_int_equal(sum, (uint64_t)THREADS * PER_EACH * (PER_EACH + 1) / 2);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_two_stages),
        CASE(client_forward_becomes_in_place),
        CASE(client_nack_and_dead_letter),
        CASE(client_ticket_text_in_another_process),
        CASE(client_fork_needs_its_own_connection),
        CASE(client_forks_while_rings_open),
        CASE(client_close_with_open_leases),
        CASE(client_killed_worker_loses_nothing),
        CASE(client_outlives_its_sidecar),
        CASE(client_polls_a_descriptor),
        CASE(client_threads_through_three_stages),
    };

    return cmocka_run_group_tests_name("client with sidecars", tests, NULL, NULL);
}

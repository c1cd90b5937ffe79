/* SPDX-License-Identifier: Apache-2.0 */
/* The SIGBUS guard: truncated files, holes in huge pages, other people's SIGBUS, the table's bound.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/guard.h"
#include "tests/unit/emulator.h"

enum { PAGE = 4096, PAGES = 8 };

static uint8_t *map_file(int *fd, size_t bytes, int protection)
{
    *fd = memfd_create("guard", MFD_CLOEXEC);
    assert_true(*fd >= 0);
    assert_int_equal(ftruncate(*fd, (off_t)bytes), 0);
    uint8_t *base = mmap(NULL, bytes, protection, MAP_SHARED, *fd, 0);
    assert_ptr_not_equal(base, MAP_FAILED);
    return base;
}

static void unmap(uint8_t *base, size_t bytes, int fd)
{
    rs_guard_remove(base);
    munmap(base, bytes);
    close(fd);
}

static void guard_truncated(void **state)
{
    (void)state;
    int fd;
    volatile uint8_t *base = map_file(&fd, PAGES * PAGE, PROT_READ | PROT_WRITE);
    int other_fd;
    uint8_t *other = map_file(&other_fd, PAGE, PROT_READ | PROT_WRITE);

    assert_int_equal(rs_guard_add((void *)base, PAGES * PAGE), 0);
    assert_int_equal(rs_guard_add(other, PAGE), 0);
    memset((void *)base, 7, PAGES * PAGE);
    assert_false(rs_guard_hit((void *)base));
    assert_int_equal(ftruncate(fd, 2 * PAGE), 0);
    assert_int_equal(base[2 * PAGE - 1], 7); /* what is left of the file stays as it was */
    assert_false(rs_guard_hit((void *)base));
    assert_int_equal(base[5 * PAGE + 9], 0);
    assert_true(rs_guard_hit((void *)base));
    assert_false(rs_guard_hit(other)); /* the neighbour is not to blame */
    base[5 * PAGE] = 1;
    assert_int_equal(base[5 * PAGE], 1);
    base[7 * PAGE] = 2; /* a write is caught as well */
    assert_int_equal(base[PAGE], 7);
    unmap((uint8_t *)base, PAGES * PAGE, fd);
    unmap(other, PAGE, other_fd);
}

static void guard_read_only(void **state)
{
    (void)state;
    int fd;
    volatile uint8_t *base = map_file(&fd, PAGES * PAGE, PROT_READ);

    assert_int_equal(rs_guard_add((void *)base, PAGES * PAGE), 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(base[0], 0);
    assert_true(rs_guard_hit((void *)base));
    unmap((uint8_t *)base, PAGES * PAGE, fd);
}

static void guard_forgets(void **state)
{
    (void)state;
    int fd;
    volatile uint8_t *base = map_file(&fd, PAGE, PROT_READ | PROT_WRITE);

    assert_int_equal(rs_guard_add((void *)base, PAGE), 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(base[0], 0);
    rs_guard_remove((void *)base);
    assert_false(rs_guard_hit((void *)base));
    assert_int_equal(rs_guard_add((void *)base, PAGE), 0);
    assert_false(rs_guard_hit((void *)base)); /* counted anew */
    unmap((uint8_t *)base, PAGE, fd);
}

static void guard_table_full(void **state)
{
    (void)state;
    static uint8_t ranges[1025];
    int added = 0;

    while (added < 1025 && rs_guard_add(&ranges[added], 1) == 0)
        added++;
    assert_int_equal(added, 1024);
    assert_int_equal(rs_guard_add(&ranges[1024], 1), -ENOSPC);
    rs_guard_remove(&ranges[100]);
    assert_int_equal(rs_guard_add(&ranges[1024], 1), 0);
    for (int i = 0; i < 1025; i++)
        rs_guard_remove(&ranges[i]);
    assert_int_equal(rs_guard_add(NULL, 1), -EINVAL);
    assert_int_equal(rs_guard_add(ranges, 0), -EINVAL);
}

/* Runs the body in a child and returns its wait status. */
static int in_child(void (*body)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        body();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static volatile uint8_t *guard_one(int *fd)
{
    *fd = memfd_create("child", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, PAGE) < 0)
        _exit(90);
    void *base = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (base == MAP_FAILED || rs_guard_add(base, PAGE) != 0)
        _exit(91);
    return base;
}

static void stray_fault(void)
{
    int second = memfd_create("unguarded", MFD_CLOEXEC);
    volatile uint8_t *stray = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, second, 0);
    stray[0] = 1;
}

static void fault_outside(void)
{
    int fd;
    signal(SIGBUS, SIG_DFL); /* the test framework has its own */
    guard_one(&fd);
    stray_fault();
}

static void sent_by_kill(void)
{
    int fd;
    signal(SIGBUS, SIG_DFL);
    guard_one(&fd);
    kill(getpid(), SIGBUS);
}

static void guard_other_sigbus_is_fatal(void **state)
{
    (void)state;
    int status = in_child(fault_outside);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    status = in_child(sent_by_kill);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void exit_42(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    _exit(info->si_addr ? 42 : 43);
}

static void chain_body(void)
{
    struct sigaction action = {.sa_sigaction = exit_42, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    int fd;
    volatile uint8_t *mine = guard_one(&fd);
    if (ftruncate(fd, 0) < 0)
        _exit(92);
    mine[0] = 1; /* ours: the earlier handler is not asked */
    if (!rs_guard_hit((void *)mine))
        _exit(93);
    stray_fault();
}

static struct sigaction of_guard; /* for a handler that calls the guard's in turn */

static void call_back(int number, siginfo_t *info, void *context)
{
    of_guard.sa_sigaction(number, info, context);
}

static void circle_body(void)
{
    struct sigaction action = {.sa_sigaction = call_back, .sa_flags = SA_SIGINFO};
    int fd;
    signal(SIGBUS, SIG_DFL);
    guard_one(&fd);
    sigaction(SIGBUS, &action, &of_guard);
    guard_one(&fd); /* set again, above the one that calls us */
    stray_fault();
}

/* Does its work and puts back what it once found, for that to decide: the guard's own. */
static void put_back(int number, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    sigaction(number, &of_guard, NULL);
}

static void hand_back_body(void)
{
    struct sigaction action = {.sa_sigaction = put_back, .sa_flags = SA_SIGINFO};
    int fd;
    signal(SIGBUS, SIG_DFL);
    guard_one(&fd);
    sigaction(SIGBUS, &action, &of_guard);
    guard_one(&fd);
    alarm(20);
    stray_fault();
}

static void guard_chains(void **state)
{
    (void)state;
    int status = in_child(chain_body);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    status = in_child(circle_body);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    status = in_child(hand_back_body);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

struct race {
    volatile uint8_t *base; /* guarded and truncated */
    size_t pages;           /* of it */
};

static void *touch_all(void *argument)
{
    struct race *race = argument;
    for (size_t i = 0; i < race->pages; i++)
        (void)race->base[i * PAGE];
    return NULL;
}

static void guard_threads(void **state)
{
    (void)state;
    int fd;
    struct race race = {.pages = 256};
    race.base = map_file(&fd, race.pages * PAGE, PROT_READ | PROT_WRITE);
    assert_int_equal(rs_guard_add((void *)race.base, race.pages * PAGE), 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, touch_all, &race), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(rs_guard_hit((void *)race.base));
    unmap((uint8_t *)race.base, race.pages * PAGE, fd);
}

static long read_number(const char *path)
{
    FILE *file = fopen(path, "re");
    long value = -1;
    if (file && fscanf(file, "%ld", &value) != 1)
        value = -1;
    if (file)
        fclose(file);
    return value;
}

static bool write_number(const char *path, long value)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return false;
    bool ok = fprintf(file, "%ld\n", value) > 0;
    return fclose(file) == 0 && ok;
}

/* A huge page can only be replaced whole: a small one in its place is refused by the kernel. */
static void guard_huge_page(void **state)
{
    (void)state;
    skip_if_emulated("cannot map huge pages");
    const char *knob = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    const size_t huge = (size_t)2 << 20;
    long before = read_number(knob);
    if (before < 0 || !write_number(knob, before + 2) || read_number(knob) < before + 2) {
        if (before >= 0)
            write_number(knob, before);
        print_message("skipped: no 2 MiB pages can be allocated here (needs root)\n");
        skip();
    }
    int fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
    bool ok = fd >= 0 && ftruncate(fd, (off_t)(2 * huge)) == 0;
    volatile uint8_t *base =
        ok ? mmap(NULL, 2 * huge, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    int first = -1, second = -1;
    bool hit = false;
    if (base != MAP_FAILED && rs_guard_add((void *)base, 2 * huge) == 0) {
        base[0] = 5;
        base[huge] = 6;
        if (ftruncate(fd, (off_t)huge) == 0) {
            second = base[huge + 12345];
            hit = rs_guard_hit((void *)base);
            first = base[0];
        }
        unmap((uint8_t *)base, 2 * huge, fd);
    }
    write_number(knob, read_number(knob) - 2);
    assert_int_equal(first, 5);
    assert_int_equal(second, 0);
    assert_true(hit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guard_truncated),
        cmocka_unit_test(guard_read_only),
        cmocka_unit_test(guard_forgets),
        cmocka_unit_test(guard_table_full),
        cmocka_unit_test(guard_other_sigbus_is_fatal),
        cmocka_unit_test(guard_chains),
        cmocka_unit_test(guard_threads),
        cmocka_unit_test(guard_huge_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

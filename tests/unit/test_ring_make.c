/* SPDX-License-Identifier: Apache-2.0 */
/* What a ring is made of: room, memory lock, placement. */
#include "tests/unit/child_fixture.h"
#include "tests/unit/emulator.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

/* The system call answers with `error`; with `argument` >= 0 only when its third argument is that.
 */
static void forbid(int number, int argument, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | (argument >= 0 ? BPF_JEQ : BPF_JGE) | BPF_K,
                 argument >= 0 ? (uint32_t)argument : 0, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
        SKIP("no seccomp filters: %s", strerror(errno));
}

static void in_child(void (*body)(void))
{
    judge_child(child_status(body));
}

/* ---- room ---- */
static void too_small_body(void)
{
    struct stage a;
    char body[PATH_MAX];

    private_mounts();
    mount_at("body", "tmpfs", "size=1044480"); /* the ring without its last page */
    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "1048576") && strstr(a.error, "1044480") && strstr(a.error, "body"));
    snprintf(body, sizeof(body), "%s/features.body", a.config.ring.body_dir);
    CHECK(!exists(body));
    CHECK(entries("control") == 0 && entries("body") == 0);
    CHECK(mount("none", a.config.ring.body_dir, "tmpfs", MS_REMOUNT, "size=1048576") == 0);
    CHECK(start(&a) == 0);
    /* Full for others, but every page of the ring is its own already. */
    char filler[PATH_MAX];
    snprintf(filler, sizeof(filler), "%s/filler", a.config.ring.body_dir);
    int fd = open(filler, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) < 0 && errno == ENOSPC);
    memset(a.ring.body, 3, 1 << 20);
    CHECK(!ring_files_damaged(&a.ring));
    stop(&a, true);
}

static void room_body(void **state)
{
    (void)state;
    skip_if_emulated("ignores madvise");
    mkdir(base_dir, 0755);
    in_child(too_small_body);
}

static void too_small_control(void)
{
    struct stage a;

    private_mounts();
    mount_at("control", "tmpfs", "size=8192");
    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "control") && strstr(a.error, "needs"));
    CHECK(entries("control") == 0 && entries("body") == 0);
}

static void room_control(void **state)
{
    (void)state;
    mkdir(base_dir, 0755);
    in_child(too_small_control);
}

/* The file system says that there is room, and then there is none: what another program's writing
 * does. */
static void room_vanishes(void)
{
    struct stage a;

    private_mounts();
    mount_at("body", "tmpfs", "size=1044480");
    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    forbid(SYS_fstatfs, -1, ENOSYS); /* so the check before sees nothing */
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "1048576"));
    CHECK(entries("control") == 0 && entries("body") == 0);
}

static void room_found_by_touch(void **state)
{
    (void)state;
    mkdir(base_dir, 0755);
    in_child(room_vanishes);
}

/* Kernels before 5.14 cannot populate: pages are touched under the guard. */
static void old_kernel(void)
{
    struct stage a;

    private_mounts();
    mount_at("body", "tmpfs", "size=1044480");
    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    forbid(SYS_madvise, 23, EINVAL);
    forbid(SYS_fstatfs, -1, ENOSYS);
    CHECK(start(&a) == -ENOSPC);
    CHECK(mount("none", a.config.ring.body_dir, "tmpfs", MS_REMOUNT, "size=1048576") == 0);
    CHECK(start(&a) == 0);
    struct stat status;
    CHECK(fstat(a.files.body_fd, &status) == 0 && status.st_blocks * 512 == 1 << 20);
    stop(&a, true);
}

static void room_old_kernel(void **state)
{
    (void)state;
    mkdir(base_dir, 0755);
    in_child(old_kernel);
}

/* ---- memory lock ---- */
static long locked_kb(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long kb = -1;

    while (file && fgets(line, sizeof(line), file))
        (void)sscanf(line, "VmLck: %ld kB", &kb);
    if (file)
        fclose(file);
    return kb;
}

static void lock_limits(void)
{
    struct stage a, exact;

    /* 4 MiB: most containers' hard limit of 8 MiB cannot be raised, so that 64 MiB never fit. */
    drop_lock_capability();
    set_memlock(4u << 20);
    configure(&exact, "", "\"pages\":\"4Ki\",\"lock\":\"require\",",
              "{\"slot_bytes\":\"4Mi\",\"slots\":1}");
    CHECK(start(&exact) == 0); /* the limit is exactly what is needed */
    CHECK(!exact.files.lock_degraded && locked_kb() == 4 << 10);
    CHECK(strstr(exact.files.lock, "4194304"));
    ring_files_close(&exact.files, &exact.ring, true);
    CHECK(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){(4u << 20) - 4096, 4u << 20}) == 0);
    CHECK(start(&exact) < 0);
    exact.config.ring.lock = RS_CONFIG_LOCK_AUTO;
    CHECK(start(&exact) == 0);
    CHECK(exact.files.lock_degraded && locked_kb() == 0);
    stop(&exact, true);

    configure(&a, "", "\"pages\":\"4Ki\",", LARGE_CLASS);
    set_memlock(4u << 20);
    CHECK(start(&a) == 0);
    CHECK(a.files.lock_degraded && locked_kb() == 0);
    CHECK(strstr(a.files.lock, "67108864") && strstr(a.files.lock, "4194304"));
    ring_files_close(&a.files, &a.ring, true);
    a.config.ring.lock = RS_CONFIG_LOCK_REQUIRE;
    CHECK(start(&a) < 0);
    CHECK(strstr(a.error, "67108864") && strstr(a.error, "4194304") && strstr(a.error, "require"));
    CHECK(entries("control") == 0 && entries("body") == 0);
    a.config.ring.lock = RS_CONFIG_LOCK_OFF;
    CHECK(start(&a) == 0);
    CHECK(!a.files.lock_degraded && locked_kb() == 0);
    stop(&a, true);
}

static void lock_policies(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: sanitizers turn mlock into nothing\n");
    skip();
#endif
    in_child(lock_limits);
}

/* ---- placement ---- */
static void numa_node_missing(void **state)
{
    (void)state;
    skip_if_emulated("has no NUMA calls");
    struct stage a;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    a.config.ring.numa_node = 63;
    assert_int_equal(start(&a), 0);
    assert_true(a.files.numa_degraded);
    assert_non_null(strstr(a.files.numa, "no node 63"));
    ring_files_close(&a.files, &a.ring, true);
    a.config.ring.numa_node = RS_CONFIG_NUMA_OFF;
    assert_int_equal(start(&a), 0);
    assert_false(a.files.numa_degraded);
    assert_string_equal(a.files.numa, "off");
    ring_files_close(&a.files, &a.ring, true);
    a.config.ring.numa_node = 0;
    assert_int_equal(start(&a), 0);
    print_message("node 0: %s\n", a.files.numa);
    stop(&a, true);
}

static void mbind_refused(int error, const char *name)
{
    struct stage a;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    a.config.ring.numa_node = 0;
    CHECK(start(&a) == 0);
    if (a.files.numa_degraded)
        SKIP("NUMA calls do not work here anyway: %s", a.files.numa);
    ring_files_close(&a.files, &a.ring, true);
    forbid(SYS_mbind, -1, error);
    CHECK(start(&a) == 0);
    CHECK(a.files.numa_degraded && strstr(a.files.numa, name));
    stop(&a, true);
}

static void mbind_eperm(void)
{
    mbind_refused(EPERM, "EPERM");
}

static void mbind_enosys(void)
{
    mbind_refused(ENOSYS, "ENOSYS");
}

static void no_numa_calls(void)
{
    struct stage a;

    forbid(SYS_get_mempolicy, -1, ENOSYS);
    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    a.config.ring.numa_node = 0;
    CHECK(start(&a) == 0);
    CHECK(a.files.numa_degraded && strstr(a.files.numa, "get_mempolicy"));
    stop(&a, true);
}

static void unverified(void)
{
    struct stage a;

    forbid(SYS_get_mempolicy, -1, EPERM);
    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    a.config.ring.numa_node = 0;
    CHECK(start(&a) == 0);
    CHECK(strstr(a.files.numa, "cannot be checked: get_mempolicy: EPERM"));
    stop(&a, true);
}

static void numa_refused(void **state)
{
    (void)state;
    in_child(mbind_eperm);
    in_child(mbind_enosys);
    in_child(no_numa_calls);
    in_child(unverified);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(room_body),
        CASE(room_control),
        CASE(room_found_by_touch),
        CASE(room_old_kernel),
        CASE(lock_policies),
        CASE(numa_node_missing),
        CASE(numa_refused),
    };

    return run_ring_tests(tests, sizeof(tests) / sizeof(tests[0]));
}

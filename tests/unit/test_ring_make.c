/* SPDX-License-Identifier: Apache-2.0 */
/* What a ring is made of: page sizes, room, memory lock, placement. */
#include "tests/unit/ring_fixture.h"
#include "tests/unit/emulator.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- checks in a child: an assertion of the framework would jump into the parent's frames ---- */
#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                                 \
        }                                                                             \
    } while (0)
#define SKIP(...)                        \
    do {                                 \
        printf("skipped: " __VA_ARGS__); \
        printf("\n");                    \
        fflush(stdout);                  \
        _exit(77);                       \
    } while (0)

static void in_child(void (*body)(void))
{
    int status = 0;

    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void private_mounts(void)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        SKIP("no private mount namespace: %s", strerror(errno));
}

static void mount_at(const char *sub, const char *type, const char *options)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", base_dir, sub);
    mkdir(path, 0755);
    if (mount("none", path, type, 0, options) < 0)
        SKIP("cannot mount a %s with %s: %s", type, options, strerror(errno));
}

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

static void drop_lock_capability(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];

    if (syscall(SYS_capget, &header, data) < 0)
        SKIP("capget: %s", strerror(errno));
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    data[0].permitted &= ~(1u << CAP_IPC_LOCK);
    CHECK(syscall(SYS_capset, &header, data) == 0);
}

static long knob(const char *path, long value)
{
    FILE *file = fopen(path, value < 0 ? "re" : "we");
    long result = -1;

    if (!file)
        return -1;
    if (value >= 0)
        result = fprintf(file, "%ld\n", value) > 0 ? value : -1;
    else if (fscanf(file, "%ld", &result) != 1)
        result = -1;
    if (fclose(file) != 0)
        result = -1;
    return result;
}

#define HUGE_KNOB "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

/* Runs the body in a child while `pages` further 2 MiB pages exist. */
static void with_huge_pages(long pages, void (*body)(void))
{
    long before = knob(HUGE_KNOB, -1);

    if (before < 0 || knob(HUGE_KNOB, before + pages) < 0 || knob(HUGE_KNOB, -1) < before + pages) {
        if (before >= 0)
            knob(HUGE_KNOB, before);
        print_message("skipped: %ld pages of 2 MiB cannot be allocated here (needs root)\n", pages);
        skip();
    }
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    waitpid(pid, &status, 0);
    knob(HUGE_KNOB, knob(HUGE_KNOB, -1) - pages); /* by difference: others may have changed it meanwhile */
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
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
static void set_memlock(uint64_t bytes)
{
    CHECK(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){bytes, bytes}) == 0);
}

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

/* ---- huge pages ---- */
static void huge_body(void)
{
    struct stage a;

    private_mounts();
    mount_at("huge", "hugetlbfs", "pagesize=2M");
    drop_lock_capability();
    set_memlock(0);
    configure(&a, "", "\"lock\":\"require\",", LARGE_CLASS);
    CHECK(start(&a) == 0); /* auto: 32 pages are free and 32 are needed */
    CHECK(a.files.page_bytes == 2u << 20 && a.ring.layout.page_bytes == 2u << 20);
    CHECK(strstr(a.files.pages, "2 MiB pages") && strstr(a.files.pages, "1 GiB: "));
    CHECK(strstr(a.files.body_path, "/huge/") && strstr(a.files.lock, "never swapped"));
    memset(a.ring.body, 1, a.ring.layout.body_bytes);
    char body[PATH_MAX];
    strcpy(body, a.files.body_path);
    ring_files_close(&a.files, &a.ring, false);
    CHECK(start(&a) == 0 && a.files.adopted && a.files.page_bytes == 2u << 20);
    CHECK(strcmp(a.files.body_path, body) == 0 && a.ring.body[5] == 1);

    /* A second stage finds none left; it must not fail, and must say why. */
    struct stage b;
    configure(&b, "", "", SMALL_CLASS);
    strcpy(b.config.stage, "second");
    CHECK(start(&b) == 0);
    CHECK(b.files.page_bytes == 4096 && strstr(b.files.pages, "2 MiB: 0 of 1 pages free"));
    ring_files_close(&b.files, &b.ring, true);
    b.config.ring.page_bytes = 2u << 20;
    CHECK(start(&b) == -ENOSPC);
    CHECK(strstr(b.error, "2097152") && strstr(b.error, "0 are available"));
    CHECK(strstr(b.error, "nr_hugepages"));
    b.config.ring.page_bytes = 1u << 30;
    CHECK(start(&b) == -ENOENT);
    CHECK(strstr(b.error, "mount -t hugetlbfs") && strstr(b.error, "1073741824"));
    stop(&a, true);
    CHECK(entries("huge") == 0 && entries("control") == 0);

    /* body_dir may be a hugetlbfs itself; the size is rounded up to its pages. */
    snprintf(b.config.ring.body_dir, sizeof(b.config.ring.body_dir), "%s/huge", base_dir);
    b.config.ring.page_bytes = 0;
    CHECK(start(&b) == 0);
    CHECK(b.ring.layout.body_bytes == 2u << 20 && strstr(b.files.body_path, "/huge/second.body"));
    stop(&b, true);
}

static void huge_pages(void **state)
{
    (void)state;
    skip_if_emulated("cannot map huge pages");
    mkdir(base_dir, 0755);
    with_huge_pages(32, huge_body);
}

static void huge_size_option(void)
{
    struct stage a;

    private_mounts();
    mount_at("huge", "hugetlbfs", "pagesize=2M,size=4M");
    configure(&a, "", "\"pages\":\"2Mi\",", "{\"slot_bytes\":\"2Mi\",\"slots\":3}");
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "4194304 are available"));
    configure(&a, "", "\"pages\":\"2Mi\",", "{\"slot_bytes\":\"2Mi\",\"slots\":2}");
    CHECK(start(&a) == 0);
    stop(&a, true);
}

static void huge_mount_limit(void **state)
{
    (void)state;
    skip_if_emulated("cannot map huge pages");
    mkdir(base_dir, 0755);
    with_huge_pages(4, huge_size_option);
}

#define CGROUP "/sys/fs/cgroup/unified"
static char cgroup_dir[96];

static int put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t done = fd < 0 ? -1 : write(fd, text, strlen(text));

    if (fd >= 0)
        close(fd);
    return done < 0 ? -1 : 0;
}

static void enter_cgroup(const char *file, const char *value)
{
    char path[160];

    snprintf(path, sizeof(path), "%s/%s", cgroup_dir, file);
    if (put(path, value) < 0)
        SKIP("%s: %s", path, strerror(errno));
    snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup_dir);
    if (put(path, "0") < 0)
        SKIP("%s: %s", path, strerror(errno));
}

/* The pages are there, but the first touch of one would be a SIGBUS. */
static void huge_forbidden(void)
{
    struct stage a;

    private_mounts();
    mount_at("huge", "hugetlbfs", "pagesize=2M");
    enter_cgroup("hugetlb.2MB.max", "0");
    configure(&a, "", "\"pages\":\"2Mi\",", "{\"slot_bytes\":\"2Mi\",\"slots\":2}");
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "4194304") && strstr(a.error, "hugetlb cgroup controller"));
    CHECK(entries("huge") == 0 && entries("control") == 0);
    a.config.ring.page_bytes = 0; /* auto does without, and says why */
    CHECK(start(&a) == 0);
    CHECK(a.files.page_bytes == 4096 && strstr(a.files.pages, "2 MiB: "));
    stop(&a, true);
}

static void huge_reservation_forbidden(void)
{
    struct stage a;

    private_mounts();
    mount_at("huge", "hugetlbfs", "pagesize=2M");
    enter_cgroup("hugetlb.2MB.rsvd.max", "0");
    configure(&a, "", "\"pages\":\"2Mi\",", "{\"slot_bytes\":\"2Mi\",\"slots\":2}");
    CHECK(start(&a) == -ENOSPC);
    CHECK(strstr(a.error, "hugetlb cgroup controller"));
    CHECK(entries("huge") == 0 && entries("control") == 0);
}

static void huge_cgroup(void **state)
{
    (void)state;
    skip_if_emulated("cannot map huge pages");
    char line[512] = "";
    FILE *file = fopen(CGROUP "/cgroup.subtree_control", "re");

    if (!file) {
        print_message("skipped: no cgroup v2 at " CGROUP "\n");
        skip();
    }
    bool was_on = fgets(line, sizeof(line), file) && strstr(line, "hugetlb");
    fclose(file);
    snprintf(cgroup_dir, sizeof(cgroup_dir), CGROUP "/ringside-test-%d", (int)getpid());
    if (put(CGROUP "/cgroup.subtree_control", "+hugetlb") < 0 || mkdir(cgroup_dir, 0755) < 0) {
        print_message("skipped: the hugetlb controller cannot be turned on (needs root)\n");
        skip();
    }
    long before = knob(HUGE_KNOB, -1);
    knob(HUGE_KNOB, before + 4);
    void (*bodies[])(void) = {huge_forbidden, huge_reservation_forbidden};
    int statuses[2];
    mkdir(base_dir, 0755);
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            bodies[i]();
            _exit(0);
        }
        waitpid(pid, &statuses[i], 0);
    }
    knob(HUGE_KNOB, before);
    for (int i = 0; i < 100 && rmdir(cgroup_dir) < 0; i++)
        usleep(10000);
    if (!was_on)
        put(CGROUP "/cgroup.subtree_control", "-hugetlb");
    for (int i = 0; i < 2; i++) {
        assert_true(WIFEXITED(statuses[i]));
        if (WEXITSTATUS(statuses[i]) == 77)
            skip();
        assert_int_equal(WEXITSTATUS(statuses[i]), 0);
    }
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
        CASE(room_body),        CASE(room_control),  CASE(room_found_by_touch),
        CASE(room_old_kernel),  CASE(lock_policies), CASE(huge_pages),
        CASE(huge_mount_limit), CASE(huge_cgroup),   CASE(numa_node_missing),
        CASE(numa_refused),
    };
    return run_ring_tests(tests, sizeof(tests) / sizeof(tests[0]));
}

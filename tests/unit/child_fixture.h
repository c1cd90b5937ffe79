/* SPDX-License-Identifier: Apache-2.0 */
/* For tests in a child, which may change what a process has: its mounts, its capabilities, its
 * system calls. */
#ifndef RINGSIDE_TESTS_CHILD_FIXTURE_H
#define RINGSIDE_TESTS_CHILD_FIXTURE_H

#include "tests/unit/ring_fixture.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* An assertion of the framework would jump into the parent's frames. */
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

/* What waitpid says of it, or -1. */
static int child_status(void (*body)(void))
{
    int status = -1;

    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

static void judge_child(int status)
{
    assert_true(status >= 0 && WIFEXITED(status));
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

static void set_memlock(uint64_t bytes)
{
    CHECK(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){bytes, bytes}) == 0);
}

#endif

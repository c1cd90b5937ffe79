/* SPDX-License-Identifier: Apache-2.0 */
/* Sidecars s0, s1, ... of a test in C, STAGES of them, with their files in one directory, and workers that join them. */
#ifndef RINGSIDE_TESTS_INTEGRATION_DAEMONS_H
#define RINGSIDE_TESTS_INTEGRATION_DAEMONS_H

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "client/c/ringside.h"

#define MS   INT64_C(1000000)
#define LONG (20000 * MS) /* never reached when all is well */

static char directory[64]; /* of configs, sockets and logs */
static pid_t daemons[STAGES]; /* 0: not running */

static inline int64_t now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

static inline void path_of(char path[128], int stage, const char *suffix)
{
    snprintf(path, 128, "%s/s%d.%s", directory, stage, suffix);
}

static inline void start_daemon(int stage)
{
    char config[128], log[128];

    path_of(config, stage, "json");
    path_of(log, stage, "log");
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(log, O_CREAT | O_APPEND | O_WRONLY, 0600);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fd, 2);
        execl(getenv("RINGSIDE_PROXY"), "ringside-proxy", config, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    daemons[stage] = pid;
}

static inline void end_daemon(int stage, int signal_number)
{
    int status;

    if (daemons[stage] <= 0)
        return;
    kill(daemons[stage], signal_number);
    assert_int_equal(waitpid(daemons[stage], &status, 0), daemons[stage]);
    daemons[stage] = 0;
}

static inline void make_directory(void)
{
    strcpy(directory, "/tmp/ringside-XXXXXX");
    assert_non_null(mkdtemp(directory));
}

/* Ends all that run, shows the last of their logs when RINGSIDE_TEST_LOGS is set, removes the
 * directory. */
static inline int end_daemons(void)
{
    char command[128];

    for (int i = 0; i < STAGES; i++)
        end_daemon(i, SIGTERM);
    if (getenv("RINGSIDE_TEST_LOGS") != NULL) {
        snprintf(command, sizeof command, "tail -n 60 %s/s*.log >&2", directory);
        (void)!system(command);
    }
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

/* Stages whose one route, "next", leads to stage 1; what stage 1 sends to itself never blocks. */
static inline void start_callers(int slots, const char *log_level, const char *when_full)
{
    make_directory();
    for (int i = 0; i < STAGES; i++) {
        char path[128], socket[128], next[128];

        path_of(path, i, "json");
        path_of(socket, i, "sock");
        path_of(next, 1, "sock");
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fprintf(
            file,
            "{\"stage\":\"s%d\",\"socket\":{\"path\":\"%s\"},\"ring\":{\"control_dir\":\"%s/ring\","
            "\"body_dir\":\"%s/ring\",\"pages\":\"4Ki\",\"lock\":\"off\",\"classes\":["
            "{\"slot_bytes\":\"4Ki\",\"slots\":%d}]},\"inbox\":{\"cells\":64,\"depth\":32},"
            "\"log\":{\"level\":\"%s\"},\"drain_timeout_ms\":300,"
            "\"routes\":{\"next\":{\"to\":[\"unix:%s\"],\"when_full\":\"%s\"}}}\n",
            i, socket, directory, directory, slots, log_level, next, i == 1 ? "error" : when_full);
        fclose(file);
        start_daemon(i);
    }
}

static inline struct ringside *join(int stage)
{
    char path[128];
    struct ringside *worker;
    struct ringside_connect_options options = {.socket = path, .timeout_ns = LONG};

    path_of(path, stage, "sock");
    if (ringside_connect(&worker, &options) < 0)
        fail_msg("stage %d: %s", stage, ringside_explain(NULL));
    return worker;
}

#endif

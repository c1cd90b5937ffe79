/* SPDX-License-Identifier: Apache-2.0 */
/* A stage with files of its own below a directory in /dev/shm, for tests of ring files. */
#ifndef RINGSIDE_TESTS_RING_FIXTURE_H
#define RINGSIDE_TESTS_RING_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/err.h"
#include "proxy/ring_files.h"

static char base_dir[64]; /* on a tmpfs; every test's files lie below it */

struct stage {
    struct rs_config config;
    struct ring_files files;
    struct rs_ring ring;
    char error[1024];
};

static void remove_base(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", base_dir);
    if (system(command) != 0)
        fprintf(stderr, "cannot remove %s\n", base_dir);
}

/* `more` are further members of the config, each followed by a comma. */
static void configure(struct stage *stage, const char *more, const char *ring_more,
                      const char *classes)
{
    char text[2048], error[RS_CONFIG_ERROR_BYTES];
    int length = snprintf(text, sizeof(text),
                          "{%s \"stage\":\"features\", \"socket\":{\"path\":\"%s/s.sock\"},"
                          "\"inbox\":{\"cells\":64,\"depth\":32}, \"clients\":{\"max\":8},"
                          "\"ring\":{\"control_dir\":\"%s/control\", \"body_dir\":\"%s/body\", %s"
                          "\"classes\":[%s]}}",
                          more, base_dir, base_dir, base_dir, ring_more, classes);

    memset(stage, 0, sizeof(*stage));
    if (rs_config_parse(&stage->config, text, (size_t)length, "test", error, sizeof(error)) < 0) {
        fprintf(stderr, "%s\n", error);
        abort();
    }
}

#define SMALL_CLASS "{\"slot_bytes\":\"64Ki\",\"slots\":16}" /* 1 MiB */
#define LARGE_CLASS "{\"slot_bytes\":\"64Mi\",\"slots\":1}"
#define SMALL_PAGES "\"pages\":\"4Ki\",\"lock\":\"off\","

static int start(struct stage *stage)
{
    return ring_files_open(&stage->files, &stage->ring, &stage->config, stage->error,
                           sizeof(stage->error));
}

static void stop(struct stage *stage, bool remove)
{
    ring_files_close(&stage->files, &stage->ring, remove);
    rs_config_finish(&stage->config);
}

static inline bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static inline unsigned entries(const char *sub)
{
    char command[160];
    unsigned count = 0;

    snprintf(command, sizeof(command), "ls -A '%s/%s' | wc -l", base_dir, sub);
    FILE *pipe = popen(command, "re");
    if (!pipe || fscanf(pipe, "%u", &count) != 1)
        count = 999;
    if (pipe)
        pclose(pipe);
    return count;
}

static int clean(void **state)
{
    (void)state;
    remove_base();
    return 0;
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, clean, clean)

static int run_ring_tests(const struct CMUnitTest *tests, size_t count)
{
    snprintf(base_dir, sizeof(base_dir), "/dev/shm/ringside-test-%d", (int)getpid());
    return _cmocka_run_group_tests("ring files", tests, count, NULL, NULL);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Failpoints: nothing in an ordinary build; counting, the nth hit and each way to end in a build
 * that has them. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/failpoint.h"

#ifndef RINGSIDE_FAILPOINTS

#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...)    TEXT_OF(__VA_ARGS__)

static void is_nothing_in_an_ordinary_build(void **state)
{
    (void)state;
    assert_string_equal(TEXT(RS_FAILPOINT(seal_before)), "((void)0)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_nothing_in_an_ordinary_build)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

/* This program again, because a process looks at its environment once. Its status as wait gives it.
 */
static int run(const char *armed, const char *file)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        setenv("RINGSIDE_FAILPOINT", armed, 1);
        setenv("RINGSIDE_FAILPOINT_LOG", file, 1);
        (void)!freopen("/dev/null", "w", stderr);
        execl("/proc/self/exe", "test_failpoint", "child", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    if (WIFSTOPPED(status)) {
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    return status;
}

static int child(void)
{
    for (int i = 0; i < 3; i++) {
        RS_FAILPOINT(seal_before);
        RS_FAILPOINT(seal_after);
    }
    return 7;
}

static uint64_t word_of(const char *path, unsigned index)
{
    uint64_t value = 0;
    FILE *file = fopen(path, "re");

    assert_non_null(file);
    assert_int_equal(fseek(file, (long)(index * sizeof value), SEEK_SET), 0);
    assert_int_equal(fread(&value, sizeof value, 1, file), 1);
    fclose(file);
    return value;
}

static void ends_at_the_nth_hit(void **state)
{
    char path[] = "/tmp/ringside-failpoint-XXXXXX";
    int fd = mkstemp(path), status;

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    status = run("", path);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_int_equal(word_of(path, 1 + RS_FAILPOINT_seal_before), 3);
    status = run("seal_after:2", path);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(word_of(path, 1 + RS_FAILPOINT_seal_before), 5);
    assert_int_equal(word_of(path, 1 + RS_FAILPOINT_seal_after), 5);
    assert_int_equal(word_of(path, 0), 0);
    status = run("seal_before:exit", path);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 70);
    status = run("seal_before:1:stop", path);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    unlink(path);
}

static void refuses_what_it_does_not_know(void **state)
{
    const char *wrong[] = {"seal", "seal_before:0", "seal_before:1:die", ":", "seal_before:-"};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int status = run(wrong[i], "");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 70)
            fail_msg("\"%s\" was taken", wrong[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_at_the_nth_hit),
        cmocka_unit_test(refuses_what_it_does_not_know),
    };

    if (argc > 1 && strcmp(argv[1], "child") == 0)
        return child();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif

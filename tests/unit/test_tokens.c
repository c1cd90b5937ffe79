/* SPDX-License-Identifier: Apache-2.0 */
/* Session tokens outlive the process for the same ring, and only in a file that nobody else can
 * touch. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "proxy/tokens.h"

#define COUNT 5

static const uint64_t ring_a[2] = {1, 2}, ring_b[2] = {1, 3};

struct fixture {
    char directory[64];
    struct tokens tokens;
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    strcpy(fixture->directory, "/tmp/rs-tokens-XXXXXX");
    assert_non_null(mkdtemp(fixture->directory));
    assert_int_equal(tokens_open(&fixture->tokens, fixture->directory, "s", COUNT, ring_a), 0);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;

    tokens_close(&fixture->tokens, true);
    assert_int_equal(rmdir(fixture->directory), 0);
    free(fixture);
    return 0;
}

static void reopen(struct fixture *fixture, const uint64_t incarnation[2])
{
    tokens_close(&fixture->tokens, false);
    assert_int_equal(tokens_open(&fixture->tokens, fixture->directory, "s", COUNT, incarnation), 0);
}

static void found_by_value_and_dropped(void **state)
{
    struct fixture *fixture = *state;
    uint8_t first[TOKEN_BYTES], last[TOKEN_BYTES], zeroes[TOKEN_BYTES] = {0};

    assert_int_equal(tokens_renew(&fixture->tokens, 0), 0);
    assert_int_equal(tokens_renew(&fixture->tokens, COUNT - 1), 0);
    memcpy(first, fixture->tokens.values[0], TOKEN_BYTES);
    memcpy(last, fixture->tokens.values[COUNT - 1], TOKEN_BYTES);
    assert_int_equal(tokens_find(&fixture->tokens, first), 0);
    assert_int_equal(tokens_find(&fixture->tokens, last), COUNT - 1);
    assert_int_equal(tokens_find(&fixture->tokens, zeroes), -1);
    last[15] ^= 0x80;
    assert_int_equal(tokens_find(&fixture->tokens, last), -1);
    tokens_drop(&fixture->tokens, 0);
    assert_int_equal(tokens_find(&fixture->tokens, first), -1);
}

static void survive_for_the_same_ring_only(void **state)
{
    struct fixture *fixture = *state;
    uint8_t token[TOKEN_BYTES];

    assert_int_equal(tokens_renew(&fixture->tokens, 3), 0);
    memcpy(token, fixture->tokens.values[3], TOKEN_BYTES);
    reopen(fixture, ring_a);
    assert_int_equal(tokens_find(&fixture->tokens, token), 3);
    reopen(fixture, ring_b);
    assert_int_equal(tokens_find(&fixture->tokens, token), -1);
    reopen(fixture, ring_a);
    assert_int_equal(tokens_find(&fixture->tokens, token), -1);
}

static void file_that_others_can_read_is_made_anew(void **state)
{
    struct fixture *fixture = *state;
    uint8_t token[TOKEN_BYTES];
    struct stat info;

    assert_int_equal(tokens_renew(&fixture->tokens, 2), 0);
    memcpy(token, fixture->tokens.values[2], TOKEN_BYTES);
    assert_int_equal(chmod(fixture->tokens.path, 0644), 0);
    reopen(fixture, ring_a);
    assert_int_equal(tokens_find(&fixture->tokens, token), -1);
    assert_int_equal(stat(fixture->tokens.path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

static void link_is_not_followed(void **state)
{
    struct fixture *fixture = *state;
    char victim[128];
    struct stat info;

    snprintf(victim, sizeof victim, "%s/victim", fixture->directory);
    int fd = open(victim, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "precious", 8), 8);
    close(fd);
    assert_int_equal(unlink(fixture->tokens.path), 0);
    assert_int_equal(symlink(victim, fixture->tokens.path), 0);
    reopen(fixture, ring_a);
    assert_int_equal(stat(victim, &info), 0);
    assert_int_equal(info.st_size, 8);
    assert_int_equal(unlink(victim), 0);
}

static void work_without_a_file(void **state)
{
    struct tokens tokens;
    uint8_t token[TOKEN_BYTES];

    (void)state;
    assert_true(tokens_open(&tokens, "/nonexistent/directory", "s", COUNT, ring_a) < 0);
    assert_int_equal(tokens_renew(&tokens, 1), 0);
    memcpy(token, tokens.values[1], TOKEN_BYTES);
    assert_int_equal(tokens_find(&tokens, token), 1);
    tokens_close(&tokens, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        CASE(found_by_value_and_dropped),
        CASE(survive_for_the_same_ring_only),
        CASE(file_that_others_can_read_is_made_anew),
        CASE(link_is_not_followed),
        CASE(work_without_a_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: one per event whatever it holds, limited per kind, never waiting for who reads. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "proxy/log.h"

struct fixture {
    struct log log;
    int reader;
    int writer;
    char text[1 << 20];
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    int ends[2];

    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fixture->reader = ends[0];
    fixture->writer = ends[1];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    log_init(&fixture->log, ends[1]);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;

    log_finish(&fixture->log);
    close(fixture->reader);
    close(fixture->writer);
    free(fixture);
    return 0;
}

static const char *read_all(struct fixture *fixture)
{
    ssize_t bytes = 0, got;

    while ((got = read(fixture->reader, fixture->text + bytes, 4096)) > 0)
        bytes += got;
    fixture->text[bytes] = '\0';
    return fixture->text;
}

static unsigned count(const char *text, const char *what)
{
    unsigned found = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        found++;
    return found;
}

static void text_line_has_all_parts(void **state)
{
    struct fixture *fixture = *state;

    log_info(&fixture->log, "clients", 12, "client %u attached", 3u);
    log_warn(&fixture->log, "ring", 0, "no session");
    const char *text = read_all(fixture);
    assert_non_null(strstr(text, "Z info clients #12 client 3 attached\n"));
    assert_non_null(strstr(text, "Z warn ring no session\n"));
}

static void one_event_stays_one_line(void **state)
{
    struct fixture *fixture = *state;
    char long_text[4096];

    log_info(&fixture->log, "x", 0, "a\nb\x1b[2J%s", "\xff\xc0 caf\xc3\xa9");
    memset(long_text, 'y', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    log_info(&fixture->log, "x", 0, "long %s", long_text);
    const char *text = read_all(fixture);
    assert_int_equal(count(text, "\n"), 2);
    assert_non_null(strstr(text, "a?b?[2J?? caf\xc3\xa9\n"));
}

static void json_is_escaped(void **state)
{
    struct fixture *fixture = *state;
    struct rs_config config = {.stage = "latent",
                               .log = {.level = RS_CONFIG_INFO, .format = RS_CONFIG_JSON}};

    log_configure(&fixture->log, &config);
    log_info(&fixture->log, "x", 5, "say \"%s\"", "back\\slash");
    const char *text = read_all(fixture);
    assert_non_null(strstr(text, "\"stage\":\"latent\""));
    assert_non_null(strstr(text, "\"session\":5,"));
    assert_non_null(strstr(text, "\"message\":\"say \\\"back\\\\slash\\\"\"}\n"));
}

static void lower_levels_are_left_out(void **state)
{
    struct fixture *fixture = *state;

    log_debug(&fixture->log, "x", 0, "quiet");
    assert_string_equal(read_all(fixture), "");
}

static void kinds_are_limited_apart(void **state)
{
    struct fixture *fixture = *state;

    for (int i = 0; i < 100; i++)
        log_warn(&fixture->log, "x", 0, "flood %d", i);
    log_warn(&fixture->log, "x", 0, "another kind");
    const char *text = read_all(fixture);
    assert_int_equal(count(text, "flood"), LOG_BURST);
    assert_int_equal(count(text, "another kind"), 1);
    assert_int_equal(fixture->log.suppressed, 100 - LOG_BURST);
}

static void suppressed_lines_are_told(void **state)
{
    struct fixture *fixture = *state;

    for (int i = 0; i < 30; i++)
        log_warn(&fixture->log, "x", 0, "flood %d", i);
    for (unsigned i = 0; i < LOG_KINDS; i++)
        fixture->log.kinds[i].window_ns -= LOG_WINDOW_NS; /* as if time had passed */
    log_tick(&fixture->log);
    assert_non_null(
        strstr(read_all(fixture), "20 more lines like this one were left out: flood %d"));
}

static void errors_are_never_left_out(void **state)
{
    struct fixture *fixture = *state;

    for (int i = 0; i < 50; i++)
        log_error(&fixture->log, "x", 0, "broken");
    assert_int_equal(count(read_all(fixture), "broken"), 50);
}

static void full_pipe_does_not_block_and_loses_whole_lines(void **state)
{
    struct fixture *fixture = *state;

    alarm(20); /* ends the test if a write blocks */
    for (int i = 0; i < 10000; i++)
        log_error(&fixture->log, "x", 0, "line %d with some more text to fill the pipe", i);
    alarm(0);
    assert_true(fixture->log.dropped > 0);
    unsigned lines = 0, reports = 0;
    for (int i = 0; i < 4; i++) {
        lines += count(read_all(fixture), "with some more");
        reports += count(fixture->text, "lines were lost because nobody read them");
        log_tick(&fixture->log);
    }
    assert_int_equal(lines + fixture->log.dropped, 10000);
    assert_int_equal(reports, 1);
}

static void description_of_others_stays_blocking(void **state)
{
    struct fixture *fixture = *state;

    assert_int_equal(fcntl(fixture->writer, F_GETFL) & O_NONBLOCK, 0);
    assert_true(fixture->log.owned);
}

static void without_reader_lines_are_lost_and_nothing_else(void **state)
{
    struct fixture *fixture = *state;

    close(fixture->reader);
    fixture->reader = -1;
    for (int i = 0; i < 20; i++)
        log_error(&fixture->log, "x", 0, "nobody");
    assert_int_equal(fixture->log.dropped, 20);
}

static void errno_is_kept(void **state)
{
    struct fixture *fixture = *state;

    close(fixture->reader);
    fixture->reader = -1;
    errno = ENOSPC;
    log_error(&fixture->log, "x", 0, "disk: %m");
    assert_int_equal(errno, ENOSPC);
    log_tick(&fixture->log);
    assert_int_equal(errno, ENOSPC);
}

static void full_socket_does_not_block(void **state)
{
    struct fixture *fixture = *state;
    int ends[2];
    static struct log log;

    (void)fixture;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    log_init(&log, ends[1]);
    alarm(20);
    for (int i = 0; i < 10000; i++)
        log_error(&log, "x", 0, "line %d with some more text to fill the socket", i);
    alarm(0);
    assert_true(log.dropped > 0);
    log_finish(&log);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        CASE(text_line_has_all_parts),
        CASE(one_event_stays_one_line),
        CASE(json_is_escaped),
        CASE(lower_levels_are_left_out),
        CASE(kinds_are_limited_apart),
        CASE(suppressed_lines_are_told),
        CASE(errors_are_never_left_out),
        CASE(full_pipe_does_not_block_and_loses_whole_lines),
        CASE(description_of_others_stays_blocking),
        CASE(without_reader_lines_are_lost_and_nothing_else),
        CASE(errno_is_kept),
        CASE(full_socket_does_not_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: defaults, values, what refusals say. */
#include "tests/unit/config_fixture.h"

#include <glob.h>
#include <locale.h>
#include <stdbool.h>
#include <unistd.h>

static void refuse(const char *text, const char *message)
{
    struct rs_config config;

    assert_int_equal(parse(&config, text), -RINGSIDE_E_INVALID);
    assert_string_equal(error, message);
    assert_null(config.routes);
    assert_string_equal(config.stage, "");
}

static void config_defaults(void **state)
{
    struct rs_config config;

    (void)state;
    accept(&config, "{\"stage\": \"features\"}");
    assert_string_equal(config.stage, "features");
    assert_int_equal(config.id, 0);
    assert_string_equal(config.socket.path, "/run/ringside/features.sock");
    assert_int_equal(config.socket.mode, 0660);
    assert_string_equal(config.socket.group, "");
    assert_int_equal(config.socket.allow_uid_count, 0);
    assert_string_equal(config.ring.control_dir, "/dev/shm/ringside");
    assert_string_equal(config.ring.body_dir, "/dev/shm/ringside");
    assert_int_equal(config.ring.page_bytes, 0);
    assert_int_equal(config.ring.numa_node, RS_CONFIG_NUMA_AUTO);
    assert_int_equal(config.ring.lock, RS_CONFIG_LOCK_AUTO);
    assert_int_equal(config.ring.class_count, 2);
    assert_int_equal(config.ring.classes[0].slot_bytes, 262144);
    assert_int_equal(config.ring.classes[0].slots, 64);
    assert_int_equal(config.ring.classes[1].slot_bytes, 16777216);
    assert_int_equal(config.ring.classes[1].slots, 8);
    assert_int_equal(config.inbox.cells, 4096);
    assert_int_equal(config.inbox.depth, 1024);
    assert_int_equal(config.clients.max, 64);
    assert_int_equal(config.clients.spin_us, 50);
    assert_int_equal(config.route_count, 0);
    assert_int_equal(config.tickets.ttl_ms, 600000);
    assert_int_equal(config.drain_timeout_ms, 10000);
    assert_int_equal(config.stall_report_ms, 2000);
    assert_int_equal(config.log.level, RS_CONFIG_INFO);
    assert_int_equal(config.log.format, RS_CONFIG_TEXT);
    rs_config_finish(&config);
}

static void config_everything(void **state)
{
    struct rs_config config;

    (void)state;
    assert_int_equal(rs_config_load(&config, CORPUS "/good/everything.json", error, sizeof(error)),
                     0);
    assert_string_equal(config.stage, "features-v2.0_b");
    assert_int_equal(config.id, 65535);
    assert_int_equal(config.socket.mode, 0600);
    assert_string_equal(config.socket.group, "audio");
    assert_int_equal(config.socket.allow_uid_count, 3);
    assert_int_equal(config.socket.allow_uids[2], 4294967294u);
    assert_string_equal(config.ring.control_dir, "/dev/shm/a");
    assert_string_equal(config.ring.body_dir, "/mnt/huge");
    assert_int_equal(config.ring.page_bytes, 2097152);
    assert_int_equal(config.ring.numa_node, 1);
    assert_int_equal(config.ring.lock, RS_CONFIG_LOCK_REQUIRE);
    assert_int_equal(config.ring.class_count, 4);
    assert_int_equal(config.ring.classes[0].slot_bytes, 4096);
    assert_int_equal(config.ring.classes[3].slot_bytes, 1073741824);
    assert_int_equal(config.inbox.depth, 8192);
    assert_int_equal(config.clients.max, 4095);
    assert_int_equal(config.clients.spin_us, 0);
    assert_int_equal(config.route_count, 2);
    assert_string_equal(config.routes[0].name, "embeddings");
    assert_int_equal(config.routes[0].to_count, 2);
    assert_string_equal(config.routes[0].to[1], "/run/ringside/second.sock");
    assert_int_equal(config.routes[0].when_full, RS_CONFIG_DROP_OLDEST);
    assert_int_equal(config.routes[0].ttl_ms, 200);
    assert_int_equal(config.routes[0].attempts, 15);
    assert_int_equal(config.routes[1].when_full, RS_CONFIG_ERROR);
    assert_int_equal(config.routes[1].attempts, 3);
    assert_int_equal(config.tickets.ttl_ms, 1);
    assert_int_equal(config.drain_timeout_ms, 0);
    assert_int_equal(config.log.level, RS_CONFIG_DEBUG);
    assert_int_equal(config.log.format, RS_CONFIG_JSON);
    rs_config_finish(&config);
}

static void config_depth_follows_cells(void **state)
{
    struct rs_config config;

    (void)state;
    accept(&config, "{\"stage\": \"s\", \"inbox\": {\"cells\": 16}}");
    assert_int_equal(config.inbox.depth, 16);
    rs_config_finish(&config);
}

static void config_refusal_names_place_value_and_range(void **state)
{
    (void)state;
    refuse("[]", "f.json: got an array of 0; expected an object");
    refuse("{}", "f.json: missing key \"stage\"");
    refuse("{\"stage\": \"S\"}", "f.json: /stage: got \"S\"; expected a name of 1 to 63 characters "
                                 "a-z 0-9 . _ - that starts with a letter or digit");
    refuse("{\"stage\": \"s\", \"inbox\": {\"depth\": 0}}",
           "f.json: /inbox/depth: got 0; expected an integer from 1 to 4096");
    refuse("{\"stage\": \"s\", \"clients\": {\"max\": 1e3}}",
           "f.json: /clients/max: got 1000.0; expected an integer from 1 to 4095");
    refuse("{\"stage\": \"s\", \"ring\": {\"lock\": true}}",
           "f.json: /ring/lock: got true; expected one of \"auto\", \"require\", \"off\"");
    refuse("{\"stage\": \"s\", \"ring\": {\"classes\": [{\"slot_bytes\": 8192, \"slots\": 1},"
           " {\"slot_bytes\": \"1.5Mi\", \"slots\": 1}]}}",
           "f.json: /ring/classes/1/slot_bytes: got \"1.5Mi\"; expected a multiple of 4Ki from 4Ki "
           "to 1Ti: whole bytes or a quantity such as \"256Ki\" (suffixes Ki, Mi, Gi, Ti)");
    refuse("{\"stage\": \"s\", \"ring\": {\"classes\": [{\"slots\": 1}]}}",
           "f.json: /ring/classes/0: missing key \"slot_bytes\"");
    refuse(
        "{\"stage\": \"s\", \"routes\": {\"a\": {\"to\": [\"tcp:h:1\"]}}}",
        "f.json: /routes/a/to/0: got \"tcp:h:1\"; expected \"unix:\" and an absolute path of at "
        "most 107 bytes that does not end in /; \"tcp:\" is reserved: this release has no remote "
        "peers");
}

static void config_unknown_key_suggests(void **state)
{
    (void)state;
    refuse("{\"stage\": \"s\", \"ring\": {\"clases\": []}}",
           "f.json: /ring: unknown key \"clases\"; did you mean \"classes\"?");
    refuse("{\"Stage\": \"s\"}", "f.json: unknown key \"Stage\"; did you mean \"stage\"?");
    refuse("{\"stage\": \"s\", \"drain_timeout\": 1}",
           "f.json: unknown key \"drain_timeout\"; did you mean \"drain_timeout_ms\"?");
    refuse("{\"stage\": \"s\", \"log\": {\"colour\": 1}}",
           "f.json: /log: unknown key \"colour\"; allowed: \"level\", \"format\"");
    refuse("{\"stage\": \"s\", \"log\": {\"\": 1}}",
           "f.json: /log: unknown key \"\"; allowed: \"level\", \"format\"");
    refuse("{\"stage\": \"s\", \"log\": {\"\\u001b[2J\": 1}}",
           "f.json: /log: unknown key \"\\u001B[2J\"; allowed: \"level\", \"format\"");
}

static void config_syntax_names_line(void **state)
{
    struct rs_config config;

    (void)state;
    refuse("{\n  \"stage\": \"s\",\n  \"ring\": {},\n  \"ring\": {}\n}\n",
           "f.json: line 4, column 8: duplicate object key near '\"ring\"'; say each thing once");
    refuse("{\n\"stage\": \"s\\u0000\"}",
           "f.json: line 2, column 18: a string holds a NUL character (\\u0000)");
    refuse("\xef\xbb\xbf{\"stage\": \"s\"}",
           "f.json: line 1, column 1: starts with a byte-order mark; save it as UTF-8 without one");
    assert_int_equal(parse(&config, "{\"stage\": \"s\",\n\"id\": 9223372036854775808}"),
                     -RINGSIDE_E_INVALID);
    assert_non_null(strstr(error, "f.json: line 2, column "));
    assert_non_null(strstr(error, "2^63 - 1"));
    assert_int_equal(parse(&config, "{\"stage\": \"s\"\n\x1b[2J\x07}"), -RINGSIDE_E_INVALID);
    assert_null(strpbrk(error, "\x1b\x07\n"));
}

static void config_deep_nesting(void **state)
{
    enum { DEPTH = 10000, STEP_BYTES = 5 };
    static char text[DEPTH * STEP_BYTES + 1];
    struct rs_config config;

    (void)state;
    memset(text, '[', DEPTH);
    assert_int_equal(parse(&config, text), -RINGSIDE_E_INVALID);
    assert_non_null(strstr(error, "nested too deep"));
    for (size_t i = 0; i < DEPTH; i++)
        memcpy(text + i * STEP_BYTES, "{\"a\":", STEP_BYTES);
    assert_int_equal(parse(&config, text), -RINGSIDE_E_INVALID);
    assert_non_null(strstr(error, "nested too deep"));
}

static void config_socket_path_never_cut(void **state)
{
    struct rs_config config;
    char text[256], path[112];

    (void)state;
    for (int length = 107; length <= 109; length++) {
        memset(path, 'a', sizeof(path));
        path[0] = '/';
        path[length] = '\0';
        snprintf(text, sizeof(text), "{\"stage\": \"s\", \"socket\": {\"path\": \"%s\"}}", path);
        if (length == 107) {
            accept(&config, text);
            assert_string_equal(config.socket.path, path);
            rs_config_finish(&config);
        } else {
            assert_int_equal(parse(&config, text), -RINGSIDE_E_INVALID);
            assert_non_null(strstr(error, "/socket/path"));
            assert_non_null(strstr(error, length == 108 ? "has 108" : "has 109"));
        }
    }
}

static void config_route_to_itself(void **state)
{
    struct rs_config config;

    (void)state;
    assert_int_equal(parse(&config, "{\"stage\": \"s\", \"routes\": {\"a\": {\"to\": "
                                    "[\"unix:/x\", \"unix:/run/ringside/s.sock\"]}}}"),
                     -RINGSIDE_E_INVALID);
    assert_non_null(strstr(error, "f.json: /routes/a/to/1: got \"unix:/run/ringside/s.sock\"; "));
    assert_non_null(strstr(error, "\"drop-oldest\""));
    /* The default socket counts as much as a named one, and a named one frees the default. */
    accept(&config, "{\"stage\": \"s\", \"socket\": {\"path\": \"/tmp/s\"}, \"routes\": "
                    "{\"a\": {\"to\": [\"unix:/run/ringside/s.sock\"]}}}");
    rs_config_finish(&config);
}

static void config_environment_overrides(void **state)
{
    struct rs_config config;

    (void)state;
    accept(&config, "{\"stage\": \"s\", \"routes\": {\"a\": {\"to\": [\"unix:/tmp/a\"]}}}");
    setenv("RINGSIDE_SOCKET", "", 1); /* as good as unset */
    setenv("RINGSIDE_CONTROL_DIR", "/c", 1);
    setenv("RINGSIDE_BODY_DIR", "/b", 1);
    assert_int_equal(rs_config_apply_environment(&config, error, sizeof(error)), 0);
    assert_string_equal(config.socket.path, "/run/ringside/s.sock");
    assert_string_equal(config.ring.control_dir, "/c");
    assert_string_equal(config.ring.body_dir, "/b");
    setenv("RINGSIDE_SOCKET", "/tmp/b", 1);
    assert_int_equal(rs_config_apply_environment(&config, error, sizeof(error)), 0);
    assert_string_equal(config.socket.path, "/tmp/b");

    setenv("RINGSIDE_SOCKET", "relative", 1);
    assert_int_equal(rs_config_apply_environment(&config, error, sizeof(error)),
                     -RINGSIDE_E_INVALID);
    assert_non_null(strstr(error, "RINGSIDE_SOCKET: got \"relative\"; expected an absolute path"));
    setenv("RINGSIDE_SOCKET", "/\xff", 1);
    assert_int_equal(rs_config_apply_environment(&config, error, sizeof(error)),
                     -RINGSIDE_E_INVALID);
    assert_string_equal(error, "RINGSIDE_SOCKET: not valid UTF-8");
    setenv("RINGSIDE_SOCKET", "/tmp/a", 1);
    assert_int_equal(rs_config_apply_environment(&config, error, sizeof(error)),
                     -RINGSIDE_E_INVALID);
    assert_non_null(strstr(error, "RINGSIDE_SOCKET: /routes/a/to/0: got \"unix:/tmp/a\""));
    rs_config_finish(&config);
    unsetenv("RINGSIDE_SOCKET");
    unsetenv("RINGSIDE_CONTROL_DIR");
    unsetenv("RINGSIDE_BODY_DIR");
}

static void config_print_round_trip(void **state)
{
    glob_t files;

    (void)state;
    assert_int_equal(glob(CORPUS "/good/*.json", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct rs_config first, second;
        char *once, *twice;

        assert_int_equal(rs_config_load(&first, files.gl_pathv[i], error, sizeof(error)), 0);
        once = printed(&first);
        accept(&second, once);
        twice = printed(&second);
        assert_string_equal(once, twice);
        rs_config_finish(&first);
        rs_config_finish(&second);
        free(once);
        free(twice);
    }
    globfree(&files);
}

/* Compiles a locale with a decimal comma into directory, since minimal systems have none. */
static bool set_comma_locale(const char *directory)
{
    char command[256];

    if (setlocale(LC_ALL, "de_DE.UTF-8") != NULL)
        return true;
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1",
             directory);
    setenv("LOCPATH", directory, 1);
    return system(command) == 0 && setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
}

/* jansson writes numbers through the C library, where a locale may turn 1.5 into 1,5. */
static void config_locale_with_decimal_comma(void **state)
{
    char directory[] = "/tmp/ringside-locale-XXXXXX", command[64];
    struct rs_config config;
    char *before, *after;
    bool set;

    (void)state;
    accept(&config, "{\"stage\": \"s\", \"drain_timeout_ms\": 86400000}");
    before = printed(&config);
    rs_config_finish(&config);
    assert_non_null(mkdtemp(directory));
    set = set_comma_locale(directory);
    snprintf(command, sizeof(command), "rm -rf %s", directory);
    assert_int_equal(system(command), 0);
    if (!set) {
        print_message("no locale de_DE.UTF-8, nor Debian's package locales to compile it from\n");
        free(before);
        skip();
    }
    assert_string_equal(localeconv()->decimal_point, ",");
    accept(&config, "{\"stage\": \"s\", \"drain_timeout_ms\": 86400000}");
    after = printed(&config);
    rs_config_finish(&config);
    assert_string_equal(before, after);
    refuse("{\"stage\": \"s\", \"drain_timeout_ms\": 1.5}",
           "f.json: /drain_timeout_ms: got 1.5; expected an integer from 0 to 86400000");
    assert_int_equal(parse(&config, "{\"stage\": \"s\", \"drain_timeout_ms\": 1,5}"),
                     -RINGSIDE_E_INVALID);
    setlocale(LC_ALL, "C");
    free(before);
    free(after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_defaults),
        cmocka_unit_test(config_everything),
        cmocka_unit_test(config_depth_follows_cells),
        cmocka_unit_test(config_refusal_names_place_value_and_range),
        cmocka_unit_test(config_unknown_key_suggests),
        cmocka_unit_test(config_syntax_names_line),
        cmocka_unit_test(config_deep_nesting),
        cmocka_unit_test(config_socket_path_never_cut),
        cmocka_unit_test(config_route_to_itself),
        cmocka_unit_test(config_environment_overrides),
        cmocka_unit_test(config_print_round_trip),
        cmocka_unit_test(config_locale_with_decimal_comma),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

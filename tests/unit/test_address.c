/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses: when two paths are one, and that a refused value leaves the output alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "config/address.h"
#include "proto/err.h"

static void address_same_path(void **state)
{
    static const struct {
        const char *left, *right;
        bool same;
    } cases[] = {
        {"/run/a.sock", "/run/a.sock", true},
        {"/run/a.sock", "//run///a.sock", true},
        {"/run/a.sock", "/./run/./a.sock", true},
        {"/run/a.sock", "/run/x/../a.sock", true},
        {"/run/a.sock", "/../../run/a.sock", true},
        {"/run/a.sock", "/x/y/../../run/a.sock", true},
        {"/run/a.sock", "/run/b.sock", false},
        {"/run/a.sock", "/run/a.soc", false},
        {"/run/a.sock", "/run/../a.sock", false},
        {"/run/..a", "/a", false},
        {"/run/...", "/run", false},
        {"/.run/a", "/run/a", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(rs_address_same_path(cases[i].left, cases[i].right), cases[i].same);
        assert_int_equal(rs_address_same_path(cases[i].right, cases[i].left), cases[i].same);
    }
}

static void address_same_path_longest(void **state)
{
    char left[RS_CONFIG_SOCKET_PATH_BYTES], right[RS_CONFIG_SOCKET_PATH_BYTES];

    (void)state;
    memset(left, 'a', sizeof(left));
    left[0] = '/';
    left[sizeof(left) - 1] = '\0';
    memcpy(right, left, sizeof(left));
    assert_true(rs_address_same_path(left, right));
    right[sizeof(right) - 2] = 'b';
    assert_false(rs_address_same_path(left, right));
}

static void address_refused_leaves_output(void **state)
{
    static const char *const cases[] = {"", "a", "/", "/a/", "@a", "unix:", "unix:a", "tcp:a:1"};
    char error[RS_CONFIG_ERROR_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rs_json_report report = {"f", error, sizeof(error), 0};
        struct rs_json at = {.report = &report, .value = json_string(cases[i])};
        char path[RS_CONFIG_SOCKET_PATH_BYTES] = "/kept";

        rs_address_read_socket(at, path);
        assert_int_equal(report.status, -RINGSIDE_E_INVALID);
        report.status = 0;
        rs_address_read_peer(at, path);
        assert_int_equal(report.status, -RINGSIDE_E_INVALID);
        assert_string_equal(path, "/kept");
        json_decref(at.value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_same_path),
        cmocka_unit_test(address_same_path_longest),
        cmocka_unit_test(address_refused_leaves_output),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reading: absent values keep defaults, the first refusal wins, messages stay clean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "config/json.h"
#include "proto/err.h"

static char error[512];
static struct rs_json_report report;
static json_t *document;

static struct rs_json open_document(const char *text)
{
    report = (struct rs_json_report){"f", error, sizeof(error), 0};
    json_decref(document);
    document = rs_json_parse(&report, text, strlen(text));
    assert_non_null(document);
    return (struct rs_json){.report = &report, .value = document};
}

static int close_document(void **state)
{
    (void)state;
    json_decref(document);
    document = NULL;
    return 0;
}

static void json_absent_keeps_default(void **state)
{
    static const char *const names[] = {"a", "b", NULL};
    struct rs_json object = open_document("{}"), absent = rs_json_member(&object, "x");

    (void)state;
    assert_int_equal(rs_json_integer(absent, 1, 2, 77), 77);
    assert_int_equal(rs_json_choice(absent, names, 1), 1);
    assert_null(rs_json_text(absent, "a text"));
    assert_int_equal(rs_json_array(absent, 1, 2), 0);
    assert_false(rs_json_is_object(absent, names));
    assert_int_equal(report.status, 0);
}

static void json_integer_limits(void **state)
{
    struct rs_json array = open_document("[9223372036854775807, -9223372036854775808, 0, 5]");

    (void)state;
    assert_int_equal(rs_json_integer(rs_json_element(&array, 0), 0, INT64_MAX, 7), INT64_MAX);
    assert_int_equal(rs_json_integer(rs_json_element(&array, 2), 0, 0, 7), 0);
    assert_int_equal(report.status, 0);
    assert_int_equal(rs_json_integer(rs_json_element(&array, 1), 0, UINT64_MAX, 7), 7);
    assert_int_equal(report.status, -RINGSIDE_E_INVALID);
    assert_string_equal(error, "f: /1: got -9223372036854775808; expected an integer from 0 to "
                               "18446744073709551615");
}

static void json_first_refusal_wins(void **state)
{
    struct rs_json array = open_document("[1, [true]]"), inner = rs_json_element(&array, 1);

    (void)state;
    assert_null(rs_json_text(rs_json_element(&inner, 0), "a text"));
    rs_json_refuse(rs_json_element(&array, 0), "something else");
    rs_json_report_refuse(&report, -1, "a third thing");
    assert_int_equal(report.status, -RINGSIDE_E_INVALID);
    assert_string_equal(error, "f: /1/0: got true; expected a text");
}

static void json_message_is_clean_and_short(void **state)
{
    char text[4096] = "[\"\\u001b]0;title\\u0007\\n";
    struct rs_json array;

    (void)state;
    memset(text + strlen(text), 'x', 3000);
    strcat(text, "\"]");
    array = open_document(text);
    assert_null(rs_json_text(rs_json_element(&array, 0), "a text"));
    assert_in_range(strlen(error), 1, 160);
    assert_int_equal(strncmp(error, "f: /0: got \"\\u001B]0;title\\u0007\\nxxx", 36), 0);
    assert_non_null(strstr(error, "xxx...\"; expected a text, without control characters"));
}

static void json_unknown_key_hint(void **state)
{
    static const char *const keys[] = {"slot_bytes", "slots", "max", NULL};
    static const struct {
        const char *key, *hint;
    } cases[] = {
        {"slotBytes", "did you mean \"slot_bytes\"?"},
        {"SLOTS", "did you mean \"slots\"?"},
        {"slot", "did you mean \"slots\"?"},
        {"sltos_bytes", "did you mean \"slot_bytes\"?"},
        {"mxa", "allowed: \"slot_bytes\", \"slots\", \"max\""},
        {"m", "allowed: \"slot_bytes\", \"slots\", \"max\""},
        {"slot_bytes_slot_bytes_slot_bytes_slot_bytes", "allowed: "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[128] = "{\"";

        strcat(strcat(text, cases[i].key), "\": 1}");
        assert_false(rs_json_is_object(open_document(text), keys));
        assert_non_null(strstr(error, cases[i].hint));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(json_absent_keeps_default, close_document),
        cmocka_unit_test_teardown(json_integer_limits, close_document),
        cmocka_unit_test_teardown(json_first_refusal_wins, close_document),
        cmocka_unit_test_teardown(json_message_is_clean_and_short, close_document),
        cmocka_unit_test_teardown(json_unknown_key_hint, close_document),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

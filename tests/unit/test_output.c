/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, escapes, cuts and tables as people see them. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/cli/output.h"

static void check_duration(uint64_t duration_ns, const char *expected)
{
    char text[OUTPUT_NUMBER_BYTES];

    assert_string_equal(output_duration(text, duration_ns), expected);
}

static void duration_units(void **state)
{
    (void)state;
    check_duration(0, "0ns");
    check_duration(999, "999ns");
    check_duration(1000, "1us");
    check_duration(1234, "1.2us");
    check_duration(123456, "123us");
    check_duration(45678901, "45.6ms");
    check_duration(UINT64_C(59999999999), "59.9s");
    check_duration(UINT64_C(60000000000), "1m00s");
    check_duration(UINT64_C(3599000000000), "59m59s");
    check_duration(UINT64_C(3660000000000), "1h01m");
    check_duration(UINT64_C(90000000000000), "1d01h");
    check_duration(UINT64_MAX, "213503d23h");
}

static void duration_never_reaches_the_next_unit(void **state)
{
    (void)state;
    check_duration(999999, "999us");
    check_duration(99999, "99.9us");
    check_duration(999999999, "999ms");
}

static void check_bytes(uint64_t bytes, const char *expected)
{
    char text[OUTPUT_NUMBER_BYTES];

    assert_string_equal(output_bytes(text, bytes), expected);
}

static void bytes_units(void **state)
{
    (void)state;
    check_bytes(0, "0");
    check_bytes(1023, "1023");
    check_bytes(1024, "1Ki");
    check_bytes(1536, "1.5Ki");
    check_bytes(2047, "1.9Ki");
    check_bytes(256 << 10, "256Ki");
    check_bytes((16 << 20) - 1, "15.9Mi");
    check_bytes(UINT64_C(1) << 40, "1Ti");
    check_bytes(UINT64_MAX, "15.9Ei");
}

static void check_count(uint64_t count, const char *expected)
{
    char text[OUTPUT_NUMBER_BYTES];

    assert_string_equal(output_count(text, count), expected);
}

static void count_units(void **state)
{
    (void)state;
    check_count(0, "0");
    check_count(999, "999");
    check_count(1000, "1k");
    check_count(1999, "1.9k");
    check_count(34000000, "34M");
    check_count(UINT64_MAX, "18.4E");
}

static void check_escape(const char *text, const char *expected)
{
    char *copy = output_escape(text);

    assert_string_equal(copy, expected);
    free(copy);
}

static void escape_control_characters(void **state)
{
    (void)state;
    check_escape("plain name-1", "plain name-1");
    check_escape("", "");
    check_escape(NULL, "");
    check_escape("\x1b[2Jgone", "\\x1b[2Jgone");
    check_escape("a\nb\tc\rd\\", "a\\nb\\tc\\rd\\\\");
    check_escape("\x7f\x01", "\\x7f\\x01");
}

static void escape_what_the_locale_cannot_show(void **state)
{
    (void)state;
    assert_non_null(setlocale(LC_CTYPE, "C.UTF-8"));
    check_escape("Größe 測", "Größe 測");
    check_escape("\xff\xc3", "\\xff\\xc3"); /* not UTF-8 */
    check_escape("\xc2\x9b"
                 "31m",
                 "\\xc2\\x9b31m"); /* a terminal's other escape */
    check_escape("a\u202eb\u2066", "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6"); /* turns the line around */
    setlocale(LC_CTYPE, "C");
    check_escape("Größe", "Gr\\xc3\\xb6\\xc3\\x9fe");
}

/* What `print` writes. */
struct capture {
    FILE *file;
    char *text;
    size_t bytes;
};

static FILE *begin(struct capture *capture)
{
    capture->file = open_memstream(&capture->text, &capture->bytes);
    assert_non_null(capture->file);
    return capture->file;
}

static void expect(struct capture *capture, const char *expected)
{
    fclose(capture->file);
    assert_string_equal(capture->text, expected);
    free(capture->text);
}

static void check_field(const char *text, size_t columns, bool right, const char *expected)
{
    struct capture capture;

    output_field(begin(&capture), text, columns, right);
    expect(&capture, expected);
}

static void field_pads_and_cuts(void **state)
{
    (void)state;
    check_field("abc", 5, false, "abc  ");
    check_field("abc", 5, true, "  abc");
    check_field("abc", 3, true, "abc");
    check_field("abcd", 3, false, "ab~");
    check_field("abcd", 1, false, "~");
    check_field("abcd", 0, false, "");
}

static void field_counts_columns_not_bytes(void **state)
{
    (void)state;
    assert_non_null(setlocale(LC_CTYPE, "C.UTF-8"));
    check_field("Größe", 6, false, "Größe ");
    check_field("測測測", 6, false, "測測測");
    check_field("測測測", 5, false, "測測…");
    check_field("測測測", 4, false, "測… "); /* half a character cannot be printed */
    setlocale(LC_CTYPE, "C");
}

static void paragraph_breaks_at_blanks(void **state)
{
    struct capture capture;

    (void)state;
    output_paragraph(begin(&capture), "key", "one two three four", 5, 14);
    expect(&capture, "key  one two\n     three\n     four\n");
    output_paragraph(begin(&capture), "", "exactly9 ten", 0, 12);
    expect(&capture, "exactly9 ten\n");
    output_paragraph(begin(&capture), "key", "", 5, 14);
    expect(&capture, "key  \n");
    output_paragraph(begin(&capture), "", "a averyveryverylongword b", 2, 10);
    expect(&capture, "  a\n  averyveryverylongword\n  b\n");
}

static const struct table_column columns[] = {
    {"NAME", false, true}, {"N", true, false}, {"LAST", false, true}};

static void table_aligns(void **state)
{
    struct capture capture;
    struct table table;

    (void)state;
    table_init(&table, columns, 3);
    table_text(&table, "a\n");
    table_format(&table, "%d", 1000);
    table_text(&table, "x");
    table_text(&table, "longer");
    table_duration(&table, 5);
    table_text(&table, "");
    table_print(&table, begin(&capture), 80);
    expect(&capture, "NAME       N  LAST\n"
                     "a\\n     1000  x\n"
                     "longer   5ns\n");
    table_finish(&table);
    table_finish(&table);
}

static void table_cuts_what_yields(void **state)
{
    struct capture capture;
    struct table table;

    (void)state;
    table_init(&table, columns, 3);
    table_text(&table, "a name of twenty-one.");
    table_bytes(&table, 4096);
    table_text(&table, "and a last one of 26 chars");
    table_print(&table, begin(&capture), 30);
    expect(&capture, "NAME           N  LAST\n"
                     "a name of ~  4Ki  and a last ~\n");
    table_finish(&table);
}

/* The narrowest terminal still gets every column. */
static void table_keeps_something_of_each(void **state)
{
    struct capture capture;
    struct table table;

    (void)state;
    table_init(&table, columns, 3);
    table_text(&table, "0123456789");
    table_text(&table, "123456");
    table_text(&table, "0123456789");
    table_print(&table, begin(&capture), 10);
    expect(&capture, "NAME         N  LAST\n"
                     "01234~  123456  01234~\n");
    table_finish(&table);
}

static void table_survives_hundreds_of_rows(void **state)
{
    struct capture capture;
    struct table table;

    (void)state;
    table_init(&table, columns, 3);
    for (int i = 0; i < 3 * 500; i++)
        table_format(&table, "%d", i);
    table_print(&table, begin(&capture), 80);
    fclose(capture.file);
    size_t lines = 0;
    for (const char *at = capture.text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    assert_int_equal(lines, 501);
    free(capture.text);
    table_finish(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(duration_units),
        cmocka_unit_test(duration_never_reaches_the_next_unit),
        cmocka_unit_test(bytes_units),
        cmocka_unit_test(count_units),
        cmocka_unit_test(escape_control_characters),
        cmocka_unit_test(escape_what_the_locale_cannot_show),
        cmocka_unit_test(field_pads_and_cuts),
        cmocka_unit_test(field_counts_columns_not_bytes),
        cmocka_unit_test(paragraph_breaks_at_blanks),
        cmocka_unit_test(table_aligns),
        cmocka_unit_test(table_cuts_what_yields),
        cmocka_unit_test(table_keeps_something_of_each),
        cmocka_unit_test(table_survives_hundreds_of_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Quantities: what is read, what is refused, and that what is written can be read again. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "config/quantity.h"
#include "proto/err.h"

static void quantity_parse_accepted(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"1Ki", 1024},
        {"256Mi", UINT64_C(268435456)},
        {"3Gi", UINT64_C(3221225472)},
        {"1Ti", UINT64_C(1099511627776)},
        {"8388607Ti", UINT64_C(8388607) << 40},
        {"9007199254740991Ki", UINT64_C(9007199254740991) << 10},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 0;

        assert_int_equal(rs_quantity_parse(cases[i].text, &bytes), 0);
        assert_int_equal(bytes, cases[i].bytes);
    }
}

static void quantity_parse_refused(void **state)
{
    static const char *const cases[] = {
        "",      "Ki",    "1",     "1K",    "1k",    "1ki",        "1M",
        "1KiB",  "1Ki ",  " 1Ki",  "1 Ki",  "+1Ki",  "-1Ki",       "01Ki",
        "0Ki",   "1.5Mi", "1,5Mi", "1e3Ki", "0x1Ki", "1Ei",        "1Pi",
        "1_0Ki", "1'0Ki", "1Ki1",  "\n1Ki", "1Ki\n", "\xd9\xa4Ki", "99999999999999999999",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 42;

        assert_int_equal(rs_quantity_parse(cases[i], &bytes), -RINGSIDE_E_INVALID);
        assert_int_equal(bytes, 42);
    }
}

static void quantity_parse_overflow(void **state)
{
    static const char *const cases[] = {
        "8388608Ti",              /* 2^63 */
        "16777216Ti",             /* 2^64, which a shift would turn to 0 */
        "9007199254740992Ki",     /* 2^63 */
        "18446744073709551617Ki", /* 2^64 + 1 as digits */
        "340282366920938463463374607431768211457Mi",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 42;

        assert_int_equal(rs_quantity_parse(cases[i], &bytes), -ERANGE);
        assert_int_equal(bytes, 42);
    }
}

static void quantity_format_largest_suffix(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0"},
        {1, "1"},
        {1023, "1023"},
        {1024, "1Ki"},
        {1536, "1536"},
        {UINT64_C(1) << 20, "1Mi"},
        {(UINT64_C(1) << 20) + 1024, "1025Ki"},
        {UINT64_C(1) << 40, "1Ti"},
        {UINT64_MAX, "18446744073709551615"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[RS_QUANTITY_TEXT_BYTES];

        rs_quantity_format(cases[i].bytes, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void quantity_format_parse_round_trip(void **state)
{
    (void)state;
    for (uint64_t bytes = 4096; bytes <= UINT64_C(1) << 40;
         bytes += bytes / 3 / 4096 * 4096 + 4096) {
        char text[RS_QUANTITY_TEXT_BYTES];
        uint64_t again = 0;

        rs_quantity_format(bytes, text);
        assert_int_equal(rs_quantity_parse(text, &again), 0);
        assert_int_equal(again, bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantity_parse_accepted),
        cmocka_unit_test(quantity_parse_refused),
        cmocka_unit_test(quantity_parse_overflow),
        cmocka_unit_test(quantity_format_largest_suffix),
        cmocka_unit_test(quantity_format_parse_round_trip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

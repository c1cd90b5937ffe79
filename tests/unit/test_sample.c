/* SPDX-License-Identifier: Apache-2.0 */
/* Percentiles of few and many values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/cli/sample.h"

static void percentile_of_nothing(void **state)
{
    struct sample sample = {0};

    (void)state;
    assert_int_equal(sample_percentile(&sample, 50), 0);
    json_t *json = sample_json(&sample);
    assert_int_equal(json_object_size(json), 0);
    json_decref(json);
    sample_finish(&sample);
    sample_finish(NULL);
}

static void percentile_is_a_value_that_was_measured(void **state)
{
    struct sample sample = {0};

    (void)state;
    for (uint64_t i = 1000; i > 0; i--)
        sample_add(&sample, i);
    assert_int_equal(sample_percentile(&sample, 0), 1);
    assert_int_equal(sample_percentile(&sample, 50), 500);
    assert_int_equal(sample_percentile(&sample, 99), 990);
    assert_int_equal(sample_percentile(&sample, 100), 1000);
    sample_finish(&sample);
}

static void percentile_after_more_values(void **state)
{
    struct sample sample = {0};

    (void)state;
    sample_add(&sample, 7);
    assert_int_equal(sample_percentile(&sample, 99), 7);
    sample_add(&sample, 3);
    assert_int_equal(sample_percentile(&sample, 50), 3);
    assert_int_equal(sample_percentile(&sample, 51), 7);
    json_t *json = sample_json(&sample);
    assert_int_equal(json_integer_value(json_object_get(json, "min_ns")), 3);
    assert_int_equal(json_integer_value(json_object_get(json, "max_ns")), 7);
    json_decref(json);
    sample_finish(&sample);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentile_of_nothing),
        cmocka_unit_test(percentile_is_a_value_that_was_measured),
        cmocka_unit_test(percentile_after_more_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

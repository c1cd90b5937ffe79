/* SPDX-License-Identifier: Apache-2.0 */
/* The loader where something fails: files, devices, memory, and what hostile input cannot do. */
#include "tests/unit/config_fixture.h"

#include <errno.h>
#include <jansson.h>

static void config_print_to_full_device(void **state)
{
    struct rs_config config;
    FILE *file = fopen("/dev/full", "w");

    (void)state;
    assert_non_null(file);
    accept(&config, "{\"stage\": \"s\"}");
    assert_int_equal(rs_config_print(&config, file), -EIO);
    fclose(file);
    rs_config_finish(&config);
}

static char *read_whole(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    char *text = malloc(RS_CONFIG_FILE_BYTES_MAX);

    assert_non_null(file);
    assert_non_null(text);
    *length = fread(text, 1, RS_CONFIG_FILE_BYTES_MAX, file);
    fclose(file);
    return text;
}

static void config_load_unreadable(void **state)
{
    struct rs_config config;

    (void)state;
    assert_int_equal(rs_config_load(&config, "/nonexistent/s.json", error, sizeof(error)), -ENOENT);
    assert_non_null(strstr(error, "/nonexistent/s.json: cannot be read: "));
    assert_int_equal(rs_config_load(&config, "/", error, sizeof(error)), -EISDIR);
    assert_int_equal(rs_config_load(&config, "/dev/zero", error, sizeof(error)),
                     -RINGSIDE_E_INVALID);
    assert_non_null(strstr(error, "larger than 1 MiB"));
    assert_int_equal(rs_config_load(&config, "/dev/null", error, sizeof(error)),
                     -RINGSIDE_E_INVALID);
    rs_config_finish(&config);
}

static void config_error_buffer_small(void **state)
{
    struct rs_config config;
    char small[8] = "xxxxxxx";

    (void)state;
    assert_int_equal(rs_config_parse(&config, "{}", 2, "f.json", NULL, 0), -RINGSIDE_E_INVALID);
    assert_int_equal(rs_config_parse(&config, "{}", 2, "f.json", small, 1), -RINGSIDE_E_INVALID);
    assert_string_equal(small, "");
    assert_int_equal(rs_config_parse(&config, "{}", 2, "f.json", small, sizeof(small)),
                     -RINGSIDE_E_INVALID);
    assert_string_equal(small, "f.json:");
    rs_config_finish(NULL);
}

/* Every prefix and many mutations of a good file are judged, with a message, and freed. */
static void config_mutations_survived(void **state)
{
    static const char bytes[] = "\0\xff\"\\{}[]:,0-.e9 n";
    size_t length;
    char *text = read_whole(CORPUS "/good/everything.json", &length);
    unsigned refused = 0;

    (void)state;
    for (size_t i = 0; i < length; i++) {
        struct rs_config config;
        char kept = text[i], *prefix = malloc(i > 0 ? i : 1); /* exact: ASan sees a byte more */

        memcpy(prefix, text, i);
        /* Only the newline at the end can be spared. */
        assert_int_equal(rs_config_parse(&config, prefix, i, "f", error, sizeof(error)),
                         i < length - 1 ? -RINGSIDE_E_INVALID : 0);
        rs_config_finish(&config);
        free(prefix);
        for (size_t j = 0; j < sizeof(bytes) - 1; j++) {
            int status;

            text[i] = bytes[j];
            status = rs_config_parse(&config, text, length, "f", error, sizeof(error));
            assert_true(status == 0 || (status == -RINGSIDE_E_INVALID && error[0] == 'f'));
            refused += status != 0;
            rs_config_finish(&config);
        }
        text[i] = kept;
    }
    assert_in_range(refused, length, length * sizeof(bytes));
    free(text);
}

static unsigned long allocations_left;

static void *failing_malloc(size_t bytes)
{
    if (allocations_left == 0)
        return NULL;
    allocations_left--;
    return malloc(bytes);
}

/* Whatever allocation of the parser's fails, the file is refused whole or read whole. */
static void config_allocation_fails(void **state)
{
    struct rs_config config;
    size_t length;
    char *text = read_whole(CORPUS "/good/everything.json", &length), *expected;
    unsigned long nth = 0;
    int status;

    (void)state;
    assert_int_equal(rs_config_parse(&config, text, length, "f", error, sizeof(error)), 0);
    expected = printed(&config);
    rs_config_finish(&config);
    do {
        json_set_alloc_funcs(failing_malloc, free);
        allocations_left = nth++;
        status = rs_config_parse(&config, text, length, "f", error, sizeof(error));
        json_set_alloc_funcs(malloc, free);
        if (status == 0) {
            char *whole = printed(&config);

            assert_string_equal(whole, expected);
            free(whole);
        } else {
            assert_true(status == -ENOMEM || status == -RINGSIDE_E_INVALID);
            assert_int_equal(strncmp(error, "f: ", 3), 0);
        }
        rs_config_finish(&config);
        assert_true(nth < 10000);
    } while (status != 0);
    assert_true(nth > 50);
    free(expected);
    free(text);
}

static void config_print_allocation_fails(void **state)
{
    struct rs_config config;
    unsigned long nth = 0;
    int status;

    (void)state;
    assert_int_equal(rs_config_load(&config, CORPUS "/good/everything.json", error, sizeof(error)),
                     0);
    do {
        FILE *file = fopen("/dev/null", "w");

        assert_non_null(file);
        json_set_alloc_funcs(failing_malloc, free);
        allocations_left = nth++;
        status = rs_config_print(&config, file);
        json_set_alloc_funcs(malloc, free);
        fclose(file);
        assert_true(status == 0 || status == -ENOMEM || status == -EIO);
        assert_true(nth < 10000);
    } while (status != 0);
    assert_true(nth > 50);
    rs_config_finish(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_print_to_full_device),
        cmocka_unit_test(config_load_unreadable),
        cmocka_unit_test(config_error_buffer_small),
        cmocka_unit_test(config_mutations_survived),
        cmocka_unit_test(config_allocation_fails),
        cmocka_unit_test(config_print_allocation_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

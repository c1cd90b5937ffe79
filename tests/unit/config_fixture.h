/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of the loader: texts that it takes, refuses and prints. */
#ifndef RINGSIDE_TESTS_CONFIG_FIXTURE_H
#define RINGSIDE_TESTS_CONFIG_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "proto/err.h"

static char error[RS_CONFIG_ERROR_BYTES];

static int parse(struct rs_config *config, const char *text)
{
    return rs_config_parse(config, text, strlen(text), "f.json", error, sizeof(error));
}

static void accept(struct rs_config *config, const char *text)
{
    if (parse(config, text) != 0)
        fail_msg("refused: %s", error);
    assert_string_equal(error, "");
}

/* What rs_config_print writes, to be freed. */
static char *printed(const struct rs_config *config)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);

    assert_non_null(file);
    assert_int_equal(rs_config_print(config, file), 0);
    fclose(file);
    return text;
}

#endif

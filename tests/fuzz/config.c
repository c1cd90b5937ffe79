/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration is refused with a reason, or its resolved values read back as themselves. */
#include "config/config.h"

#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

static char *print(const struct rs_config *config, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    CHECK(file != NULL && rs_config_print(config, file) == 0 && fclose(file) == 0);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[RS_CONFIG_ERROR_BYTES] = "";
    struct rs_config config;
    size_t bytes, bytes_again;

    if (rs_config_parse(&config, (const char *)data, size, "fuzz", error, sizeof error) < 0) {
        CHECK(strncmp(error, "fuzz", 4) == 0 && memchr(error, '\0', sizeof error) != NULL);
        rs_config_finish(&config);
        return 0;
    }
    CHECK(config.stage[0] != '\0' && config.ring.class_count >= 1);
    char *text = print(&config, &bytes);
    rs_config_finish(&config);
    CHECK(rs_config_parse(&config, text, bytes, "again", error, sizeof error) == 0);
    char *again = print(&config, &bytes_again);
    CHECK(bytes == bytes_again && memcmp(text, again, bytes) == 0);
    rs_config_finish(&config);
    free(text);
    free(again);
    return 0;
}

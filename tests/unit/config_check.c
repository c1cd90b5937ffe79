/* SPDX-License-Identifier: Apache-2.0 */
/* What the schema is compared with: the loader's verdict on files, or one file resolved. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"

int main(int argc, char **argv)
{
    int print = argc > 1 && strcmp(argv[1], "--print") == 0;

    for (int i = 1 + print; i < argc; i++) {
        struct rs_config config;
        char error[RS_CONFIG_ERROR_BYTES];
        int status = rs_config_load(&config, argv[i], error, sizeof(error));

        if (print && status == 0)
            rs_config_print(&config, stdout);
        else
            printf("%s\t%s\t%s\n", status == 0 ? "ok" : "refused", argv[i], error);
        rs_config_finish(&config);
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What read and call have in common: -o, behind which one message goes. */
#ifndef RINGSIDE_CLI_SAVE_H
#define RINGSIDE_CLI_SAVE_H

#include <jansson.h>

#include "client/c/ringside.h"
#include "client/cli/cli.h"

/* Set by the options. */
extern struct save_settings {
    const char *output; /* NULL: not given */
    uint64_t number;    /* of the tensor, from 1; 0: not given */
} save;

#define SAVE_OPTIONS                                                                            \
    {"output",                                                                                  \
     'o',                                                                                       \
     CLI_TEXT,                                                                                  \
     &save.output,                                                                              \
     "FILE",                                                                                    \
     "Where the tensor goes; - is standard output. A directory that is there gets all tensors " \
     "and "                                                                                     \
     "the metadata, named as by recv."},                                                        \
    {                                                                                           \
        "tensor", 'n', CLI_COUNT, &save.number, "N", "Which tensor of several, from 1."         \
    }

/* Checks what the options say. CLI_OK or an explained status. */
int save_check(const struct cli *cli);

/* Writes the message, whose ticket is `text`, to save.output, which was given. CLI_OK: *document is
 * its JSON with the names of the files, the caller's. Else an explained status; *document is NULL
 * or the caller's. */
int save_message(const struct cli *cli, const struct ringside_message *message, const char *text,
                 json_t **document);

#endif

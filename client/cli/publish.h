/* SPDX-License-Identifier: Apache-2.0 */
/* What send and share have in common: files that become the tensors of one message. */
#ifndef RINGSIDE_CLI_PUBLISH_H
#define RINGSIDE_CLI_PUBLISH_H

#include "client/cli/worker.h"
#include "proto/tensor.h"

/* Set by the options. */
extern struct publish_settings {
    const char *metadata; /* JSON, or NULL */
    const char *dtype;    /* instead of the headers', or NULL */
    int64_t ttl_ns;       /* 0: the sidecar's default */
    uint32_t more_bytes;  /* of room behind the metadata; not an option */
} publish;

#define PUBLISH_OPTIONS                                                                            \
    {"ttl",                                                                                        \
     'l',                                                                                          \
     CLI_SECONDS,                                                                                  \
     &publish.ttl_ns,                                                                              \
     "SECONDS",                                                                                    \
     "How long the message may live. Default, also for 0: what the sidecar's config says."},       \
        PUBLISH_WHAT_OPTIONS

#define PUBLISH_WHAT_OPTIONS                                                                       \
    {"meta",   'm',                                                                                \
     CLI_TEXT, &publish.metadata,                                                                  \
     "JSON",   "Metadata of the message, any JSON value."},                                        \
    {                                                                                              \
        "dtype", 'd', CLI_TEXT, &publish.dtype, "NAME",                                            \
            "Element type to take the elements for, of the same size: for what NumPy has no name " \
            "for "                                                                                 \
            "(bfloat16, float8_e4m3fn, ...)."                                                      \
    }

#define PUBLISH_FILES                                                                            \
    "A FILE is what numpy.save writes (version 1 to 3 of .npy), C order, little-endian; - is "   \
    "standard input. Its size must be what its header says. Elements are booleans, integers, "   \
    "floats of 16 to 64 bits, complex64, complex128, or opaque items of one byte; for bfloat16 " \
    "and 8-bit floats say --dtype. What is not so is refused before anything is taken from the " \
    "sidecar."

/* A message that is about to be published. */
struct publication {
    struct ringside_slot slot;             /* loaned, tensors written */
    struct ringside_options options;       /* ttl, metadata, what is left of the timeout */
    uint64_t bytes;                        /* of all tensors */
    char text[RINGSIDE_TICKET_TEXT_BYTES]; /* the ticket that it will have */
};

/* Checks what the options say. CLI_OK or an explained status. */
int publish_check(const struct cli *cli);
/* Loans a slot within --timeout and reads the files into it; without any, the message is an empty byte string. CLI_OK: the slot is the caller's to
 * publish or to abandon. Else an explained status. */
int publish_load(const struct cli *cli, struct ringside *connection, int count, char **files,
                 struct publication *publication);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How a message that somebody has or sees is put in words; shared by recv, read and tap. */
#ifndef RINGSIDE_CLI_MESSAGE_H
#define RINGSIDE_CLI_MESSAGE_H

#include <jansson.h>
#include <stdint.h>

#include "client/c/ringside.h"

/* "float32[8,80] int64[]", cut to `bytes`. Returns `text`. */
char *message_tensors(char *text, size_t bytes, const struct ringside_message *message);

/* The metadata for people: JSON in one line, "12 bytes", or "" without. The caller's to free;
 * from a stranger, so not yet printable. */
char *message_metadata(const struct ringside_message *message);

/* Bytes of all tensors together. */
uint64_t message_bytes(const struct ringside_message *message);

/*
 * A new object: the fields of Message in control.proto, with "text" as the safe form of the ticket
 * and "age_ns". Metadata of kind json or tree are the value itself, what is no JSON hexadecimal in
 * "metadata_hex". Ends the process without memory.
 */
json_t *message_json(const struct ringside_message *message, const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What programs read: messages of the control API as JSON, and JSON on standard output. */
#ifndef RINGSIDE_CLI_TO_JSON_H
#define RINGSIDE_CLI_TO_JSON_H

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>

/*
 * A new object with the fields of a message by their names in control.proto, those that are zero
 * too. Bytes and fixed64 (tickets, which a JSON number cannot hold) are hexadecimal strings, enum
 * values their names in lower case; messages that are not set are left out. Ends the process
 * without memory.
 */
json_t *json_from_message(const ProtobufCMessage *message);

/* Prints to standard output and takes `value`. ASCII only, so no terminal minds what strangers
 * wrote. */
void json_print(json_t *value);

/* The same in one line, and out at once: for what comes as it happens. */
void json_print_line(json_t *value);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Names, directories, socket paths and peer addresses: what they may be, and when two are one. */
#ifndef RINGSIDE_CONFIG_ADDRESS_H
#define RINGSIDE_CONFIG_ADDRESS_H

#include <stdbool.h>

#include "config/config.h"
#include "config/json.h"

/* Each reads one string; absent or refused (see rs_json_refuse), the output keeps what it held. */
void rs_address_read_name(struct rs_json at, char name[RS_CONFIG_NAME_BYTES]);
void rs_address_read_directory(struct rs_json at, char path[RS_CONFIG_DIR_BYTES]);
void rs_address_read_socket(struct rs_json at, char path[RS_CONFIG_SOCKET_PATH_BYTES]);

/* Reads "unix:/absolute/path" and keeps the path. */
void rs_address_read_peer(struct rs_json at, char path[RS_CONFIG_SOCKET_PATH_BYTES]);

/* Whether name may name a route; refuses it on behalf of the object that has it as a key. */
bool rs_address_check_key(struct rs_json object, const char *name);

/* Whether two absolute socket paths name one file as far as their text tells ("//", "/./", "/../").
 */
bool rs_address_same_path(const char *left, const char *right);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of the client table in shared memory: only the ring's sidecar writes them. */
#ifndef RINGSIDE_PROXY_CLIENT_ENTRY_H
#define RINGSIDE_PROXY_CLIENT_ENTRY_H

#include <stdint.h>

#include "proto/ring_layout.h"

/* Replaces what is not UTF-8 or what a terminal should not see. */
void client_name_clean(char name[RS_NAME_BYTES]);
void client_name_store(struct rs_client *entry, const char *name);
/* A clean, terminated copy. */
void client_name_load(const struct rs_client *entry, char name[RS_NAME_BYTES]);
/* Changes the phase alone, with release. */
void client_phase_set(struct rs_client *entry, unsigned phase);
/* Adds a flag, with release. */
void client_flag_set(struct rs_client *entry, unsigned flag);
/* Moves the counters of a dead client to the sidecar's own entry, each once whoever dies meanwhile, so
 * that totals never go back. Only this process counts there. */
void client_counters_inherit(struct rs_client *from, struct rs_client *to);
/* Ends the move of a counter that an earlier sidecar died in; before this one counts anything. */
void client_counters_finish(struct rs_client *from, struct rs_client *to);
/* Clock ticks since boot at which a process started, 0 when that cannot be read. */
uint64_t client_start_time(uint32_t pid);

#endif

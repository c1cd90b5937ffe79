/* SPDX-License-Identifier: Apache-2.0 */
/* Names, phases and counters in the client table, and the start time that tells a process from a later one of
 * its pid. */
#include "proxy/client_entry.h"

#include <stdio.h>
#include <string.h>

#include "proto/decode.h"
#include "proto/failpoint.h"

/* Whole UTF-8 characters that a terminal may see. */
void client_name_clean(char name[RS_NAME_BYTES])
{
    size_t bytes = strlen(name);

    for (size_t i = 0; i < bytes;) {
        size_t step = rs_utf8_character((const uint8_t *)name + i, bytes - i);
        if (step == 0 || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            name[i] = '?';
        i += step > 0 ? step : 1;
    }
}

void client_name_store(struct rs_client *entry, const char *name)
{
    uint64_t words[RS_NAME_BYTES / 8] = {0};

    memcpy(words, name, strnlen(name, RS_NAME_BYTES - 1));
    for (unsigned i = 0; i < RS_NAME_BYTES / 8; i++)
        rs_store_relaxed(&entry->name[i], words[i]);
}

void client_name_load(const struct rs_client *entry, char name[RS_NAME_BYTES])
{
    uint64_t words[RS_NAME_BYTES / 8];

    for (unsigned i = 0; i < RS_NAME_BYTES / 8; i++)
        words[i] = rs_load_relaxed(&entry->name[i]);
    memcpy(name, words, RS_NAME_BYTES);
    name[RS_NAME_BYTES - 1] = '\0';
    client_name_clean(name);
}

void client_phase_set(struct rs_client *entry, unsigned phase)
{
    uint64_t state = rs_load_relaxed(&entry->state);

    rs_store_release(&entry->state,
                     rs_client_state(rs_client_session(state), rs_client_reader(state),
                                     rs_client_flags(state), phase));
}

void client_flag_set(struct rs_client *entry, unsigned flag)
{
    uint64_t state = rs_load_relaxed(&entry->state);

    rs_store_release(&entry->state,
                     rs_client_state(rs_client_session(state), rs_client_reader(state),
                                     rs_client_flags(state) | flag, rs_client_phase(state)));
}

void client_counters_finish(struct rs_client *from, struct rs_client *to)
{
    uint64_t index = rs_load_relaxed(&from->inheriting) - 1;

    if (index < RS_COUNTERS) {
        rs_store_release(&to->counter[index], rs_load_relaxed(&from->inherited));
        RS_FAILPOINT(count_added);
        rs_store_release(&from->counter[index], 0);
        RS_FAILPOINT(count_zeroed);
    }
    rs_store_release(&from->inheriting, 0);
}

void client_counters_inherit(struct rs_client *from, struct rs_client *to)
{
    for (unsigned i = 0; i < RS_COUNTERS; i++) {
        uint64_t value = rs_load_relaxed(&from->counter[i]);
        if (value == 0)
            continue;
        rs_store_release(&from->inherited, rs_load_relaxed(&to->counter[i]) + value);
        rs_store_release(&from->inheriting, i + 1);
        RS_FAILPOINT(count_noted);
        client_counters_finish(from, to);
    }
}

/* Field 22 of /proc/<pid>/stat, 0 when it cannot be read. The name before it may hold anything. */
uint64_t client_start_time(uint32_t pid)
{
    char path[32], text[1024];
    unsigned long long start = 0;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = pid != 0 ? fopen(path, "re") : NULL;
    if (file == NULL)
        return 0;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at != NULL)
        sscanf(at, "%llu", &start);
    return start;
}

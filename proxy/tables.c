/* SPDX-License-Identifier: Apache-2.0 */
/* A private copy of the tables that lie before the cells, compared and put back word by word. */
#include "proxy/tables.h"

#include <errno.h>
#include <stdlib.h>

#include "proxy/mend.h"
#include "proxy/proxy.h"

struct tables {
    uint64_t *words; /* owned; as the control file up to the cells should be, by offset / 8 */
};

/* An array in the control file of which the first bytes of each element are the sidecar's alone. */
struct part {
    uint64_t offset;
    uint64_t stride; /* bytes from element to element */
    uint64_t own;    /* bytes */
    uint32_t count;
};

enum { PARTS = 4 };

static void list_parts(const struct rs_superblock *layout, struct part parts[PARTS])
{
    parts[0] = (struct part){0, sizeof *layout, offsetof(struct rs_superblock, pad), 1};
    parts[1] = (struct part){layout->clients_offset, sizeof(struct rs_client),
                             offsetof(struct rs_client, counter), layout->client_count};
    parts[2] = (struct part){layout->destinations_offset, sizeof(struct rs_destination),
                             sizeof(struct rs_destination), layout->destination_count};
    parts[3] = (struct part){layout->ring_table_offset, sizeof(struct rs_ring_entry),
                             sizeof(struct rs_ring_entry), RS_MAX_RINGS};
}

static rs_word *word_at(struct proxy *proxy, uint64_t offset)
{
    return (rs_word *)(proxy->ring.control + offset);
}

static void copy(struct proxy *proxy, uint64_t offset, uint64_t bytes)
{
    for (uint64_t end = offset + bytes; offset < end; offset += sizeof(rs_word))
        proxy->tables->words[offset / sizeof(rs_word)] = rs_load_relaxed(word_at(proxy, offset));
}

int tables_open(struct proxy *proxy)
{
    struct tables *tables = calloc(1, sizeof *tables);
    struct part parts[PARTS];

    if (tables != NULL)
        tables->words = calloc(1, proxy->ring.layout.cells_offset);
    if (tables == NULL || tables->words == NULL) {
        free(tables);
        return -ENOMEM;
    }
    proxy->tables = tables;
    list_parts(&proxy->ring.layout, parts);
    for (int i = 0; i < PARTS; i++)
        copy(proxy, parts[i].offset, parts[i].stride * parts[i].count);
    return 0;
}

void tables_changed(struct proxy *proxy, const void *entry)
{
    uint64_t offset = (uint64_t)((const uint8_t *)entry - proxy->ring.control);
    struct part parts[PARTS];

    list_parts(&proxy->ring.layout, parts);
    for (int i = 0; proxy->tables != NULL && i < PARTS; i++) {
        if (offset - parts[i].offset < parts[i].stride * parts[i].count)
            copy(proxy, offset - (offset - parts[i].offset) % parts[i].stride, parts[i].stride);
    }
}

/* A store to a word that differs: who reads sees the one or the other. */
static unsigned put_back(struct proxy *proxy, const struct part *part)
{
    unsigned count = 0;

    for (uint32_t i = 0; i < part->count; i++) {
        uint64_t begin = part->offset + i * part->stride;

        for (uint64_t at = begin; at < begin + part->own; at += sizeof(rs_word)) {
            uint64_t right = proxy->tables->words[at / sizeof(rs_word)];
            if (rs_load_relaxed(word_at(proxy, at)) == right)
                continue;
            rs_store_release(word_at(proxy, at), right);
            count++;
        }
    }
    return count;
}

void tables_tick(struct proxy *proxy)
{
    uint32_t draining = proxy_is_draining(proxy);
    struct part parts[PARTS];
    unsigned count = 0;

    if (proxy->tables == NULL || proxy_is_damaged(proxy))
        return;
    list_parts(&proxy->ring.layout, parts);
    for (int i = 0; i < PARTS; i++)
        count += put_back(proxy, &parts[i]);
    if (rs_load_relaxed(&proxy->ring.shared->draining) != draining) {
        rs_store_release(&proxy->ring.shared->draining, draining);
        count++;
    }
    if (count == 0)
        return;
    mend_audit(proxy);
    log_error(&proxy->log, "ring", 0,
              "%u words of the ring's tables were overwritten and have been put back: a worker "
              "wrote where it must not",
              count);
}

void tables_destroy(struct proxy *proxy)
{
    if (proxy->tables == NULL)
        return;
    free(proxy->tables->words);
    free(proxy->tables);
    proxy->tables = NULL;
}

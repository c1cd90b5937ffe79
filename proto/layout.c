/* SPDX-License-Identifier: Apache-2.0 */
/* Plans, formats and validates the control file of a ring. */
#include "proto/layout.h"

#include <string.h>
#include <sys/random.h>

#include "proto/err.h"

#define FIELD(type, field) offsetof(struct type, field), sizeof(((struct type *)0)->field)

static uint64_t fnv1a(uint64_t hash, uint64_t value)
{
    for (int i = 0; i < 8; i++) {
        hash ^= (value >> (8 * i)) & 0xff;
        hash *= UINT64_C(0x100000001b3);
    }
    return hash;
}

uint64_t rs_layout_hash(void)
{
    static const uint64_t shape[] = {
        RS_LAYOUT_MAJOR,
        FIELD(rs_slot, state), FIELD(rs_slot, readers), FIELD(rs_slot, delivery),
        FIELD(rs_slot, header), sizeof(struct rs_slot),
        FIELD(rs_client, state), FIELD(rs_client, nonce), FIELD(rs_client, name),
        FIELD(rs_client, counter), sizeof(struct rs_client),
        FIELD(rs_destination, state), FIELD(rs_destination, incarnation),
        FIELD(rs_destination, address), FIELD(rs_destination, name), sizeof(struct rs_destination),
        FIELD(rs_ring_entry, state), FIELD(rs_ring_entry, incarnation), FIELD(rs_ring_entry, nonce),
        FIELD(rs_ring_entry, name), sizeof(struct rs_ring_entry),
        FIELD(rs_inbox_shared, head), FIELD(rs_inbox_shared, tail),
        FIELD(rs_inbox_shared, not_empty), FIELD(rs_inbox_shared, not_full),
        FIELD(rs_inbox_shared, overflow), sizeof(struct rs_inbox_shared),
        FIELD(rs_ring_shared, slot_free), FIELD(rs_ring_shared, bell),
        FIELD(rs_ring_shared, draining), sizeof(struct rs_ring_shared),
        FIELD(rs_box, posted), FIELD(rs_box, room), FIELD(rs_box, cell), sizeof(struct rs_box),
        FIELD(rs_superblock, classes), FIELD(rs_superblock, slots_offset),
        FIELD(rs_superblock, boxes_offset),
        sizeof(struct rs_class_layout), sizeof(struct rs_superblock),
        RS_MAX_RINGS, RS_MAX_CLASSES, RS_HEADER_WORDS, RS_READERS_BITS, RS_READERS_RETIRED,
    };
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        hash = fnv1a(hash, shape[i]);
    return hash;
}

static uint64_t align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

static bool geometry_is_sane(const struct rs_geometry *geometry)
{
    uint32_t cells = geometry->inbox_cells;

    if (geometry->class_count < 1 || geometry->class_count > RS_MAX_CLASSES)
        return false;
    if (geometry->client_count < 2 || geometry->client_count > RS_MAX_CLIENTS)
        return false;
    if (cells < 8 || cells > RS_MAX_SLOTS || (cells & (cells - 1)) != 0)
        return false;
    if (geometry->inbox_depth < 1 || geometry->inbox_depth > cells)
        return false;
    if (geometry->sidecar_id < 1 || geometry->sidecar_id > UINT16_MAX)
        return false;
    if (geometry->page_bytes < RS_SLOT_ALIGN || (geometry->page_bytes & (geometry->page_bytes - 1)) != 0)
        return false;
    size_t length = strnlen(geometry->stage, RS_NAME_BYTES);
    return length > 0 && length < RS_NAME_BYTES;
}

/* Slot ranges and the place of each class's bodies. */
static int plan_classes(struct rs_superblock *plan, const struct rs_geometry *geometry)
{
    uint64_t body = 0, slots = 0, previous = 0;

    for (uint32_t i = 0; i < geometry->class_count; i++) {
        const struct rs_class_spec *spec = &geometry->classes[i];
        uint64_t bytes;

        if (spec->slot_bytes <= previous || spec->slot_bytes % RS_SLOT_ALIGN != 0 || spec->slots < 1)
            return -RINGSIDE_E_INVALID;
        if (__builtin_mul_overflow(spec->slot_bytes, (uint64_t)spec->slots, &bytes) ||
            bytes > INT64_MAX - body)
            return -RINGSIDE_E_INVALID;
        plan->classes[i].slot_bytes = spec->slot_bytes;
        plan->classes[i].slots = spec->slots;
        plan->classes[i].body_offset = body;
        plan->classes[i].first_slot = (uint32_t)slots;
        previous = spec->slot_bytes;
        body += bytes;
        slots += spec->slots;
        if (slots > RS_MAX_SLOTS)
            return -RINGSIDE_E_INVALID;
    }
    if (body > INT64_MAX - geometry->page_bytes)
        return -RINGSIDE_E_INVALID;
    plan->slot_count = (uint32_t)slots;
    plan->class_count = geometry->class_count;
    plan->body_bytes = align_up(body, geometry->page_bytes);
    return 0;
}

static uint32_t bitmap_words(uint32_t slots)
{
    return (slots + 63) / 64;
}

int rs_layout_plan(struct rs_superblock *plan, const struct rs_geometry *geometry)
{
    memset(plan, 0, sizeof *plan);
    if (!geometry_is_sane(geometry))
        return -RINGSIDE_E_INVALID;
    int rc = plan_classes(plan, geometry);
    if (rc < 0)
        return rc;

    plan->magic = RS_MAGIC;
    plan->endian = RS_ENDIAN;
    plan->layout_hash = rs_layout_hash();
    plan->page_bytes = geometry->page_bytes;
    plan->incarnation[0] = geometry->incarnation[0];
    plan->incarnation[1] = geometry->incarnation[1];
    plan->sidecar_id = geometry->sidecar_id;
    plan->client_count = geometry->client_count;
    plan->inbox_cells = geometry->inbox_cells;
    rs_store_relaxed(&plan->inbox_depth, geometry->inbox_depth);
    plan->destination_count = RS_MAX_DESTINATIONS;
    memcpy(plan->stage, geometry->stage, strlen(geometry->stage));

    uint64_t at = RS_SUPERBLOCK_BYTES;
    plan->clients_offset = at;
    at += (uint64_t)plan->client_count * sizeof(struct rs_client);
    plan->destinations_offset = at;
    at += (uint64_t)plan->destination_count * sizeof(struct rs_destination);
    plan->shared_offset = at;
    at += align_up(sizeof(struct rs_ring_shared), 256);
    plan->inbox_offset = at;
    at += sizeof(struct rs_inbox_shared);
    plan->ring_table_offset = at;
    at += RS_MAX_RINGS * sizeof(struct rs_ring_entry);
    plan->cells_offset = at;
    at += (uint64_t)plan->inbox_cells * sizeof(rs_word);
    for (uint32_t i = 0; i < plan->class_count; i++) {
        uint32_t words = bitmap_words(plan->classes[i].slots);

        at = align_up(at, RS_CACHE_LINE);
        plan->classes[i].bitmap_offset = at;
        at += ((uint64_t)words + bitmap_words(words)) * sizeof(rs_word);
    }
    at = align_up(at, RS_SLOT_ALIGN);
    plan->slots_offset = at;
    at += (uint64_t)plan->slot_count * sizeof(struct rs_slot);
    plan->boxes_offset = at;
    at += (uint64_t)plan->client_count * sizeof(struct rs_box);
    plan->control_bytes = align_up(at, RS_SLOT_ALIGN);
    return 0;
}

static void fill_bitmap(rs_word *words, uint32_t bits)
{
    for (uint32_t i = 0; i < bitmap_words(bits); i++) {
        uint32_t left = bits - i * 64;

        rs_store_relaxed(&words[i], left >= 64 ? UINT64_MAX : (UINT64_C(1) << left) - 1);
    }
}

/* The first generation of every slot is random: a ticket of a deleted ring must not come true again. */
static void format_slots(struct rs_slot *slots, uint32_t count)
{
    uint32_t random[64];

    for (uint32_t i = 0; i < count; i++) {
        if (i % 64 == 0)
            RS_REQUIRE(getrandom(random, sizeof random, 0) == (ssize_t)sizeof random);
        rs_store_relaxed(&slots[i].state, rs_state(random[i % 64], 0, RS_FREE, 0));
        rs_store_relaxed(&slots[i].readers, RS_READERS_RETIRED);
    }
}

void rs_layout_format(void *control, const struct rs_superblock *plan)
{
    struct rs_superblock *superblock = control;
    uint8_t *base = control;
    rs_word *cells = (rs_word *)(base + plan->cells_offset);

    memcpy(superblock, plan, sizeof *plan);
    rs_store_relaxed(&superblock->version, 0);
    format_slots((struct rs_slot *)(base + plan->slots_offset), plan->slot_count);
    for (uint32_t i = 0; i < plan->inbox_cells; i++)
        rs_store_relaxed(&cells[i], rs_cell(false, 0, 0, 0, 0));
    for (uint32_t i = 0; i < plan->class_count; i++) {
        rs_word *words = (rs_word *)(base + plan->classes[i].bitmap_offset);
        uint32_t count = bitmap_words(plan->classes[i].slots);

        fill_bitmap(words, plan->classes[i].slots);
        fill_bitmap(words + count, count);
    }
    rs_store_release(&superblock->version, RS_LAYOUT_VERSION);
}

/* Everything that follows from other fields must equal what we would have planned. */
static bool follows_from_geometry(const struct rs_superblock *copy)
{
    struct rs_superblock plan;
    struct rs_geometry geometry = {
        .stage = copy->stage,
        .class_count = copy->class_count,
        .client_count = copy->client_count,
        .inbox_cells = copy->inbox_cells,
        .inbox_depth = rs_load_relaxed(&copy->inbox_depth),
        .sidecar_id = copy->sidecar_id,
        .page_bytes = copy->page_bytes,
        .incarnation = {copy->incarnation[0], copy->incarnation[1]},
    };

    if (copy->class_count > RS_MAX_CLASSES || copy->stage[RS_NAME_BYTES - 1] != '\0')
        return false;
    for (uint32_t i = 0; i < copy->class_count; i++) {
        geometry.classes[i].slot_bytes = copy->classes[i].slot_bytes;
        geometry.classes[i].slots = copy->classes[i].slots;
    }
    if (rs_layout_plan(&plan, &geometry) < 0)
        return false;
    rs_store_relaxed(&plan.version, rs_load_relaxed(&copy->version));
    rs_store_relaxed(&plan.epoch, rs_load_relaxed(&copy->epoch));
    return memcmp(&plan, copy, offsetof(struct rs_superblock, pad)) == 0;
}

int rs_layout_read(struct rs_superblock *copy, const void *control, uint64_t control_file_bytes,
                   uint64_t body_file_bytes, const char **why)
{
    const struct rs_superblock *superblock = control;

    *why = "";
    if (control_file_bytes < RS_SUPERBLOCK_BYTES) {
        *why = "control file is shorter than a superblock";
        return -RINGSIDE_E_CORRUPT;
    }
    uint32_t version = rs_load_acquire(&superblock->version);
    memcpy(copy, superblock, sizeof *copy);
    rs_store_relaxed(&copy->version, version);
    if (copy->magic != RS_MAGIC) {
        *why = "not a control file of Ringside (magic differs)";
        return -RINGSIDE_E_CORRUPT;
    }
    if (version == 0) {
        *why = "control file is incomplete: its sidecar died while making it";
        return -RINGSIDE_E_CORRUPT;
    }
    if (copy->endian != RS_ENDIAN) {
        *why = "ring was made on a machine of the other byte order";
        return -RINGSIDE_E_VERSION;
    }
    if (version >> 16 != RS_LAYOUT_MAJOR || copy->layout_hash != rs_layout_hash()) {
        *why = "ring has another layout version: use the release that made it, or drain and remove the ring";
        return -RINGSIDE_E_VERSION;
    }
    if (copy->features != 0) {
        *why = "ring uses features unknown to this release: use the release that made it";
        return -RINGSIDE_E_VERSION;
    }
    if (!follows_from_geometry(copy)) {
        *why = "superblock contradicts itself";
        return -RINGSIDE_E_CORRUPT;
    }
    if (control_file_bytes != copy->control_bytes || body_file_bytes < copy->body_bytes) {
        *why = "a ring file was truncated";
        return -RINGSIDE_E_CORRUPT;
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A superblock that a stranger wrote: refused with a reason, or every place it names is in the
 * files. */
#include "tests/fuzz/ring.h"

#define LARGEST (1u << 20)

/* Half of the inputs begin with a geometry, so that sound superblocks of all shapes come up. */
static void make(struct rs_superblock *superblock, struct input *input)
{
    struct rs_geometry geometry = {.stage = "fuzz", .sidecar_id = 1, .incarnation = {3, 4}};

    geometry.class_count = (uint32_t)next(input, 1) % (RS_MAX_CLASSES + 2);
    for (uint32_t i = 0; i < geometry.class_count && i < RS_MAX_CLASSES; i++) {
        geometry.classes[i].slot_bytes = next(input, 3) << 12;
        geometry.classes[i].slots = (uint32_t)next(input, 3);
    }
    geometry.client_count = (uint32_t)next(input, 2);
    geometry.inbox_cells = 1u << next(input, 1) % 24;
    geometry.inbox_depth = 1 + (uint32_t)next(input, 2);
    geometry.page_bytes = UINT64_C(1) << next(input, 1) % 40;
    if (rs_layout_plan(superblock, &geometry) == 0)
        rs_store_relaxed(&superblock->version, RS_LAYOUT_VERSION);
}

static bool inside(uint64_t at, uint64_t bytes, uint64_t limit)
{
    return at % 8 == 0 && at <= limit && bytes <= limit - at;
}

static void check_places(const struct rs_superblock *copy)
{
    uint64_t end = copy->control_bytes, slots = 0;

    CHECK(copy->slot_count >= 1 && copy->slot_count <= RS_MAX_SLOTS &&
          copy->client_count <= RS_MAX_CLIENTS);
    CHECK(inside(copy->clients_offset, copy->client_count * sizeof(struct rs_client), end));
    CHECK(inside(copy->destinations_offset, copy->destination_count * sizeof(struct rs_destination),
                 end));
    CHECK(inside(copy->shared_offset, sizeof(struct rs_ring_shared), end));
    CHECK(inside(copy->inbox_offset, sizeof(struct rs_inbox_shared), end));
    CHECK(inside(copy->ring_table_offset, RS_MAX_RINGS * sizeof(struct rs_ring_entry), end));
    CHECK(inside(copy->cells_offset, copy->inbox_cells * sizeof(rs_word), end));
    CHECK(inside(copy->slots_offset, copy->slot_count * sizeof(struct rs_slot), end));
    CHECK(inside(copy->boxes_offset, copy->client_count * sizeof(struct rs_box), end));
    for (uint32_t i = 0; i < copy->class_count; i++) {
        const struct rs_class_layout *class = &copy->classes[i];
        CHECK(class->first_slot == slots && class->slots >= 1);
        CHECK(inside(class->body_offset, class->slots * class->slot_bytes, copy->body_bytes));
        CHECK(inside(class->bitmap_offset, (class->slots + 63) / 64 * 8, end));
        slots += class->slots;
    }
    CHECK(slots == copy->slot_count);
}

/* Small ones are mapped as an attaching worker maps them, and used to their ends. */
static void map(const struct rs_superblock *superblock)
{
    int fd = memfd_create("control", MFD_CLOEXEC);
    struct rs_ring ring;
    struct rs_loan loan;
    const char *why;

    CHECK(fd >= 0 && ftruncate(fd, (off_t)superblock->control_bytes) == 0);
    CHECK(pwrite(fd, superblock, sizeof *superblock, 0) == sizeof *superblock);
    CHECK(rs_ring_map(&ring, fd, -1, false, &why) == 0);
    rs_store_relaxed(&ring.clients[ring.layout.client_count - 1].counter[RS_COUNTERS - 1], 1);
    for (uint32_t i = 0; i < ring.layout.slot_count; i++)
        rs_ring_mark_free(&ring, i);
    for (unsigned i = 0; i < ring.layout.class_count; i++)
        CHECK(rs_ring_loan(&ring, 1, i, &loan) == 0 &&
              rs_ring_class_of(&ring, loan.slot) == (int)i);
    rs_ring_unmap(&ring);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct rs_superblock superblock = {0}, copy;
    const char *why = NULL;
    unsigned kind = (unsigned)next(&input, 1);

    if (kind % 2 == 0)
        make(&superblock, &input);
    for (unsigned i = 0; i < kind / 2 && input.left > 0; i++) {
        size_t at = (size_t)next(&input, 2) % (sizeof superblock - 8);
        next_bytes(&input, (uint8_t *)&superblock + at, 8);
    }
    if (rs_layout_read(&copy, &superblock, superblock.control_bytes, superblock.body_bytes, &why) <
        0) {
        CHECK(why != NULL && why[0] != '\0');
        return 0;
    }
    check_places(&copy);
    if (copy.control_bytes <= LARGEST)
        map(&copy);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of proto/layout.c: planning, formatting and refusing what is not a ring of ours. */
#include "tests/unit/slots_fixture.h"

static void plan_places_every_region_apart(void **state)
{
    struct rs_superblock plan;
    struct rs_geometry geometry = fixture_geometry(100, 64);

    (void)state;
    assert_int_equal(rs_layout_plan(&plan, &geometry), 0);
    assert_true(plan.clients_offset >= RS_SUPERBLOCK_BYTES);
    assert_true(plan.destinations_offset >= plan.clients_offset + 64 * sizeof(struct rs_client));
    assert_true(plan.ring_table_offset >= plan.inbox_offset + sizeof(struct rs_inbox_shared));
    assert_true(plan.cells_offset >= plan.ring_table_offset + 256 * sizeof(struct rs_ring_entry));
    assert_true(plan.classes[0].bitmap_offset >= plan.cells_offset + 64 * 8);
    assert_true(plan.classes[1].bitmap_offset >= plan.classes[0].bitmap_offset + (2 + 1) * 8);
    assert_true(plan.slots_offset >= plan.classes[1].bitmap_offset + 16);
    assert_true(plan.boxes_offset >= plan.slots_offset + 102 * sizeof(struct rs_slot));
    assert_true(plan.control_bytes >= plan.boxes_offset + 64 * sizeof(struct rs_box));
    assert_int_equal(plan.boxes_offset % RS_CACHE_LINE, 0);
    assert_int_equal(plan.body_bytes, 100 * 4096 + 2 * 65536);
    assert_int_equal(plan.slots_offset % 4096, 0);
}

static void plan_refuses_bad_geometry(void **state)
{
    struct rs_superblock plan;
    struct rs_geometry good = fixture_geometry(4, 8), bad;

    (void)state;
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        bad = good;                                                                                \
        bad.change;                                                                                \
        assert_int_equal(rs_layout_plan(&plan, &bad), -RINGSIDE_E_INVALID);                        \
    } while (0)
    REFUSED(class_count = 0);
    REFUSED(class_count = RS_MAX_CLASSES + 1);
    REFUSED(client_count = 1);
    REFUSED(client_count = RS_MAX_CLIENTS + 1);
    REFUSED(inbox_cells = 12);
    REFUSED(inbox_depth = 0);
    REFUSED(inbox_depth = 9);
    REFUSED(sidecar_id = 0);
    REFUSED(sidecar_id = 65536);
    REFUSED(page_bytes = 2048);
    REFUSED(classes[0].slot_bytes = 4097);
    REFUSED(classes[0].slot_bytes = 65536);
    REFUSED(classes[0].slots = 0);
    REFUSED(classes[1].slot_bytes = UINT64_MAX - 4095);
    REFUSED(classes[1].slots = RS_MAX_SLOTS);
    REFUSED(stage = "");
}

static void read_accepts_what_format_wrote(void **state)
{
    struct ring_fixture fixture;
    struct rs_superblock copy;
    const char *why;

    (void)state;
    ring_fixture_init(&fixture, 10, 16);
    assert_int_equal(rs_layout_read(&copy, fixture.ring.control, fixture.ring.layout.control_bytes,
                                    fixture.ring.layout.body_bytes, &why), 0);
    assert_int_equal(fixture_count(&fixture, RS_FREE), 12);
    ring_fixture_finish(&fixture);
}

/* Every byte of the superblock that carries meaning: flipping it must be noticed, or change only the epoch or depth. */
static void read_refuses_each_flipped_byte(void **state)
{
    struct ring_fixture fixture;
    struct rs_superblock copy;
    const char *why;

    (void)state;
    ring_fixture_init(&fixture, 10, 16);
    for (size_t i = 0; i < offsetof(struct rs_superblock, pad); i++) {
        bool harmless = (i >= offsetof(struct rs_superblock, incarnation) &&
                         i < offsetof(struct rs_superblock, sidecar_id) + 2) ||
                        (i >= offsetof(struct rs_superblock, stage) && i < offsetof(struct rs_superblock, classes)) ||
                        (i >= offsetof(struct rs_superblock, version) && i < offsetof(struct rs_superblock, version) + 2) ||
                        (i >= offsetof(struct rs_superblock, inbox_depth) && i < offsetof(struct rs_superblock, inbox_depth) + 4);

        fixture.ring.control[i] ^= 0x55;
        int rc = rs_layout_read(&copy, fixture.ring.control, fixture.ring.layout.control_bytes,
                                fixture.ring.layout.body_bytes, &why);
        if (!harmless) {
            assert_true(rc == -RINGSIDE_E_CORRUPT || rc == -RINGSIDE_E_VERSION);
            assert_true(strlen(why) > 0);
        }
        fixture.ring.control[i] ^= 0x55;
    }
    ring_fixture_finish(&fixture);
}

static void read_refuses_truncated_files(void **state)
{
    struct ring_fixture fixture;
    struct rs_superblock copy;
    const char *why;

    (void)state;
    ring_fixture_init(&fixture, 10, 16);
    struct rs_superblock *layout = &fixture.ring.layout;
    assert_int_equal(rs_layout_read(&copy, fixture.ring.control, 100, layout->body_bytes, &why), -RINGSIDE_E_CORRUPT);
    assert_int_equal(rs_layout_read(&copy, fixture.ring.control, layout->control_bytes - 4096,
                                    layout->body_bytes, &why), -RINGSIDE_E_CORRUPT);
    assert_int_equal(rs_layout_read(&copy, fixture.ring.control, layout->control_bytes,
                                    layout->body_bytes - 1, &why), -RINGSIDE_E_CORRUPT);
    ring_fixture_finish(&fixture);
}

static void first_generations_differ(void **state)
{
    struct ring_fixture fixture;
    uint32_t same = 0;

    (void)state;
    ring_fixture_init(&fixture, 200, 16);
    uint32_t first = rs_state_generation(rs_load_relaxed(&fixture.ring.slots[0].state));
    for (uint32_t i = 1; i < 200; i++)
        same += rs_state_generation(rs_load_relaxed(&fixture.ring.slots[i].state)) == first;
    assert_true(same < 3);
    ring_fixture_finish(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_places_every_region_apart),
        cmocka_unit_test(plan_refuses_bad_geometry),
        cmocka_unit_test(read_accepts_what_format_wrote),
        cmocka_unit_test(read_refuses_each_flipped_byte),
        cmocka_unit_test(read_refuses_truncated_files),
        cmocka_unit_test(first_generations_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

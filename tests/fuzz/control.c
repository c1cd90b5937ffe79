/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of workers and of the sidecar while words of the control file change to anything between
 * them. */
#include <stdio.h>

#include "proto/box.h"
#include "proto/tensor.h"
#include "tests/fuzz/ring.h"

/* Any 8 bytes of the file: places that matter are as likely as the large tables. */
static rs_word *any_word(struct fuzzed *fuzzed, struct input *input)
{
    const struct rs_superblock *plan = &fuzzed->plan;
    const uint64_t begins[] = {plan->slots_offset,
                               plan->cells_offset,
                               plan->inbox_offset,
                               plan->classes[0].bitmap_offset,
                               plan->shared_offset,
                               plan->clients_offset,
                               plan->destinations_offset,
                               plan->ring_table_offset,
                               0,
                               plan->boxes_offset};
    uint64_t at = begins[next(input, 1) % 10] + next(input, 1) * 8;

    return (rs_word *)(fuzzed->ring.control + at % plan->control_bytes);
}

static void send(struct fuzzed *fuzzed, unsigned flags, uint64_t readers)
{
    uint16_t routes[2] = {STAGE, 2};
    struct rs_loan loan;

    if (rs_ring_loan(&fuzzed->ring, 1, 0, &loan) < 0)
        return;
    rs_ring_prefetch_loan(&fuzzed->ring, 0);
    rs_ring_prepare(&fuzzed->ring, &loan, routes, 1 + (flags & 1), readers);
    (void)rs_inbox_has_room(&fuzzed->inbox);
    if (rs_ring_seal(&fuzzed->ring, 1, &loan, flags & RS_FLAG_TICKET) == 0)
        rs_inbox_push(&fuzzed->inbox, 0, loan.slot, 0);
}

/* As a caller: what it is given is a slot of the ring. */
static void look_into_box(struct fuzzed *fuzzed, unsigned cell)
{
    struct rs_pending call = {.own = &fuzzed->ring, .ring = &fuzzed->ring, .cell = cell};
    struct rs_box *box = &fuzzed->ring.boxes[fuzzed->ring.client];
    struct rs_lease lease;
    uint64_t ticket;
    enum rs_box_content content = rs_call_look(&call, &ticket, &lease);

    if (content != RS_BOX_REPLY && content != RS_BOX_TAKEN_BACK)
        return;
    CHECK(lease.slot < fuzzed->plan.slot_count && ticket != 0);
    CHECK(rs_box_take(box, cell, ticket));
    rs_ring_release(&lease);
}

static void receive(struct fuzzed *fuzzed, unsigned what)
{
    uint16_t routes[2] = {STAGE, 2};
    uint8_t deliveries[2];
    struct rs_lease lease;
    struct rs_message message;
    int unmapped;

    look_into_box(fuzzed, what % RS_BOX_CELLS);
    if (rs_inbox_take(&fuzzed->inbox, &lease, &unmapped) != 1)
        return;
    CHECK(lease.slot < fuzzed->plan.slot_count && lease.delivery < RS_MAX_DELIVERIES);
    rs_message_load(&message, &fuzzed->ring.slots[lease.slot],
                    fuzzed->ring.body + rs_ring_slot_offset(&fuzzed->ring, lease.slot),
                    rs_ring_slot_bytes(&fuzzed->ring, lease.slot));
    if (what % 4 == 0)
        rs_ring_release(&lease);
    else if (what % 4 == 1 && rs_ring_nack(&lease, what) == 0)
        rs_inbox_push(&fuzzed->inbox, 0, lease.slot, lease.delivery);
    else if (what % 4 == 2)
        rs_ring_forward(&lease, routes, 1 + what / 4 % 2, deliveries);
}

/* With nothing written any more, two audits set aside what is nonsense, and a message goes through.
 */
static void check_mended(struct fuzzed *fuzzed)
{
    uint16_t route = STAGE;
    struct rs_loan loan;
    struct rs_lease lease;
    int unmapped;

    fuzzed_audit(fuzzed, 0);
    fuzzed_audit(fuzzed, 0);
    for (uint32_t i = 0; i < fuzzed->plan.slot_count; i++)
        CHECK(rs_state_phase(rs_load_relaxed(&fuzzed->ring.slots[i].state)) <= RS_QUARANTINED);
    if (rs_ring_loan(&fuzzed->ring, 1, 0, &loan) < 0)
        return;
    rs_ring_prepare(&fuzzed->ring, &loan, &route, 1, RS_READERS_RETIRED);
    CHECK(rs_ring_seal(&fuzzed->ring, 1, &loan, 0) == 0);
    rs_inbox_push(&fuzzed->inbox, 0, loan.slot, 0);
    for (unsigned round = 0; round < 200; round++) {
        if (rs_inbox_take(&fuzzed->inbox, &lease, &unmapped) != 1) {
            fuzzed_audit(fuzzed, 0);
            continue;
        }
        rs_ring_release(&lease);
        if (lease.slot == loan.slot && lease.generation == loan.generation)
            return;
    }
    printf("slot %u: head %llx, tail %llx, overflow %x, cells", loan.slot,
           (unsigned long long)fuzzed->inbox.shared->head,
           (unsigned long long)fuzzed->inbox.shared->tail, fuzzed->inbox.shared->overflow);
    for (uint32_t i = 0; i < fuzzed->inbox.cell_count; i++)
        printf(" %016llx", (unsigned long long)fuzzed->inbox.cells[i]);
    printf("\n");
    fflush(stdout);
    CHECK(!"a message is stuck");
}

static void step(struct fuzzed *fuzzed, struct input *input)
{
    unsigned what = (unsigned)next(input, 1);
    struct rs_ticket ticket = {.sidecar_id = 7};
    uint32_t cursor = 0, generation;

    switch (what % 10) {
    case 0:
    case 1:
        rs_store_relaxed(any_word(fuzzed, input), next(input, 8));
        break;
    case 2:
        rs_fetch_or_seq_cst(any_word(fuzzed, input), UINT64_C(1) << (next(input, 1) & 63));
        break;
    case 3:
        send(fuzzed, what / 10, next(input, 8));
        break;
    case 4:
        receive(fuzzed, what / 10);
        break;
    case 5:
        fuzzed_audit(fuzzed, (int64_t)next(input, 8));
        break;
    case 6:
        while (!rs_repair_sweep(&fuzzed->repair, (uint16_t)(what / 10 % 4), what / 40, &cursor, 3))
            ;
        rs_repair_wake(&fuzzed->repair);
        break;
    case 7:
        ticket.slot = (uint32_t)next(input, 1);
        ticket.generation = (uint32_t)next(input, 4);
        if (what / 10 % 2 == 0)
            rs_ring_ticket_free(&fuzzed->ring, what / 20, &ticket);
        else if (rs_ring_read_begin(&fuzzed->ring, what / 20, &ticket, &generation) == 0)
            rs_ring_read_end(&fuzzed->ring, what / 20, ticket.slot, generation, true);
        break;
    case 8:
        rs_inbox_drop_oldest(&fuzzed->inbox, 0);
        (void)rs_inbox_depth_now(&fuzzed->inbox);
        break;
    default:
        rs_repair_adopt(&fuzzed->repair);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzzed fuzzed;
    struct input input = {data, size};

    fuzzed_begin(&fuzzed);
    for (unsigned i = 0; i < 200 && input.left > 0; i++)
        step(&fuzzed, &input);
    check_mended(&fuzzed);
    fuzzed_end(&fuzzed);
    return 0;
}

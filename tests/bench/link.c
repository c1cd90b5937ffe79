/* SPDX-License-Identifier: Apache-2.0 */
/* One side of a hand-off through libringside, and the run of two sides between two sidecars. */
#include "tests/bench/link.h"

#include <stdlib.h>
#include <string.h>

static int explain(struct bench *bench, struct link *link, const char *what)
{
    return bench_fail(bench, "%s: %s", what, ringside_explain(link->rs));
}

static int loan(struct bench *bench, struct link *link, struct ringside_slot *slot)
{
    if (ringside_loan(link->rs, &link->tensor, 1, 0, WAIT_NS, slot) < 0)
        return explain(bench, link, "loan");
    return 0;
}

int link_open(struct bench *bench, const struct experiment *experiment, int side, struct link *link)
{
    memset(link, 0, sizeof *link);
    link->rs = bench_stages_connect(bench, &experiment->stages, side);
    if (link->rs == NULL)
        return -1;
    link->tensor = (struct ringside_tensor){
        .dtype = RINGSIDE_UINT8, .rank = 1, .shape = {experiment->bytes}};
    if (experiment->held_count == 0)
        return 0;
    link->held = calloc(experiment->held_count, sizeof *link->held);
    if (link->held == NULL)
        return bench_fail(bench, "no memory for %u slots", experiment->held_count);
    for (; link->held_count < experiment->held_count; link->held_count++) {
        if (loan(bench, link, &link->held[link->held_count]) < 0)
            return -1;
    }
    return 0;
}

void link_close(struct link *link)
{
    ringside_close(link->rs);
    free(link->held);
}

int link_send(struct bench *bench, struct link *link)
{
    static const struct ringside_options options = {.timeout_ns = WAIT_NS};
    struct ringside_slot *slot = &link->slot;

    if (loan(bench, link, slot) < 0)
        return -1;
    if (link->held != NULL) {
        struct ringside_slot *oldest = &link->held[link->turn];

        /* 1.5 KiB of a slot are in use at most when it has one tensor; the rest stays behind. */
        struct ringside_slot *const swapped[2] = {slot, oldest};
        struct ringside_slot kept = *swapped[0];
        *swapped[0] = *swapped[1];
        *swapped[1] = kept;
        link->turn = (link->turn + 1) % link->held_count;
    }
    volatile uint8_t *data = slot->tensors[0].data;
    data[0] = link->mark;
    data[slot->tensors[0].bytes - 1] = link->mark;
    if (ringside_send(link->rs, slot, "other", &options) < 0)
        return explain(bench, link, "send");
    return 0;
}

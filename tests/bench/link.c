/* SPDX-License-Identifier: Apache-2.0 */
/* One side of a hand-off through libringside, and the run of two sides between two sidecars. */
#include "tests/bench/link.h"

#include <stddef.h>
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

/* One tensor is all that a slot here has: the other 63 would only take up cache. */
static int make_slots(struct bench *bench, struct link *link, uint32_t count)
{
    size_t bytes = offsetof(struct ringside_slot, tensors) + sizeof(struct ringside_tensor);

    bytes = (bytes + BENCH_LINE - 1) / BENCH_LINE * BENCH_LINE;
    link->slots = aligned_alloc(BENCH_LINE, (count + 1) * bytes);
    link->held = calloc(count + 1, sizeof *link->held);
    if (link->slots == NULL || link->held == NULL)
        return bench_fail(bench, "no memory for %u slots", count);
    for (uint32_t i = 0; i < count; i++) {
        link->held[i] = (void *)((uint8_t *)link->slots + (i + 1) * bytes);
        if (loan(bench, link, link->held[i]) < 0)
            return -1;
    }
    link->slot = link->slots;
    link->held_count = count;
    return 0;
}

int link_open(struct bench *bench, const struct experiment *experiment, int side, struct link *link)
{
    memset(link, 0, sizeof *link);
    link->rs = bench_stages_connect(bench, &experiment->stages, side);
    if (link->rs == NULL)
        return -1;
    link->tensor =
        (struct ringside_tensor){.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {experiment->bytes}};
    return make_slots(bench, link, experiment->held_count);
}

void link_close(struct link *link)
{
    ringside_close(link->rs);
    free(link->held);
    free(link->slots);
}

/* With loans held: sends the one loaned longest ago and keeps the new one in its place. */
static struct ringside_slot *swap_oldest(struct link *link)
{
    struct ringside_slot *oldest = link->held[link->turn];

    link->held[link->turn] = link->slot;
    link->slot = oldest;
    link->turn = (link->turn + 1) % link->held_count;
    return oldest;
}

int link_send(struct bench *bench, struct link *link)
{
    static const struct ringside_options options = {.timeout_ns = WAIT_NS};
    struct ringside_slot *slot = link->slot;

    if (loan(bench, link, slot) < 0)
        return -1;
    if (link->held_count > 0)
        slot = swap_oldest(link);
    volatile uint8_t *data = slot->tensors[0].data;
    data[0] = link->mark;
    data[slot->tensors[0].bytes - 1] = link->mark;
    if (ringside_send(link->rs, slot, "other", &options) < 0)
        return explain(bench, link, "send");
    return 0;
}

int link_receive(struct bench *bench, struct link *link)
{
    struct ringside_message *message = &link->message;

    if (ringside_receive(link->rs, message, WAIT_NS) < 0)
        return explain(bench, link, "receive");
    const volatile uint8_t *data = message->tensors[0].data;
    uint8_t first = data[0], last = data[message->tensors[0].bytes - 1];
    if (ringside_release(link->rs, message) < 0)
        return explain(bench, link, "release");
    if (first != link->mark || last != link->mark)
        return bench_fail(bench, "wrong bytes");
    return 0;
}

int link_round(struct bench *bench, int side, void *ctx)
{
    struct link *link = ctx;

    link->mark++;
    if (side == 0)
        return link_send(bench, link) < 0 ? -1 : link_receive(bench, link);
    return link_receive(bench, link) < 0 ? -1 : link_send(bench, link);
}

static int look_at(struct bench *bench, uint8_t mark, const struct ringside_message *message)
{
    const volatile uint8_t *data = message->tensors[0].data;

    if (data[0] != mark || data[message->tensors[0].bytes - 1] != mark)
        return bench_fail(bench, "wrong bytes");
    return 0;
}

static int write_into(struct bench *bench, struct link *link)
{
    if (loan(bench, link, link->slot) < 0)
        return -1;
    volatile uint8_t *data = link->slot->tensors[0].data;
    data[0] = link->mark;
    data[link->slot->tensors[0].bytes - 1] = link->mark;
    return 0;
}

static int call_once(struct bench *bench, struct link *link)
{
    static const struct ringside_options options = {.timeout_ns = WAIT_NS, .ttl_ns = WAIT_NS};
    struct ringside_call call;

    if (write_into(bench, link) < 0)
        return -1;
    if (ringside_call(link->rs, link->slot, "other", "method", &options, &call) < 0)
        return explain(bench, link, "call");
    if (ringside_call_wait(link->rs, &call, &link->message, WAIT_NS) != 0)
        return explain(bench, link, "wait");
    if (look_at(bench, link->mark, &link->message) < 0)
        return -1;
    return ringside_release(link->rs, &link->message) < 0 ? explain(bench, link, "release") : 0;
}

struct answer {
    struct bench *bench;
    struct link *link;
    int rc;
};

static int answer(struct ringside *rs, struct ringside_message *message, void *data)
{
    struct answer *answer = data;
    struct link *link = answer->link;

    answer->rc = look_at(answer->bench, link->mark, message);
    if (answer->rc == 0)
        answer->rc = write_into(answer->bench, link);
    if (answer->rc == 0 && ringside_reply(rs, message, link->slot, NULL, 1) < 0)
        answer->rc = explain(answer->bench, link, "reply");
    return 0;
}

static int answer_once(struct bench *bench, struct link *link)
{
    struct answer data = {bench, link, -1};
    const struct ringside_method methods[] = {{"another", answer, NULL}, {"method", answer, &data}};

    if (ringside_serve(link->rs, methods, 2, WAIT_NS) < 0)
        return explain(bench, link, "serve");
    return data.rc;
}

int link_call_round(struct bench *bench, int side, void *ctx)
{
    struct link *link = ctx;

    link->mark++;
    return side == 0 ? call_once(bench, link) : answer_once(bench, link);
}

int link_run(struct bench *bench, struct experiment *experiment, bench_side *side, const char *ring,
             const char *clients)
{
    int rc = bench_stages_start(bench, &experiment->stages, ring, clients);

    if (rc == 0)
        rc = bench_fork(bench, 2, side, experiment);
    bench_stages_stop(&experiment->stages);
    return rc;
}

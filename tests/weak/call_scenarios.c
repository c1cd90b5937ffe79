/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: a reply and its caller that sleeps, gives up, cancels or dies; a callee that waits for
 * room. */
#include "acts.h"
#include "proto/box.h"
#include "scenarios.h"

#define REQUEST 0u /* slot; held by the callee, thread 0 */
#define REPLY   1u /* slot; loaned by the callee */
#define NONCE   77u

enum { CALLEE = 0, CALLER = 1 };

static struct rs_box *box_of(uint16_t client)
{
    return &processes[CLOSER].ring.boxes[client];
}

static struct rs_lease request(void)
{
    struct rs_lease lease = lease_on(0);

    lease.slot = REQUEST;
    return lease;
}

static struct rs_pending pending(void)
{
    return (struct rs_pending){.own = &me()->ring,
                               .client = me()->ring.client,
                               .holder = me()->ring.client,
                               .slot = REQUEST,
                               .generation = GENERATION,
                               .ring = &me()->ring};
}

/* ---- where it begins ---- */

static void call_by(uint16_t caller)
{
    format(2, 2, 2);
    struct rs_client *entry = &processes[CLOSER].ring.clients[caller];
    put_message(REQUEST, CLIENT(CALLEE), RS_HELD);
    put_state(REPLY, CLIENT(CALLEE), RS_LOANED, 0);
    rs_store_relaxed(&entry->nonce, NONCE);
    rs_store_relaxed(&entry->state, rs_client_state(1, caller, 0, RS_CLIENT_ALIVE));
    weak_name(&box_of(caller)->posted, "posted", 0);
    weak_name(&box_of(caller)->room, "room", 0);
    weak_name(&box_of(caller)->cell[0], "box[%u]", 0);
    weak_name(&entry->state, "entry of %u", caller);
}

static void one_call(void)
{
    call_by(CLIENT(CALLER));
}

static void call_of_the_dead(void)
{
    call_by(DEAD_CLIENT);
}

/* The cell holds the reply before, in a third slot. */
static void cell_in_use(void)
{
    format(3, 2, 2);
    put_message(REQUEST, CLIENT(CALLEE), RS_HELD);
    put_state(REPLY, CLIENT(CALLEE), RS_LOANED, 0);
    put_message(2, CLIENT(CALLER), RS_HELD);
    rs_store_relaxed(&slot_at(2)->delivery[0],
                     rs_delivery(GENERATION, CLIENT(CALLER), RS_REPLY_DESTINATION, 0, RS_HELD));
    rs_store_relaxed(&box_of(CLIENT(CALLER))->cell[0], rs_ticket_pack(SIDECAR_ID, 2, GENERATION));
    weak_name(&box_of(CLIENT(CALLER))->room, "room", 0);
    weak_name(&box_of(CLIENT(CALLER))->cell[0], "box[%u]", 0);
}

/* ---- the callee ---- */

static struct rs_reply reply_to(uint16_t caller)
{
    weak_body_write(REPLY, GENERATION);
    rs_store_relaxed(&slot_at(REPLY)->header[0], GENERATION);
    return (struct rs_reply){
        .ring = &me()->ring,
        .owner = me()->ring.client,
        .loan = {.slot = REPLY, .generation = GENERATION},
        .holder = caller,
        .box = box_of(caller),
        .event_fd = -1,
    };
}

static void let_go(void)
{
    struct rs_lease lease = request();

    weak_require(rs_ring_release(&lease) == 0, "a release is refused");
}

static void answer(void)
{
    struct rs_reply reply = reply_to(CLIENT(CALLER));
    struct rs_lease lease = request();

    weak_require(rs_reply_publish(&reply) == 0, "a reply is refused");
    if (rs_request_is_cancelled(&lease))
        rs_reply_take_back(&reply, false);
    let_go();
}

static void answer_the_dead(void)
{
    struct rs_reply reply = reply_to(DEAD_CLIENT);

    weak_require(rs_reply_publish(&reply) == 0, "a reply is refused");
    if (!rs_client_is_there(reply.ring, DEAD_CLIENT, NONCE, UINT64_MAX))
        rs_reply_take_back(&reply, true);
    let_go();
}

static void answer_when_there_is_room(void)
{
    struct rs_reply reply = reply_to(CLIENT(CALLER));
    rs_word32 *room = &reply.box->room;

    while (rs_reply_publish(&reply) < 0) {
        uint32_t armed = rs_wait_arm(room, RS_WAIT_FUTEX);

        if (rs_reply_publish(&reply) == 0)
            return;
        rs_wait_sleep(room, armed, -1);
    }
}

/* ---- the caller ---- */

static bool take_reply(enum rs_box_content content, uint64_t ticket, const struct rs_lease *lease)
{
    if (content != RS_BOX_REPLY || !rs_box_take(&me()->ring.boxes[me()->ring.client], 0, ticket))
        return false;
    read_and_release(lease);
    return true;
}

static bool look_for_reply(void)
{
    struct rs_pending call = pending();
    struct rs_lease lease;
    uint64_t ticket;
    enum rs_box_content content = rs_call_look(&call, &ticket, &lease);

    weak_require(content != RS_BOX_GONE, "a caller gives up though there is a reply");
    return take_reply(content, ticket, &lease);
}

static void look_once(void)
{
    look_for_reply();
}

static void sleep_for_reply(void)
{
    rs_word32 *posted = &me()->ring.boxes[me()->ring.client].posted;

    for (;;) {
        uint32_t armed = rs_wait_arm(posted, RS_WAIT_FUTEX);

        if (look_for_reply())
            return;
        rs_wait_sleep(posted, armed, -1);
        if (look_for_reply())
            return;
    }
}

static void cancel(void)
{
    struct rs_ring *ring = &me()->ring;
    struct rs_lease lease;
    uint64_t ticket;

    weak_require(!rs_request_cancel(ring, REQUEST, GENERATION), "a held request is cancelled");
    enum rs_box_content content =
        rs_box_look(&ring->boxes[ring->client], 0, ring, ring->client, &ticket, &lease);
    take_reply(content, ticket, &lease);
}

/* ---- the sidecar ---- */

static void bury(void)
{
    struct rs_client *entry = &me()->ring.clients[DEAD_CLIENT];
    struct sidecar sidecar;

    rs_store_release(&entry->state, rs_client_state(1, DEAD_CLIENT, 0, RS_CLIENT_DEAD));
    start_sidecar(&sidecar);
    sweep_all(&sidecar, RS_NO_READER);
    rs_box_clear(box_of(DEAD_CLIENT));
}

/* ---- what must hold ---- */

static void answered(void)
{
    uint64_t ticket;
    struct rs_lease lease;

    all_awake();
    if (noted(RECEIVED) == 0 && rs_box_look(box_of(CLIENT(CALLER)), 0, &processes[CALLER].ring,
                                            CLIENT(CALLER), &ticket, &lease) == RS_BOX_REPLY)
        rs_ring_release(&lease);
    all_free();
}

static void nothing_left(void)
{
    weak_require(rs_load_relaxed(&box_of(DEAD_CLIENT)->cell[0]) == 0,
                 "a ticket is left in the box of a number that is given anew");
    all_free();
}

static void answered_and_ended(void)
{
    weak_require(rs_load_relaxed(&box_of(CLIENT(CALLER))->cell[0]) == 0,
                 "a cancelled call's reply is left in its cell");
    all_free();
}

/* A row is one thing. */
/* clang-format off */
const struct weak_scenario weak_call_scenarios[] = {
    {"reply_sleep", "a reply, and a caller that goes to sleep", one_call,
     {answer, sleep_for_reply}, answered, false},
    {"reply_gone", "a reply and the end of its request, and a caller that looks whether the callee is gone",
     one_call, {answer, look_once}, answered, false},
    {"reply_cancel", "a reply, and a caller that cancels", one_call,
     {answer, cancel}, answered_and_ended, false},
    {"reply_death", "a reply, and the sweep of its caller, whose box is emptied", call_of_the_dead,
     {answer_the_dead, bury}, nothing_left, false},
    {"reply_room", "a callee that sleeps for room, and a caller", cell_in_use,
     {answer_when_there_is_room, look_once}, all_awake, false},
    {NULL, NULL, NULL, {NULL}, NULL, false},
};

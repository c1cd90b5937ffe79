/* SPDX-License-Identifier: Apache-2.0 */
/* A request in a small ring and the reply to it, for tests of proto/box.c. One ring plays both: the caller calls its own
 * stage. */
#ifndef RINGSIDE_TESTS_REPLY_FIXTURE_H
#define RINGSIDE_TESTS_REPLY_FIXTURE_H

#include "tests/unit/slots_fixture.h"

#include "proto/box.h"
#include "proto/tensor.h"
#include "proto/wait.h"

#define CALLER 8u
#define CALLEE 5u /* consumer of the fixture's inbox */
#define NONCE  UINT64_C(0x1234567890abcdef)

struct call_fixture {
    struct ring_fixture ring;
    struct rs_ring *caller; /* the same ring as the caller sees it */
    struct rs_lease request;
    struct rs_reply reply;
    struct rs_pending pending;
};

static struct rs_loan put_request(struct ring_fixture *fixture)
{
    struct rs_loan loan;
    uint16_t destination = FIXTURE_STAGE;
    rs_word *header;

    assert_int_equal(rs_ring_loan(&fixture->ring, CALLER, 0, &loan), 0);
    header = fixture->ring.slots[loan.slot].header;
    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&header[i], 0);
    rs_store_relaxed(&header[RS_HEADER_SUMMARY],
                     rs_header_summary(1, RS_BYTES, 0, RS_HEADER_LINE3, 0));
    rs_store_relaxed(&header[RS_HEADER_CALL_ID], 1);
    rs_store_relaxed(&header[RS_HEADER_CALL], rs_call_request(3, 1, CALLER, CALLER));
    rs_ring_prepare(&fixture->ring, &loan, &destination, 1, 0);
    assert_int_equal(rs_ring_seal(&fixture->ring, CALLER, &loan, 0), 0);
    assert_int_equal(rs_inbox_push(&fixture->inbox, 0, loan.slot, 0), 0);
    return loan;
}

static void take_request(struct call_fixture *fixture)
{
    int unmapped;

    assert_int_equal(rs_inbox_take(&fixture->ring.inbox, &fixture->request, &unmapped), 1);
    fixture->ring.ring.client = CALLEE;
    assert_int_equal(rs_ring_loan(&fixture->ring.ring, CALLEE, 0, &fixture->reply.loan), 0);
    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&fixture->ring.ring.slots[fixture->reply.loan.slot].header[i], 0);
}

static int setup(void **state)
{
    struct call_fixture *fixture = calloc(1, sizeof *fixture);

    ring_fixture_init(&fixture->ring, 16, 16);
    fixture->caller = malloc(sizeof *fixture->caller);
    *fixture->caller = fixture->ring.ring;
    fixture->caller->client = CALLER;
    struct rs_client *entry = &fixture->caller->clients[CALLER];
    rs_store_relaxed(&entry->nonce, NONCE);
    rs_store_relaxed(&entry->state, rs_client_state(1, RS_NO_READER, 0, RS_CLIENT_ALIVE));
    struct rs_loan loan = put_request(&fixture->ring);
    fixture->pending = (struct rs_pending){.own = fixture->caller,
                                           .client = CALLER,
                                           .holder = CALLER,
                                           .slot = loan.slot,
                                           .generation = loan.generation,
                                           .ring = fixture->caller,
                                           .cell = 3};
    fixture->reply = (struct rs_reply){.ring = &fixture->ring.ring,
                                       .owner = CALLEE,
                                       .holder = CALLER,
                                       .box = &fixture->caller->boxes[CALLER],
                                       .cell = 3,
                                       .event_fd = -1};
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct call_fixture *fixture = *state;

    ring_fixture_finish(&fixture->ring);
    free(fixture->caller);
    free(fixture);
    return 0;
}

static enum rs_box_content look(struct call_fixture *fixture, struct rs_lease *lease)
{
    uint64_t ticket;

    return rs_call_look(&fixture->pending, &ticket, lease);
}

static bool take(struct call_fixture *fixture, struct rs_lease *lease)
{
    uint64_t ticket;

    return rs_call_look(&fixture->pending, &ticket, lease) == RS_BOX_REPLY &&
           rs_box_take(fixture->reply.box, 3, ticket);
}

static void assert_all_free(struct call_fixture *fixture)
{
    assert_int_equal(fixture_count(&fixture->ring, RS_FREE), 18);
    for (unsigned i = 0; i < RS_BOX_CELLS; i++)
        assert_int_equal(rs_load_relaxed(&fixture->reply.box->cell[i]), 0);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Cells of calls in the boxes of sessions, cancellation, and what is left of calls that ended
 * early. */
#include <stdlib.h>
#include <sys/random.h>
#include <uv.h>

#include "proto/failpoint.h"
#include "proto/wait.h"
#include "proxy/calls_private.h"

struct answerer *session_place(const struct session *session, const struct rs_ring *ring,
                               bool reads)
{
    struct answerer *answerer = session->answerers;

    while (answerer != NULL && (answerer->ring != ring || answerer->reads != reads))
        answerer = answerer->next;
    return answerer;
}

struct rs_box *session_box(const struct session *session)
{
    return &session->proxy->ring.boxes[session->number];
}

/* ---- cells ---- */

static uint64_t run_of(unsigned first, unsigned credits)
{
    return credits == 0 ? 0 : (credits < 64 ? (UINT64_C(1) << credits) - 1 : UINT64_MAX) << first;
}

struct session_calls *session_calls_open(struct session *session)
{
    struct session_calls *calls = session->calls;

    if (calls != NULL || (calls = calloc(1, sizeof *calls)) == NULL)
        return calls;
    calls->free_cells = run_of(RS_BOX_CELLS - session->call_cells, session->call_cells);
    /* An earlier sidecar may have made calls of this session, whose replies come late. */
    if (getrandom(&calls->count, sizeof calls->count, 0) < 0)
        calls->count = (uint32_t)uv_hrtime();
    session->calls = calls;
    return calls;
}

/* NULL: the session awaits as many replies as it may. */
struct session_call *session_call_take(struct session_calls *calls, unsigned credits)
{
    uint64_t starts = calls->free_cells;

    for (unsigned i = 1; i < credits; i++)
        starts &= calls->free_cells >> i;
    if (starts == 0)
        return NULL;
    unsigned first = (unsigned)__builtin_ctzll(starts);
    calls->free_cells &= ~run_of(first, credits);
    calls->by_cell[first] =
        (struct session_call){.first = (uint8_t)first, .credits = (uint8_t)credits};
    return &calls->by_cell[first];
}

void session_call_end(struct session *session, struct session_call *call)
{
    session->calls->free_cells |= run_of(call->first, call->credits);
    if (call->answerer != NULL)
        call->answerer->uses--;
}

/* Replies that nobody wants any more. One that its callee seals or takes back stays while that may
 * be at work. */
static void drain_cells(struct session *session, const struct session_call *call, bool over)
{
    struct rs_box *box = session_box(session);

    for (unsigned cell = call->first; cell < call->first + call->credits; cell++) {
        struct rs_lease lease;
        uint64_t ticket;
        enum rs_box_content content =
            rs_box_look(box, cell, call->ring, call->holder, &ticket, &lease);

        bool callees = content == RS_BOX_UNSEALED || content == RS_BOX_TAKEN_BACK;
        if (content == RS_BOX_EMPTY || (callees && !over) || !rs_box_take(box, cell, ticket))
            continue;
        if (content == RS_BOX_REPLY || content == RS_BOX_TAKEN_BACK)
            (void)rs_ring_release(&lease);
    }
}

/* True when nobody has the request any more. */
static bool try_reap(struct session *session, struct session_call *call)
{
    if (!rs_request_is_over(&session->proxy->ring, call->slot, call->generation))
        return false;
    drain_cells(session, call, true);
    session_call_end(session, call);
    return true;
}

void session_call_end_early(struct session *session, struct session_call *call)
{
    if (!try_reap(session, call))
        session->calls->lingering |= UINT64_C(1) << call->first;
}

void session_calls_reap(struct session *session)
{
    struct session_calls *calls = session->calls;

    for (uint64_t bits = calls != NULL ? calls->lingering : 0; bits != 0; bits &= bits - 1) {
        unsigned first = (unsigned)__builtin_ctzll(bits);

        if (try_reap(session, &calls->by_cell[first]))
            calls->lingering &= ~(UINT64_C(1) << first);
    }
}

void session_call_cancel(struct session *session, struct session_call *call)
{
    if (!rs_request_cancel(&session->proxy->ring, call->slot, call->generation)) {
        RS_FAILPOINT(session_cancelled);
        drain_cells(session, call, false);
        rs_wait_wake(&session_box(session)->room, -1);
    }
    session_call_end_early(session, call);
}

/* Of a session that works in memory as well only it can say which cells were the sidecar's. */
static bool was_made_here(const struct rs_ring *ring, uint64_t call, const struct session *session)
{
    unsigned caller = rs_call_caller(call);

    if (session != NULL)
        return caller == session->number &&
               rs_call_first_cell(call) >= RS_BOX_CELLS - (unsigned)session->call_cells;
    return caller < ring->layout.client_count &&
           (rs_client_flags(rs_load_relaxed(&ring->clients[caller].state)) & RS_CLIENT_NO_LOCK);
}

void control_adopt_calls(struct proxy *proxy, const struct session *session)
{
    struct rs_ring *ring = &proxy->ring;

    for (uint32_t i = 0; i < ring->layout.slot_count; i++) {
        const struct rs_slot *slot = &ring->slots[i];
        uint64_t state = rs_load_seq_cst(&slot->state);

        if (rs_state_phase(state) != RS_SEALED || !rs_message_is_request(slot))
            continue;
        uint64_t call = rs_load_relaxed(&slot->header[RS_HEADER_CALL]);
        if (was_made_here(ring, call, session))
            (void)rs_request_cancel(ring, i, rs_state_generation(state));
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Calling: cells for the replies, the request, and the end of a call. */
#include "client/c/call.h"

#include <string.h>

/* ---- cells ---- */

static uint64_t run_of(unsigned first, unsigned credits)
{
    return (credits < 64 ? (UINT64_C(1) << credits) - 1 : UINT64_MAX) << first;
}

static bool try_cells(struct calls *calls, unsigned credits, unsigned *first)
{
    uint64_t free_cells = rs_load_relaxed(&calls->free_cells);

    for (;;) {
        uint64_t starts = free_cells;

        for (unsigned i = 1; i < credits; i++)
            starts &= free_cells >> i;
        if (starts == 0)
            return false;
        *first = (unsigned)__builtin_ctzll(starts);
        if (rs_cas_acq_rel(&calls->free_cells, &free_cells, free_cells & ~run_of(*first, credits)))
            return true;
    }
}

SELDOM static int fail_cells(struct ringside *connection, unsigned credits)
{
    if (credits > RS_BOX_CELLS)
        return fail(connection, -RINGSIDE_E_INVALID, "%u credits: 1..%d", credits, RS_BOX_CELLS);
    return fail(connection, -RINGSIDE_E_LIMIT,
                "no room for %u more replies: this connection awaits up to %d at a time (calls in "
                "flight x credits); end some calls, or connect once more",
                credits, RS_BOX_CELLS);
}

static int take_cells(struct ringside *connection, unsigned credits, unsigned *first)
{
    if (UNLIKELY(credits > RS_BOX_CELLS))
        return fail_cells(connection, credits);
    if (UNLIKELY(rs_load_relaxed(&connection->calls.lingering) != 0))
        calls_reap(connection);
    return try_cells(&connection->calls, credits, first) ? 0 : fail_cells(connection, credits);
}

static void give_cells(struct ringside *connection, unsigned first, unsigned credits)
{
    rs_fetch_or_seq_cst(&connection->calls.free_cells, run_of(first, credits));
}

/* Replies that nobody wants any more. One that its callee seals or takes back stays while that may
 * be at work. */
static void drain_cells(struct ringside *connection, struct peer *peer, unsigned first,
                        unsigned credits, bool over)
{
    for (unsigned cell = first; cell < first + credits; cell++) {
        struct rs_lease lease;
        uint64_t ticket;
        enum rs_box_content content =
            rs_box_look(call_box(connection), cell, &peer->ring, peer->ring.client, &ticket,
                        &lease);

        bool callees = content == RS_BOX_UNSEALED || content == RS_BOX_TAKEN_BACK;
        if (content == RS_BOX_EMPTY || (callees && !over) ||
            !rs_box_take(call_box(connection), cell, ticket))
            continue;
        if (content == RS_BOX_REPLY || content == RS_BOX_TAKEN_BACK)
            (void)rs_ring_release(&lease);
    }
}

/* ---- calls that ended early ---- */

static bool try_reap(struct ringside *connection, unsigned first)
{
    const struct ended_call *ended = &connection->calls.ended[first];

    if (!rs_request_is_over(&connection->own.ring, ended->slot, ended->generation))
        return false;
    drain_cells(connection, ended->peer, first, ended->credits, true);
    give_cells(connection, first, ended->credits);
    return true;
}

void calls_reap(struct ringside *connection)
{
    rs_word *lingering = &connection->calls.lingering;

    for (uint64_t bits = rs_load_relaxed(lingering); bits != 0; bits &= bits - 1) {
        uint64_t bit = bits & -bits;

        /* Who takes the bit off has the entry. */
        if ((rs_fetch_and_seq_cst(lingering, ~bit) & bit) != 0 &&
            !try_reap(connection, (unsigned)__builtin_ctzll(bit)))
            rs_fetch_or_seq_cst(lingering, bit);
    }
}

/* Of a cell that is not the first of its call it may be that of an earlier one: then it says yes
 * for longer than it must. */
bool calls_await(struct ringside *connection, const struct peer *peer)
{
    uint64_t bits = ~rs_load_seq_cst(&connection->calls.free_cells);

    for (; bits != 0; bits &= bits - 1) {
        if (rs_load_relaxed(&connection->calls.callees[__builtin_ctzll(bits)]) == peer)
            return true;
    }
    return false;
}

void call_close(struct ringside *connection, struct ringside_call *call)
{
    if (UNLIKELY((call->private_[CALL_CELLS] & CALL_IS_POLLED) != 0))
        rs_fetch_add_relaxed(&connection->calls.polled, UINT32_MAX);
    call->private_[CALL_CELLS] &= ~CALL_IS_POLLED;
    call->open = 0;
    call->private_[CALL_TAG] = 0;
}

void call_end(struct ringside *connection, struct ringside_call *call)
{
    call_close(connection, call);
    give_cells(connection, call_first_cell(call), call_credits(call));
}

/* The request may still be held. */
void call_end_early(struct ringside *connection, struct ringside_call *call)
{
    struct rs_pending pending = call_pending(connection, call);
    unsigned first = call_first_cell(call);

    call_close(connection, call);
    connection->calls.ended[first] = (struct ended_call){
        .peer = call_peer(call),
        .slot = pending.slot,
        .generation = pending.generation,
        .credits = call_credits(call),
    };
    if (!try_reap(connection, first))
        rs_fetch_or_seq_cst(&connection->calls.lingering, UINT64_C(1) << first);
}

void call_cancel(struct ringside *connection, struct ringside_call *call)
{
    struct rs_pending pending = call_pending(connection, call);

    if (!rs_request_cancel(pending.own, pending.slot, pending.generation)) {
        drain_cells(connection, call_peer(call), call_first_cell(call), call_credits(call), false);
        rs_wait_wake(&call_box(connection)->room, -1);
    }
    call_end_early(connection, call);
}

/* ---- the request ---- */

static size_t method_length(const char *method)
{
    size_t bytes = method != NULL ? strnlen(method, RS_METHOD_MAX + 1) : 0;

    return bytes <= RS_METHOD_MAX ? bytes : 0;
}

SELDOM static int fail_method(struct ringside *connection, const char *method)
{
    return fail(connection, -RINGSIDE_E_INVALID, "method \"%.70s\": a name of 1..%d bytes",
                method != NULL ? method : "(null)", RS_METHOD_MAX);
}

SELDOM static int fail_many(struct ringside *connection, const struct route *route)
{
    return fail(connection, -RINGSIDE_E_INVALID,
                "route \"%s\" leads to %u stages; a call goes to one: use a route with one target",
                route->name, route->destination_count);
}

static void fill_call(struct ringside *connection, struct ringside_call *call, struct peer *peer,
                      const struct rs_loan *loan, const struct rs_message *message)
{
    uint64_t deadline_ns = INT64_MAX;

    if (message->ttl_ns != 0 &&
        (__builtin_add_overflow(message->publish_ns, message->ttl_ns, &deadline_ns) ||
         deadline_ns > INT64_MAX))
        deadline_ns = INT64_MAX;
    call->id = message->call_id;
    call->open = 1;
    call->status = 0;
    call->private_[CALL_TAG] = tag_of(connection, TAG_CALL);
    call->private_[CALL_PEER] = (uint64_t)(uintptr_t)peer;
    call->private_[CALL_REQUEST] = (uint64_t)loan->slot << 32 | loan->generation;
    call->private_[CALL_CELLS] =
        rs_call_first_cell(message->call) | (uint64_t)rs_call_credits(message->call) << 8;
    call->private_[CALL_NUMBER] = 0;
    call->private_[CALL_DEADLINE] = deadline_ns;
}

/* Ids are unlike all that other clients of the ring have had: a callee tells by them who the caller
 * was. Threads that race may count the same, but their calls have other cells. */
static uint64_t next_id(struct ringside *connection, unsigned first)
{
    uint32_t count = rs_load_relaxed(&connection->calls.count) + 1;

    rs_store_relaxed(&connection->calls.count, count);
    uint32_t low = count * RS_BOX_CELLS + first;
    return connection->own.nonce << 32 | (low != 0 ? low : RS_BOX_CELLS);
}

static int send_request(struct ringside *connection, const struct rs_loan *loan, uint8_t *base,
                        const struct outgoing *outgoing, struct peer *peer, unsigned credits,
                        struct rs_message *message)
{
    unsigned first;
    int rc = take_cells(connection, credits, &first);

    if (rc < 0)
        return rc;
    rs_store_relaxed(&connection->calls.callees[first], peer);
    message->call_id = next_id(connection, first);
    message->call = rs_call_request(first, credits, connection->own.ring.client, peer->ring.client);
    message->admission = peer->nonce;
    rc = loan_publish(connection, loan, base, message, outgoing, 0);
    if (rc < 0)
        give_cells(connection, first, credits);
    else
        rs_ring_count(&connection->own.ring, connection->own.ring.client, RS_CALLS, 1);
    return rc;
}

/* Before the first call to a stage. What was room for the request may be gone after a wait. */
SELDOM static int first_reserve(struct ringside *connection, struct outgoing *outgoing,
                                int64_t timeout_ns, struct peer **peer)
{
    int rc = answerer_get(connection, outgoing->route, timeout_ns, peer);

    return rc < 0 ? rc : outgoing_reserve(connection, outgoing, timeout_ns);
}

IN_ONE_PIECE int ringside_call(struct ringside *connection, struct ringside_slot *slot,
                               const char *name, const char *method,
                               const struct ringside_options *options, struct ringside_call *call)
{
    size_t method_bytes = method_length(method);
    unsigned credits = options != NULL && options->credits != 0 ? options->credits : 1;
    int64_t timeout_ns = options != NULL ? options->timeout_ns : RINGSIDE_FOREVER;
    struct outgoing outgoing;
    struct rs_message message;
    struct rs_loan loan;
    struct peer *peer = NULL;

    if (is_down(connection))
        return fail_down(connection);
    if (method_bytes == 0)
        return fail_method(connection, method);
    int rc = slot_loan(connection, slot, &loan);
    if (rc < 0)
        return rc;
    struct body body = body_of(&connection->own.ring, loan.slot);
    rc = route_find(connection, name, &outgoing.route);
    if (rc == 0 && UNLIKELY(outgoing.route->destination_count != 1))
        rc = fail_many(connection, outgoing.route);
    if (rc == 0)
        rc = slot_describe(connection, slot, &body, options, method, method_bytes, &message);
    if (rc == 0)
        rc = outgoing_reserve(connection, &outgoing, timeout_ns);
    if (rc == 0) {
        peer = answerer_at_hand(connection, outgoing.route->destinations[0]);
        if (UNLIKELY(peer == NULL))
            rc = first_reserve(connection, &outgoing, timeout_ns, &peer);
    }
    if (rc == 0)
        rc = send_request(connection, &loan, body.base, &outgoing, peer, credits, &message);
    if (rc < 0)
        return rc;
    slot->private_[SLOT_TAG] = 0;
    fill_call(connection, call, peer, &loan, &message);
    return 0;
}

/* ---- cancel ---- */

int call_fail(const struct ringside *connection)
{
    return fail_with(
        connection, -RINGSIDE_E_STATE,
        "not a call of this connection that is open: it had its last reply or was ended");
}

int ringside_call_cancel(struct ringside *connection, struct ringside_call *call)
{
    if (UNLIKELY(rs_load_relaxed(&connection->down) == RINGSIDE_E_FORKED))
        return fail_down(connection);
    if (call == NULL)
        return call_fail(connection);
    if (call->open == 0)
        return 0;
    if (call->private_[CALL_TAG] != tag_of(connection, TAG_CALL))
        return call_fail(connection);
    call_cancel(connection, call);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Calling: send a request, wait for its replies in cells of the own box, cancel. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <string.h>

#define SPINS_PER_CLOCK 16
#define SPINS_FIRST     64  /* looks before the first reading of the clock */
#define TEXT_BYTES      400 /* of an error reply that is kept for ringside_explain */

/* private_ of a call */
enum { CALL_TAG, CALL_PEER, CALL_REQUEST, CALL_CELLS, CALL_NUMBER, CALL_DEADLINE };

/* What a look finds. */
enum { NOTHING, REPLY, LAST_REPLY };

static struct peer *peer_of(const struct ringside_call *call)
{
    return (struct peer *)(uintptr_t)call->private_[CALL_PEER];
}

static unsigned first_cell(const struct ringside_call *call)
{
    return (unsigned)call->private_[CALL_CELLS] & 0xff;
}

static unsigned credits_of(const struct ringside_call *call)
{
    return (unsigned)(call->private_[CALL_CELLS] >> 8);
}

static struct rs_pending pending_of(struct ringside *connection, const struct ringside_call *call)
{
    uint64_t request = call->private_[CALL_REQUEST];

    return (struct rs_pending){
        .own = &connection->own.ring,
        .client = connection->own.ring.client,
        .holder = peer_of(call)->ring.client,
        .slot = (uint32_t)(request >> 32),
        .generation = (uint32_t)request,
        .ring = &peer_of(call)->ring,
        .cell = first_cell(call) + (unsigned)(call->private_[CALL_NUMBER] % credits_of(call)),
    };
}

static struct rs_box *own_box(struct ringside *connection)
{
    return &connection->own.ring.boxes[connection->own.ring.client];
}

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
                "flight x credits); end some calls, or connect once more", credits, RS_BOX_CELLS);
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

/* Replies that nobody wants any more. One that is not sealed yet stays while its callee may seal it. */
static void drain_cells(struct ringside *connection, struct peer *peer, unsigned first,
                        unsigned credits, bool over)
{
    for (unsigned cell = first; cell < first + credits; cell++) {
        struct rs_lease lease;
        uint64_t ticket;
        enum rs_box_content content =
            rs_box_look(own_box(connection), cell, &peer->ring, peer->ring.client, &ticket, &lease);

        if (content == RS_BOX_EMPTY || (content == RS_BOX_UNSEALED && !over) ||
            !rs_box_take(own_box(connection), cell, ticket))
            continue;
        if (content == RS_BOX_REPLY)
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

static void close_call(struct ringside_call *call)
{
    call->open = 0;
    call->private_[CALL_TAG] = 0;
}

static void end_call(struct ringside *connection, struct ringside_call *call)
{
    close_call(call);
    give_cells(connection, first_cell(call), credits_of(call));
}

/* The request may still be held. */
SELDOM static void end_early(struct ringside *connection, struct ringside_call *call)
{
    struct rs_pending pending = pending_of(connection, call);
    unsigned first = first_cell(call);

    close_call(call);
    connection->calls.ended[first] = (struct ended_call){
        .peer = peer_of(call),
        .slot = pending.slot,
        .generation = pending.generation,
        .credits = credits_of(call),
    };
    if (!try_reap(connection, first))
        rs_fetch_or_seq_cst(&connection->calls.lingering, UINT64_C(1) << first);
}

SELDOM static void cancel(struct ringside *connection, struct ringside_call *call)
{
    struct rs_pending pending = pending_of(connection, call);

    if (!rs_request_cancel(pending.own, pending.slot, pending.generation)) {
        drain_cells(connection, peer_of(call), first_cell(call), credits_of(call), false);
        rs_wait_wake(&own_box(connection)->room, -1);
    }
    end_early(connection, call);
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

/* Ids are unlike all that other clients of the ring have had: a callee tells by them who the caller was. Threads that race may
 * count the same, but their calls have other cells. */
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

IN_ONE_PIECE int ringside_call(struct ringside *connection, struct ringside_slot *slot,
                               const char *name, const char *method,
                               const struct ringside_options *options, struct ringside_call *call)
{
    size_t method_bytes = method_length(method);
    unsigned credits = options != NULL && options->credits != 0 ? options->credits : 1;
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
        rc = outgoing_reserve(connection, &outgoing,
                              options != NULL ? options->timeout_ns : RINGSIDE_FOREVER);
    if (rc == 0) {
        peer = answerer_at_hand(connection, outgoing.route->destinations[0]);
        if (UNLIKELY(peer == NULL))
            rc = answerer_get(connection, outgoing.route->destinations[0], &peer);
    }
    if (rc == 0)
        rc = send_request(connection, &loan, body.base, &outgoing, peer, credits, &message);
    if (rc < 0)
        return rc;
    slot->private_[SLOT_TAG] = 0;
    fill_call(connection, call, peer, &loan, &message);
    return 0;
}

/* ---- replies ---- */

SELDOM static int refuse_reply(struct ringside *connection, struct ringside_call *call,
                               const struct rs_lease *lease)
{
    struct peer *peer = (struct peer *)lease->ring;

    (void)rs_ring_nack(lease, 0);
    rs_ring_bell(&peer->ring);
    cancel(connection, call);
    return fail(connection, -RINGSIDE_E_CORRUPT,
                "the reply of stage \"%s\" in slot %u was refused: its header makes no sense, or its "
                "ring lost its pages", peer->ring.layout.stage, lease->slot);
}

/* What the callee says went wrong. The reply is not the caller's. */
SELDOM static int fail_with_status(struct ringside *connection, struct ringside_call *call,
                                   const struct rs_lease *lease, const struct rs_message *header,
                                   const uint8_t *base)
{
    char text[TEXT_BYTES + 1];
    size_t bytes = header->metadata_bytes < TEXT_BYTES ? header->metadata_bytes : TEXT_BYTES;
    int error = rs_status_error((int)call->status);

    memcpy(text, base + header->metadata_offset, bytes);
    text[bytes] = '\0';
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = ' ';
    }
    (void)rs_ring_release(lease);
    end_call(connection, call);
    return fail(connection, error < 0 ? error : -RINGSIDE_E_INTERNAL, "%s",
                bytes > 0 ? text : "the callee gave no reason");
}

/* The reply is the caller's since its seal. The cell is emptied when it is known whether another follows. */
static int accept_reply(struct ringside *connection, struct ringside_call *call, unsigned cell,
                        uint64_t ticket, const struct rs_lease *lease,
                        struct ringside_message *reply)
{
    struct peer *peer = (struct peer *)lease->ring;
    struct rs_ring *own = &connection->own.ring;
    struct body body = body_of(&peer->ring, lease->slot);
    struct rs_message header;

    rs_prefetch_read(body.base);
    int rc = rs_message_load(&header, &peer->ring.slots[lease->slot], body.base, body.bytes);
    if (UNLIKELY(rc < 0) || UNLIKELY(peer_is_broken(connection, peer)) ||
        UNLIKELY(peer_lost_body(connection, peer))) {
        (void)rs_box_take(own_box(connection), cell, ticket);
        return refuse_reply(connection, call, lease);
    }
    if (UNLIKELY(header.call_id != call->id || rs_call_kind(header.call) != RS_CALL_REPLY ||
                 rs_call_number(header.call) !=
                     (call->private_[CALL_NUMBER] & RS_CALL_NUMBER_MASK))) {
        if (rs_box_take(own_box(connection), cell, ticket))
            (void)rs_ring_release(lease); /* of another call, whose callee came late */
        return NOTHING;
    }
    bool last = (rs_call_flags(header.call) & RS_CALL_LAST) != 0;
    if (LIKELY(last))
        rs_box_empty(own_box(connection), cell);
    else if (!rs_box_take(own_box(connection), cell, ticket))
        return NOTHING;
    call->private_[CALL_NUMBER]++;
    call->status = rs_call_status(header.call);
    if (UNLIKELY(call->status != RINGSIDE_STATUS_OK))
        return fail_with_status(connection, call, lease, &header, body.base);
    message_fill(reply, &header, peer, body.base, lease->slot, lease->generation);
    message_keep_lease(connection, reply, lease);
    RS_FAILPOINT(reply_taken);
    rs_ring_count(own, own->client, RS_RECEIVED, 1);
    rs_ring_prefetch_loan(own, 0);
    if (!last)
        return REPLY;
    end_call(connection, call);
    return LAST_REPLY;
}

/* NOTHING, REPLY, LAST_REPLY, or an error that ended the call. */
static int take_reply(struct ringside *connection, struct ringside_call *call,
                      const struct rs_pending *pending, enum rs_box_content content,
                      uint64_t ticket, const struct rs_lease *lease,
                      struct ringside_message *reply)
{
    if (LIKELY(content == RS_BOX_REPLY))
        return accept_reply(connection, call, pending->cell, ticket, lease, reply);
    if (content == RS_BOX_STRAY)
        (void)rs_box_take(own_box(connection), pending->cell, ticket);
    return NOTHING;
}

/* The cell alone: while the callee works, its other lines are left to it. */
IN_ONE_PIECE static int look(struct ringside *connection, struct ringside_call *call,
                             const struct rs_pending *pending, struct ringside_message *reply)
{
    struct rs_lease lease;
    uint64_t ticket;
    enum rs_box_content content =
        rs_box_look(own_box(connection), pending->cell, pending->ring, pending->holder, &ticket, &lease);

    if (content == RS_BOX_EMPTY)
        return NOTHING;
    return take_reply(connection, call, pending, content, ticket, &lease, reply);
}

SELDOM static int fail_gone(struct ringside *connection, struct ringside_call *call)
{
    const char *stage = peer_of(call)->ring.layout.stage;

    end_early(connection, call);
    return fail(connection, -RINGSIDE_E_UNAVAILABLE,
                "no reply will come: a worker of stage \"%s\" died with the call, let it go without a "
                "reply, or it was dropped", stage);
}

SELDOM static int fail_over(struct ringside *connection, struct ringside_call *call)
{
    cancel(connection, call);
    return fail_with(connection, -RINGSIDE_E_TIMEOUT,
                     "the time of the call is over; its callee is told that nobody waits");
}

SELDOM static int fail_none(struct ringside *connection)
{
    return fail_with(connection, -RINGSIDE_E_TIMEOUT,
                     "no reply came within the timeout; the call goes on");
}

/* Also whether the callee is gone. */
static int look_well(struct ringside *connection, struct ringside_call *call,
                     const struct rs_pending *pending, struct ringside_message *reply)
{
    struct rs_lease lease;
    uint64_t ticket;
    enum rs_box_content content = rs_call_look(pending, &ticket, &lease);

    if (content == RS_BOX_GONE)
        return fail_gone(connection, call);
    if (content != RS_BOX_EMPTY)
        return take_reply(connection, call, pending, content, ticket, &lease, reply);
    return NOTHING;
}

/* For pollers: as in consume.c, the own edge is consumed first, then the event armed, then looked again. */
SELDOM static int look_and_arm_event(struct ringside *connection, struct ringside_call *call,
                                     const struct rs_pending *pending,
                                     struct ringside_message *reply)
{
    rs_wait_arm(&own_box(connection)->posted, RS_WAIT_EVENT);
    int rc = look_well(connection, call, pending, reply);

    link_tend(connection, false);
    return rc;
}

static bool spin(struct ringside *connection, struct ringside_call *call,
                 const struct rs_pending *pending, struct ringside_message *reply,
                 int64_t deadline_ns, int *rc)
{
    int64_t until_ns = rs_now_ns() + settings_of(connection)->spin_ns;

    for (unsigned spins = 1;; spins++) {
        *rc = look(connection, call, pending, reply);
        if (*rc != NOTHING)
            return true;
        if (spins % SPINS_PER_CLOCK == 0) {
            int64_t now_ns = rs_now_ns();

            if (now_ns >= until_ns || now_ns >= deadline_ns)
                return false;
        }
        rs_pause();
    }
}

static int sleep_for_reply(struct ringside *connection, struct ringside_call *call,
                           const struct rs_pending *pending, struct ringside_message *reply,
                           int64_t deadline_ns)
{
    rs_word32 *posted = &own_box(connection)->posted;
    int64_t call_deadline_ns = (int64_t)call->private_[CALL_DEADLINE];

    for (;;) {
        uint32_t armed = rs_wait_arm(posted, RS_WAIT_FUTEX);
        int rc = look_well(connection, call, pending, reply);

        if (rc != NOTHING)
            return rc;
        if (time_left(call_deadline_ns) == 0)
            return fail_over(connection, call);
        int64_t left_ns = time_left(deadline_ns);
        if (left_ns == 0)
            return fail_none(connection);
        calls_reap(connection);
        link_tend(connection, left_ns < 0 || left_ns > CALL_TIMEOUT_NS);
        if (is_down(connection)) {
            close_call(call);
            return fail_down(connection);
        }
        rs_wait_sleep(posted, armed, left_ns);
        rc = look(connection, call, pending, reply);
        if (rc != NOTHING)
            return rc;
    }
}

static int wait_for_reply(struct ringside *connection, struct ringside_call *call,
                          const struct rs_pending *pending, struct ringside_message *reply,
                          int64_t timeout_ns)
{
    int64_t deadline_ns, call_deadline_ns = (int64_t)call->private_[CALL_DEADLINE];
    int rc;

    for (unsigned spins = 0; spins < SPINS_FIRST && settings_of(connection)->spin_ns > 0; spins++) {
        rs_pause();
        rc = look(connection, call, pending, reply);
        if (rc != NOTHING)
            return rc;
    }
    deadline_ns = deadline_after(timeout_ns);
    if (call_deadline_ns < deadline_ns)
        deadline_ns = call_deadline_ns;
    if (spin(connection, call, pending, reply, deadline_ns, &rc))
        return rc;
    return sleep_for_reply(connection, call, pending, reply, deadline_ns);
}

SELDOM static int fail_call(const struct ringside *connection)
{
    return fail_with(connection, -RINGSIDE_E_STATE,
                     "not a call of this connection that is open: it had its last reply or was ended");
}

/* Nobody wants to wait. */
SELDOM static int look_once(struct ringside *connection, struct ringside_call *call,
                            const struct rs_pending *pending, struct ringside_message *reply)
{
    int rc = rs_load_relaxed(&connection->polled) != 0
                 ? look_and_arm_event(connection, call, pending, reply)
                 : look_well(connection, call, pending, reply);

    if (rc != NOTHING)
        return rc;
    if (time_left((int64_t)call->private_[CALL_DEADLINE]) == 0)
        return fail_over(connection, call);
    return fail_none(connection);
}

int ringside_call_wait(struct ringside *connection, struct ringside_call *call,
                       struct ringside_message *reply, int64_t timeout_ns)
{
    if (is_down(connection))
        return fail_down(connection);
    if (call == NULL || call->private_[CALL_TAG] != tag_of(connection, TAG_CALL))
        return fail_call(connection);
    struct rs_pending pending = pending_of(connection, call);
    int rc = look(connection, call, &pending, reply);
    if (rc == NOTHING)
        rc = timeout_ns != 0 ? wait_for_reply(connection, call, &pending, reply, timeout_ns)
                             : look_once(connection, call, &pending, reply);
    return rc == LAST_REPLY ? 0 : rc;
}

int ringside_call_cancel(struct ringside *connection, struct ringside_call *call)
{
    if (UNLIKELY(rs_load_relaxed(&connection->down) == RINGSIDE_E_FORKED))
        return fail_down(connection);
    if (call == NULL)
        return fail_call(connection);
    if (call->open == 0)
        return 0;
    if (call->private_[CALL_TAG] != tag_of(connection, TAG_CALL))
        return fail_call(connection);
    cancel(connection, call);
    return 0;
}

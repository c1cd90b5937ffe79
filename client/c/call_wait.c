/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the replies of a call: looks into its cell of the own box, spins, sleeps, and tells
 * when none will come. */
#include "client/c/call.h"
#include "proto/failpoint.h"

#include <string.h>

#define SPINS_PER_CLOCK 16
#define SPINS_FIRST     64  /* looks before the first reading of the clock */
#define LOOKS           16  /* in a row at a cell in which others leave nonsense */
#define TEXT_BYTES      400 /* of an error reply that is kept for ringside_explain */

/* What a look finds. */
enum { NOTHING, REPLY, LAST_REPLY };

SELDOM static int refuse_reply(struct ringside *connection, struct ringside_call *call,
                               const struct rs_lease *lease)
{
    struct peer *peer = (struct peer *)lease->ring;

    (void)rs_ring_nack(lease, 0);
    rs_ring_bell(&peer->ring);
    call_cancel(connection, call);
    return fail(
        connection, -RINGSIDE_E_CORRUPT,
        "the reply of stage \"%s\" in slot %u was refused: its header makes no sense, or its "
        "ring lost its pages",
        peer->ring.layout.stage, lease->slot);
}

/* An error that travels under its name, "NAME: text", comes back as itself: several share a status.
 */
SELDOM static int named_error(const char *text, int status, const char **rest)
{
    char name[32];
    size_t bytes = strcspn(text, ":");

    if (bytes >= sizeof name || strncmp(text + bytes, ": ", 2) != 0)
        return 0;
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    int error = rs_error_from_name(name);
    if (error == 0 || (int)rs_error_status(error) != status)
        return 0;
    *rest = text + bytes + 2;
    return error;
}

/* What the callee says went wrong. The reply is not the caller's. */
SELDOM static int fail_with_status(struct ringside *connection, struct ringside_call *call,
                                   const struct rs_lease *lease, const struct rs_message *header,
                                   const uint8_t *base)
{
    char text[TEXT_BYTES + 1];
    size_t bytes = header->metadata_bytes < TEXT_BYTES ? header->metadata_bytes : TEXT_BYTES;
    const char *told = text;

    memcpy(text, base + header->metadata_offset, bytes);
    text[bytes] = '\0';
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = ' ';
    }
    int error = named_error(text, (int)call->status, &told);
    if (error == 0)
        error = rs_status_error((int)call->status);
    (void)rs_ring_release(lease);
    call_end(connection, call);
    return fail(connection, error < 0 ? error : -RINGSIDE_E_INTERNAL, "%s",
                *told != '\0' ? told : "the callee gave no reason");
}

/* Of this call, with another number than the next: its callee's sidecar, which counted them, was
 * restarted. */
SELDOM static int fail_torn(struct ringside *connection, struct ringside_call *call,
                            const struct rs_lease *lease)
{
    (void)rs_ring_release(lease);
    call_cancel(connection, call);
    return fail(connection, -RINGSIDE_E_UNAVAILABLE,
                "the sidecar of stage \"%s\" was restarted in the middle of the replies, and some "
                "are lost; its callee is told that nobody waits",
                lease->ring->layout.stage);
}

/* The reply is the caller's since its seal. The cell is emptied when it is known whether another
 * follows. */
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
        (void)rs_box_take(call_box(connection), cell, ticket);
        return refuse_reply(connection, call, lease);
    }
    if (UNLIKELY(header.call_id != call->id || rs_call_kind(header.call) != RS_CALL_REPLY ||
                 rs_call_number(header.call) !=
                     (call->private_[CALL_NUMBER] & RS_CALL_NUMBER_MASK))) {
        if (!rs_box_take(call_box(connection), cell, ticket))
            return NOTHING;
        if (header.call_id == call->id && rs_call_kind(header.call) == RS_CALL_REPLY)
            return fail_torn(connection, call, lease);
        (void)rs_ring_release(lease); /* of another call, whose callee came late */
        return NOTHING;
    }
    bool last = (rs_call_flags(header.call) & RS_CALL_LAST) != 0;
    /* After the header: the cell still names the slot, so what was read was this reply's. */
    if (LIKELY(last) ? !rs_box_empty(call_box(connection), cell, ticket)
                     : !rs_box_take(call_box(connection), cell, ticket))
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
    call_end(connection, call);
    return LAST_REPLY;
}

/* NOTHING, REPLY, LAST_REPLY, or an error that ended the call. */
static int take_reply(struct ringside *connection, struct ringside_call *call,
                      const struct rs_pending *pending, enum rs_box_content content,
                      uint64_t ticket, const struct rs_lease *lease, struct ringside_message *reply)
{
    if (LIKELY(content == RS_BOX_REPLY))
        return accept_reply(connection, call, pending->cell, ticket, lease, reply);
    if (content == RS_BOX_STRAY)
        (void)rs_box_take(call_box(connection), pending->cell, ticket);
    return NOTHING;
}

/* The cell alone: while the callee works, its other lines are left to it. */
IN_ONE_PIECE static int look(struct ringside *connection, struct ringside_call *call,
                             const struct rs_pending *pending, struct ringside_message *reply)
{
    struct rs_lease lease;
    uint64_t ticket;
    enum rs_box_content content = rs_box_look(call_box(connection), pending->cell, pending->ring,
                                              pending->holder, &ticket, &lease);

    if (content == RS_BOX_EMPTY)
        return NOTHING;
    return take_reply(connection, call, pending, content, ticket, &lease, reply);
}

SELDOM static int fail_over(struct ringside *connection, struct ringside_call *call)
{
    call_cancel(connection, call);
    return fail_with(connection, -RINGSIDE_E_TIMEOUT,
                     "the time of the call is over; its callee is told that nobody waits");
}

/* A request whose time is over may have been dropped for it before the caller looks. */
SELDOM static int fail_gone(struct ringside *connection, struct ringside_call *call)
{
    const char *stage = call_peer(call)->ring.layout.stage;

    if (time_left((int64_t)call->private_[CALL_DEADLINE]) == 0)
        return fail_over(connection, call);
    call_end_early(connection, call);
    return fail(
        connection, -RINGSIDE_E_UNAVAILABLE,
        "no reply will come: a worker of stage \"%s\" died with the call, let it go without a "
        "reply, or it was dropped",
        stage);
}

SELDOM static int fail_none(struct ringside *connection)
{
    return fail_with(connection, -RINGSIDE_E_TIMEOUT,
                     "no reply came within the timeout; the call goes on");
}

/* Also whether the callee is gone. What is no reply is dropped, and then there may be something else to see: nobody
 * sleeps over it. */
static int look_well(struct ringside *connection, struct ringside_call *call,
                     const struct rs_pending *pending, struct ringside_message *reply)
{
    for (unsigned looks = 0; looks < LOOKS; looks++) {
        struct rs_lease lease;
        uint64_t ticket;
        enum rs_box_content content = rs_call_look(pending, &ticket, &lease);

        if (content == RS_BOX_GONE)
            return fail_gone(connection, call);
        if (content != RS_BOX_REPLY && content != RS_BOX_STRAY)
            return NOTHING;
        int rc = take_reply(connection, call, pending, content, ticket, &lease, reply);
        if (rc != NOTHING)
            return rc;
    }
    return NOTHING;
}

/* Who only calls gives back what it has mapped of stages that came back with a new ring. */
SELDOM static void tend(struct ringside *connection, bool patient)
{
    if (rs_load_relaxed(&connection->retired_bodies) != 0)
        peers_refresh(connection);
    link_tend(connection, patient);
}

/* For pollers, who have consumed the edge by ringside_fd_clear: armed, then looked again. */
SELDOM static int look_and_arm_event(struct ringside *connection, struct ringside_call *call,
                                     const struct rs_pending *pending,
                                     struct ringside_message *reply)
{
    if ((call->private_[CALL_CELLS] & CALL_IS_POLLED) == 0) {
        call->private_[CALL_CELLS] |= CALL_IS_POLLED;
        rs_fetch_add_relaxed(&connection->calls.polled, 1);
    }
    rs_wait_arm(&call_box(connection)->posted, RS_WAIT_EVENT);
    int rc = look_well(connection, call, pending, reply);

    if (rc == NOTHING)
        poll_look_again(connection, POLL_NEVER);
    tend(connection, false);
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
    rs_word32 *posted = &call_box(connection)->posted;
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
        tend(connection, left_ns < 0 || left_ns > CALL_TIMEOUT_NS);
        if (is_down(connection)) {
            call_close(connection, call);
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
    if (call == NULL || call->private_[CALL_TAG] != tag_of(connection, TAG_CALL))
        return call_fail(connection);
    if (is_down(connection)) {
        call_close(connection, call); /* with the ring that it was in */
        return fail_down(connection);
    }
    struct rs_pending pending = call_pending(connection, call);
    int rc = look(connection, call, &pending, reply);
    if (rc == NOTHING)
        rc = timeout_ns != 0 ? wait_for_reply(connection, call, &pending, reply, timeout_ns)
                             : look_once(connection, call, &pending, reply);
    return rc == LAST_REPLY ? 0 : rc;
}

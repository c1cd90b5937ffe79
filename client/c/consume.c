/* SPDX-License-Identifier: Apache-2.0 */
/* Consuming: take the next message of the stage's inbox, wait for it, end the lease. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <string.h>

#define SPINS_PER_CLOCK   16
#define SPINS_FIRST       64                  /* looks before the first reading of the clock: a busy peer answers within them */
#define TAKES_PER_REFRESH 4096                /* a worker that never waits looks at the ring table now and then */
#define HINTS_RETRY_NS    INT64_C(10000000)   /* the sidecar rebuilds wrong hints at its next audit */
#define HINTS_PATIENCE_NS INT64_C(2000000000) /* and must have done so by then */
#define TICK_NS           20000000u           /* more than the coarse clock is ever behind */

_Static_assert(offsetof(struct peer, ring) == 0, "a lease's ring is the start of its peer");

/* ---- from the header to the public message ---- */

static void fill_request(struct ringside_message *message, const struct rs_message *header,
                         const uint8_t *base)
{
    message->method = (const char *)base + header->method_offset;
    message->method_bytes = header->method_bytes;
    message->private_[MESSAGE_CALL] = header->call;
    message->private_[MESSAGE_REPLIES] = 0;
}

void message_fill(struct ringside_message *message, const struct rs_message *header,
                  const struct peer *peer, uint8_t *base, uint32_t slot, uint32_t generation)
{
    message->ticket = rs_ticket_pack((uint16_t)peer->ring.layout.sidecar_id, slot, generation);
    message->tensor_count = header->tensor_count;
    message->metadata_bytes = header->metadata_bytes;
    message->metadata = header->metadata_bytes > 0 ? base + header->metadata_offset : NULL;
    message->metadata_kind = header->metadata_kind;
    message->publish_ns = header->publish_ns;
    message->ttl_ns = header->ttl_ns;
    message->stream_id = header->stream_id;
    message->sequence = header->sequence;
    memcpy(message->trace_id, header->trace_id, sizeof message->trace_id);
    message->origin_ticket = header->origin_ticket;
    message->call_id = header->call_id;
    message->method = NULL;
    message->method_bytes = 0;
    if (UNLIKELY(header->call_id != 0) && rs_call_kind(header->call) == RS_CALL_REQUEST)
        fill_request(message, header, base);
    message->private_[MESSAGE_PEER] = (uint64_t)(uintptr_t)peer;
    message->private_[MESSAGE_SLOT] = (uint64_t)slot << 32 | generation;
    for (unsigned i = 0; i < header->tensor_count; i++) {
        const struct rs_tensor *from = &header->tensors[i];
        struct ringside_tensor *to = &message->tensors[i];

        to->dtype = from->dtype;
        to->rank = from->rank;
        for (unsigned dim = 0; dim < from->rank; dim++)
            to->shape[dim] = from->shape[dim];
        to->data = base + from->offset;
        to->bytes = from->bytes;
    }
}

bool message_expired(const struct rs_message *header)
{
    if (header->ttl_ns == 0)
        return false;
    /* The last tick is read for a fraction of the price, and tells of most that they are young. */
    uint64_t now_ns = (uint64_t)rs_now_coarse_ns() + TICK_NS;
    if (now_ns > header->publish_ns && now_ns - header->publish_ns <= header->ttl_ns)
        return false;
    now_ns = (uint64_t)rs_now_ns();
    return now_ns > header->publish_ns && now_ns - header->publish_ns > header->ttl_ns;
}

void message_keep_lease(struct ringside *connection, struct ringside_message *message,
                        const struct rs_lease *lease)
{
    message->attempts = rs_delivery_attempts(lease->word);
    message->private_[MESSAGE_TAG] = tag_of(connection, TAG_HELD);
    message->private_[MESSAGE_WORD] = lease->word;
    message->private_[MESSAGE_LEASE] =
        lease->holder | (uint64_t)lease->delivery << 16 | (uint64_t)lease->ring_number << 24;
}

void lease_of(const struct ringside_message *message, struct rs_lease *lease)
{
    uint64_t packed = message->private_[MESSAGE_LEASE];
    struct peer *peer = (struct peer *)(uintptr_t)message->private_[MESSAGE_PEER];

    *lease = (struct rs_lease){
        .ring = &peer->ring,
        .word = message->private_[MESSAGE_WORD],
        .slot = (uint32_t)(message->private_[MESSAGE_SLOT] >> 32),
        .generation = (uint32_t)message->private_[MESSAGE_SLOT],
        .holder = (uint16_t)packed,
        .delivery = (uint8_t)(packed >> 16),
        .ring_number = (uint8_t)(packed >> 24),
    };
}

void push_delivery(struct ringside *connection, struct rs_inbox *inbox, unsigned ring_number,
                   struct rs_ring *ring, uint32_t slot, unsigned delivery)
{
    struct rs_ring *own = &connection->own.ring;

    if (rs_inbox_push(inbox, ring_number, slot, delivery) == 0)
        return;
    rs_ring_count(own, own->client, RS_OVERFLOWS, 1);
    rs_ring_bell(ring);
}

/* ---- take ---- */

/* A header that makes no sense stays out of everybody's hands: its delivery ends and is counted as dead. */
SELDOM static void refuse(struct ringside *connection, struct peer *peer, const struct rs_lease *lease)
{
    struct rs_ring *own = &connection->own.ring;

    report(connection, "refused a message of stage \"%s\", slot %u: its header makes no sense",
           peer->ring.layout.stage, lease->slot);
    (void)rs_ring_nack(lease, 0);
    rs_ring_count(own, own->client, RS_DEAD_LETTERED, 1);
    rs_ring_bell(&peer->ring);
}

/* True when the taken message is the caller's now; false when it was expired or broken, and is done with. */
static bool accept_lease(struct ringside *connection, const struct rs_lease *lease,
                         struct ringside_message *message)
{
    struct peer *peer = (struct peer *)lease->ring;
    struct rs_ring *ring = &peer->ring, *own = &connection->own.ring;
    struct body body = body_of(ring, lease->slot);
    struct rs_message header;

    rs_prefetch_read(body.base);
    int rc = rs_message_load(&header, &ring->slots[lease->slot], body.base, body.bytes);
    if (UNLIKELY(rc < 0) || UNLIKELY(peer_is_broken(connection, peer)) ||
        UNLIKELY(peer_lost_body(connection, peer))) {
        refuse(connection, peer, lease);
        return false;
    }
    if (message_expired(&header)) {
        RS_FAILPOINT(receive_expired);
        (void)rs_ring_release(lease);
        rs_ring_count(own, own->client, RS_EXPIRED, 1);
        return false;
    }
    message_fill(message, &header, peer, body.base, lease->slot, lease->generation);
    message_keep_lease(connection, message, lease);
    RS_FAILPOINT(receive_taken);
    uint32_t taken = rs_load_relaxed(&connection->taken) + 1;
    rs_store_relaxed(&connection->taken, taken);
    if (UNLIKELY(taken % TAKES_PER_REFRESH == 0))
        peers_refresh(connection);
    rs_ring_count(own, own->client, RS_RECEIVED, 1);
    /* Who answers loans next, and finds its lines with the consumer that freed them. */
    rs_ring_prefetch_loan(own, 0);
    return true;
}

/* Not an error at once: the sidecar, woken by the bell, mends the hints, and until then nothing can be taken. */
SELDOM static int hints_are_wrong(struct ringside *connection, int error, int64_t *again_ns)
{
    int64_t now_ns = rs_now_ns();

    rs_ring_bell(&connection->own.ring);
    if (now_ns - (int64_t)rs_load_relaxed(&connection->hints_failed_ns) > HINTS_PATIENCE_NS)
        rs_store_relaxed(&connection->hints_wrong_ns, (uint64_t)now_ns);
    rs_store_relaxed(&connection->hints_failed_ns, (uint64_t)now_ns);
    *again_ns = now_ns + HINTS_RETRY_NS;
    if (now_ns - (int64_t)rs_load_relaxed(&connection->hints_wrong_ns) < HINTS_PATIENCE_NS)
        return 0;
    return fail_with(connection, error,
                     "the inbox's hints make no sense, and the sidecar that was asked to rebuild them "
                     "did not (is it there?)");
}

/* One whole look: 1 with a message, 0 without, or an error. Without one, *again_ns says when to look again even if nobody
 * wakes us: what is there cannot be taken yet. */
IN_ONE_PIECE static int look(struct ringside *connection, struct ringside_message *message, int64_t *again_ns)
{
    int first = -1; /* ring that could not be opened; when it comes again, all have been tried */

    *again_ns = POLL_NEVER;
    for (;;) {
        struct rs_lease lease;
        int unmapped;
        int rc = rs_inbox_take(&connection->inbox, &lease, &unmapped);

        if (rc > 0) {
            if (accept_lease(connection, &lease, message))
                return 1;
        } else if (UNLIKELY(rc < 0)) {
            return hints_are_wrong(connection, rc, again_ns);
        } else if (unmapped < 0 || unmapped == first) {
            return 0;
        } else if ((rc = peer_open(connection, (unsigned)unmapped, again_ns)) < 0) {
            if (rc == -RINGSIDE_E_TIMEOUT)
                return 0; /* the sidecar does not answer, whichever ring it is */
            if (first < 0)
                first = unmapped;
        }
    }
}

SELDOM static int fail_nothing(struct ringside *connection)
{
    return fail_with(connection, -RINGSIDE_E_TIMEOUT, "no message came within the timeout");
}

/* For pollers: our own edge is consumed first, then the event armed, then looked again, so that none is missed. The eventfd
 * itself is never read: others who poll it may be able to take what we cannot. An edge stays when a message was found, and
 * while replies are polled for as well: it may mean one of them. */
SELDOM static int look_and_arm_event(struct ringside *connection, struct ringside_message *message)
{
    struct epoll_event events[POLLED_FDS];
    int64_t again_ns;

    if (rs_load_relaxed(&connection->calls.polled) == 0)
        (void)epoll_wait(connection->epoll_fd, events, POLLED_FDS, 0);
    rs_wait_arm(&connection->inbox.shared->not_empty, RS_WAIT_EVENT);
    int rc = look(connection, message, &again_ns);
    if (rc > 0)
        rs_event_write(connection->event_fd);
    else
        poll_look_again(connection, again_ns);
    if (rc == 0) {
        peers_refresh(connection);
        link_tend(connection, false);
    }
    return rc;
}

static bool spin(struct ringside *connection, struct ringside_message *message,
                 int64_t deadline_ns, int *rc)
{
    int64_t until_ns = rs_now_ns() + settings_of(connection)->spin_ns, again_ns;

    for (unsigned spins = 1;; spins++) {
        *rc = look(connection, message, &again_ns);
        if (*rc != 0)
            return true;
        if (spins % SPINS_PER_CLOCK == 0) {
            int64_t now_ns = rs_now_ns();

            if (now_ns >= until_ns || now_ns >= deadline_ns)
                return false;
        }
        rs_pause();
    }
}

/* 1, or an error; -RINGSIDE_E_TIMEOUT when nothing came. */
static int wait_for_message(struct ringside *connection, struct ringside_message *message,
                            int64_t timeout_ns)
{
    rs_word32 *not_empty = &connection->inbox.shared->not_empty;
    int64_t deadline_ns, again_ns;
    int rc;

    for (unsigned spins = 0; spins < SPINS_FIRST && settings_of(connection)->spin_ns > 0; spins++) {
        rs_pause();
        rc = look(connection, message, &again_ns);
        if (rc != 0)
            return rc;
    }
    deadline_ns = deadline_after(timeout_ns);
    if (spin(connection, message, deadline_ns, &rc))
        return rc;
    for (;;) {
        uint32_t armed = rs_wait_arm(not_empty, RS_WAIT_FUTEX);

        rc = look(connection, message, &again_ns);
        if (rc != 0)
            return rc;
        int64_t left_ns = time_left(deadline_ns);
        if (left_ns == 0)
            return fail_nothing(connection);
        peers_refresh(connection);
        link_tend(connection, left_ns < 0 || left_ns > CALL_TIMEOUT_NS);
        if (is_down(connection))
            return fail_down(connection);
        int64_t again_left_ns = time_left(again_ns);
        if (left_ns < 0 || (again_left_ns >= 0 && again_left_ns < left_ns))
            left_ns = again_left_ns;
        rs_wait_sleep(not_empty, armed, left_ns);
        rc = look(connection, message, &again_ns);
        if (rc != 0)
            return rc;
    }
}

/* 1, or an error. */
static int receive(struct ringside *connection, struct ringside_message *message, int64_t timeout_ns)
{
    int64_t again_ns;
    int rc;

    if (is_down(connection))
        return fail_down(connection);
    rc = look(connection, message, &again_ns);
    if (rc > 0)
        return rc;
    if (timeout_ns != 0 && rc == 0)
        return wait_for_message(connection, message, timeout_ns);
    if (rs_load_relaxed(&connection->polled) != 0)
        rc = look_and_arm_event(connection, message);
    return rc != 0 ? rc : fail_nothing(connection);
}

int ringside_receive(struct ringside *connection, struct ringside_message *message,
                     int64_t timeout_ns)
{
    int rc = receive(connection, message, timeout_ns);

    return rc > 0 ? 0 : rc;
}

int ringside_receive_batch(struct ringside *connection, struct ringside_message *messages,
                           size_t count, int64_t timeout_ns)
{
    if (count == 0 || count > INT32_MAX)
        return fail(connection, -RINGSIDE_E_INVALID, "a batch of %zu messages", count);
    int rc = receive(connection, &messages[0], timeout_ns);
    if (rc <= 0)
        return rc;
    int taken = 1;
    int64_t again_ns;
    while ((size_t)taken < count && look(connection, &messages[taken], &again_ns) > 0)
        taken++;
    return taken;
}

/* ---- end of a lease ---- */

SELDOM static int fail_state(const struct ringside *connection)
{
    return fail_with(connection, -RINGSIDE_E_STATE,
                     "not a message that this connection holds: released, forwarded or lost already");
}

int lease_release(struct ringside *connection, const struct rs_lease *lease)
{
    struct rs_ring *own = &connection->own.ring;
    int rc = rs_ring_release(lease);

    if (rc < 0)
        return fail_state(connection);
    rs_ring_count(own, own->client, RS_RELEASED, 1);
    if (UNLIKELY(peer_is_broken(connection, (struct peer *)lease->ring)))
        return fail(connection, -RINGSIDE_E_CORRUPT,
                    "the files of stage \"%s\" were cut while the message was held: its tensors may "
                    "have read as zeroes", lease->ring->layout.stage);
    return 0;
}

IN_ONE_PIECE int ringside_release(struct ringside *connection, struct ringside_message *message)
{
    struct rs_lease lease;

    if (UNLIKELY(rs_load_relaxed(&connection->down) == RINGSIDE_E_FORKED))
        return fail_down(connection);
    if (message == NULL)
        return fail_state(connection);
    if (message->private_[MESSAGE_TAG] != tag_of(connection, TAG_HELD))
        return reading_end(connection, message);
    if (UNLIKELY(message->method != NULL))
        return request_release(connection, message);
    lease_of(message, &lease);
    message->private_[MESSAGE_TAG] = 0;
    return lease_release(connection, &lease);
}

int ringside_nack(struct ringside *connection, struct ringside_message *message)
{
    struct rs_ring *own = &connection->own.ring;
    struct rs_lease lease;
    unsigned limit = 0;

    if (UNLIKELY(rs_load_relaxed(&connection->down) == RINGSIDE_E_FORKED))
        return fail_down(connection);
    if (message == NULL || message->private_[MESSAGE_TAG] != tag_of(connection, TAG_HELD))
        return fail_state(connection);
    lease_of(message, &lease);
    unsigned destination = rs_delivery_destination(lease.word);
    if (destination < lease.ring->layout.destination_count)
        limit = rs_destination_attempts(rs_load_relaxed(&lease.ring->destinations[destination].state));
    message->private_[MESSAGE_TAG] = 0;
    int rc = rs_ring_nack(&lease, limit);
    if (rc < 0)
        return fail_state(connection);
    if (message->method != NULL)
        request_wake_caller(connection, (struct peer *)lease.ring, message->private_[MESSAGE_CALL]);
    rs_ring_count(own, own->client, RS_NACKED, 1);
    if (rc > 0)
        rs_ring_count(own, own->client, RS_DEAD_LETTERED, 1);
    else
        push_delivery(connection, &connection->inbox, lease.ring_number, lease.ring, lease.slot,
                      lease.delivery);
    return 0;
}

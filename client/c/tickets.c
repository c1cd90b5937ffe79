/* SPDX-License-Identifier: Apache-2.0 */
/* Reading by ticket: begin, end, free, and the text form. */
#include "client/c/private.h"

#include <inttypes.h>
#include <string.h>

static int fail_ticket(const struct ringside *connection, int error)
{
    switch (error) {
    case -RINGSIDE_E_STALE_TICKET:
        return fail_with(connection, error,
                         "the ticket's message was read by all its readers, freed, or its slot was "
                         "used again");
    case -RINGSIDE_E_EXPIRED_TICKET:
        return fail_with(connection, error, "the ticket's time to live is over");
    default:
        return fail(connection, error, "cannot read by this ticket: %s", rs_strerror(error));
    }
}

static int unpack(struct ringside *connection, uint64_t value, struct rs_ticket *ticket)
{
    int rc = rs_ticket_unpack(ticket, value);

    return rc < 0 ? fail(connection, rc, "%#" PRIx64 " is not a ticket: it names no sidecar", value)
                  : 0;
}

static int parse(struct ringside *connection, const char *text, struct rs_ticket *ticket)
{
    int rc = rs_ticket_parse(ticket, text);

    return rc < 0 ? fail(connection, rc, "\"%.60s\" is not the text form of a ticket (rst1-...)",
                         text != NULL ? text : "(null)")
                  : 0;
}

/* ---- one bit and one count for all readings of a slot in this process ---- */

static pthread_mutex_t *lock_of(struct peer *peer, uint32_t slot)
{
    return &peer->reading_locks[slot % READING_LOCKS];
}

/* Whether what is read is the ticket's message. */
static bool is_read(const struct reading *reading, const struct rs_ticket *ticket)
{
    uint32_t mask = ticket->has_text ? UINT32_MAX : RS_TICKET_GENERATION_MASK;

    return ((reading->generation ^ ticket->generation) & mask) == 0;
}

/* The slot's lock is held. */
static int join_reading(struct peer *peer, const struct rs_ticket *ticket)
{
    struct reading *reading = &peer->readings[ticket->slot];
    uint64_t readers = rs_load_acquire(&peer->ring.slots[ticket->slot].readers);

    if (!is_read(reading, ticket) || (readers & RS_READERS_RETIRED) != 0)
        return -RINGSIDE_E_STALE_TICKET;
    reading->count++;
    return 0;
}

/* `added`: for a read that ringside_add_readers made. */
static int begin(struct peer *peer, const struct rs_ticket *ticket, bool added,
                 uint32_t *generation)
{
    struct reading *reading = &peer->readings[ticket->slot];
    int rc;

    pthread_mutex_lock(lock_of(peer, ticket->slot));
    if (reading->count > 0) {
        rc = join_reading(peer, ticket);
        if (rc == 0 && added)
            (void)rs_ring_readers_add(&peer->ring, peer->ring.reader, ticket->slot, -1);
    } else {
        rc = rs_ring_read_begin(&peer->ring, peer->ring.reader, ticket, &reading->generation);
        if (rc == 0) {
            reading->count = 1;
            reading->counted = false;
        }
    }
    *generation = reading->generation;
    pthread_mutex_unlock(lock_of(peer, ticket->slot));
    return rc;
}

static void end(struct peer *peer, uint32_t slot, bool counted)
{
    struct reading *reading = &peer->readings[slot];

    pthread_mutex_lock(lock_of(peer, slot));
    reading->counted |= counted;
    if (--reading->count == 0)
        rs_ring_read_end(&peer->ring, peer->ring.reader, slot, reading->generation,
                         reading->counted);
    pthread_mutex_unlock(lock_of(peer, slot));
}

/* ---- through the sidecar, for who has no reader number ---- */

/* The call alone; the lock is not held. */
static int call(struct ringside *connection, const char *method, const ProtobufCMessage *request,
                const ProtobufCMessageDescriptor *type, ProtobufCMessage **response,
                enum link_repeat repeat)
{
    pthread_mutex_lock(&connection->lock);
    int rc = link_call(connection, method, request, type, response, CALL_TIMEOUT_NS, repeat);
    link_drop_fds(connection);
    pthread_mutex_unlock(&connection->lock);
    return rc;
}

static int call_read(struct ringside *connection, uint64_t value, const char *text, bool added,
                     uint64_t *lease)
{
    Ringside__V1__ReadRequest request = RINGSIDE__V1__READ_REQUEST__INIT;
    ProtobufCMessage *response;

    if (text != NULL) {
        request.by_case = RINGSIDE__V1__READ_REQUEST__BY_TEXT;
        request.text = (char *)(uintptr_t)text;
    } else {
        request.by_case = RINGSIDE__V1__READ_REQUEST__BY_TICKET;
        request.ticket = value;
    }
    request.added = added;
    /* Readings of a sidecar that went end at the next one's start. */
    int rc = call(connection, "Read", &request.base, &ringside__v1__read_response__descriptor,
                  &response, LINK_REPEAT);
    if (rc < 0)
        return rc;
    Ringside__V1__ReadResponse *answer = (Ringside__V1__ReadResponse *)response;
    *lease = 0;
    if (answer->message != NULL && answer->message->lease != NULL)
        *lease = answer->message->lease->ticket;
    protobuf_c_message_free_unpacked(response, NULL);
    return *lease != 0 ? 0
                       : fail_with(connection, -RINGSIDE_E_PROTOCOL,
                                   "the sidecar's answer to Read has no lease");
}

static int begin_remote(struct ringside *connection, struct peer *peer,
                        const struct rs_ticket *ticket, uint64_t value, const char *text,
                        bool added, uint32_t *generation, uint64_t *lease)
{
    /* Counted before it begins, so that the body is not given back in between. */
    atomic_fetch_add(&peer->remote_readings, 1);
    int rc = call_read(connection, value, text, added, lease);

    *generation = ticket->generation;
    if (rc < 0)
        atomic_fetch_sub(&peer->remote_readings, 1);
    return rc;
}

static Ringside__V1__Lease remote_lease(struct ringside *connection, struct peer *peer,
                                        uint64_t ticket)
{
    Ringside__V1__Lease lease = RINGSIDE__V1__LEASE__INIT;

    lease.ticket = ticket;
    lease.delivery = -1;
    if (peer != &connection->own) {
        lease.ring.data = (uint8_t *)peer->ring.layout.incarnation;
        lease.ring.len = sizeof peer->ring.layout.incarnation;
    }
    return lease;
}

static int end_remote(struct ringside *connection, struct peer *peer, uint64_t ticket)
{
    Ringside__V1__LeaseRequest request = RINGSIDE__V1__LEASE_REQUEST__INIT;
    Ringside__V1__Lease lease = remote_lease(connection, peer, ticket);
    ProtobufCMessage *response;

    atomic_fetch_sub(&peer->remote_readings, 1);
    request.lease = &lease;
    /* Of a reading that went with its sidecar the next one knows nothing. */
    int rc = call(connection, "Release", &request.base, &ringside__v1__empty__descriptor, &response,
                  LINK_ONCE);
    if (rc == 0)
        protobuf_c_message_free_unpacked(response, NULL);
    return rc;
}

static int add_remote(struct ringside *connection, struct peer *peer, uint64_t ticket,
                      unsigned readers)
{
    Ringside__V1__AddReadersRequest request = RINGSIDE__V1__ADD_READERS_REQUEST__INIT;
    Ringside__V1__Lease lease = remote_lease(connection, peer, ticket);
    ProtobufCMessage *response;

    if (readers == 0)
        return 0;
    request.lease = &lease;
    request.readers = readers;
    /* Made twice it would keep the message until its time to live is over. */
    int rc = call(connection, "AddReaders", &request.base, &ringside__v1__empty__descriptor,
                  &response, LINK_ONCE);
    if (rc == 0)
        protobuf_c_message_free_unpacked(response, NULL);
    return rc;
}

/* ---- read ---- */

/* The reading has begun: copies and checks the header, or ends it. */
static int load(struct ringside *connection, struct peer *peer, uint32_t slot, uint32_t generation,
                struct ringside_message *message)
{
    struct rs_ring *ring = &peer->ring;
    struct body body = body_of(ring, slot);
    struct rs_message header;
    int rc = rs_message_load(&header, &ring->slots[slot], body.base, body.bytes);

    if (rc == 0 && (peer_is_broken(connection, peer) || peer_lost_body(connection, peer)))
        rc = -RINGSIDE_E_CORRUPT;
    if (rc == 0 && message_expired(&header))
        rc = -RINGSIDE_E_EXPIRED_TICKET;
    if (rc < 0)
        return fail_ticket(connection, rc);
    message_fill(message, &header, peer, body.base, slot, generation);
    message->attempts = 0;
    return 0;
}

static int read_ticket(struct ringside *connection, const struct rs_ticket *ticket, uint64_t value,
                       const char *text, bool added, struct ringside_message *message)
{
    struct rs_ring *own = &connection->own.ring;
    struct peer *peer;
    uint32_t generation;
    uint64_t lease = 0;
    int rc = ticket_ring(connection, ticket, &peer);

    if (rc < 0)
        return rc;
    rc = rs_ring_ticket_slot(&peer->ring, ticket);
    if (rc < 0)
        return fail_ticket(connection, rc);
    bool remote = peer->ring.reader == RS_NO_READER;
    if (remote)
        rc = begin_remote(connection, peer, ticket, value, text, added, &generation, &lease);
    else
        rc = begin(peer, ticket, added, &generation);
    if (rc < 0)
        return remote ? rc : fail_ticket(connection, rc);
    rc = load(connection, peer, ticket->slot, generation, message);
    if (rc < 0) {
        if (remote)
            (void)end_remote(connection, peer, lease);
        else
            end(peer, ticket->slot, false);
        return rc;
    }
    message->private_[MESSAGE_TAG] = tag_of(connection, remote ? TAG_REMOTE : TAG_READ);
    message->private_[MESSAGE_REMOTE] = lease;
    rs_ring_count(own, own->client, RS_READS, 1);
    return 0;
}

int ringside_read(struct ringside *connection, uint64_t value, struct ringside_message *message)
{
    struct rs_ticket ticket;

    if (is_down(connection))
        return fail_down(connection);
    int rc = unpack(connection, value, &ticket);
    return rc < 0 ? rc : read_ticket(connection, &ticket, value, NULL, false, message);
}

static int read_text(struct ringside *connection, const char *text, bool added,
                     struct ringside_message *message)
{
    struct rs_ticket ticket;

    if (is_down(connection))
        return fail_down(connection);
    int rc = parse(connection, text, &ticket);
    return rc < 0 ? rc : read_ticket(connection, &ticket, 0, text, added, message);
}

int ringside_read_text(struct ringside *connection, const char *text,
                       struct ringside_message *message)
{
    return read_text(connection, text, false, message);
}

int ringside_read_added_text(struct ringside *connection, const char *text,
                             struct ringside_message *message)
{
    return read_text(connection, text, true, message);
}

int ringside_add_readers(struct ringside *connection, struct ringside_message *message,
                         unsigned count)
{
    if (is_down(connection))
        return fail_down(connection);
    if (count > RS_READERS_LEFT_MAX)
        return fail(connection, -RINGSIDE_E_INVALID, "%u readers to add: 0..%d", count, RS_READERS_LEFT_MAX);
    uint64_t tag = message != NULL ? message->private_[MESSAGE_TAG] : 0;
    if (tag != tag_of(connection, TAG_READ) && tag != tag_of(connection, TAG_REMOTE))
        return fail_with(connection, -RINGSIDE_E_STATE,
                         "not a message that this connection reads by ticket");
    struct peer *peer = (struct peer *)(uintptr_t)message->private_[MESSAGE_PEER];
    if (tag == tag_of(connection, TAG_REMOTE))
        return add_remote(connection, peer, message->private_[MESSAGE_REMOTE], count);
    uint32_t slot = (uint32_t)(message->private_[MESSAGE_SLOT] >> 32);

    pthread_mutex_lock(lock_of(peer, slot));
    int rc = rs_ring_readers_add(&peer->ring, peer->ring.reader, slot, (int)count);
    pthread_mutex_unlock(lock_of(peer, slot));
    if (rc == -RINGSIDE_E_LIMIT)
        return fail(connection, rc,
                    "%u more readers: a message is read at most %d times in all; share "
                    "it with kept and free it at the end",
                    count, RS_READERS_LEFT_MAX);
    return rc < 0 ? fail_ticket(connection, rc) : 0;
}

int reading_end(struct ringside *connection, struct ringside_message *message)
{
    struct peer *peer = (struct peer *)(uintptr_t)message->private_[MESSAGE_PEER];
    uint64_t tag = message->private_[MESSAGE_TAG];

    if (tag != tag_of(connection, TAG_READ) && tag != tag_of(connection, TAG_REMOTE))
        return fail_with(connection, -RINGSIDE_E_STATE,
                         "not a message that this connection holds: released, forwarded or lost "
                         "already");
    message->private_[MESSAGE_TAG] = 0;
    if (tag == tag_of(connection, TAG_REMOTE))
        return end_remote(connection, peer, message->private_[MESSAGE_REMOTE]);
    end(peer, (uint32_t)(message->private_[MESSAGE_SLOT] >> 32), true);
    if (peer_is_broken(connection, peer))
        return fail_with(connection, -RINGSIDE_E_CORRUPT,
                         "the ring's files were cut while the message was read: its tensors may have "
                         "read as zeroes");
    return 0;
}

/* ---- free ---- */

static int free_remote(struct ringside *connection, uint64_t value, const char *text)
{
    Ringside__V1__FreeRequest request = RINGSIDE__V1__FREE_REQUEST__INIT;
    ProtobufCMessage *response;

    if (text != NULL) {
        request.by_case = RINGSIDE__V1__FREE_REQUEST__BY_TEXT;
        request.text = (char *)(uintptr_t)text;
    } else {
        request.by_case = RINGSIDE__V1__FREE_REQUEST__BY_TICKET;
        request.ticket = value;
    }
    int rc = call(connection, "Free", &request.base, &ringside__v1__empty__descriptor, &response,
                  LINK_REPEAT);
    if (rc == 0)
        protobuf_c_message_free_unpacked(response, NULL);
    return rc;
}

/* Borrows the process's reader bit, which is on already while a thread reads with it. */
static int free_here(struct peer *peer, const struct rs_ticket *ticket)
{
    const struct reading *reading = &peer->readings[ticket->slot];
    int rc = -RINGSIDE_E_STALE_TICKET;

    pthread_mutex_lock(lock_of(peer, ticket->slot));
    if (reading->count == 0)
        rc = rs_ring_ticket_free(&peer->ring, peer->ring.reader, ticket);
    else if (is_read(reading, ticket))
        rc = rs_ring_read_retire(&peer->ring, peer->ring.reader, ticket->slot);
    pthread_mutex_unlock(lock_of(peer, ticket->slot));
    return rc;
}

static int free_ticket(struct ringside *connection, const struct rs_ticket *ticket, uint64_t value,
                       const char *text)
{
    struct peer *peer;
    int rc = ticket_ring(connection, ticket, &peer);

    if (rc < 0)
        return rc;
    rc = rs_ring_ticket_slot(&peer->ring, ticket);
    if (rc < 0)
        return fail_ticket(connection, rc);
    if (peer->ring.reader == RS_NO_READER)
        return free_remote(connection, value, text);
    rc = free_here(peer, ticket);
    return rc < 0 ? fail_ticket(connection, rc) : 0;
}

int ringside_free(struct ringside *connection, uint64_t value)
{
    struct rs_ticket ticket;

    if (is_down(connection))
        return fail_down(connection);
    int rc = unpack(connection, value, &ticket);
    return rc < 0 ? rc : free_ticket(connection, &ticket, value, NULL);
}

int ringside_free_text(struct ringside *connection, const char *text)
{
    struct rs_ticket ticket;

    if (is_down(connection))
        return fail_down(connection);
    int rc = parse(connection, text, &ticket);
    return rc < 0 ? rc : free_ticket(connection, &ticket, 0, text);
}

/* ---- text ---- */

int ringside_ticket_text(struct ringside *connection, uint64_t value,
                         char text[RINGSIDE_TICKET_TEXT_BYTES])
{
    struct rs_ticket ticket;

    if (is_down(connection))
        return fail_down(connection);
    int rc = unpack(connection, value, &ticket);
    if (rc < 0)
        return rc;
    struct peer *peer;
    rc = ticket_ring(connection, &ticket, &peer);
    if (rc < 0)
        return rc;
    rc = rs_ring_ticket_slot(&peer->ring, &ticket);
    if (rc < 0)
        return fail_ticket(connection, rc);
    uint64_t state = rs_load_acquire(&peer->ring.slots[ticket.slot].state);
    uint32_t generation = rs_state_generation(state);
    if ((generation & RS_TICKET_GENERATION_MASK) != ticket.generation ||
        rs_state_phase(state) == RS_FREE)
        return fail_ticket(connection, -RINGSIDE_E_STALE_TICKET);
    rs_ticket_format(text, ticket.sidecar_id, ticket.slot, generation,
                     (uint32_t)peer->ring.layout.incarnation[0]);
    return 0;
}

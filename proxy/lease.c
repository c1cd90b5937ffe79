/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of the wire against the words of the ring; request ids that give the same lease again;
 * readings. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/proxy.h"
#include "proxy/session.h"

/* ---- leases ---- */

static struct rs_ring *ring_of(struct session *session, const ProtobufCBinaryData *incarnation,
                               uint8_t *number)
{
    struct proxy *proxy = session->proxy;

    *number = 0;
    if (incarnation->len == 0)
        return &proxy->ring;
    if (incarnation->len != 16)
        return NULL;
    if (memcmp(incarnation->data, proxy->ring.layout.incarnation, 16) == 0)
        return &proxy->ring;
    for (unsigned i = 1; session->inbox != NULL && i < RS_MAX_RINGS; i++) {
        struct rs_ring *ring = rs_load_acquire(&session->inbox->rings[i]);
        if (ring != NULL && memcmp(incarnation->data, ring->layout.incarnation, 16) == 0) {
            *number = (uint8_t)i;
            return ring;
        }
    }
    return NULL;
}

int session_lease_of(struct session *session, const Ringside__V1__Lease *wire,
                     struct session_lease *lease)
{
    struct rs_ticket ticket;

    if (wire == NULL || wire->delivery < -1 || wire->delivery >= RS_MAX_DELIVERIES)
        return -RINGSIDE_E_INVALID;
    int rc = rs_ticket_unpack(&ticket, wire->ticket);
    if (rc < 0)
        return rc;
    lease->ring = ring_of(session, &wire->ring, &lease->ring_number);
    if (lease->ring == NULL || ticket.sidecar_id != lease->ring->layout.sidecar_id ||
        ticket.slot >= lease->ring->layout.slot_count)
        return -RINGSIDE_E_FOREIGN_TICKET;
    lease->slot = ticket.slot;
    lease->generation = ticket.generation;
    lease->delivery = wire->delivery;
    return 0;
}

static bool same_generation(uint32_t whole, uint32_t from_ticket)
{
    return (whole & RS_TICKET_GENERATION_MASK) == (from_ticket & RS_TICKET_GENERATION_MASK);
}

int session_loan(struct session *session, const struct session_lease *lease, struct rs_loan *loan)
{
    uint64_t state = rs_load_seq_cst(&lease->ring->slots[lease->slot].state);

    if (lease->delivery != -1 || lease->ring_number != 0 || rs_state_phase(state) != RS_LOANED ||
        rs_state_owner(state) != session->number ||
        !same_generation(rs_state_generation(state), lease->generation))
        return -RINGSIDE_E_STATE;
    loan->slot = lease->slot;
    loan->generation = rs_state_generation(state);
    return 0;
}

int session_delivery(struct session *session, const struct session_lease *lease,
                     struct rs_lease *held)
{
    if (lease->delivery < 0)
        return -RINGSIDE_E_STATE;
    uint16_t holder =
        lease->ring_number == 0 ? session->number : session->inbox->holder[lease->ring_number];
    uint64_t word = rs_load_seq_cst(&lease->ring->slots[lease->slot].delivery[lease->delivery]);
    if (rs_delivery_phase(word) != RS_HELD || rs_delivery_holder(word) != holder ||
        !same_generation(rs_delivery_generation(word), lease->generation))
        return -RINGSIDE_E_STATE;
    *held = (struct rs_lease){.ring = lease->ring,
                              .word = word,
                              .slot = lease->slot,
                              .generation = rs_delivery_generation(word),
                              .holder = holder,
                              .delivery = (uint8_t)lease->delivery,
                              .ring_number = lease->ring_number};
    return 0;
}

/* ---- request ids ---- */

static bool same_lease(const struct session_lease *a, const struct session_lease *b)
{
    return a->ring == b->ring && a->slot == b->slot && a->delivery == b->delivery &&
           same_generation(a->generation, b->generation);
}

void session_remember(struct session *session, uint64_t id, const struct session_lease *lease)
{
    if (id == 0)
        return;
    session->requests[session->next_request++ % SESSION_REMEMBERED] =
        (struct session_request){.id = id, .lease = *lease};
}

const struct session_lease *session_recall(const struct session *session, uint64_t id)
{
    for (unsigned i = 0; id != 0 && i < SESSION_REMEMBERED; i++) {
        if (session->requests[i].id == id)
            return &session->requests[i].lease;
    }
    return NULL;
}

void session_forget(struct session *session, const struct session_lease *lease)
{
    for (unsigned i = 0; i < SESSION_REMEMBERED; i++) {
        if (session->requests[i].id != 0 && same_lease(&session->requests[i].lease, lease))
            session->requests[i].id = 0;
    }
}

/* ---- readings ---- */

static struct session_reading *find(struct session_reading *readings, uint32_t count, uint32_t slot)
{
    for (uint32_t i = 0; i < count; i++) {
        if (readings[i].slot == slot)
            return &readings[i];
    }
    return NULL;
}

static struct session_reading *add(struct session_reading **readings, uint32_t *count,
                                   uint32_t *capacity)
{
    if (*count == *capacity) {
        uint32_t more = *capacity > 0 ? *capacity * 2 : 8;
        void *larger = realloc(*readings, more * sizeof **readings);
        if (larger == NULL)
            return NULL;
        *readings = larger;
        *capacity = more;
    }
    return &(*readings)[(*count)++];
}

/* The table that decides when the bit goes on and off: the sessions', or this one's. */
static void table_of(struct session *session, struct session_reading ***readings, uint32_t **count,
                     uint32_t **capacity)
{
    struct sessions *sessions = control_sessions(session->proxy);
    bool shared = session->reader == CLIENTS_SHARED_READER;

    *readings = shared ? &sessions->shared : &session->readings;
    *count = shared ? &sessions->shared_count : &session->reading_count;
    *capacity = shared ? &sessions->shared_capacity : &session->reading_capacity;
}

static int begin_bit(struct session *session, const struct rs_ticket *ticket,
                     struct session_reading **readings, uint32_t *count, uint32_t *capacity,
                     uint32_t *generation)
{
    struct rs_ring *ring = &session->proxy->ring;
    struct session_reading *reading = find(*readings, *count, ticket->slot);
    uint32_t mask = ticket->has_text ? UINT32_MAX : RS_TICKET_GENERATION_MASK;

    if (reading != NULL) { /* the slot cannot have changed under the bit */
        if (((reading->generation ^ ticket->generation) & mask) != 0 ||
            (rs_load_seq_cst(&ring->slots[ticket->slot].readers) & RS_READERS_RETIRED))
            return -RINGSIDE_E_STALE_TICKET;
        reading->count++;
        *generation = reading->generation;
        return 0;
    }
    reading = add(readings, count, capacity);
    if (reading == NULL)
        return -ENOMEM;
    int rc = rs_ring_read_begin(ring, session->reader, ticket, generation);
    if (rc < 0)
        (*count)--;
    else
        *reading = (struct session_reading){ticket->slot, *generation, 1, false};
    return rc;
}

static int end_bit(struct session *session, struct session_reading *readings, uint32_t *count,
                   uint32_t slot, uint32_t generation, bool counted)
{
    struct session_reading *reading = find(readings, *count, slot);

    if (reading == NULL || !same_generation(reading->generation, generation))
        return -RINGSIDE_E_STATE;
    reading->counted |= counted;
    if (--reading->count > 0)
        return 0;
    rs_ring_read_end(&session->proxy->ring, session->reader, slot, reading->generation,
                     reading->counted);
    *reading = readings[--*count];
    return 0;
}

int session_read_begin(struct session *session, const struct rs_ticket *ticket,
                       uint32_t *generation)
{
    struct session_reading **readings;
    uint32_t *count, *capacity;

    int rc = rs_ring_ticket_slot(&session->proxy->ring, ticket);
    if (rc < 0)
        return rc;
    table_of(session, &readings, &count, &capacity);
    rc = begin_bit(session, ticket, readings, count, capacity, generation);
    if (rc < 0 || session->reader != CLIENTS_SHARED_READER)
        return rc;
    struct session_reading *own = find(session->readings, session->reading_count, ticket->slot);
    if (own != NULL) {
        own->count++;
        return 0;
    }
    own = add(&session->readings, &session->reading_count, &session->reading_capacity);
    if (own == NULL) {
        end_bit(session, *readings, count, ticket->slot, *generation, false);
        return -ENOMEM;
    }
    *own = (struct session_reading){ticket->slot, *generation, 1, false};
    return 0;
}

void session_read_adopt(struct session *session, uint32_t slot, uint32_t generation)
{
    struct session_reading *reading;

    if (session->reader == CLIENTS_SHARED_READER ||
        find(session->readings, session->reading_count, slot) != NULL)
        return;
    reading = add(&session->readings, &session->reading_count, &session->reading_capacity);
    if (reading != NULL) /* else its bit stays until the process is gone */
        *reading = (struct session_reading){slot, generation, 1, false};
}

int session_read_end(struct session *session, uint32_t slot, uint32_t generation, bool counted)
{
    struct sessions *sessions = control_sessions(session->proxy);
    struct session_reading *own = find(session->readings, session->reading_count, slot);

    if (own == NULL || !same_generation(own->generation, generation))
        return -RINGSIDE_E_STATE;
    if (session->reader != CLIENTS_SHARED_READER)
        return end_bit(session, session->readings, &session->reading_count, slot, generation,
                       counted);
    if (--own->count == 0)
        *own = session->readings[--session->reading_count];
    return end_bit(session, sessions->shared, &sessions->shared_count, slot, generation, counted);
}

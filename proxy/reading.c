/* SPDX-License-Identifier: Apache-2.0 */
/* Readings by ticket for those who let the sidecar take every step: which bit, how often, and when
 * it goes off. */
#include <errno.h>
#include <stdlib.h>

#include "proto/box.h"
#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"
#include "proxy/session.h"

/* Readings of one kind: a session's, or all of CLIENTS_SHARED_READER. */
struct table {
    struct session_reading **readings;
    uint32_t *count, *capacity;
};

static struct table of_session(struct session *session)
{
    return (struct table){&session->readings, &session->reading_count, &session->reading_capacity};
}

static struct table of_all(struct proxy *proxy)
{
    struct sessions *sessions = control_sessions(proxy);

    return (struct table){&sessions->shared, &sessions->shared_count, &sessions->shared_capacity};
}

static struct session_reading *find(const struct table *table, const struct rs_ring *ring,
                                    uint32_t slot)
{
    for (uint32_t i = 0; i < *table->count; i++) {
        struct session_reading *reading = &(*table->readings)[i];
        if (reading->slot == slot && reading->ring == ring)
            return reading;
    }
    return NULL;
}

static bool same_generation(uint32_t whole, uint32_t from_ticket)
{
    return (whole & RS_TICKET_GENERATION_MASK) == (from_ticket & RS_TICKET_GENERATION_MASK);
}

static struct session_reading *add(const struct table *table)
{
    if (*table->count == *table->capacity) {
        uint32_t more = *table->capacity > 0 ? *table->capacity * 2 : 8;
        void *larger = realloc(*table->readings, more * sizeof **table->readings);
        if (larger == NULL)
            return NULL;
        *table->readings = larger;
        *table->capacity = more;
    }
    return &(*table->readings)[(*table->count)++];
}

static void drop(const struct table *table, struct session_reading *reading)
{
    *reading = (*table->readings)[--*table->count];
}

static bool is_shared(const struct session *session, const struct rs_ring *ring)
{
    return ring == &session->proxy->ring && session->reader == CLIENTS_SHARED_READER;
}

/* The reader number of the session's place in a ring, or RS_NO_READER. */
static uint8_t reader_in(const struct session *session, struct rs_ring *ring, unsigned ring_number)
{
    const struct answerer *place = session_place(session, ring, true);

    if (ring == &session->proxy->ring)
        return session->reader;
    unsigned number = place != NULL ? place->client : session->inbox->holder[ring_number];
    uint64_t state = rs_load_acquire(&ring->clients[number].state);
    unsigned reader = rs_client_reader(state);
    bool mine = rs_client_phase(state) == RS_CLIENT_ALIVE &&
                (place == NULL || rs_client_is_there(ring, number, place->nonce, UINT64_MAX));
    return mine && reader > 0 && reader < CLIENTS_SHARED_READER ? (uint8_t)reader : RS_NO_READER;
}

/* Whether the ticket could be read now, by who had a reader number. */
static bool is_alive(const struct rs_slot *slot, const struct rs_ticket *ticket, uint32_t mask)
{
    uint64_t state = rs_load_seq_cst(&slot->state);

    return rs_state_phase(state) == RS_SEALED && (rs_state_flags(state) & RS_FLAG_TICKET) != 0 &&
           ((rs_state_generation(state) ^ ticket->generation) & mask) == 0 &&
           (rs_load_seq_cst(&slot->readers) & RS_READERS_RETIRED) == 0;
}

/* `fresh` names ring, slot and reader. The slot cannot change under a bit that is on. */
static int begin_bit(const struct table *table, const struct rs_ticket *ticket, bool added,
                     struct session_reading *fresh)
{
    struct session_reading *reading = find(table, fresh->ring, fresh->slot);
    const struct rs_slot *slot = &fresh->ring->slots[fresh->slot];
    uint32_t mask = ticket->has_text ? UINT32_MAX : RS_TICKET_GENERATION_MASK;

    if (reading != NULL) {
        if (!is_alive(slot, ticket, mask))
            return -RINGSIDE_E_STALE_TICKET;
        reading->count++;
        fresh->generation = reading->generation;
        if (added)
            (void)rs_ring_readers_add(reading->ring, reading->reader, reading->slot, -1);
        return 0;
    }
    if (fresh->reader == RS_NO_READER)
        return is_alive(slot, ticket, mask) ? -RINGSIDE_E_LIMIT : -RINGSIDE_E_STALE_TICKET;
    reading = add(table);
    if (reading == NULL)
        return -ENOMEM;
    int rc = rs_ring_read_begin(fresh->ring, fresh->reader, ticket, &fresh->generation);
    if (rc < 0)
        --*table->count;
    else
        *reading = *fresh;
    return rc;
}

static int end_bit(const struct table *table, const struct session_lease *lease, bool counted)
{
    struct session_reading *reading = find(table, lease->ring, lease->slot);

    if (reading == NULL || !same_generation(reading->generation, lease->generation))
        return -RINGSIDE_E_STATE;
    reading->counted |= counted;
    if (--reading->count > 0)
        return 0;
    rs_ring_read_end(reading->ring, reading->reader, reading->slot, reading->generation,
                     reading->counted);
    drop(table, reading);
    return 0;
}

int session_read_begin(struct session *session, struct rs_ring *ring, unsigned ring_number,
                       const struct rs_ticket *ticket, bool added, uint32_t *generation)
{
    bool shared = is_shared(session, ring);
    struct table own = of_session(session), table = shared ? of_all(session->proxy) : own;
    struct session_reading fresh = {.ring = ring,
                                    .slot = ticket->slot,
                                    .count = 1,
                                    .ring_number = (uint8_t)ring_number,
                                    .placed = session_place(session, ring, true) != NULL,
                                    .reader = reader_in(session, ring, ring_number)};

    int rc = begin_bit(&table, ticket, added, &fresh);
    *generation = fresh.generation;
    if (rc < 0 || !shared)
        return rc;
    struct session_reading *mine = find(&own, ring, ticket->slot);
    if (mine != NULL) {
        mine->count++;
        return 0;
    }
    mine = add(&own);
    if (mine == NULL) {
        struct session_lease lease = {ring, ticket->slot, *generation, -1, 0, false};
        end_bit(&table, &lease, false);
        return -ENOMEM;
    }
    *mine = fresh;
    return 0;
}

bool session_reads(const struct session *session, const struct rs_ring *ring, uint32_t slot)
{
    for (uint32_t i = 0; i < session->reading_count; i++) {
        if (session->readings[i].ring == ring && session->readings[i].slot == slot)
            return true;
    }
    return false;
}

int session_ticket_free(struct session *session, struct rs_ring *ring,
                        const struct rs_ticket *ticket)
{
    struct table own = of_session(session);
    const struct session_reading *reading = find(&own, ring, ticket->slot);
    uint32_t mask = ticket->has_text ? UINT32_MAX : RS_TICKET_GENERATION_MASK;
    uint8_t reader = reader_in(session, ring, 0);

    if (reader == RS_NO_READER)
        return -RINGSIDE_E_LIMIT;
    if (reading == NULL)
        return rs_ring_ticket_free(ring, reader, ticket);
    return ((reading->generation ^ ticket->generation) & mask) == 0
               ? rs_ring_read_retire(ring, reading->reader, ticket->slot)
               : -RINGSIDE_E_STALE_TICKET;
}

int session_read_add(const struct session *session, const struct session_lease *lease,
                     unsigned readers)
{
    for (uint32_t i = 0; i < session->reading_count; i++) {
        const struct session_reading *reading = &session->readings[i];

        if (reading->slot == lease->slot && reading->ring == lease->ring &&
            same_generation(reading->generation, lease->generation) &&
            session_has_ring(session, lease))
            return rs_ring_readers_add(reading->ring, reading->reader, reading->slot, (int)readers);
    }
    return -RINGSIDE_E_STATE;
}

void session_read_adopt(struct session *session, uint32_t slot, uint32_t generation)
{
    struct table table = of_session(session);

    if (session->reader == CLIENTS_SHARED_READER ||
        find(&table, &session->proxy->ring, slot) != NULL)
        return;
    struct session_reading *reading = add(&table);
    if (reading != NULL) /* else its bit stays until the process is gone */
        *reading = (struct session_reading){.ring = &session->proxy->ring,
                                            .slot = slot,
                                            .generation = generation,
                                            .count = 1,
                                            .reader = session->reader};
}

int session_read_end(struct session *session, const struct session_lease *lease, bool counted)
{
    struct table own = of_session(session);
    struct session_reading *mine = find(&own, lease->ring, lease->slot);

    if (mine == NULL || !same_generation(mine->generation, lease->generation))
        return -RINGSIDE_E_STATE;
    if (!session_has_ring(session, lease)) {
        drop(&own, mine); /* nothing of it is held any more */
        return 0;
    }
    if (!is_shared(session, lease->ring))
        return end_bit(&own, lease, counted);
    if (--mine->count == 0)
        drop(&own, mine);
    struct table all = of_all(session->proxy);
    return end_bit(&all, lease, counted);
}

void session_drop_readings(struct session *session, unsigned ring_number)
{
    struct table own = of_session(session);

    for (uint32_t i = *own.count; i-- > 0;) {
        if (session->readings[i].ring_number == ring_number)
            drop(&own, &session->readings[i]);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The ring that a ticket names: of the stage, of its inbox, or of a stage that a route leads to. */
#include "client/c/private.h"

/* Whether the slot is in the ticket's generation: one look, for rings that have one id. */
static bool has_generation(const struct peer *peer, const struct rs_ticket *ticket)
{
    uint32_t mask = ticket->has_text ? UINT32_MAX : RS_TICKET_GENERATION_MASK;
    uint64_t state = rs_load_acquire(&peer->ring.slots[ticket->slot].state);

    return ((rs_state_generation(state) ^ ticket->generation) & mask) == 0;
}

static struct peer *ring_of_inbox(struct ringside *connection, const struct rs_ticket *ticket)
{
    struct peer *first = NULL;

    for (unsigned i = 0; i < RS_MAX_RINGS; i++) {
        struct peer *peer = rs_load_acquire(&connection->peers[i]);
        int slot =
            peer != NULL ? rs_ring_ticket_slot(&peer->ring, ticket) : -RINGSIDE_E_FOREIGN_TICKET;

        if (slot == -RINGSIDE_E_FOREIGN_TICKET)
            continue;
        if (slot >= 0 && has_generation(peer, ticket))
            return peer;
        if (first == NULL)
            first = peer;
    }
    return first;
}

/* A ring of the inbox that is not mapped, for no message of it came yet. 0 and *peer NULL: there is
 * none. */
static int open_ring_of_inbox(struct ringside *connection, const struct rs_ticket *ticket,
                              struct peer **peer)
{
    int64_t again_ns = INT64_MAX;
    int rc = 0;

    for (unsigned i = 1; i < RS_MAX_RINGS; i++) {
        const struct rs_ring_entry *entry = &connection->inbox.table[i];
        uint64_t state = rs_load_acquire(&entry->state);

        if ((state & 0xff) == RS_RING_UNUSED || (uint16_t)(state >> 16) != ticket->sidecar_id ||
            (ticket->has_text &&
             (uint32_t)rs_load_relaxed(&entry->incarnation[0]) != ticket->incarnation) ||
            rs_load_acquire(&connection->peers[i]) != NULL)
            continue;
        rc = peer_open(connection, i, &again_ns);
        if (rc == 0)
            *peer = ring_of_inbox(connection, ticket);
        if (*peer != NULL)
            return 0;
        if (rc < 0)
            fail(connection, rc,
                 "the ring of sidecar %u, which the ticket names, cannot be opened yet: %s; see "
                 "`ringside "
                 "status`",
                 ticket->sidecar_id, rs_strerror(rc));
    }
    return rc;
}

static int fail_foreign(const struct ringside *connection, const struct rs_ticket *ticket)
{
    return fail(
        connection, -RINGSIDE_E_FOREIGN_TICKET,
        "the ticket is of sidecar %u%s, whose ring this stage does not read (own: %u): it sends "
        "nothing here and no route leads to it; read it in a worker of a stage next to it",
        ticket->sidecar_id, ticket->has_text ? ", or of an earlier ring of it" : "",
        connection->own.ring.layout.sidecar_id);
}

int ticket_ring(struct ringside *connection, const struct rs_ticket *ticket, struct peer **peer)
{
    *peer = ring_of_inbox(connection, ticket);
    if (*peer != NULL)
        return 0;
    int before = open_ring_of_inbox(connection, ticket, peer);
    if (*peer != NULL)
        return 0;
    int behind = ticketed_find(connection, ticket, peer);
    if (*peer != NULL)
        return 0;
    return before < 0 ? before : behind < 0 ? behind : fail_foreign(connection, ticket);
}

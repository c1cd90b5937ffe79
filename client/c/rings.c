/* SPDX-License-Identifier: Apache-2.0 */
/* Rings and inboxes that this process maps: opened through the sidecar when first needed, kept while views may live. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/guard.h"

#define RETRY_NS INT64_C(20000000) /* between two calls for the same ring or inbox */

/* ---- mapping ---- */

static int check_identity(struct ringside *connection, struct rs_ring *ring,
                          const Ringside__V1__Ring *info)
{
    if (info->incarnation.len != sizeof ring->layout.incarnation ||
        memcmp(info->incarnation.data, ring->layout.incarnation, info->incarnation.len) != 0)
        return fail_with(connection, -RINGSIDE_E_CORRUPT,
                         "the control file is not of the ring that the sidecar named");
    if (info->client >= ring->layout.client_count)
        return fail(connection, -RINGSIDE_E_PROTOCOL, "client number %u, but the ring has %u",
                    info->client, ring->layout.client_count);
    if (info->nonce == 0 || rs_load_relaxed(&ring->clients[info->client].nonce) != info->nonce)
        return fail_with(connection, -RINGSIDE_E_DENIED,
                         "the mapped memory is not the sidecar's: the nonce it told on the socket "
                         "is not there (is /dev/shm shared between the containers?)");
    return 0;
}

static int guard(struct ringside *connection, struct rs_ring *ring)
{
    int rc = rs_guard_add(ring->control, ring->layout.control_bytes);

    if (rc == 0 && ring->body != NULL)
        rc = rs_guard_add(ring->body, ring->layout.body_bytes);
    if (rc < 0)
        return fail(connection, rc, "cannot guard the mapped ring: %s", rs_strerror(rc));
    return 0;
}

/* Maps control and body (body_fd may be -1). The descriptors stay the caller's. */
static int map(struct ringside *connection, struct rs_ring *ring, int control_fd, int body_fd,
               bool writable, const Ringside__V1__Ring *info)
{
    const char *why = "";
    int rc = rs_ring_map(ring, control_fd, body_fd, writable, &why);

    if (rc < 0)
        return fail(connection, rc, "cannot use the ring of stage \"%s\": %s (%s)",
                    info->stage != NULL ? info->stage : "", why, rs_strerror(rc));
    return guard(connection, ring);
}

static void unmap(struct rs_ring *ring)
{
    if (ring->control == NULL)
        return;
    rs_guard_remove(ring->control);
    if (ring->body != NULL)
        rs_guard_remove(ring->body);
    rs_ring_unmap(ring);
}

int peer_map(struct ringside *connection, struct peer *peer, const Ringside__V1__Ring *info,
             size_t kind_count, const Ringside__V1__Descriptor *kinds, bool writable)
{
    int control_fd =
        link_take_fd(connection, kind_count, kinds, RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE);
    int body_fd = link_take_fd(connection, kind_count, kinds, RINGSIDE__V1__DESCRIPTOR__BODY_FILE);
    int rc = -RINGSIDE_E_PROTOCOL;

    peer->control_fd = control_fd;
    peer->bell_fd =
        link_take_fd(connection, kind_count, kinds, RINGSIDE__V1__DESCRIPTOR__BELL_EVENT);
    if (control_fd < 0 || body_fd < 0)
        fail_with(connection, rc, "the sidecar passed no descriptors of its ring");
    else
        rc = map(connection, &peer->ring, control_fd, body_fd, writable, info);
    if (body_fd >= 0)
        close(body_fd);
    if (rc == 0)
        rc = check_identity(connection, &peer->ring, info);
    if (rc < 0)
        return rc;
    peer->ring.client = (uint16_t)info->client;
    peer->ring.reader = info->reader < RS_MAX_READERS ? (uint8_t)info->reader : RS_NO_READER;
    peer->ring.bell_fd = peer->bell_fd;
    peer->readings = calloc(peer->ring.layout.slot_count, sizeof peer->readings[0]);
    if (peer->readings == NULL)
        return fail_with(connection, -ENOMEM, "out of memory");
    for (unsigned i = 0; i < READING_LOCKS; i++)
        pthread_mutex_init(&peer->reading_locks[i], NULL);
    return 0;
}

void peer_unmap(struct peer *peer)
{
    int fds[] = {peer->control_fd, peer->bell_fd};

    unmap(&peer->ring);
    rs_fd_close(fds, 2);
    free(peer->readings);
    peer->readings = NULL;
    peer->control_fd = -1;
    peer->bell_fd = -1;
}

bool peer_is_broken(struct ringside *connection, struct peer *peer)
{
    if (!rs_guard_hit(peer->ring.body))
        return false;
    if (rs_load_relaxed(&peer->broken) == 0) {
        rs_store_relaxed(&peer->broken, 1);
        report(connection, "the files of stage \"%s\" were cut or lost pages: its messages are "
                           "refused", peer->ring.layout.stage);
        rs_ring_bell(&peer->ring);
    }
    return true;
}

/* ---- rings of the inbox ---- */

static int call_open(struct ringside *connection, const Ringside__V1__OpenRequest *request,
                     Ringside__V1__OpenResponse **answer)
{
    ProtobufCMessage *response;
    int rc = link_call(connection, "Open", &request->base,
                       &ringside__v1__open_response__descriptor, &response, CALL_TIMEOUT_NS);

    *answer = (Ringside__V1__OpenResponse *)response;
    if (rc == 0 && (*answer)->ring == NULL)
        rc = fail_with(connection, -RINGSIDE_E_PROTOCOL, "the sidecar's answer to Open has no ring");
    return rc;
}

static void free_answer(struct ringside *connection, Ringside__V1__OpenResponse *answer)
{
    link_drop_fds(connection);
    if (answer != NULL)
        protobuf_c_message_free_unpacked(&answer->base, NULL);
}

/* Leases and views of the ring live on in its mapping; it takes no new messages. */
static void retire(struct ringside *connection, unsigned number)
{
    struct peer *peer = rs_load_relaxed(&connection->peers[number]);

    rs_inbox_forget(&connection->inbox, number);
    rs_store_release(&connection->peers[number], NULL);
    peer->next = connection->retired_peers;
    connection->retired_peers = peer;
}

static bool holds_anything(const struct peer *peer)
{
    const struct rs_ring *ring = &peer->ring;

    for (uint32_t slot = 0; slot < ring->layout.slot_count; slot++) {
        if (peer->readings[slot].count > 0)
            return true;
        for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
            uint64_t word = rs_load_seq_cst(&ring->slots[slot].delivery[i]);

            if (rs_delivery_phase(word) == RS_HELD && rs_delivery_holder(word) == ring->client)
                return true;
        }
    }
    return false;
}

/* The bodies of rings that are gone are given back when nothing of them is held. The address range stays, as zeroes:
 * a thread that stood still between two instructions may yet look there. */
static void drop_bodies(struct ringside *connection)
{
    for (struct peer *peer = connection->retired_peers; peer != NULL; peer = peer->next) {
        if (peer->ring.body == NULL || rs_load_relaxed(&peer->broken) == 2 || holds_anything(peer))
            continue;
        (void)mmap(peer->ring.body, peer->ring.layout.body_bytes, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        (void)madvise(peer->ring.body, peer->ring.layout.body_bytes, MADV_DONTFORK);
        rs_store_relaxed(&peer->broken, 2);
    }
}

static int open_locked(struct ringside *connection, unsigned number)
{
    Ringside__V1__OpenRequest request = RINGSIDE__V1__OPEN_REQUEST__INIT;
    Ringside__V1__OpenResponse *answer = NULL;
    uint64_t entry_state = rs_load_acquire(&connection->inbox.table[number].state);
    struct peer *peer = calloc(1, sizeof *peer);

    if (peer == NULL)
        return fail_with(connection, -ENOMEM, "out of memory");
    peer->control_fd = -1;
    peer->bell_fd = -1;
    request.target_case = RINGSIDE__V1__OPEN_REQUEST__TARGET_RING;
    request.ring = number;
    int rc = call_open(connection, &request, &answer);
    if (rc == 0)
        rc = peer_map(connection, peer, answer->ring, answer->n_descriptors, answer->descriptors,
                      false);
    if (rc == 0) {
        peer->destination = (uint16_t)answer->ring->destination;
        peer->entry_state = entry_state;
        RS_FAILPOINT(ring_opened);
        rs_store_release(&connection->peers[number], peer);
        rs_inbox_admit(&connection->inbox, number, &peer->ring, peer->destination,
                       peer->ring.client);
    } else {
        peer_unmap(peer);
        free(peer);
    }
    free_answer(connection, answer);
    return rc;
}

int peer_open(struct ringside *connection, unsigned number)
{
    int rc = 0;

    pthread_mutex_lock(&connection->lock);
    int64_t now_ns = rs_now_ns();
    if (rs_load_relaxed(&connection->peers[number]) != NULL) {
        rc = 0; /* another thread did it meanwhile */
    } else if (now_ns < connection->peer_retry_ns[number]) {
        rc = -RINGSIDE_E_UNAVAILABLE;
    } else {
        connection->peer_retry_ns[number] = now_ns + RETRY_NS;
        drop_bodies(connection);
        rc = open_locked(connection, number);
        if (rc < 0)
            report(connection, "cannot open ring %u of the inbox yet: %s", number,
                   ringside_explain(connection));
    }
    pthread_mutex_unlock(&connection->lock);
    return rc;
}

void peers_refresh(struct ringside *connection)
{
    for (unsigned number = 1; number < RS_MAX_RINGS; number++) {
        struct peer *peer = rs_load_acquire(&connection->peers[number]);

        if (peer == NULL ||
            rs_load_relaxed(&connection->inbox.table[number].state) == peer->entry_state)
            continue;
        pthread_mutex_lock(&connection->lock);
        if (rs_load_relaxed(&connection->peers[number]) == peer) {
            struct rs_ring_entry *entry = &connection->inbox.table[number];
            uint64_t state = rs_load_acquire(&entry->state);
            bool same = (state & 0xff) != RS_RING_UNUSED &&
                        rs_load_relaxed(&entry->incarnation[0]) == peer->ring.layout.incarnation[0] &&
                        rs_load_relaxed(&entry->incarnation[1]) == peer->ring.layout.incarnation[1];

            if (same)
                peer->entry_state = state;
            else
                retire(connection, number);
        }
        pthread_mutex_unlock(&connection->lock);
    }
}

/* ---- inboxes of the routes ---- */

void outlet_destroy(struct outlet *outlet)
{
    if (outlet == NULL)
        return;
    int fds[] = {outlet->control_fd, outlet->event_fd};

    unmap(&outlet->ring);
    rs_fd_close(fds, 2);
    free(outlet);
}

static bool is_inbox_of(const struct rs_destination *entry, const struct outlet *outlet)
{
    return rs_load_relaxed(&entry->incarnation[0]) == outlet->ring.layout.incarnation[0] &&
           rs_load_relaxed(&entry->incarnation[1]) == outlet->ring.layout.incarnation[1];
}

/* Makes messages of the own ring judgeable in that inbox. */
static void admit_own(struct ringside *connection, struct outlet *outlet, unsigned destination,
                      unsigned number, uint64_t state)
{
    struct rs_ring *own = &connection->own.ring;

    rs_inbox_admit(&outlet->inbox, number, own, (uint16_t)destination, own->client);
    rs_store_relaxed(&outlet->number, number);
    rs_store_release(&outlet->state, state);
}

static int ask_outlet(struct ringside *connection, unsigned destination,
                      Ringside__V1__OpenResponse **answer)
{
    Ringside__V1__OpenRequest request = RINGSIDE__V1__OPEN_REQUEST__INIT;

    request.target_case = RINGSIDE__V1__OPEN_REQUEST__TARGET_DESTINATION;
    request.destination = destination;
    return call_open(connection, &request, answer);
}

/* The owner's sidecar may have restarted: then its eventfd is another one. It takes the old one's number. */
static void renew_event(struct ringside *connection, unsigned destination, struct outlet *outlet)
{
    Ringside__V1__OpenResponse *answer = NULL;
    int rc = ask_outlet(connection, destination, &answer);
    int event_fd = rc < 0 ? -1
                          : link_take_fd(connection, answer->n_descriptors, answer->descriptors,
                                         RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT);

    if (event_fd >= 0 && outlet->event_fd >= 0) {
        (void)dup3(event_fd, outlet->event_fd, O_CLOEXEC);
        close(event_fd);
    } else if (event_fd >= 0) {
        outlet->event_fd = event_fd;
        outlet->inbox.event_fd = event_fd;
    }
    free_answer(connection, answer);
}

static int open_outlet(struct ringside *connection, unsigned destination, struct outlet **opened)
{
    Ringside__V1__OpenResponse *answer = NULL;
    uint64_t state = rs_load_acquire(&connection->own.ring.destinations[destination].state);
    struct outlet *outlet = calloc(1, sizeof *outlet);

    if (outlet == NULL)
        return fail_with(connection, -ENOMEM, "out of memory");
    outlet->control_fd = outlet->event_fd = -1;
    int rc = ask_outlet(connection, destination, &answer);
    if (rc == 0) {
        size_t count = answer->n_descriptors;

        outlet->control_fd = link_take_fd(connection, count, answer->descriptors,
                                          RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE);
        outlet->event_fd = link_take_fd(connection, count, answer->descriptors,
                                        RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT);
        if (outlet->control_fd < 0 || answer->ring_number >= RS_MAX_RINGS)
            rc = fail_with(connection, -RINGSIDE_E_PROTOCOL,
                           "the sidecar passed no inbox for the route");
        else
            rc = map(connection, &outlet->ring, outlet->control_fd, -1, false, answer->ring);
    }
    if (rc == 0) {
        rs_inbox_init(&outlet->inbox, &outlet->ring, outlet->event_fd);
        RS_FAILPOINT(outlet_opened);
        admit_own(connection, outlet, destination, answer->ring_number, state);
        *opened = outlet;
    } else {
        outlet_destroy(outlet);
    }
    free_answer(connection, answer);
    return rc;
}

/* The destination's state changed, or it was never opened. The lock is held. */
static int renew_outlet(struct ringside *connection, unsigned destination, struct outlet **outlet)
{
    struct rs_destination *entry = &connection->own.ring.destinations[destination];
    struct outlet *old = rs_load_relaxed(&connection->outlets[destination]);
    uint64_t state = rs_load_acquire(&entry->state);
    int64_t now_ns = rs_now_ns();

    if (old != NULL && is_inbox_of(entry, old)) {
        /* Its sidecar may be away; its memory and its workers are not. */
        if (rs_destination_connected(state) &&
            rs_destination_ring(state) != rs_load_relaxed(&old->number))
            admit_own(connection, old, destination, rs_destination_ring(state), state);
        if (rs_destination_connected(state) && connection->linked)
            renew_event(connection, destination, old);
        rs_store_release(&old->state, state);
        *outlet = old;
        return 0;
    }
    if (now_ns < connection->outlet_retry_ns[destination])
        return fail(connection, -RINGSIDE_E_UNAVAILABLE,
                    "the next stage (destination %u) is not connected yet", destination);
    connection->outlet_retry_ns[destination] = now_ns + RETRY_NS;
    int rc = open_outlet(connection, destination, outlet);
    if (rc < 0)
        return rc;
    rs_store_release(&connection->outlets[destination], *outlet);
    if (old != NULL) {
        old->next = connection->retired_outlets;
        connection->retired_outlets = old;
    }
    return 0;
}

int outlet_get(struct ringside *connection, unsigned destination, struct outlet **outlet)
{
    struct outlet *known = rs_load_acquire(&connection->outlets[destination]);

    if (known != NULL &&
        rs_load_relaxed(&connection->own.ring.destinations[destination].state) ==
            rs_load_relaxed(&known->state)) {
        *outlet = known;
        return 0;
    }
    pthread_mutex_lock(&connection->lock);
    int rc = renew_outlet(connection, destination, outlet);
    pthread_mutex_unlock(&connection->lock);
    return rc;
}

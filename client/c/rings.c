/* SPDX-License-Identifier: Apache-2.0 */
/* Rings that this process maps: opened through the sidecar when first needed, kept while views may live. */
#include "client/c/private.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/guard.h"

#define RETRY_FIRST_NS INT64_C(20000000)   /* after the first Open of a ring that failed; doubled up to the last */
#define RETRY_LAST_NS  INT64_C(1000000000)
#define DROP_NS        INT64_C(1000000000) /* between two looks whether anything of a retired ring is held */

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

int ring_map(struct ringside *connection, struct rs_ring *ring, int control_fd, int body_fd,
             bool writable, const Ringside__V1__Ring *info)
{
    const char *why = "";
    int rc = rs_ring_map(ring, control_fd, body_fd, writable, &why);

    if (rc < 0)
        return fail(connection, rc, "cannot use the ring of stage \"%s\": %s (%s)",
                    info->stage != NULL ? info->stage : "", why, rs_strerror(rc));
    return guard(connection, ring);
}

static void unguard(struct rs_ring *ring)
{
    if (ring->control != NULL)
        rs_guard_remove(ring->control);
    if (ring->body != NULL)
        rs_guard_remove(ring->body);
}

void ring_unmap(struct rs_ring *ring)
{
    unguard(ring);
    rs_ring_unmap(ring);
}

void ring_disown(struct rs_ring *ring)
{
    unguard(ring);
    ring->control = NULL;
    ring->body = NULL;
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
    /* With the own ring it comes for the connection. */
    if (!writable)
        peer->event_fd =
            link_take_fd(connection, kind_count, kinds, RINGSIDE__V1__DESCRIPTOR__INBOX_EVENT);
    if (control_fd < 0 || body_fd < 0)
        fail_with(connection, rc, "the sidecar passed no descriptors of its ring");
    else
        rc = ring_map(connection, &peer->ring, control_fd, body_fd, writable, info);
    if (body_fd >= 0)
        close(body_fd);
    if (rc == 0)
        rc = check_identity(connection, &peer->ring, info);
    if (rc < 0)
        return rc;
    peer->ring.client = (uint16_t)info->client;
    peer->nonce = info->nonce;
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
    int fds[] = {peer->control_fd, peer->bell_fd, peer->event_fd};

    ring_unmap(&peer->ring);
    rs_fd_close(fds, 3);
    free(peer->readings);
    peer->readings = NULL;
    peer->control_fd = -1;
    peer->bell_fd = -1;
    peer->event_fd = -1;
}

void peer_disown(struct peer *peer, bool still)
{
    if (peer == NULL)
        return;
    int fds[] = {peer->control_fd, peer->bell_fd, peer->event_fd};

    rs_fd_close(fds, 3);
    peer->control_fd = -1;
    peer->bell_fd = -1;
    peer->event_fd = -1;
    if (still)
        ring_disown(&peer->ring);
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

int call_open(struct ringside *connection, const Ringside__V1__OpenRequest *request,
              Ringside__V1__OpenResponse **answer)
{
    ProtobufCMessage *response;
    int rc = link_call(connection, "Open", &request->base,
                       &ringside__v1__open_response__descriptor, &response, CALL_TIMEOUT_NS,
                       LINK_REPEAT);

    *answer = (Ringside__V1__OpenResponse *)response;
    if (rc == 0 && (*answer)->ring == NULL)
        rc = fail_with(connection, -RINGSIDE_E_PROTOCOL, "the sidecar's answer to Open has no ring");
    return rc;
}

void free_open(struct ringside *connection, Ringside__V1__OpenResponse *answer)
{
    link_drop_fds(connection);
    if (answer != NULL)
        protobuf_c_message_free_unpacked(&answer->base, NULL);
}

/* An inbox's sidecar gives a number up before it gives it another meaning, and stores what it means before the state. */
bool entry_names(const struct rs_ring_entry *entry, uint64_t state, const struct rs_ring *ring)
{
    return (state & 0xff) != RS_RING_UNUSED &&
           rs_load_relaxed(&entry->incarnation[0]) == ring->layout.incarnation[0] &&
           rs_load_relaxed(&entry->incarnation[1]) == ring->layout.incarnation[1];
}

static int open_locked(struct ringside *connection, unsigned number)
{
    Ringside__V1__OpenRequest request = RINGSIDE__V1__OPEN_REQUEST__INIT;
    Ringside__V1__OpenResponse *answer = NULL;
    struct rs_ring_entry *entry = &connection->inbox.table[number];
    uint64_t state = rs_load_acquire(&entry->state);
    struct peer *peer = calloc(1, sizeof *peer);

    if (peer == NULL)
        return fail_with(connection, -ENOMEM, "out of memory");
    peer->control_fd = -1;
    peer->bell_fd = -1;
    peer->event_fd = -1;
    request.target_case = RINGSIDE__V1__OPEN_REQUEST__TARGET_RING;
    request.ring = number;
    int rc = call_open(connection, &request, &answer);
    if (rc == 0)
        rc = peer_map(connection, peer, answer->ring, answer->n_descriptors, answer->descriptors,
                      false);
    if (rc == 0 && !entry_names(entry, state, &peer->ring))
        rc = fail_with(connection, -RINGSIDE_E_UNAVAILABLE,
                       "the number came to mean another ring meanwhile");
    if (rc == 0) {
        peer->destination = (uint16_t)answer->ring->destination;
        rs_store_relaxed(&peer->entry_state, state);
        RS_FAILPOINT(ring_opened);
        rs_store_release(&connection->peers[number], peer);
        rs_inbox_admit(&connection->inbox, number, &peer->ring, peer->destination,
                       peer->ring.client);
    } else {
        peer_unmap(peer);
        free(peer);
    }
    free_open(connection, answer);
    return rc;
}

static int try_open(struct ringside *connection, unsigned number, int64_t *again_ns)
{
    struct retry *retry = &connection->peer_retry[number];
    uint64_t entry_state = rs_load_relaxed(&connection->inbox.table[number].state);
    int64_t now_ns = rs_now_ns();
    int rc = -RINGSIDE_E_UNAVAILABLE;

    if (rs_load_relaxed(&connection->peers[number]) != NULL)
        return 0; /* another thread did it meanwhile */
    if (now_ns >= retry->at_ns || entry_state != retry->entry_state) {
        rc = open_locked(connection, number);
        if (rc == 0) {
            retry->pause_ns = 0;
            return 0;
        }
        if (retry->pause_ns == 0)
            report(connection, "cannot open ring %u of the inbox yet: %s", number,
                   ringside_explain(connection));
        retry->pause_ns = retry->pause_ns == 0 ? RETRY_FIRST_NS : 2 * retry->pause_ns;
        if (retry->pause_ns > RETRY_LAST_NS)
            retry->pause_ns = RETRY_LAST_NS;
        retry->at_ns = rs_now_ns() + retry->pause_ns;
        retry->entry_state = entry_state;
    }
    if (retry->at_ns < *again_ns)
        *again_ns = retry->at_ns;
    return rc;
}

int peer_open(struct ringside *connection, unsigned number, int64_t *again_ns)
{
    pthread_mutex_lock(&connection->lock);
    int rc = try_open(connection, number, again_ns);
    pthread_mutex_unlock(&connection->lock);
    /* Where rings come, others may have gone. */
    if (rc == 0)
        peers_refresh(connection);
    return rc;
}

/* ---- rings that left the inbox ---- */

void peer_retire(struct ringside *connection, struct peer *peer)
{
    peer->next = connection->retired_peers;
    connection->retired_peers = peer;
    rs_store_relaxed(&connection->retired_bodies, rs_load_relaxed(&connection->retired_bodies) + 1);
    connection->drop_bodies_ns = 0;
}

/* Leases and views of the ring live on in its mapping; it takes no new messages. */
static void retire(struct ringside *connection, unsigned number)
{
    struct peer *peer = rs_load_relaxed(&connection->peers[number]);

    rs_inbox_forget(&connection->inbox, number);
    rs_store_release(&connection->peers[number], NULL);
    connection->peer_retry[number] = (struct retry){0};
    peer_retire(connection, peer);
}

static bool holds_anything(struct peer *peer)
{
    struct rs_ring *ring = &peer->ring;

    if (rs_load_seq_cst(&peer->remote_readings) != 0)
        return true;
    for (uint32_t slot = 0; slot < ring->layout.slot_count; slot++) {
        if (ring->reader != RS_NO_READER &&
            (rs_load_seq_cst(&ring->slots[slot].readers) >> ring->reader & 1) != 0)
            return true;
        for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
            uint64_t word = rs_load_seq_cst(&ring->slots[slot].delivery[i]);

            if (rs_delivery_phase(word) == RS_HELD && rs_delivery_holder(word) == ring->client)
                return true;
        }
    }
    return false;
}

/* The body of a retired ring is given back when nothing of it is held, and no reply in it awaited. The address range stays, as zeroes. Dekker pair
 * with who takes a message of it yet, because it stood still between two instructions: the fate first, then the words. */
static void drop_body(struct ringside *connection, struct peer *peer)
{
    uint64_t bytes = peer->ring.layout.body_bytes;

    rs_exchange_seq_cst(&peer->body_fate, BODY_DOUBTFUL);
    /* In this order: a call whose reply came in between is ended only after who took it has seen the fate. */
    if (holds_anything(peer) || calls_await(connection, peer) ||
        mmap(peer->ring.body, bytes, PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
        rs_exchange_seq_cst(&peer->body_fate, BODY_MAPPED);
        return;
    }
    (void)madvise(peer->ring.body, bytes, MADV_DONTFORK);
    rs_exchange_seq_cst(&peer->body_fate, BODY_GONE);
    rs_store_relaxed(&connection->retired_bodies, rs_load_relaxed(&connection->retired_bodies) - 1);
}

static void drop_bodies(struct ringside *connection)
{
    pthread_mutex_lock(&connection->lock);
    int64_t now_ns = rs_now_ns();
    struct peer *peer = now_ns < connection->drop_bodies_ns ? NULL : connection->retired_peers;
    if (peer != NULL)
        connection->drop_bodies_ns = now_ns + DROP_NS;
    for (; peer != NULL; peer = peer->next) {
        if (rs_load_relaxed(&peer->body_fate) != BODY_GONE)
            drop_body(connection, peer);
    }
    pthread_mutex_unlock(&connection->lock);
}

bool peer_lost_body(struct ringside *connection, struct peer *peer)
{
    if (rs_load_seq_cst(&peer->body_fate) == BODY_MAPPED)
        return false;
    /* Whoever doubts holds the lock, and has seen what we hold or not. */
    pthread_mutex_lock(&connection->lock);
    bool gone = rs_load_seq_cst(&peer->body_fate) == BODY_GONE;
    pthread_mutex_unlock(&connection->lock);
    return gone;
}

void peers_refresh(struct ringside *connection)
{
    for (unsigned number = 1; number < RS_MAX_RINGS; number++) {
        struct peer *peer = rs_load_acquire(&connection->peers[number]);
        struct rs_ring_entry *entry = &connection->inbox.table[number];

        if (peer == NULL || rs_load_relaxed(&entry->state) == rs_load_relaxed(&peer->entry_state))
            continue;
        pthread_mutex_lock(&connection->lock);
        if (rs_load_relaxed(&connection->peers[number]) == peer) {
            uint64_t state = rs_load_acquire(&entry->state);

            if (entry_names(entry, state, &peer->ring))
                rs_store_relaxed(&peer->entry_state, state);
            else
                retire(connection, number);
        }
        pthread_mutex_unlock(&connection->lock);
    }
    if (rs_load_relaxed(&connection->retired_bodies) != 0)
        drop_bodies(connection);
}

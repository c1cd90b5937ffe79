/* SPDX-License-Identifier: Apache-2.0 */
/* Forwarding a received message: in place where its ring knows the next inboxes, by a copy otherwise. */
#include "client/c/private.h"
#include "proto/copy.h"
#include "proto/failpoint.h"

#include <string.h>

/* ---- in place ---- */

/* The index, in the message's ring, of the destination that is this inbox. */
static int destination_in(struct rs_ring *ring, const struct outlet *outlet, unsigned *ring_number)
{
    for (uint32_t i = 0; i < ring->layout.destination_count; i++) {
        struct rs_destination *entry = &ring->destinations[i];
        uint64_t state = rs_load_acquire(&entry->state);

        if (rs_destination_kind(state) == RS_DEST_INBOX && rs_destination_connected(state) &&
            rs_load_relaxed(&entry->incarnation[0]) == outlet->ring.layout.incarnation[0] &&
            rs_load_relaxed(&entry->incarnation[1]) == outlet->ring.layout.incarnation[1]) {
            *ring_number = rs_destination_ring(state);
            return (int)i;
        }
    }
    return -1;
}

/* Queues the message at the route's inboxes, from the first on. Returns how many it reached; all of them: the lease is
 * passed on. */
static int forward_in_place(struct ringside *connection, const struct rs_lease *lease,
                            const struct outgoing *outgoing)
{
    struct rs_ring *ring = lease->ring;
    unsigned count = outgoing->route->destination_count;
    uint16_t destinations[RS_MAX_DELIVERIES];
    unsigned numbers[RS_MAX_DELIVERIES];
    uint8_t deliveries[RS_MAX_DELIVERIES];

    for (unsigned i = 0; i < count; i++) {
        int index = destination_in(ring, outgoing->outlets[i], &numbers[i]);

        if (index < 0 || !outlet_admit_guest(connection, outgoing->outlets[i], numbers[i], ring,
                                             (uint16_t)index))
            return 0;
        destinations[i] = (uint16_t)index;
    }
    int queued = rs_ring_forward(lease, destinations, count, deliveries);
    for (int i = 0; i < queued; i++) {
        push_delivery(connection, &outgoing->outlets[i]->inbox, numbers[i], ring, lease->slot,
                      deliveries[i]);
        RS_FAILPOINT(forward_pushed);
    }
    return queued;
}

/* ---- by a copy ---- */

static void copy_header(struct rs_message *copy, const struct ringside_message *message)
{
    copy->tensor_count = (uint8_t)message->tensor_count;
    for (unsigned i = 0; i < message->tensor_count; i++) {
        copy->tensors[i].dtype = message->tensors[i].dtype;
        copy->tensors[i].rank = message->tensors[i].rank;
        memcpy(copy->tensors[i].shape, message->tensors[i].shape, sizeof copy->tensors[i].shape);
    }
    copy->metadata_kind = (uint8_t)message->metadata_kind;
    copy->ttl_ns = 0;
    copy->stream_id = message->stream_id;
    copy->sequence = message->sequence;
    memcpy(copy->trace_id, message->trace_id, sizeof copy->trace_id);
    copy->origin_ticket = message->origin_ticket;
    copy->call_id = 0; /* the copy of a reply answers nobody */
}

/* What the options give replaces what the message had. */
static void override(struct rs_message *copy, const struct ringside_options *options)
{
    if (options == NULL)
        return;
    copy->ttl_ns = options->ttl_ns;
    if (options->stream_id != 0)
        copy->stream_id = options->stream_id;
    if (options->sequence != 0)
        copy->sequence = options->sequence;
    if (options->metadata_bytes > 0)
        copy->metadata_kind = (uint8_t)options->metadata_kind;
    for (unsigned i = 0; i < sizeof options->trace_id; i++) {
        if (options->trace_id[i] != 0) {
            memcpy(copy->trace_id, options->trace_id, sizeof copy->trace_id);
            break;
        }
    }
}

/* Whether the header must differ from the message's, which is constant once it is sealed. */
static bool options_change(const struct ringside_options *options)
{
    static const uint8_t zeroes[16];

    return options != NULL &&
           (options->ttl_ns != 0 || options->metadata_bytes != 0 || options->stream_id != 0 ||
            options->sequence != 0 || memcmp(options->trace_id, zeroes, sizeof zeroes) != 0);
}

static int copy_out(struct ringside *connection, const struct ringside_message *message,
                    const struct outgoing *outgoing, unsigned first,
                    const struct ringside_options *options, int64_t deadline_ns)
{
    struct rs_ring *ring = &connection->own.ring;
    bool fresh = options != NULL && options->metadata_bytes > 0;
    const void *metadata = fresh ? options->metadata : message->metadata;
    uint32_t metadata_bytes = fresh ? options->metadata_bytes : message->metadata_bytes;
    struct rs_message copy;
    struct rs_loan loan;
    uint64_t bytes;

    copy_header(&copy, message);
    override(&copy, options);
    int rc = rs_message_plan(&copy, metadata_bytes, &bytes);
    if (rc < 0)
        return fail(connection, rc, "the message cannot be laid out here: %s", rs_strerror(rc));
    rc = loan_take(connection, bytes, time_left(deadline_ns), &loan);
    if (rc < 0)
        return rc;
    uint8_t *base = body_of(ring, loan.slot).base;
    for (unsigned i = 0; i < copy.tensor_count; i++) {
        if (copy.tensors[i].bytes > 0)
            rs_copy(base + copy.tensors[i].offset, message->tensors[i].data, copy.tensors[i].bytes);
    }
    if (metadata_bytes > 0)
        memcpy(base + copy.metadata_offset, metadata, metadata_bytes);
    rc = loan_publish(connection, &loan, base, &copy, outgoing, first);
    if (rc < 0)
        (void)rs_ring_abandon(ring, ring->client, &loan);
    return rc;
}

/* ---- both ---- */

static int check(struct ringside *connection, const struct ringside_message *message,
                 const struct ringside_options *options)
{
    if (is_down(connection))
        return fail_down(connection);
    if (message == NULL || message->private_[MESSAGE_TAG] != tag_of(connection, TAG_HELD))
        return fail_with(connection, -RINGSIDE_E_STATE,
                         "only a received message that is still held can be forwarded");
    if (message->method != NULL)
        return fail(connection, -RINGSIDE_E_STATE,
                    "a call (of \"%.*s\") cannot be forwarded, because its caller waits for this stage: answer it, and "
                    "call the next stage for that", (int)message->method_bytes, message->method);
    if (options != NULL && options->metadata_bytes > 0 &&
        (options->metadata == NULL || options->metadata_kind > RINGSIDE_JSON))
        return fail_with(connection, -RINGSIDE_E_INVALID, "metadata is missing or of unknown kind");
    return 0;
}

int ringside_forward(struct ringside *connection, struct ringside_message *message,
                     const char *name, const struct ringside_options *options)
{
    struct rs_ring *own = &connection->own.ring;
    int64_t timeout_ns = options != NULL ? options->timeout_ns : RINGSIDE_FOREVER;
    int64_t deadline_ns = deadline_after(timeout_ns);
    struct outgoing outgoing;
    struct rs_lease lease;
    int queued = 0;
    int rc = check(connection, message, options);

    if (rc == 0)
        rc = route_find(connection, name, &outgoing.route);
    if (rc == 0)
        rc = outgoing_reserve(connection, &outgoing, timeout_ns);
    if (rc < 0)
        return rc;
    lease_of(message, &lease);
    if (!options_change(options))
        queued = forward_in_place(connection, &lease, &outgoing);
    if (queued < 0) {
        message->private_[MESSAGE_TAG] = 0;
        return fail_with(connection, queued, "the message is no longer held here");
    }
    bool in_place = (unsigned)queued == outgoing.route->destination_count;
    if (!in_place) {
        rc = copy_out(connection, message, &outgoing, (unsigned)queued, options, deadline_ns);
        if (rc < 0)
            return rc;
        RS_FAILPOINT(forward_copied);
        (void)rs_ring_release(&lease);
        rs_ring_count(own, own->client, RS_FORWARD_COPIES, 1);
    }
    message->private_[MESSAGE_TAG] = 0;
    rs_ring_count(own, own->client, RS_FORWARDED, 1);
    return in_place ? 1 : 0;
}

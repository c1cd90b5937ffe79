/* SPDX-License-Identifier: Apache-2.0 */
/* Producing: loan a slot, publish it on a route or for reading by ticket, or give it back. */
#include "client/c/private.h"
#include "proto/copy.h"
#include "proto/failpoint.h"

#include <string.h>

#define SPINS_PER_CLOCK 16                 /* looks between two readings of the clock */
#define COARSE_TTL_NS   UINT64_C(1000000000) /* from here on a time to live begins at the kernel's last tick */

/* ---- loan ---- */

SELDOM static int fail_full(struct ringside *connection, uint64_t bytes, int error)
{
    return fail(connection, error,
                "no free slot for %llu bytes: all are loaned, queued or held (`ringside ls` shows by "
                "whom)", (unsigned long long)bytes);
}

/* Spins on the hints, then sleeps until somebody frees a slot. Releases need nothing that we hold. */
SELDOM static int wait_for_slot(struct ringside *connection, unsigned class_index, uint64_t bytes,
                         int64_t timeout_ns, struct rs_loan *loan)
{
    struct rs_ring *ring = &connection->own.ring;
    int64_t deadline_ns = deadline_after(timeout_ns);
    int64_t spin_until_ns = rs_now_ns() + settings_of(connection)->spin_ns;

    for (;;) {
        for (unsigned spins = 1;; spins++) {
            if (rs_ring_loan_hinted(ring, ring->client, class_index, loan) == 0)
                return 0;
            if (spins % SPINS_PER_CLOCK == 0) {
                int64_t now_ns = rs_now_ns();

                if (now_ns >= spin_until_ns || now_ns >= deadline_ns)
                    break;
            }
            rs_pause();
        }
        uint32_t armed = rs_wait_arm(&ring->shared->slot_free, RS_WAIT_FUTEX);
        if (rs_ring_loan(ring, ring->client, class_index, loan) == 0)
            return 0;
        if (rs_load_relaxed(&ring->shared->draining) != 0)
            return fail_with(connection, -RINGSIDE_E_DRAINING,
                             "the sidecar is draining: no new loans");
        int64_t left_ns = time_left(deadline_ns);
        if (left_ns == 0)
            return fail_full(connection, bytes, -RINGSIDE_E_TIMEOUT);
        link_tend(connection, left_ns < 0 || left_ns > CALL_TIMEOUT_NS);
        if (is_down(connection))
            return fail_down(connection);
        rs_wait_sleep(&ring->shared->slot_free, armed, left_ns);
        spin_until_ns = 0;
    }
}

int loan_take(struct ringside *connection, uint64_t bytes, int64_t timeout_ns, struct rs_loan *loan)
{
    struct rs_ring *ring = &connection->own.ring;
    int class_index = rs_ring_class_for(ring, bytes);

    if (class_index < 0) {
        uint32_t last = ring->layout.class_count - 1;

        return fail(connection, class_index,
                    "%llu bytes fit no slot: the largest class has slots of %llu bytes "
                    "(ring.classes in the config)", (unsigned long long)bytes,
                    (unsigned long long)ring->layout.classes[last].slot_bytes);
    }
    if (UNLIKELY(rs_load_relaxed(&ring->shared->draining) != 0))
        return fail_with(connection, -RINGSIDE_E_DRAINING, "the sidecar is draining: no new loans");
    if (rs_ring_loan_hinted(ring, ring->client, (unsigned)class_index, loan) == 0)
        return 0;
    if (timeout_ns != 0)
        return wait_for_slot(connection, (unsigned)class_index, bytes, timeout_ns, loan);
    if (rs_ring_loan(ring, ring->client, (unsigned)class_index, loan) == 0)
        return 0;
    return fail_full(connection, bytes, -RINGSIDE_E_FULL);
}

SELDOM static int fail_plan(const struct ringside *connection, int error, size_t count)
{
    if (error == -RINGSIDE_E_DTYPE)
        return fail_with(connection, error, "a tensor has an unknown dtype code");
    return fail(connection, error,
                "1..%d tensors of rank 0..%d with extents >= 0 and less than 2^63 bytes can be sent "
                "(%zu tensors were given)", RS_MAX_TENSORS, RS_MAX_RANK, count);
}

/* dtype, rank and shape alone; sizes and places are ours to compute. */
static bool copy_shapes(struct rs_message *message, const struct ringside_tensor *tensors,
                        size_t count)
{
    if (tensors == NULL || count < 1 || count > RS_MAX_TENSORS)
        return false;
    message->tensor_count = (uint8_t)count;
    for (size_t i = 0; i < count; i++) {
        struct rs_tensor *to = &message->tensors[i];

        if (tensors[i].rank > RS_MAX_RANK)
            return false;
        to->dtype = tensors[i].dtype;
        to->rank = tensors[i].rank;
        for (unsigned dim = 0; dim < to->rank; dim++)
            to->shape[dim] = tensors[i].shape[dim];
    }
    return true;
}

static void fill_slot(struct ringside *connection, const struct rs_message *message,
                      const struct rs_loan *loan, struct ringside_slot *slot)
{
    struct rs_ring *ring = &connection->own.ring;
    struct body body = body_of(ring, loan->slot);

    slot->tensor_count = message->tensor_count;
    slot->metadata_capacity = message->metadata_bytes;
    slot->slot_bytes = body.bytes;
    slot->ticket = rs_ticket_pack((uint16_t)ring->layout.sidecar_id, loan->slot, loan->generation);
    slot->private_[SLOT_TAG] = tag_of(connection, TAG_LOAN);
    slot->private_[SLOT_LOAN] = (uint64_t)loan->slot << 32 | loan->generation;
    for (unsigned i = 0; i < message->tensor_count; i++) {
        const struct rs_tensor *from = &message->tensors[i];
        struct ringside_tensor *to = &slot->tensors[i];

        to->dtype = from->dtype;
        to->rank = from->rank;
        for (unsigned dim = 0; dim < from->rank; dim++)
            to->shape[dim] = from->shape[dim];
        to->data = body.base + from->offset;
        to->bytes = from->bytes;
    }
}

IN_ONE_PIECE int ringside_loan(struct ringside *connection, const struct ringside_tensor *tensors, size_t count,
                  uint32_t metadata_bytes, int64_t timeout_ns, struct ringside_slot *slot)
{
    struct rs_message message;
    struct rs_loan loan;
    uint64_t bytes;

    if (is_down(connection))
        return fail_down(connection);
    if (!copy_shapes(&message, tensors, count))
        return fail_plan(connection, -RINGSIDE_E_SHAPE, count);
    int rc = rs_message_plan(&message, metadata_bytes, &bytes);
    if (rc < 0)
        return fail_plan(connection, rc, count);
    rc = loan_take(connection, bytes, timeout_ns, &loan);
    if (rc < 0)
        return rc;
    /* While the caller writes its tensors, the header's line comes back from the last consumer. */
    rs_prefetch_write(&connection->own.ring.slots[loan.slot].header[0]);
    fill_slot(connection, &message, &loan, slot);
    return 0;
}

int slot_loan(struct ringside *connection, const struct ringside_slot *slot, struct rs_loan *loan)
{
    if (slot == NULL || slot->private_[SLOT_TAG] != tag_of(connection, TAG_LOAN))
        return fail_with(connection, -RINGSIDE_E_STATE,
                         "not a slot that this connection loaned and has not sent or abandoned");
    loan->slot = (uint32_t)(slot->private_[SLOT_LOAN] >> 32);
    loan->generation = (uint32_t)slot->private_[SLOT_LOAN];
    return 0;
}

void ringside_copy(void *to, const void *from, uint64_t bytes)
{
    rs_copy(to, from, bytes);
}

int ringside_abandon(struct ringside *connection, struct ringside_slot *slot)
{
    struct rs_loan loan;

    if (UNLIKELY(rs_load_relaxed(&connection->down) == RINGSIDE_E_FORKED))
        return fail_down(connection);
    int rc = slot_loan(connection, slot, &loan);
    if (rc < 0)
        return rc;
    slot->private_[SLOT_TAG] = 0;
    rc = rs_ring_abandon(&connection->own.ring, connection->own.ring.client, &loan);
    return rc < 0 ? fail_with(connection, rc, "the loan was taken back by the sidecar") : 0;
}

/* ---- publish ---- */

uint64_t message_data_bytes(const struct rs_message *message)
{
    uint64_t bytes = message->metadata_bytes;

    for (unsigned i = 0; i < message->tensor_count; i++)
        bytes += message->tensors[i].bytes;
    return bytes;
}

int loan_publish(struct ringside *connection, const struct rs_loan *loan, uint8_t *base,
                 struct rs_message *message, const struct outgoing *outgoing, unsigned first)
{
    struct rs_ring *ring = &connection->own.ring;
    const uint16_t *destinations = outgoing->route->destinations + first;
    unsigned count = outgoing->route->destination_count - first;

    if (message->ttl_ns == 0)
        message->ttl_ns = outgoing->route->ttl_ns;
    /* Ages of messages that do not expire are for people, and of long lives a tick of the kernel is nothing. */
    bool exact = message->ttl_ns != 0 && message->ttl_ns < COARSE_TTL_NS;
    message->publish_ns = (uint64_t)(exact ? rs_now_ns() : rs_now_coarse_ns());
    rs_message_store(message, &ring->slots[loan->slot], base);
    RS_FAILPOINT(send_stored);
    rs_ring_prepare(ring, loan, destinations, count, 0);
    int rc = rs_ring_seal(ring, ring->client, loan, 0);
    if (rc < 0)
        return fail_with(connection, rc, "the loan was taken back by the sidecar");
    for (unsigned i = 0; i < count; i++) {
        struct outlet *outlet = outgoing->outlets[first + i];

        push_delivery(connection, &outlet->inbox, rs_load_relaxed(&outlet->number), ring,
                      loan->slot, i);
    }
    RS_FAILPOINT(send_published);
    rs_ring_count(ring, ring->client, RS_SENT, 1);
    rs_ring_count(ring, ring->client, RS_SENT_BYTES, message_data_bytes(message));
    return 0;
}

/* ---- send and share ---- */

/* `offset`: of the first byte behind the tensors and the method. */
static int take_options(struct ringside *connection, const struct ringside_options *options,
                        const struct body *body, uint64_t offset, struct rs_message *message)
{
    message->ttl_ns = options->ttl_ns;
    message->stream_id = options->stream_id;
    message->sequence = options->sequence;
    memcpy(message->trace_id, options->trace_id, sizeof message->trace_id);
    message->metadata_kind = (uint8_t)options->metadata_kind;
    message->metadata_bytes = options->metadata_bytes;
    if (options->metadata_kind > RINGSIDE_TREE)
        return fail(connection, -RINGSIDE_E_INVALID, "metadata kind %u is unknown",
                    options->metadata_kind);
    if (options->metadata_bytes == 0)
        return 0;
    if (options->metadata == NULL || offset > body->bytes ||
        options->metadata_bytes > body->bytes - offset)
        return fail(connection, -RINGSIDE_E_INVALID,
                    "%u bytes of metadata do not fit the slot, which has %llu left: reserve them "
                    "with the loan", options->metadata_bytes,
                    (unsigned long long)(offset > body->bytes ? 0 : body->bytes - offset));
    message->metadata_offset = offset;
    memcpy(body->base + offset, options->metadata, options->metadata_bytes);
    return 0;
}

static int place_method(struct ringside *connection, const struct body *body, uint64_t offset,
                        const char *method, size_t bytes, struct rs_message *message)
{
    if (offset > body->bytes || bytes > body->bytes - offset)
        return fail(connection, -RINGSIDE_E_TOO_BIG,
                    "the name of method \"%s\" does not fit behind the tensors: reserve %zu bytes of "
                    "metadata for it with the loan", method, (bytes + 7) / 8 * 8);
    memcpy(body->base + offset, method, bytes);
    message->method_offset = offset;
    message->method_bytes = (uint8_t)bytes;
    return 0;
}

/* The header for a loaned slot. A caller may have made its tensors smaller since the loan, not moved them. */
int slot_describe(struct ringside *connection, const struct ringside_slot *slot,
                  const struct body *body, const struct ringside_options *options,
                  const char *method, size_t method_bytes, struct rs_message *message)
{
    static const struct ringside_options none;
    uint64_t bytes;

    if (!copy_shapes(message, slot->tensors, slot->tensor_count))
        return fail_plan(connection, -RINGSIDE_E_SHAPE, slot->tensor_count);
    int rc = rs_message_plan(message, 0, &bytes);
    if (rc < 0)
        return fail_plan(connection, rc, slot->tensor_count);
    for (unsigned i = 0; i < message->tensor_count; i++) {
        if (slot->tensors[i].data != body->base + message->tensors[i].offset)
            return fail(connection, -RINGSIDE_E_STATE,
                        "tensor %u is not where the loan put it: only the last tensor's shape may "
                        "be changed after the loan", i);
    }
    if (bytes > body->bytes)
        return fail_with(connection, -RINGSIDE_E_TOO_BIG,
                         "the last tensor was made larger than its slot after the loan");
    message->origin_ticket = 0;
    message->call_id = 0;
    uint64_t offset = rs_message_metadata_offset(message);
    if (method != NULL) {
        rc = place_method(connection, body, offset, method, method_bytes, message);
        if (rc < 0)
            return rc;
        offset += (method_bytes + 7) / 8 * 8;
    }
    return take_options(connection, options != NULL ? options : &none, body, offset, message);
}

IN_ONE_PIECE int ringside_send(struct ringside *connection, struct ringside_slot *slot, const char *name,
                  const struct ringside_options *options)
{
    struct outgoing outgoing;
    struct rs_message message;
    struct rs_loan loan;

    if (is_down(connection))
        return fail_down(connection);
    int rc = slot_loan(connection, slot, &loan);
    if (rc < 0)
        return rc;
    struct body body = body_of(&connection->own.ring, loan.slot);
    rc = route_find(connection, name, &outgoing.route);
    if (rc == 0)
        rc = slot_describe(connection, slot, &body, options, NULL, 0, &message);
    if (rc == 0)
        rc = outgoing_reserve(connection, &outgoing,
                              options != NULL ? options->timeout_ns : RINGSIDE_FOREVER);
    if (rc == 0)
        rc = loan_publish(connection, &loan, body.base, &message, &outgoing, 0);
    if (rc == 0)
        slot->private_[SLOT_TAG] = 0;
    return rc;
}

static int ticket_ttl(struct ringside *connection, uint64_t *ttl_ns)
{
    uint64_t longest_ns = settings_of(connection)->ticket_ttl_ns;

    if (*ttl_ns == 0)
        *ttl_ns = longest_ns;
    if (*ttl_ns > longest_ns)
        return fail(connection, -RINGSIDE_E_INVALID,
                    "a time to live of %llu ms is over the stage's longest of %llu ms "
                    "(tickets.ttl_ms in its config)", (unsigned long long)(*ttl_ns / 1000000),
                    (unsigned long long)(longest_ns / 1000000));
    return 0;
}

int ringside_share(struct ringside *connection, struct ringside_slot *slot, unsigned readers,
                   const struct ringside_options *options, uint64_t *ticket)
{
    struct rs_ring *ring = &connection->own.ring;
    struct rs_message message;
    struct rs_loan loan;

    if (is_down(connection))
        return fail_down(connection);
    if (readers > 255)
        return fail(connection, -RINGSIDE_E_INVALID,
                    "%u readers: 1..255, or 0 to keep it until it is freed", readers);
    int rc = slot_loan(connection, slot, &loan);
    if (rc < 0)
        return rc;
    struct body body = body_of(ring, loan.slot);
    rc = slot_describe(connection, slot, &body, options, NULL, 0, &message);
    if (rc == 0)
        rc = ticket_ttl(connection, &message.ttl_ns);
    if (rc < 0)
        return rc;
    message.publish_ns = (uint64_t)rs_now_ns();
    rs_message_store(&message, &ring->slots[loan.slot], body.base);
    rs_ring_prepare(ring, &loan, NULL, 0, rs_readers(loan.generation, readers, readers == 0));
    rc = rs_ring_seal(ring, ring->client, &loan, RS_FLAG_TICKET);
    if (rc < 0)
        return fail_with(connection, rc, "the loan was taken back by the sidecar");
    if (ticket != NULL)
        *ticket = slot->ticket;
    slot->private_[SLOT_TAG] = 0;
    rs_ring_count(ring, ring->client, RS_SHARED, 1);
    rs_ring_count(ring, ring->client, RS_SENT_BYTES, message_data_bytes(&message));
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Forward over the socket: in place where the message's ring knows the next inbox, else by a copy
 * in slices. */
#include <errno.h>
#include <string.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proxy/control.h"
#include "proxy/proxy.h"

#define COPY_SLICE_BYTES (2u << 20) /* per try, so that nobody waits long for the loop */

/* The destination table's entry of `ring` for the inbox that own destination `own` leads to, or -1.
 */
static int same_inbox(struct proxy *proxy, struct rs_ring *ring, unsigned own)
{
    const struct rs_destination *wanted = &proxy->ring.destinations[own];

    if (ring == &proxy->ring)
        return (int)own;
    for (uint32_t i = 0; i < ring->layout.destination_count; i++) {
        const struct rs_destination *entry = &ring->destinations[i];
        uint64_t state = rs_load_acquire(&entry->state);

        if (rs_destination_kind(state) == RS_DEST_INBOX && rs_destination_connected(state) &&
            rs_load_relaxed(&entry->incarnation[0]) == rs_load_relaxed(&wanted->incarnation[0]) &&
            rs_load_relaxed(&entry->incarnation[1]) == rs_load_relaxed(&wanted->incarnation[1]))
            return (int)i;
    }
    return -1;
}

/* Whether the message can go on in place, and where the table of its ring has the destinations. */
static bool find_places(struct proxy *proxy, const struct rs_lease *held, const struct route *route,
                        uint16_t destinations[RS_CONFIG_TARGETS_MAX])
{
    unsigned count = route->config->to_count;

    /* Words above the held one are needed for all routes but the last; a half-done forward would
     * double messages. */
    if (count > RS_MAX_DELIVERIES - (unsigned)held->delivery)
        return false;
    for (unsigned i = 0; i < count; i++) {
        int index = same_inbox(proxy, held->ring, route->destinations[i]);
        if (index < 0)
            return false;
        destinations[i] = (uint16_t)index;
    }
    for (unsigned i = held->delivery + 1u; count > 1 && i < held->delivery + count; i++) {
        uint64_t word = rs_load_seq_cst(&held->ring->slots[held->slot].delivery[i]);
        if (word != rs_delivery(held->generation, 0, 0, 0, RS_NONE))
            return false;
    }
    return true;
}

/* 1 when the message went on in place, 0 when it has to be copied, or -RINGSIDE_E_STATE. */
static int forward_in_place(struct proxy *proxy, const struct rs_lease *held,
                            const struct route *route, const uint16_t *destinations)
{
    unsigned count = route->config->to_count;
    uint8_t deliveries[RS_CONFIG_TARGETS_MAX];

    int done = rs_ring_forward(held, destinations, count, deliveries);
    for (int i = 0; i < done; i++) {
        unsigned own = route->destinations[i];
        unsigned number = held->ring == &proxy->ring
                              ? proxy->repair.ring_number[own]
                              : rs_destination_ring(rs_load_acquire(
                                    &held->ring->destinations[destinations[i]].state));
        if (rs_inbox_push(proxy->repair.inboxes[own], number, held->slot, deliveries[i]) != 0)
            rs_ring_bell(held->ring);
    }
    return done < 0 ? done : done == (int)count;
}

/* Bytes from the start of the slot that the message uses, its descriptors included. */
static uint64_t extent(const struct rs_message *header)
{
    uint64_t end = header->metadata_offset + header->metadata_bytes;
    uint64_t table_bytes = (header->tensor_count - UINT64_C(1)) * RS_DESCRIPTOR_BYTES;

    if (table_bytes > end)
        end = table_bytes;
    for (unsigned i = 0; i < header->tensor_count; i++) {
        if (header->tensors[i].offset + header->tensors[i].bytes > end)
            end = header->tensors[i].offset + header->tensors[i].bytes;
    }
    return end;
}

/* Finds a slot for the copy. 1: there is one; 0: not yet; a negative error: answered. */
static int begin_copy(struct wait *wait, uint64_t total)
{
    struct rs_ring *own = &wait->session->proxy->ring;
    int class = rs_ring_class_for(own, total);

    if (class < 0) {
        conn_reply_error(wait->call, class,
                         "the message of %llu bytes has to be copied and fits no slot of this "
                         "stage (ring.classes)",
                         (unsigned long long)total);
        return class;
    }
    if (control_loan_slot(wait->session, (unsigned)class, &wait->copy.loan) < 0)
        return 0;
    wait->copy.begun = true;
    wait->copy.total_bytes = total;
    return 1;
}

/* The loan has a ticket like any other, so its client may have given it away meanwhile. */
static bool copy_is_ours(const struct wait *wait)
{
    const struct rs_loan *loan = &wait->copy.loan;
    uint64_t state = rs_load_seq_cst(&wait->session->proxy->ring.slots[loan->slot].state);

    return state == rs_state(loan->generation, wait->session->number, RS_LOANED, 0);
}

/* 1: copied whole; 0: not yet; a negative error: answered. */
static int copy_slice(struct wait *wait, const struct rs_lease *held, struct rs_message *header)
{
    struct rs_ring *own = &wait->session->proxy->ring;
    uint64_t slot_bytes = rs_ring_slot_bytes(held->ring, held->slot);
    const uint8_t *from = control_body(held->ring, held->slot);

    if (rs_message_load(header, &held->ring->slots[held->slot], from, slot_bytes) < 0) {
        conn_reply_error(wait->call, -RINGSIDE_E_CORRUPT, "the message's header holds nonsense");
        return -RINGSIDE_E_CORRUPT;
    }
    header->call_id = 0; /* the copy of a reply answers nobody */
    uint64_t total = extent(header);
    if (!wait->copy.begun) {
        int rc = begin_copy(wait, total);
        if (rc <= 0)
            return rc;
    }
    /* The slot was chosen for what the header said then; who may write it is not trusted. */
    if (total != wait->copy.total_bytes) {
        conn_reply_error(wait->call, -RINGSIDE_E_CORRUPT,
                         "the message's header changed while it was copied");
        return -RINGSIDE_E_CORRUPT;
    }
    if (!copy_is_ours(wait)) {
        wait->copy.begun = false;
        conn_reply_error(wait->call, -RINGSIDE_E_STATE,
                         "the slot of the copy was abandoned or sent by this session");
        return -RINGSIDE_E_STATE;
    }
    uint64_t left = total - wait->copy.done_bytes;
    uint64_t bytes = left < COPY_SLICE_BYTES ? left : COPY_SLICE_BYTES;
    memcpy(control_body(own, wait->copy.loan.slot) + wait->copy.done_bytes,
           from + wait->copy.done_bytes, bytes);
    wait->copy.done_bytes += bytes;
    return bytes == left;
}

static void succeed(struct wait *wait, const struct rs_lease *held, bool in_place,
                    enum rs_counter counter)
{
    struct session_lease lease = session_lease_from(held);
    Ringside__V1__ForwardResponse response = RINGSIDE__V1__FORWARD_RESPONSE__INIT;
    struct session *session = wait->session;

    lease.reply = session_answerer(session, held->ring) != NULL;
    session_spend(session, &lease);
    session_forget_streamed(session, &lease);
    rs_ring_count(&session->proxy->ring, session->number, counter, 1);
    response.in_place = in_place;
    conn_reply(wait->call, &response.base, NULL, 0);
}

static int publish_copy(struct wait *wait, const struct rs_lease *held, const struct route *route,
                        const struct rs_message *header)
{
    struct proxy *proxy = wait->session->proxy;
    struct rs_loan *loan = &wait->copy.loan;

    rs_message_store(header, &proxy->ring.slots[loan->slot],
                     control_body(&proxy->ring, loan->slot));
    int rc = control_publish(proxy, wait->session->number, loan, route);
    wait->copy.begun = false; /* published, or lost */
    if (rc < 0) {
        conn_reply_error(wait->call, rc, "the copy's slot was lost meanwhile");
        return 1;
    }
    RS_FAILPOINT(session_copied);
    rs_ring_release(held);
    succeed(wait, held, false, RS_FORWARD_COPIES);
    return 1;
}

static int refuse(struct wait *wait, int error, const char *text)
{
    conn_reply_error(wait->call, error, "%s", text);
    return 1;
}

static int try_forward(struct wait *wait)
{
    const Ringside__V1__ForwardRequest *request =
        (const Ringside__V1__ForwardRequest *)wait->request;
    struct session *session = wait->session;
    struct proxy *proxy = session->proxy;
    const struct route *route = routes_find(&proxy->routes, request->route);
    uint16_t destinations[RS_CONFIG_TARGETS_MAX];
    struct session_lease lease;
    struct rs_lease held;
    struct rs_message header;

    int rc = session_lease_of(session, request->lease, &lease);
    if (rc == 0)
        rc = session_delivery(session, &lease, &held);
    if (rc < 0)
        return refuse(wait, rc, rs_strerror(rc));
    if (route == NULL)
        return refuse(wait, -RINGSIDE_E_NO_ROUTE, "the stage has no route of that name");
    if (rs_message_is_request(&held.ring->slots[held.slot]))
        return refuse(wait, -RINGSIDE_E_STATE,
                      "a call cannot be forwarded: its caller waits for this stage. Answer it");
    /* Room is made by a drop only when the message goes on at once. */
    bool in_place = !wait->copy.begun && find_places(proxy, &held, route, destinations);
    rc = control_room(wait, route, in_place);
    if (rc != 0)
        return rc > 0;
    rc = in_place ? forward_in_place(proxy, &held, route, destinations) : 0;
    if (rc < 0)
        return refuse(wait, rc, "the message was lost meanwhile");
    if (rc > 0) {
        succeed(wait, &held, true, RS_FORWARDED);
        return 1;
    }
    rc = copy_slice(wait, &held, &header);
    if (rc <= 0)
        return rc < 0;
    rc = control_room(wait, route, true);
    return rc == 0 ? publish_copy(wait, &held, route, &header) : rc > 0;
}

void control_forward(struct session *session, struct conn_call *call)
{
    ProtobufCMessage *request = conn_decode(call, &ringside__v1__forward_request__descriptor);

    if (request != NULL)
        control_wait(session, call, request, try_forward, WAIT_ROOM);
}

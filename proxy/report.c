/* SPDX-License-Identifier: Apache-2.0 */
/* Status, List and Describe: looks at the ring that take nothing and trust nothing in it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "proto/decode.h"
#include "proto/err.h"
#include "proxy/control.h"
#include "proxy/mend.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"
#include "proxy/watch.h"

#define PAGE_SLOTS  256u   /* slots in one answer of List: stays under a frame */
#define PAGE_LOOKS  65536u /* slots that one List looks at */
#define HOLDERS_MAX (RS_MAX_DELIVERIES + RS_MAX_READERS + 1)

/* ---- slots ---- */

struct slot_view {
    Ringside__V1__Slot slot;
    struct rs_ring *ring;         /* that it is of */
    char (*names)[RS_NAME_BYTES]; /* HOLDERS_MAX, for clients of another stage's ring; else NULL */
    Ringside__V1__Tensor tensors[RS_MAX_TENSORS], *tensor_pointers[RS_MAX_TENSORS];
    Ringside__V1__Holder holders[HOLDERS_MAX], *holder_pointers[HOLDERS_MAX];
    char stages[RS_MAX_DELIVERIES][RS_NAME_BYTES];
    char text[RS_TICKET_TEXT_BYTES];
    struct rs_message header;
    bool held; /* somebody holds it: it does not only wait */
};

static const char *const phase_names[] = {"free", "loaned", "sealed", "quarantined"};

static Ringside__V1__Holder *add_holder(struct slot_view *view, const char *state, uint64_t age_ns)
{
    size_t at = view->slot.n_holders++;
    Ringside__V1__Holder *holder = &view->holders[at];

    ringside__v1__holder__init(holder);
    view->holder_pointers[at] = holder;
    holder->state = (char *)state;
    holder->age_ns = age_ns;
    holder->delivery = -1;
    return holder;
}

/* A name of the tables, fit for a string of protobuf. */
static void load_name(rs_word *from, char name[RS_NAME_BYTES])
{
    uint64_t words[RS_NAME_BYTES / 8];

    for (unsigned i = 0; i < RS_NAME_BYTES / 8; i++)
        words[i] = rs_load_relaxed(&from[i]);
    memcpy(name, words, RS_NAME_BYTES);
    name[RS_NAME_BYTES - 1] = '\0';
    for (size_t i = 0, bytes = strlen(name); i < bytes;) {
        size_t step = rs_utf8_character((const uint8_t *)name + i, bytes - i);
        if (step == 0)
            name[i] = '?';
        i += step > 0 ? step : 1;
    }
}

static void name_holder(struct proxy *proxy, struct slot_view *view, Ringside__V1__Holder *holder,
                        unsigned number)
{
    holder->client_number = number;
    if (view->names == NULL) {
        holder->client = (char *)clients_name(proxy, (uint16_t)number);
    } else if (number < view->ring->layout.client_count) {
        char *name = view->names[holder - view->holders];

        load_name(view->ring->clients[number].name, name);
        holder->client = number == 0 ? (char *)"sidecar" : name;
    }
}

/* How long ago the sidecar first saw `word`; it watches its own ring only. */
static uint64_t age_of(struct proxy *proxy, const struct slot_view *view, unsigned what,
                       uint64_t word)
{
    return view->names == NULL ? watch_age_ns(proxy, view->slot.slot, what, word) : 0;
}

/* The client whose reader number it is, or -1. */
static int client_by_reader(struct proxy *proxy, const struct slot_view *view, unsigned reader)
{
    const struct rs_ring *ring = view->ring;

    if (view->names == NULL)
        return clients_by_reader(proxy, reader);
    for (uint32_t i = 1; i < ring->layout.client_count; i++) {
        uint64_t state = rs_load_acquire(&ring->clients[i].state);
        if (rs_client_phase(state) == RS_CLIENT_ALIVE && rs_client_reader(state) == reader)
            return (int)i;
    }
    return reader == 0 || reader == CLIENTS_SHARED_READER ? 0 : -1;
}

static void add_deliveries(struct proxy *proxy, struct slot_view *view, uint64_t state)
{
    struct rs_ring *ring = view->ring;

    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_acquire(&ring->slots[view->slot.slot].delivery[i]);
        unsigned phase = rs_delivery_phase(word);

        if (rs_delivery_generation(word) != rs_state_generation(state) ||
            (phase != RS_QUEUED && phase != RS_HELD))
            continue;
        Ringside__V1__Holder *holder =
            add_holder(view, phase == RS_HELD ? "held" : "queued",
                       phase == RS_HELD ? age_of(proxy, view, i, word) : view->slot.age_ns);
        if (phase == RS_HELD) {
            name_holder(proxy, view, holder, rs_delivery_holder(word));
            view->held = true;
        }
        unsigned destination = rs_delivery_destination(word);
        strcpy(view->stages[i], destination == RS_REPLY_DESTINATION ? "reply" : "");
        if (destination < ring->layout.destination_count)
            load_name(ring->destinations[destination].name, view->stages[i]);
        holder->destination = view->stages[i];
        holder->attempts = rs_delivery_attempts(word);
        holder->delivery = (int32_t)i;
    }
}

static void add_readers(struct proxy *proxy, struct slot_view *view)
{
    uint64_t readers = rs_load_acquire(&view->ring->slots[view->slot.slot].readers);
    uint64_t age_ns = age_of(proxy, view, WATCH_READING, watch_reading_word(readers));

    view->slot.readers_left = rs_readers_left(readers);
    if (readers & RS_READERS_KEPT)
        add_holder(view, "kept", view->slot.age_ns);
    else if (rs_readers_left(readers) > 0)
        add_holder(view, "shared", view->slot.age_ns);
    for (uint64_t bits = readers & RS_READERS_BITS; bits != 0; bits &= bits - 1) {
        int number = client_by_reader(proxy, view, (unsigned)__builtin_ctzll(bits));
        if (number < 0)
            continue;
        name_holder(proxy, view, add_holder(view, "reading", age_ns), (unsigned)number);
        view->held = true;
    }
}

/* As rs_message_load, where the body is not mapped: of several tensors it says nothing. From a
 * copy, for the count of tensors might change between two looks. */
static int load_header(struct rs_message *header, const struct rs_ring *ring, uint32_t slot)
{
    struct rs_slot copy = {0};

    for (unsigned i = 0; i < RS_HEADER_WORDS; i++)
        rs_store_relaxed(&copy.header[i], rs_load_relaxed(&ring->slots[slot].header[i]));
    return rs_load_relaxed(&copy.header[RS_HEADER_SUMMARY]) >> 56 == 1
               ? rs_message_load(header, &copy, NULL, rs_ring_slot_bytes(ring, slot))
               : -RINGSIDE_E_UNAVAILABLE;
}

static void add_message(struct slot_view *view, uint32_t slot, uint64_t state)
{
    struct rs_ring *ring = view->ring;
    uint64_t now = uv_hrtime();

    int rc = ring->body == NULL
                 ? load_header(&view->header, ring, slot)
                 : rs_message_load(&view->header, &ring->slots[slot], control_body(ring, slot),
                                   rs_ring_slot_bytes(ring, slot));
    if (rc < 0 || rs_load_seq_cst(&ring->slots[slot].state) != state)
        return; /* nonsense, or another message by now */
    wire_tensors_fill(&view->header, view->tensors, view->tensor_pointers);
    view->slot.n_tensors = view->header.tensor_count;
    view->slot.tensors = view->tensor_pointers;
    view->slot.metadata_bytes = view->header.metadata_bytes;
    view->slot.ttl_ns = view->header.ttl_ns;
    if (rs_state_phase(state) == RS_SEALED && now > view->header.publish_ns)
        view->slot.age_ns = now - view->header.publish_ns;
}

/* `names` as in the view: NULL for the own ring. */
static void view_slot(struct proxy *proxy, struct slot_view *view, struct rs_ring *ring,
                      char (*names)[RS_NAME_BYTES], uint32_t slot, uint64_t state)
{
    uint16_t sidecar_id = (uint16_t)ring->layout.sidecar_id;
    unsigned phase = rs_state_phase(state);

    memset(view, 0, offsetof(struct slot_view, tensors));
    view->held = false;
    view->ring = ring;
    view->names = names;
    ringside__v1__slot__init(&view->slot);
    rs_ticket_format(view->text, sidecar_id, slot, rs_state_generation(state),
                     (uint32_t)ring->layout.incarnation[0]);
    view->slot.slot = slot;
    view->slot.ticket = rs_ticket_pack(sidecar_id, slot, rs_state_generation(state));
    view->slot.text = view->text;
    view->slot.state = (char *)(phase <= RS_QUARANTINED ? phase_names[phase] : "unknown");
    view->slot.slot_bytes = rs_ring_slot_bytes(ring, slot);
    view->slot.holders = view->holder_pointers;
    if (phase == RS_LOANED) {
        view->slot.age_ns = age_of(proxy, view, WATCH_LOAN, state);
        name_holder(proxy, view, add_holder(view, "loaned", view->slot.age_ns),
                    rs_state_owner(state));
        view->held = true;
    } else if (phase == RS_SEALED) {
        add_message(view, slot, state);
        add_deliveries(proxy, view, state);
        if (rs_state_flags(state) & RS_FLAG_TICKET)
            add_readers(proxy, view);
    }
}

void report_list(struct proxy *proxy, struct conn_call *call)
{
    Ringside__V1__ListRequest *request =
        (Ringside__V1__ListRequest *)conn_decode(call, &ringside__v1__list_request__descriptor);
    Ringside__V1__ListResponse response = RINGSIDE__V1__LIST_RESPONSE__INIT;
    Ringside__V1__Slot *slots[PAGE_SLOTS];
    uint32_t count = proxy->ring.layout.slot_count;

    if (request == NULL)
        return;
    uint32_t slot = request->first_slot;
    bool held_only = request->held_only;
    conn_free_message(&request->base);
    struct slot_view *views = malloc(PAGE_SLOTS * sizeof *views);
    if (views == NULL) {
        conn_reply_error(call, -ENOMEM, "out of memory");
        return;
    }
    for (uint32_t looks = 0; slot < count && looks < PAGE_LOOKS && response.n_slots < PAGE_SLOTS;
         slot++, looks++) {
        struct slot_view *view = &views[response.n_slots];
        uint64_t state = rs_load_seq_cst(&proxy->ring.slots[slot].state);

        if (rs_state_phase(state) == RS_FREE)
            continue;
        view_slot(proxy, view, &proxy->ring, NULL, slot, state);
        if (held_only && !view->held)
            continue;
        slots[response.n_slots++] = &view->slot;
    }
    response.slots = slots;
    response.next_slot = slot < count ? slot : 0;
    conn_reply(call, &response.base, NULL, 0);
    free(views);
}

/* Of a sealed or loaned slot in the ticket's generation. 0 or a negative error. */
static int find_slot(struct proxy *proxy, const struct rs_ticket *ticket, struct rs_ring **ring,
                     uint64_t *state)
{
    uint32_t mask = ticket->has_text ? UINT32_MAX : RS_TICKET_GENERATION_MASK;
    unsigned ring_number;

    int rc = control_ticket_ring(proxy, ticket, ring, &ring_number);
    if (rc == -RINGSIDE_E_FOREIGN_TICKET && (*ring = peers_ticket_ring(proxy, ticket)) != NULL)
        rc = rs_ring_ticket_slot(*ring, ticket);
    if (rc < 0)
        return rc;
    *state = rs_load_seq_cst(&(*ring)->slots[ticket->slot].state);
    return rs_state_phase(*state) == RS_FREE ||
                   ((rs_state_generation(*state) ^ ticket->generation) & mask) != 0
               ? -RINGSIDE_E_STALE_TICKET
               : 0;
}

void report_describe(struct proxy *proxy, struct conn_call *call)
{
    Ringside__V1__DescribeRequest *request = (Ringside__V1__DescribeRequest *)conn_decode(
        call, &ringside__v1__describe_request__descriptor);
    Ringside__V1__DescribeResponse response = RINGSIDE__V1__DESCRIBE_RESPONSE__INIT;
    struct {
        struct slot_view view;
        char names[HOLDERS_MAX][RS_NAME_BYTES];
    } *described = NULL;
    struct rs_ticket ticket = {0};
    struct rs_ring *ring = NULL;
    uint64_t state = 0;

    if (request == NULL)
        return;
    int rc = control_ticket(
        &ticket, request->ticket,
        request->by_case == RINGSIDE__V1__DESCRIBE_REQUEST__BY_TEXT ? request->text : NULL);
    conn_free_message(&request->base);
    if (rc == 0)
        rc = find_slot(proxy, &ticket, &ring, &state);
    if (rc == 0 && (described = malloc(sizeof *described)) == NULL)
        rc = -ENOMEM;
    if (rc < 0) {
        control_refuse_ticket(call, rc, &ticket);
        return;
    }
    view_slot(proxy, &described->view, ring, ring == &proxy->ring ? NULL : described->names,
              ticket.slot, state);
    response.slot = &described->view.slot;
    conn_reply(call, &response.base, NULL, 0);
    free(described);
}

/* ---- status ---- */

struct client_view {
    Ringside__V1__ClientStatus status;
    Ringside__V1__Counters counters;
};

/* Everything of one Status answer; the pointers of the answer lead into it. */
struct status_view {
    Ringside__V1__StatusResponse response;
    Ringside__V1__Counters totals;
    Ringside__V1__ClassStatus classes[RS_MAX_CLASSES], *class_pointers[RS_MAX_CLASSES];
    uint8_t incarnation[16];
    struct client_view *clients;                  /* by number; owned */
    Ringside__V1__ClientStatus **client_pointers; /* owned */
};

static void add_counters(struct proxy *proxy, uint32_t number, Ringside__V1__Counters *to)
{
    uint64_t *const fields[] = {
        &to->sent,           &to->received,  &to->released,      &to->forwarded,
        &to->forward_copies, &to->nacked,    &to->shared,        &to->reads,
        &to->expired,        &to->dropped,   &to->dead_lettered, &to->requeued,
        &to->sent_bytes,     &to->overflows, &to->calls,         &to->replies};

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        *fields[i] += rs_load_relaxed(&proxy->ring.clients[number].counter[i]);
}

static void add_clients(struct proxy *proxy, struct status_view *view, const struct census *census)
{
    static const char *const states[] = {"free", "attached", "detached", "dead"};
    Ringside__V1__StatusResponse *response = &view->response;

    for (uint32_t i = 0; i < clients_end(proxy); i++) {
        struct client_view *client = &view->clients[i];
        enum client_phase phase = clients_phase(proxy, (uint16_t)i);

        add_counters(proxy, i, &view->totals);
        if (i == 0 || phase == CLIENT_FREE)
            continue;
        add_counters(proxy, i, &client->counters);
        client->status.number = i;
        client->status.name = (char *)clients_name(proxy, (uint16_t)i);
        client->status.state = (char *)states[phase];
        client->status.pid = clients_pid(proxy, (uint16_t)i);
        client->status.loans = census->clients[i].loans;
        client->status.leases = census->clients[i].leases;
        client->status.oldest_lease_ns = census->clients[i].oldest_lease_ns;
        client->status.counters = &client->counters;
        if (!clients_is_foreign(proxy, (uint16_t)i))
            client->status.home = proxy->config.stage;
        view->client_pointers[response->n_clients++] = &client->status;
    }
    response->clients = view->client_pointers;
}

static void add_classes(struct proxy *proxy, struct status_view *view, const struct census *census)
{
    const struct rs_superblock *layout = &proxy->ring.layout;
    Ringside__V1__StatusResponse *response = &view->response;

    for (uint32_t i = 0; i < layout->class_count; i++) {
        Ringside__V1__ClassStatus *class = &view->classes[i];

        ringside__v1__class_status__init(class);
        class->slot_bytes = layout->classes[i].slot_bytes;
        class->slots = layout->classes[i].slots;
        class->free = census->classes[i].free;
        class->loaned = census->classes[i].loaned;
        class->sealed = census->classes[i].sealed;
        class->quarantined = census->classes[i].quarantined;
        response->quarantined += class->quarantined;
        view->class_pointers[i] = class;
    }
    response->n_classes = layout->class_count;
    response->classes = view->class_pointers;
}

static void fill_status(struct proxy *proxy, struct status_view *view, const struct census *census)
{
    const struct rs_superblock *layout = &proxy->ring.layout;
    struct mend_counts counts = mend_counts(proxy);
    Ringside__V1__StatusResponse *response = &view->response;

    memcpy(view->incarnation, layout->incarnation, sizeof view->incarnation);
    response->stage = proxy->config.stage;
    response->sidecar_id = layout->sidecar_id;
    response->incarnation = (ProtobufCBinaryData){.len = 16, .data = view->incarnation};
    response->epoch = rs_load_relaxed(&layout->epoch);
    response->version = (char *)RINGSIDE_VERSION;
    response->state = (char *)(proxy->damaged                  ? "damaged"
                               : proxy->phase == PROXY_SERVING ? "serving"
                                                               : "draining");
    response->uptime_ns = uv_hrtime() - (uint64_t)proxy->started_ns;
    response->page_bytes = proxy->files.page_bytes;
    response->pages = proxy->files.pages;
    response->numa = proxy->files.numa;
    response->lock = proxy->files.lock;
    response->inbox_cells = layout->inbox_cells;
    response->inbox_depth = rs_inbox_depth_now(&proxy->inbox);
    response->inbox_limit = proxy->inbox.depth;
    response->clients_max = proxy->config.clients.max;
    response->totals = &view->totals;
    response->audits = counts.audits;
    response->sweeps = counts.sweeps;
    response->log_suppressed = proxy->log.suppressed + proxy->log.dropped;
    response->pid = (uint32_t)getpid();
    add_classes(proxy, view, census);
    add_clients(proxy, view, census);
}

struct status_call {
    struct census_request request;
    struct conn_call *call;
};

static void on_status_cancelled(struct conn_call *call)
{
    struct status_call *status = call->data;

    census_forget(conn_proxy(call->conn), &status->request);
    free(status);
}

static void answer_status(struct proxy *proxy, struct conn_call *call, const struct census *census)
{
    uint32_t end = clients_end(proxy);
    struct status_view view = {.response = RINGSIDE__V1__STATUS_RESPONSE__INIT,
                               .totals = RINGSIDE__V1__COUNTERS__INIT};
    Ringside__V1__StatusResponse *response = &view.response;

    view.clients = calloc(end, sizeof *view.clients);
    view.client_pointers = calloc(end, sizeof *view.client_pointers);
    if (view.clients == NULL || view.client_pointers == NULL ||
        peers_status(proxy, &response->peers, &response->n_peers) < 0) {
        conn_reply_error(call, -ENOMEM, "out of memory");
    } else {
        for (uint32_t i = 0; i < end; i++) {
            ringside__v1__client_status__init(&view.clients[i].status);
            ringside__v1__counters__init(&view.clients[i].counters);
        }
        fill_status(proxy, &view, census);
        conn_reply(call, &response->base, NULL, 0);
        for (size_t i = 0; i < response->n_peers; i++)
            ringside__v1__peer_status__free_unpacked(response->peers[i], NULL);
        free(response->peers);
    }
    free(view.clients);
    free(view.client_pointers);
}

static void on_census(struct proxy *proxy, const struct census *census, void *data)
{
    struct status_call *status = data;

    answer_status(proxy, status->call, census);
    free(status);
}

void report_status(struct proxy *proxy, struct conn_call *call)
{
    struct status_call *status = malloc(sizeof *status);

    if (status == NULL) {
        conn_reply_error(call, -ENOMEM, "out of memory");
        return;
    }
    status->call = call;
    call->data = status;
    call->cancelled = on_status_cancelled;
    census_ask(proxy, &status->request, on_census, status);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at a sidecar once a refresh: rates from two looks, ages from what is queued or held just
 * then. */
#include "client/cli/top_data.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/slots.h"
#include "proto/err.h"

#define SERVICE "ringside.v1.Control"
#define PAGES \
    16 /* of List a look: some thousand slots; more would keep the sidecar from its work */

void top_stage_init(struct top_stage *stage, const char *socket)
{
    *stage = (struct top_stage){.socket = socket};
}

static void disconnect(struct top_stage *stage)
{
    if (stage->connected)
        rs_ttrpc_client_finish(&stage->client);
    stage->connected = false;
}

void top_stage_finish(struct top_stage *stage)
{
    disconnect(stage);
    sample_finish(&stage->queued);
    for (unsigned i = 0; i < TOP_LOOKS; i++)
        sample_finish(&stage->looks[i]);
    free(stage->holders);
    stage->holders = NULL;
}

static bool connect_stage(struct top_stage *stage)
{
    if (stage->connected)
        return true;
    int rc = rs_ttrpc_client_connect(&stage->client, stage->socket, 0, stage->error,
                                     sizeof stage->error);
    stage->connected = rc == 0;
    if (rc < 0 && stage->error[0] == '\0')
        snprintf(stage->error, sizeof stage->error, "%s", rs_strerror(rc));
    return stage->connected;
}

/* False: stage->error says why. */
static bool ask(struct top_stage *stage, const char *method, const ProtobufCMessage *request,
                const ProtobufCMessageDescriptor *type, ProtobufCMessage **response,
                int64_t timeout_ns)
{
    char text[TOP_TEXT_BYTES] = "";
    int rc = rs_ttrpc_call(&stage->client, SERVICE, method, request, type, response, NULL, NULL,
                           timeout_ns, text, sizeof text);

    if (rc < 0)
        snprintf(stage->error, sizeof stage->error, "%.24s: %.130s", rs_error_name(rc),
                 text[0] != '\0' ? text : rs_strerror(rc));
    if (stage->client.error != 0)
        disconnect(stage);
    return rc == 0;
}

/* ---- status ---- */

static double rate(uint64_t before, uint64_t now, uint64_t took_ns)
{
    return (double)(now - before) * 1e9 / (double)took_ns;
}

/* Counters of one ring only grow, but threads of a worker that race may lose a count, and a look
 * may come while those of a dead worker are being moved: then there is no rate. */
static void take_counts(struct top_stage *stage, const Ringside__V1__StatusResponse *status)
{
    static const Ringside__V1__Counters none = RINGSIDE__V1__COUNTERS__INIT;
    const Ringside__V1__Counters *totals = status->totals != NULL ? status->totals : &none;
    struct top_counts *last = &stage->last;
    struct top_counts now = {cli_now_ns(), totals->sent, totals->received, totals->sent_bytes, {0}};

    if (status->incarnation.len == sizeof now.incarnation)
        memcpy(now.incarnation, status->incarnation.data, sizeof now.incarnation);
    stage->has_rates = last->at_ns != 0 && now.at_ns > last->at_ns && now.sent >= last->sent &&
                       now.received >= last->received && now.sent_bytes >= last->sent_bytes &&
                       memcmp(now.incarnation, last->incarnation, sizeof now.incarnation) == 0;
    if (stage->has_rates) {
        uint64_t took_ns = now.at_ns - last->at_ns;
        stage->sent_rate = rate(last->sent, now.sent, took_ns);
        stage->received_rate = rate(last->received, now.received, took_ns);
        stage->byte_rate = rate(last->sent_bytes, now.sent_bytes, took_ns);
    }
    *last = now;
}

static void take_status(struct top_stage *stage, const Ringside__V1__StatusResponse *status)
{
    snprintf(stage->stage, sizeof stage->stage, "%s", status->stage);
    snprintf(stage->state, sizeof stage->state, "%s", status->state);
    stage->inbox_depth = status->inbox_depth;
    stage->inbox_limit = status->inbox_limit;
    stage->clients = (uint32_t)status->n_clients;
    stage->class_count = status->n_classes < RS_MAX_CLASSES ? status->n_classes : RS_MAX_CLASSES;
    for (size_t i = 0; i < stage->class_count; i++) {
        const Ringside__V1__ClassStatus *from = status->classes[i];
        stage->classes[i] = (struct top_class){.slot_bytes = from->slot_bytes,
                                               .slots = from->slots,
                                               .free = from->free,
                                               .loaned = from->loaned,
                                               .sealed = from->sealed,
                                               .quarantined = from->quarantined};
    }
    take_counts(stage, status);
}

static bool look_at_status(struct top_stage *stage, int64_t timeout_ns)
{
    Ringside__V1__StatusRequest request = RINGSIDE__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *response;

    if (!ask(stage, "Status", &request.base, &ringside__v1__status_response__descriptor, &response,
             timeout_ns))
        return false;
    take_status(stage, (const Ringside__V1__StatusResponse *)response);
    protobuf_c_message_free_unpacked(response, NULL);
    return true;
}

/* ---- slots ---- */

static void add_holder(struct top_stage *stage, const Ringside__V1__Slot *slot,
                       const Ringside__V1__Holder *from)
{
    if (stage->holder_count == stage->holder_room) {
        stage->holder_room = stage->holder_room > 0 ? 2 * stage->holder_room : 64;
        stage->holders =
            output_need(reallocarray(stage->holders, stage->holder_room, sizeof *stage->holders));
    }
    struct top_holder *holder = &stage->holders[stage->holder_count++];
    snprintf(holder->state, sizeof holder->state, "%s", from->state);
    slots_holder(holder->client, sizeof holder->client, from);
    snprintf(holder->ticket, sizeof holder->ticket, "%s", slot->text);
    holder->age_ns = from->age_ns;
    holder->bytes = slots_tensor_bytes(slot);
    for (size_t i = 0; i < stage->class_count; i++) {
        struct top_class *class = &stage->classes[i];
        if (class->slot_bytes == slot->slot_bytes &&
            (class->oldest.state[0] == '\0' || class->oldest.age_ns < holder->age_ns))
            class->oldest = *holder;
    }
}

static void take_slot(struct top_stage *stage, const Ringside__V1__Slot *slot)
{
    for (size_t i = 0; i < slot->n_holders; i++) {
        const Ringside__V1__Holder *holder = slot->holders[i];
        if (strcmp(holder->state, "queued") == 0) {
            sample_add(&stage->looks[stage->next_look], holder->age_ns);
        } else if (strcmp(holder->state, "shared") != 0 && strcmp(holder->state, "kept") != 0) {
            add_holder(stage, slot, holder);
        }
    }
}

/* One page; *next is 0 after the last. */
static bool look_at_page(struct top_stage *stage, uint32_t first, uint32_t *next,
                         int64_t timeout_ns)
{
    Ringside__V1__ListRequest request = RINGSIDE__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *response;

    request.first_slot = first;
    if (!ask(stage, "List", &request.base, &ringside__v1__list_response__descriptor, &response,
             timeout_ns))
        return false;
    const Ringside__V1__ListResponse *list = (const Ringside__V1__ListResponse *)response;
    for (size_t i = 0; i < list->n_slots; i++)
        take_slot(stage, list->slots[i]);
    *next = list->next_slot;
    protobuf_c_message_free_unpacked(response, NULL);
    return true;
}

static int compare_age(const void *left, const void *right)
{
    uint64_t a = ((const struct top_holder *)left)->age_ns;
    uint64_t b = ((const struct top_holder *)right)->age_ns;

    return (a < b) - (a > b);
}

static void merge_looks(struct top_stage *stage)
{
    stage->queued.count = 0;
    stage->queued.sorted = false;
    for (unsigned i = 0; i < TOP_LOOKS; i++) {
        for (size_t k = 0; k < stage->looks[i].count; k++)
            sample_add(&stage->queued, stage->looks[i].values_ns[k]);
    }
}

static bool look_at_slots(struct top_stage *stage, int64_t timeout_ns)
{
    uint32_t first = 0, next = 0;
    bool answered = true;

    stage->holder_count = 0;
    stage->looks[stage->next_look].count = 0;
    for (unsigned page = 0; page < PAGES && answered; page++) {
        answered = look_at_page(stage, first, &next, timeout_ns);
        if (next <= first) /* the last, or a sidecar that goes in circles */
            break;
        first = next;
    }
    stage->partial = next > 0;
    stage->next_look = (stage->next_look + 1) % TOP_LOOKS;
    merge_looks(stage);
    if (stage->holder_count > 0)
        qsort(stage->holders, stage->holder_count, sizeof *stage->holders, compare_age);
    return answered;
}

void top_stage_look(struct top_stage *stage, int64_t timeout_ns)
{
    stage->error[0] = '\0';
    if (connect_stage(stage) && look_at_status(stage, timeout_ns) &&
        look_at_slots(stage, timeout_ns))
        return;
    stage->has_rates = false;
}

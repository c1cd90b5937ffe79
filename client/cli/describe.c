/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside describe`: what a ticket names. */
#include <inttypes.h>
#include <stdio.h>

#include "client/cli/cli.h"
#include "client/cli/to_json.h"
#include "client/cli/output.h"
#include "client/cli/slots.h"
#include "client/cli/worker.h"
#include "control.pb-c.h"

#define TITLE_COLUMNS 10
#define TEXT_BYTES    512

static const struct table_column holder_columns[] = {
    {"STATE", false, false},   {"CLIENT", false, true},      {"NUMBER", true, false},
    {"FOR", true, false},      {"DESTINATION", false, true}, {"DELIVERY", true, false},
    {"ATTEMPTS", true, false},
};

static const struct table_column tensor_columns[] = {
    {"TENSOR", true, false},
    {"DTYPE AND SHAPE", false, true},
    {"OFFSET", true, false},
    {"BYTES", true, false},
};

static void set_ticket(const struct worker_ticket *ticket, Ringside__V1__DescribeRequest *request)
{
    request->by_case = ticket->text != NULL ? RINGSIDE__V1__DESCRIBE_REQUEST__BY_TEXT
                                            : RINGSIDE__V1__DESCRIBE_REQUEST__BY_TICKET;
    if (ticket->text != NULL)
        request->text = (char *)(uintptr_t)ticket->text;
    else
        request->ticket = ticket->number;
}

static void print_line(const char *title, const char *text)
{
    output_line(title, TITLE_COLUMNS, text);
}

static void print_head(const Ringside__V1__Slot *slot)
{
    char text[TEXT_BYTES], a[OUTPUT_NUMBER_BYTES], b[OUTPUT_NUMBER_BYTES];

    snprintf(text, sizeof text, "%s (0x%016" PRIx64 ")", slot->text, slot->ticket);
    print_line("ticket", text);
    snprintf(text, sizeof text, "%s, %s old", slot->state, output_duration(a, slot->age_ns));
    print_line("state", text);
    if (slot->ttl_ns > 0) {
        bool over = slot->age_ns >= slot->ttl_ns;
        snprintf(text, sizeof text, "%s%s%s", output_duration(a, slot->ttl_ns),
                 over ? ", over" : ", left: ",
                 over ? "" : output_duration(b, slot->ttl_ns - slot->age_ns));
        print_line("lifetime", text);
    }
    snprintf(text, sizeof text,
             "number %" PRIu32 " of %s; tensors take %" PRIu64 " bytes, metadata %" PRIu32,
             slot->slot, output_bytes(a, slot->slot_bytes), slots_tensor_bytes(slot),
             slot->metadata_bytes);
    print_line("slot", text);
    if (slot->readers_left > 0) {
        snprintf(text, sizeof text, "%" PRIu32 " left", slot->readers_left);
        print_line("readers", text);
    }
}

static void print_holders(const Ringside__V1__Slot *slot)
{
    char text[TEXT_BYTES];
    struct table table;

    if (slot->n_holders == 0)
        return;
    table_init(&table, holder_columns, sizeof holder_columns / sizeof holder_columns[0]);
    for (size_t i = 0; i < slot->n_holders; i++) {
        const Ringside__V1__Holder *holder = slot->holders[i];
        bool delivery = holder->delivery >= 0 && holder->destination[0] != '\0';
        table_text(&table, holder->state);
        table_text(&table, slots_holder(text, sizeof text, holder));
        table_format(&table, "%" PRIu32, holder->client_number);
        table_duration(&table, holder->age_ns);
        table_text(&table, holder->destination);
        if (delivery) {
            table_format(&table, "%" PRId32, holder->delivery);
            table_format(&table, "%" PRIu32, holder->attempts);
        } else {
            table_text(&table, "");
            table_text(&table, "");
        }
    }
    putchar('\n');
    table_print(&table, stdout, output_columns());
    table_finish(&table);
}

static void print_tensors(const Ringside__V1__Slot *slot)
{
    char text[TEXT_BYTES];
    struct table table;

    if (slot->n_tensors == 0)
        return;
    table_init(&table, tensor_columns, sizeof tensor_columns / sizeof tensor_columns[0]);
    for (size_t i = 0; i < slot->n_tensors; i++) {
        table_format(&table, "%zu", i);
        table_text(&table, slots_tensor(text, sizeof text, slot->tensors[i]));
        table_format(&table, "%" PRIu64, slot->tensors[i]->offset);
        table_format(&table, "%" PRIu64, slot->tensors[i]->bytes);
    }
    putchar('\n');
    table_print(&table, stdout, output_columns());
    table_finish(&table);
}

static int run(struct cli *cli, int count, char **arguments)
{
    Ringside__V1__DescribeRequest request = RINGSIDE__V1__DESCRIBE_REQUEST__INIT;
    struct worker_ticket ticket;
    ProtobufCMessage *response;

    (void)count;
    int status = worker_ticket(cli, arguments[0], &ticket);
    if (status == CLI_OK) {
        set_ticket(&ticket, &request);
        status = cli_connect(cli);
    }
    if (status == CLI_OK)
        status = cli_call(cli, "Describe", &request.base,
                          &ringside__v1__describe_response__descriptor, &response);
    if (status != CLI_OK)
        return status;
    const Ringside__V1__Slot *slot = ((const Ringside__V1__DescribeResponse *)response)->slot;
    if (slot == NULL) {
        status = cli_fail(cli, CLI_FAILED, "the sidecar's answer lacks the slot");
    } else if (cli->json) {
        json_print(json_from_message(&slot->base));
    } else {
        print_head(slot);
        print_holders(slot);
        print_tensors(slot);
    }
    protobuf_c_message_free_unpacked(response, NULL);
    return status;
}

const struct cli_command describe_command = {
    .name = "describe",
    .summary = "what a ticket names: its state, holders and tensors",
    .arguments = "TICKET",
    .description =
        "Shows the message that a ticket names, of the sidecar's own ring. TICKET is the text form "
        "(rst1-...), or the 64-bit number, decimal or hexadecimal after 0x. The text form is the "
        "safe one: it also carries the ring's incarnation and the whole generation. A number may, "
        "very rarely, come true again for a later message.\n\n"
        "Takes no lease: the message may be gone when you read this. FOR is how long a holder has "
        "had it, as far as the sidecar has seen; ATTEMPTS counts earlier deliveries that were not "
        "acknowledged.",
    .examples = "    ringside describe rst1-000100002000000ab-5f3a9c11-772c\n"
                "    ringside describe 0x00010000200000ab --json | jq -r .state\n",
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};

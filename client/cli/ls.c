/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside ls`: every live message of the ring, and who has it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/to_json.h"
#include "client/cli/output.h"
#include "client/cli/slots.h"
#include "control.pb-c.h"

#define TEXT_BYTES 512

static bool held_only;

static const struct cli_option options[] = {
    {"held", 'l', CLI_FLAG, &held_only, NULL,
     "Leave out messages that only wait in an inbox: show loans, leases and readers."},
    {0},
};

static const struct table_column columns[] = {
    {"TICKET", false, false}, {"STATE", false, false}, {"HOLDER", false, true},
    {"AGE", true, false},     {"SIZE", true, false},   {"TENSORS", false, true},
};

/* A queued message has no holder yet; where it goes tells more. */
static void add_holder(struct table *table, const Ringside__V1__Slot *slot,
                       const Ringside__V1__Holder *holder)
{
    char text[TEXT_BYTES] = "";

    if (holder == NULL) {
        table_text(table, slot->state);
        table_text(table, "");
        table_duration(table, slot->age_ns);
        return;
    }
    table_text(table, holder->state);
    if (strcmp(holder->state, "queued") == 0)
        snprintf(text, sizeof text, "for %s", holder->destination);
    else
        slots_holder(text, sizeof text, holder);
    table_text(table, text);
    table_duration(table, holder->age_ns);
}

/* How many, when there are several, then as many as fit. */
static void add_tensors(struct table *table, const Ringside__V1__Slot *slot)
{
    char text[TEXT_BYTES] = "";
    size_t at = 0;

    if (slot->n_tensors > 1)
        at = (size_t)snprintf(text, sizeof text, "%zu:", slot->n_tensors);
    for (size_t i = 0; i < slot->n_tensors && at + 2 < sizeof text; i++) {
        if (at > 0)
            text[at++] = ' ';
        slots_tensor(text + at, sizeof text - at, slot->tensors[i]);
        at += strlen(text + at);
    }
    table_text(table, text);
}

/* One row a holder; what belongs to the message stands in the first. */
static void add_slot(struct table *table, const Ringside__V1__Slot *slot)
{
    size_t rows = slot->n_holders > 0 ? slot->n_holders : 1;

    for (size_t i = 0; i < rows; i++) {
        if (i == 0)
            table_format(table, "0x%016" PRIx64, slot->ticket);
        else
            table_text(table, "");
        add_holder(table, slot, slot->n_holders > 0 ? slot->holders[i] : NULL);
        if (i == 0) {
            table_bytes(table, slots_tensor_bytes(slot));
            add_tensors(table, slot);
        } else {
            table_text(table, "");
            table_text(table, "");
        }
    }
}

/* Asks for one page; *next is 0 after the last. */
static int page(struct cli *cli, uint32_t first, struct table *table, json_t *slots, uint32_t *next)
{
    Ringside__V1__ListRequest request = RINGSIDE__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *response;

    request.first_slot = first;
    request.held_only = held_only;
    int status =
        cli_call(cli, "List", &request.base, &ringside__v1__list_response__descriptor, &response);
    if (status != CLI_OK)
        return status;
    const Ringside__V1__ListResponse *list = (const Ringside__V1__ListResponse *)response;
    for (size_t i = 0; i < list->n_slots; i++) {
        if (cli->json)
            json_array_append_new(slots, json_from_message(&list->slots[i]->base));
        else
            add_slot(table, list->slots[i]);
    }
    *next = list->next_slot;
    protobuf_c_message_free_unpacked(response, NULL);
    if (*next != 0 && *next <= first)
        return cli_fail(cli, CLI_FAILED,
                        "the page from slot %" PRIu32 " is followed by one from %" PRIu32
                        "; this sidecar would never end",
                        first, *next);
    return CLI_OK;
}

static int run(struct cli *cli, int count, char **arguments)
{
    int status = cli_connect(cli);
    uint32_t first = 0;
    struct table table;

    (void)count;
    (void)arguments;
    if (status != CLI_OK)
        return status;
    json_t *slots = output_need(json_array());
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    do
        status = page(cli, first, &table, slots, &first);
    while (status == CLI_OK && first != 0);
    if (status == CLI_OK && cli->json)
        json_print(json_pack("{s:O}", "slots", slots));
    else if (status == CLI_OK && table.cell_count > 0)
        table_print(&table, stdout, output_columns());
    json_decref(slots);
    table_finish(&table);
    return status;
}

const struct cli_command ls_command = {
    .name = "ls",
    .summary = "every live message of the ring, with its holders",
    .description =
        "Lists the slots that are not free, one row a holder. STATE is what the holder does: "
        "loaned (it writes a message), queued (it waits in the inbox of the stage that HOLDER "
        "names), held (a worker has received and not yet released it), reading (by ticket), "
        "shared (for as many more readings by ticket as it was shared for) or kept (until its ticket "
        "is freed); both end with their time to live. Without a holder it is the "
        "state of the slot; quarantined means that its words made no sense and the sidecar took "
        "it out of use.\n\n"
        "AGE is since the holder got it, as far as the sidecar has seen; a loan or a lease that "
        "is much older than a request takes is a worker that hangs or leaks. SIZE is that of all "
        "tensors.\n\n"
        "The ring is read page by page while it works: a message may come and go unseen. Prints "
        "nothing when nothing is live.",
    .examples = "    ringside ls --held\n"
                "    ringside ls --json | jq '.slots[] | select(.age_ns > 1e9) | .text'\n",
    .options = options,
    .run = run,
};

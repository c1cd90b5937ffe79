/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside status`: a sidecar at a glance. */
#include <inttypes.h>
#include <stdio.h>

#include "client/cli/cli.h"
#include "client/cli/to_json.h"
#include "client/cli/output.h"
#include "control.pb-c.h"

#define TITLE_COLUMNS    8
#define TEXT_BYTES       512
#define COLUMNS_OF(list) (sizeof(list) / sizeof(list)[0])

static const struct table_column class_columns[] = {
    {"SLOTS OF", true, false}, {"ALL", true, false},    {"FREE", true, false},
    {"LOANED", true, false},   {"SEALED", true, false}, {"QUARANTINED", true, false},
};

static const struct table_column client_columns[] = {
    {"NO", true, false},     {"CLIENT", false, true}, {"STAGE", false, true},
    {"STATE", false, false}, {"PID", true, false},    {"LOANS", true, false},
    {"LEASES", true, false}, {"OLDEST", true, false}, {"SENT", true, false},
    {"TAKEN", true, false},
};

static const struct table_column peer_columns[] = {
    {"PEER", false, true},       {"STAGE", false, true}, {"STATE", false, false},
    {"DIRECTION", false, false}, {"INBOX", true, false},
};

static void print_line(const char *title, const char *text)
{
    output_line(title, TITLE_COLUMNS, text);
}

static void print_table(struct table *table)
{
    if (table->cell_count > 0) {
        putchar('\n');
        table_print(table, stdout, output_columns());
    }
    table_finish(table);
}

static void print_head(const Ringside__V1__StatusResponse *status)
{
    char text[TEXT_BYTES], number[OUTPUT_NUMBER_BYTES];

    snprintf(text, sizeof text, "%s, %s for %s (version %s, pid %" PRIu32 ")", status->stage,
             status->state, output_duration(number, status->uptime_ns), status->version,
             status->pid);
    print_line("stage", text);
    size_t at =
        (size_t)snprintf(text, sizeof text, "sidecar %" PRIu32 ", epoch %" PRIu32 ", incarnation ",
                         status->sidecar_id, status->epoch);
    for (size_t i = 0; i < status->incarnation.len && i < 16; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%02x", status->incarnation.data[i]);
    print_line("ring", text);
    print_line("pages", status->pages);
    print_line("numa", status->numa);
    print_line("lock", status->lock);
    snprintf(text, sizeof text, "%" PRIu32 " waiting, at most %" PRIu32 " (%" PRIu32 " cells)",
             status->inbox_depth, status->inbox_limit, status->inbox_cells);
    print_line("inbox", text);
}

static void print_classes(const Ringside__V1__StatusResponse *status)
{
    struct table table;

    table_init(&table, class_columns, COLUMNS_OF(class_columns));
    for (size_t i = 0; i < status->n_classes; i++) {
        const Ringside__V1__ClassStatus *class = status->classes[i];
        const uint32_t counts[] = {class->slots, class->free, class->loaned, class->sealed,
                                   class->quarantined};
        table_bytes(&table, class->slot_bytes);
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            table_format(&table, "%" PRIu32, counts[k]);
    }
    print_table(&table);
}

static void print_clients(const Ringside__V1__StatusResponse *status)
{
    struct table table;

    table_init(&table, client_columns, COLUMNS_OF(client_columns));
    for (size_t i = 0; i < status->n_clients; i++) {
        const Ringside__V1__ClientStatus *client = status->clients[i];
        const Ringside__V1__Counters *counters = client->counters;
        table_format(&table, "%" PRIu32, client->number);
        table_text(&table, client->name);
        table_text(&table, client->home);
        table_text(&table, client->state);
        table_format(&table, client->pid != 0 ? "%" PRIu32 : "?", client->pid);
        table_format(&table, "%" PRIu32, client->loans);
        table_format(&table, "%" PRIu32, client->leases);
        if (client->loans > 0 || client->leases > 0)
            table_duration(&table, client->oldest_lease_ns);
        else
            table_text(&table, "");
        table_count(&table, counters != NULL ? counters->sent : 0);
        table_count(&table, counters != NULL ? counters->received : 0);
    }
    print_table(&table);
    if (status->n_clients == 0)
        printf("\nno clients; at most %" PRIu32 "\n", status->clients_max);
}

static void print_peers(const Ringside__V1__StatusResponse *status)
{
    struct table table;

    table_init(&table, peer_columns, COLUMNS_OF(peer_columns));
    for (size_t i = 0; i < status->n_peers; i++) {
        const Ringside__V1__PeerStatus *peer = status->peers[i];
        table_text(&table, peer->address);
        table_text(&table, peer->stage);
        table_text(&table, peer->state);
        table_text(&table, peer->direction);
        table_format(&table, "%" PRIu32, peer->inbox_depth);
    }
    print_table(&table);
    /* Whole, whatever the width: this is what somebody came for. */
    for (size_t i = 0; i < status->n_peers; i++) {
        if (status->peers[i]->last_error[0] != '\0')
            output_line("error", TITLE_COLUMNS, status->peers[i]->last_error);
    }
}

/* Those that are 0 are left out: what is there deserves the eye. */
static void print_counters(const Ringside__V1__StatusResponse *status)
{
    static const Ringside__V1__Counters none = RINGSIDE__V1__COUNTERS__INIT;
    const Ringside__V1__Counters *totals = status->totals != NULL ? status->totals : &none;
    const struct {
        const char *name;
        uint64_t value;
    } counters[] = {
        {"sent", totals->sent},
        {"received", totals->received},
        {"released", totals->released},
        {"forwarded", totals->forwarded},
        {"forward-copies", totals->forward_copies},
        {"nacked", totals->nacked},
        {"shared", totals->shared},
        {"reads", totals->reads},
        {"expired", totals->expired},
        {"dropped", totals->dropped},
        {"dead-lettered", totals->dead_lettered},
        {"requeued", totals->requeued},
        {"overflows", totals->overflows},
        {"calls", totals->calls},
        {"replies", totals->replies},
        {"quarantined", status->quarantined},
        {"audits", status->audits},
        {"sweeps", status->sweeps},
        {"log-suppressed", status->log_suppressed},
    };
    char text[1024], number[OUTPUT_NUMBER_BYTES];
    size_t at = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        if (counters[i].value > 0)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%s %" PRIu64, at > 0 ? ", " : "",
                                   counters[i].name, counters[i].value);
    }
    if (totals->sent_bytes > 0)
        snprintf(text + at, sizeof text - at, "%ssent-bytes %s", at > 0 ? ", " : "",
                 output_bytes(number, totals->sent_bytes));
    putchar('\n');
    print_line("totals", text[0] != '\0' ? text : "nothing yet");
}

static int run(struct cli *cli, int count, char **arguments)
{
    Ringside__V1__StatusRequest request = RINGSIDE__V1__STATUS_REQUEST__INIT;
    ProtobufCMessage *response;

    (void)count;
    (void)arguments;
    int rc = cli_connect(cli);
    if (rc == CLI_OK)
        rc = cli_call(cli, "Status", &request.base, &ringside__v1__status_response__descriptor,
                      &response);
    if (rc != CLI_OK)
        return rc;
    const Ringside__V1__StatusResponse *status = (const Ringside__V1__StatusResponse *)response;
    if (cli->json) {
        json_print(json_from_message(response));
    } else {
        print_head(status);
        print_classes(status);
        print_clients(status);
        print_peers(status);
        print_counters(status);
    }
    protobuf_c_message_free_unpacked(response, NULL);
    return CLI_OK;
}

const struct cli_command status_command = {
    .name = "status",
    .summary = "the state of a sidecar: slots, inbox, clients, peers",
    .description =
        "Shows the stage and its ring; slots by size class and state; how many messages wait in "
        "the inbox; each client with its loans (slots that it writes), leases (messages that it "
        "reads) and the age of the oldest of them; the sidecars that this one is connected to; and "
        "the counters that are not 0, since the ring was made.\n\n"
        "A client is attached, detached (its connection is closed but its process lives, and keeps "
        "what it holds) or dead (being swept). PID is ? where the process is in a pid namespace "
        "that the sidecar does not see. SENT and TAKEN count messages that it has published in "
        "this "
        "ring and received from it. STAGE is the stage whose worker it is: consumers of other "
        "stages are clients of this ring too.",
    .examples = "    ringside status\n"
                "    ringside status --json | jq '.classes[] | {slot_bytes, free}'\n"
                "    watch -n1 ringside -s /run/ringside/features.sock status\n",
    .run = run,
};

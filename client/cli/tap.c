/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside tap`: what passes on a route, seen from beside it. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/cli/message.h"
#include "client/cli/output.h"
#include "client/cli/to_json.h"
#include "client/cli/view.h"
#include "proto/tensor.h"

#define METADATA_MAX 65536u /* copied of a message; what has more is shown without */
#define RATE_MAX     1000u
#define TEXT_BYTES   512

static uint64_t rate = 10;
static uint64_t wanted;

static const struct cli_option options[] = {
    {"rate", 'r', CLI_COUNT, &rate, "N", "Looks a second, 1 to 1000. Default: 10."},
    {"count", 'n', CLI_COUNT, &wanted, "N", "End after so many messages. Default: at Ctrl-C."},
    {0},
};

struct tap {
    struct view view;
    const Ringside__V1__Route *route; /* of `view` */
    uint32_t *seen;                   /* generation of each slot that has been looked at; owned */
    uint64_t looks, shown;
    uint64_t unseen; /* loans that came and went between two looks, of any route */
};

/* A message as it was when it was looked at; nothing in it changes any more. */
struct sight {
    struct ringside_message message;
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    const char *state; /* "queued", "held", "done" */
    uint8_t metadata[METADATA_MAX];
};

static _Atomic int stopped; /* by a signal */

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

static int find_route(struct tap *tap, const struct cli *cli, const char *name)
{
    const Ringside__V1__AttachResponse *attached = tap->view.attached;
    char names[TEXT_BYTES] = "";
    size_t at = 0;

    for (size_t i = 0; i < attached->n_routes; i++) {
        if (strcmp(attached->routes[i]->name, name) == 0) {
            tap->route = attached->routes[i];
            return CLI_OK;
        }
        if (at + 1 < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i > 0 ? ", " : "",
                                   attached->routes[i]->name);
    }
    return cli_fail(cli, CLI_FAILED, "the stage \"%s\" has no route \"%s\"; it has %s",
                    tap->view.ring.layout.stage, name,
                    at > 0 ? names : "none (routes in its config)");
}

/* What is there now is shown; what was over before is not. */
static void begin(struct tap *tap)
{
    const struct rs_ring *ring = &tap->view.ring;

    tap->seen = output_need(calloc(ring->layout.slot_count, sizeof *tap->seen));
    for (uint32_t i = 0; i < ring->layout.slot_count; i++) {
        uint64_t state = rs_load_acquire(&ring->slots[i].state);
        tap->seen[i] = rs_state_generation(state) - (rs_state_phase(state) == RS_FREE ? 0 : 1);
    }
}

static bool is_of_route(const struct tap *tap, unsigned destination)
{
    for (size_t i = 0; i < tap->route->n_destinations; i++) {
        if (tap->route->destinations[i] == destination)
            return true;
    }
    return false;
}

/* The word of a delivery on the route, or 0. A message that is over has words that are all DONE;
 * others of its generation are those of a loan that was abandoned. */
static uint64_t find_delivery(const struct tap *tap, const struct rs_slot *record, uint64_t state)
{
    for (unsigned i = 0; i < RS_MAX_DELIVERIES; i++) {
        uint64_t word = rs_load_acquire(&record->delivery[i]);
        unsigned phase = rs_delivery_phase(word);
        if (rs_delivery_generation(word) == rs_state_generation(state) && phase != RS_NONE &&
            (phase == RS_DONE || rs_state_phase(state) == RS_SEALED) &&
            is_of_route(tap, rs_delivery_destination(word)))
            return word;
    }
    return 0;
}

static void fill(struct sight *sight, const struct rs_message *header, const uint8_t *body)
{
    struct ringside_message *message = &sight->message;

    *message = (struct ringside_message){
        .tensor_count = header->tensor_count,
        .metadata_kind = header->metadata_kind,
        .publish_ns = header->publish_ns,
        .ttl_ns = header->ttl_ns,
        .stream_id = header->stream_id,
        .sequence = header->sequence,
        .origin_ticket = header->origin_ticket,
    };
    memcpy(message->trace_id, header->trace_id, sizeof message->trace_id);
    for (unsigned i = 0; i < header->tensor_count; i++) {
        const struct rs_tensor *from = &header->tensors[i];
        message->tensors[i] = (struct ringside_tensor){
            .dtype = from->dtype, .rank = from->rank, .bytes = from->bytes};
        memcpy(message->tensors[i].shape, from->shape, sizeof from->shape);
    }
    if (header->metadata_bytes > 0 && header->metadata_bytes <= METADATA_MAX) {
        memcpy(sight->metadata, body + header->metadata_offset, header->metadata_bytes);
        message->metadata = sight->metadata;
        message->metadata_bytes = header->metadata_bytes;
    }
}

/* A copy first, then whether the slot is still in its generation: nobody waits for us, so it may be
 * anew by now, and then the copy is thrown away. */
static bool copy(const struct tap *tap, uint32_t slot, uint64_t state, uint64_t word,
                 struct sight *sight)
{
    static const char *const phases[] = {"", "queued", "held", "done"};
    const struct rs_ring *ring = &tap->view.ring;
    const uint8_t *body = ring->body + rs_ring_slot_offset(ring, slot);
    uint32_t generation = rs_state_generation(state);
    struct rs_message header;

    if (rs_message_load(&header, &ring->slots[slot], body, rs_ring_slot_bytes(ring, slot)) < 0)
        return false;
    fill(sight, &header, body);
    rs_fence_seq_cst();
    uint64_t now = rs_load_acquire(&ring->slots[slot].state);
    if (rs_state_generation(now) != generation)
        return false;
    uint16_t sidecar_id = (uint16_t)ring->layout.sidecar_id;
    sight->message.ticket = rs_ticket_pack(sidecar_id, slot, generation);
    sight->message.attempts = rs_delivery_attempts(word);
    sight->state = phases[rs_delivery_phase(word) & 3];
    rs_ticket_format(sight->text, sidecar_id, slot, generation,
                     (uint32_t)ring->layout.incarnation[0]);
    return true;
}

/* Whether there is a message in the slot that has not been seen and belongs to the route. */
static bool look_at(struct tap *tap, uint32_t slot, struct sight *sight)
{
    const struct rs_slot *record = &tap->view.ring.slots[slot];
    uint64_t state = rs_load_acquire(&record->state);
    uint32_t generation = rs_state_generation(state);
    unsigned phase = rs_state_phase(state);

    if (generation == tap->seen[slot] || (phase != RS_SEALED && phase != RS_FREE))
        return false;
    tap->unseen += generation - tap->seen[slot] - 1;
    tap->seen[slot] = generation;
    uint64_t word = find_delivery(tap, record, state);
    if (word == 0)
        return false;
    if (copy(tap, slot, state, word, sight))
        return true;
    tap->unseen++;
    return false;
}

static void show(const struct cli *cli, const struct tap *tap, const struct sight *sight)
{
    const struct ringside_message *message = &sight->message;
    char tensors[TEXT_BYTES], age[OUTPUT_NUMBER_BYTES], size[OUTPUT_NUMBER_BYTES];

    if (cli->json) {
        json_t *object = message_json(message, sight->text);
        json_object_set_new(object, "state", json_string(sight->state));
        json_object_set_new(object, "route", json_string(tap->route->name));
        json_print_line(object);
        return;
    }
    uint64_t now_ns = cli_now_ns();
    output_duration(age, now_ns > message->publish_ns ? now_ns - message->publish_ns : 0);
    char *metadata = message_metadata(message), *safe = output_escape(metadata);
    printf("%s  %-6s  %6s  %6s  %s%s%s\n", sight->text, sight->state, age,
           output_bytes(size, message_bytes(message)),
           message_tensors(tensors, sizeof tensors, message), safe[0] != '\0' ? "  " : "", safe);
    fflush(stdout);
    free(metadata);
    free(safe);
}

static bool is_over(const struct tap *tap)
{
    return stopped || (wanted > 0 && tap->shown >= wanted) || ferror(stdout);
}

static int watch(struct tap *tap, const struct cli *cli)
{
    static struct sight sight; /* tens of kilobytes */
    const struct timespec pause = {rate == 1, rate == 1 ? 0 : (long)(1000000000 / rate)};
    int status = CLI_OK;

    while (!is_over(tap)) {
        for (uint32_t i = 0; i < tap->view.ring.layout.slot_count && !is_over(tap); i++) {
            if (!look_at(tap, i, &sight))
                continue;
            tap->shown++;
            show(cli, tap, &sight);
        }
        tap->looks++;
        status = view_check(&tap->view, cli);
        if (status != CLI_OK)
            break;
        if (!is_over(tap))
            nanosleep(&pause, NULL); /* a signal ends it early */
    }
    return status;
}

static void print_summary(const struct tap *tap)
{
    fflush(stdout);
    fprintf(stderr,
            "%" PRIu64 " shown in %" PRIu64 " looks; %" PRIu64
            " slots were used in between and not seen (messages of any route, and loans)\n",
            tap->shown, tap->looks, tap->unseen);
}

static int run(struct cli *cli, int count, char **arguments)
{
    const struct sigaction action = {.sa_handler = stop};
    struct tap tap = {0};

    (void)count;
    if (rate > RATE_MAX)
        return cli_fail(cli, CLI_USAGE, "--rate is %" PRIu64 "; it must be 1 to %u looks a second",
                        rate, RATE_MAX);
    int status = view_init(&tap.view, cli);
    if (status != CLI_OK)
        return status;
    status = find_route(&tap, cli, arguments[0]);
    if (status == CLI_OK) {
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        begin(&tap);
        status = watch(&tap, cli);
        print_summary(&tap);
    }
    free(tap.seen);
    view_finish(&tap.view);
    return status;
}

const struct cli_command tap_command = {
    .name = "tap",
    .summary = "the metadata of messages that pass on a route; takes none",
    .arguments = "ROUTE",
    .description =
        "Looks at the stage's ring --rate times a second, through a mapping that it cannot write "
        "to, and prints each message of ROUTE that it has not seen yet: ticket, state (queued, "
        "held, or done: released, expired or dropped), age, bytes, dtypes and shapes, metadata. "
        "With --json it prints an object a line, with the fields of recv's .json.\n\n"
        "It takes no message and no lease and holds no slot: nobody waits for it. What it costs "
        "others is a cache line of each slot a look. It has a client number while it runs.\n\n"
        "A look sees the last message of every slot, also one that is over, until the slot is used "
        "again. So a message is missed only when its slot is used twice between two looks; how "
        "often that happened, for whatever route, the last line on standard error says. Raise "
        "--rate to miss fewer. Not seen are: what other stages pass on in place over a route of "
        "the same name, which stays in their rings; and "
        "which of two routes that lead to the same stage a message took (it is shown for either). "
        "Metadata of more than 64 KiB are left out.\n\n"
        "The age of a message without a time to live is exact to a tick of the kernel, some "
        "milliseconds.",
    .examples = "    ringside tap embeddings\n"
                "    ringside tap embeddings -n 100 --json | jq -c '[.age_ns, .metadata]'\n"
                "    timeout 10 ringside tap embeddings --rate 1000 >/dev/null   # how many\n",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};

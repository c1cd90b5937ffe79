/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside bench`: what the running sidecar and this machine do, as a worker would see it. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/c/ringside.h"
#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/sample.h"
#include "client/cli/to_json.h"
#include "client/cli/worker.h"
#include "control.pb-c.h"

#define CONTROL_CALLS 500
#define ATTACHES      20
#define CHUNK         100  /* loans that are timed together: one takes about as long as a clock */
#define WARM_UP       1000 /* hand-offs that do not count */
#define SAMPLES_MAX   2000000 /* memory for one measurement ends here */
#define BODY_BYTES    64
#define PATIENCE_NS   INT64_C(1000000000) /* for a message that should come at once */
#define REASON_BYTES  256

static int64_t lasts_ns = INT64_C(1000000000);

static const struct cli_option options[] = {
    {"seconds", 'd', CLI_SECONDS, &lasts_ns, "SECONDS",
     "How long to loan, and how long to hand off. Default: 1."},
    {0},
};

struct results {
    struct sample control;     /* one call of Status */
    struct sample attach;      /* connect, attach, map; without the end */
    struct sample loan;        /* loan and abandon, mean of CHUNK */
    struct sample hand_off;    /* from before send to after receive */
    char reason[REASON_BYTES]; /* why there is no hand_off; "" when there is */
};

static int attach(const struct cli *cli, struct ringside **connection)
{
    const struct ringside_connect_options how = {
        .socket = cli->socket, .name = "ringside bench", .timeout_ns = cli->timeout_ns};
    int rc = ringside_connect(connection, &how);

    return rc < 0 ? worker_explain(cli, NULL, "attach", rc) : CLI_OK;
}

/* CLI_OK: *status is the caller's. */
static int ask_status(struct cli *cli, Ringside__V1__StatusResponse **status)
{
    Ringside__V1__StatusRequest request = RINGSIDE__V1__STATUS_REQUEST__INIT;

    return cli_call(cli, "Status", &request.base, &ringside__v1__status_response__descriptor,
                    (ProtobufCMessage **)status);
}

static int measure_control(struct cli *cli, struct sample *sample)
{
    Ringside__V1__StatusResponse *status;

    for (int i = 0; i < CONTROL_CALLS; i++) {
        uint64_t begin_ns = cli_now_ns();
        int rc = ask_status(cli, &status);
        if (rc != CLI_OK)
            return rc;
        sample_add(sample, cli_now_ns() - begin_ns);
        ringside__v1__status_response__free_unpacked(status, NULL);
    }
    return CLI_OK;
}

static int measure_attach(struct cli *cli, struct sample *sample)
{
    for (int i = 0; i < ATTACHES; i++) {
        struct ringside *connection;
        uint64_t begin_ns = cli_now_ns();
        int rc = attach(cli, &connection);
        if (rc != CLI_OK)
            return rc;
        sample_add(sample, cli_now_ns() - begin_ns);
        ringside_close(connection);
    }
    return CLI_OK;
}

static const struct ringside_tensor body = {
    .dtype = RINGSIDE_UINT8, .rank = 1, .shape = {BODY_BYTES}};

static int measure_loan(struct cli *cli, struct ringside *connection, struct sample *sample)
{
    struct ringside_slot slot;
    uint64_t end_ns = cli_now_ns() + (uint64_t)lasts_ns;

    for (uint64_t begin_ns = cli_now_ns(); begin_ns < end_ns && sample->count < SAMPLES_MAX;) {
        for (int i = 0; i < CHUNK; i++) {
            int rc = ringside_loan(connection, &body, 1, 0, PATIENCE_NS, &slot);
            if (rc == 0)
                rc = ringside_abandon(connection, &slot);
            if (rc < 0)
                return worker_explain(cli, connection, "loan and abandon", rc);
        }
        uint64_t now_ns = cli_now_ns();
        sample_add(sample, (now_ns - begin_ns) / CHUNK);
        begin_ns = now_ns;
    }
    return CLI_OK;
}

/* ---- The hand-off: a producer and a consumer thread, each with a connection of its own. ---- */

struct exchange {
    struct ringside *producer;
    const char *route;
    uint64_t stream_id;       /* tells our messages from others' */
    _Atomic uint64_t taken;   /* messages that the consumer has released */
    _Atomic int stop;         /* set by either side */
    int error;                /* the producer's, read after it was joined */
    _Atomic uint64_t sent_ns; /* before the last send */
};

static void *produce(void *data)
{
    struct exchange *exchange = data;
    struct ringside_options how = {.stream_id = exchange->stream_id, .timeout_ns = PATIENCE_NS};
    struct ringside_slot slot;

    for (uint64_t sent = 0; !atomic_load(&exchange->stop);) {
        if (atomic_load(&exchange->taken) < sent) {
            sched_yield(); /* there may be one core only */
            continue;
        }
        int rc = ringside_loan(exchange->producer, &body, 1, 0, PATIENCE_NS, &slot);
        if (rc == 0) {
            memset(slot.tensors[0].data, (int)sent, BODY_BYTES);
            how.sequence = ++sent;
            atomic_store(&exchange->sent_ns, cli_now_ns());
            rc = ringside_send(exchange->producer, &slot, exchange->route, &how);
            if (rc < 0)
                ringside_abandon(exchange->producer, &slot);
        }
        if (rc < 0) {
            exchange->error = rc;
            atomic_store(&exchange->stop, 1);
        }
    }
    return NULL;
}

/* Takes one of ours. Gives another's back, says so in `reason` and returns -RINGSIDE_ESTATE. */
static int take(struct exchange *exchange, struct ringside *consumer, struct results *results)
{
    struct ringside_message message;
    int rc = ringside_receive(consumer, &message, PATIENCE_NS);

    if (rc < 0)
        return rc;
    uint64_t now_ns = cli_now_ns();
    if (message.stream_id != exchange->stream_id) {
        ringside_nack(consumer, &message);
        snprintf(results->reason, sizeof results->reason,
                 "somebody else's message came; it was given back to the inbox");
        return -RINGSIDE_ESTATE;
    }
    if (message.sequence > WARM_UP)
        sample_add(&results->hand_off, now_ns - atomic_load(&exchange->sent_ns));
    rc = ringside_release(consumer, &message);
    atomic_fetch_add(&exchange->taken, 1);
    return rc;
}

static int exchange_messages(struct cli *cli, struct exchange *exchange, struct ringside *consumer,
                             struct results *results)
{
    pthread_t thread;
    int rc = 0;

    sample_reserve(&results->hand_off, SAMPLES_MAX / 10);
    if (pthread_create(&thread, NULL, produce, exchange) != 0)
        return cli_fail(cli, CLI_FAILED, "cannot start a thread");
    uint64_t end_ns = cli_now_ns() + (uint64_t)lasts_ns;
    while (rc == 0 && !atomic_load(&exchange->stop) && results->hand_off.count < SAMPLES_MAX &&
           (results->hand_off.count == 0 || cli_now_ns() < end_ns))
        rc = take(exchange, consumer, results);
    atomic_store(&exchange->stop, 1);
    pthread_join(thread, NULL);
    /* The producer may have sent one more. */
    struct ringside_message last;
    if (rc == 0 && ringside_receive(consumer, &last, 0) == 0) {
        if (last.stream_id == exchange->stream_id)
            ringside_release(consumer, &last);
        else
            ringside_nack(consumer, &last);
    }
    if (exchange->error < 0)
        return cli_fail(cli, cli_status(exchange->error), "send: %s",
                        ringside_strerror(exchange->error));
    if (rc < 0 && results->reason[0] == '\0')
        return worker_explain(cli, consumer, "receive", rc);
    return CLI_OK;
}

/* The name of a route that leads to the own inbox and nowhere else, or NULL. */
static const char *find_loop(const Ringside__V1__AttachResponse *attached)
{
    for (size_t i = 0; i < attached->n_routes && attached->ring != NULL; i++) {
        const Ringside__V1__Route *route = attached->routes[i];
        if (route->n_destinations == 1 && route->destinations[0] == attached->ring->destination)
            return route->name;
    }
    return NULL;
}

/* Messages of ours must not reach a worker, nor its messages us. Says why not in `reason`. */
static int inbox_is_ours(struct cli *cli, struct results *results, bool *ours)
{
    Ringside__V1__StatusResponse *status;
    int rc = ask_status(cli, &status);

    if (rc != CLI_OK)
        return rc;
    *ours = status->inbox_depth == 0;
    if (!*ours)
        snprintf(results->reason, sizeof results->reason,
                 "the inbox is not empty (it holds %" PRIu32 ")", status->inbox_depth);
    for (size_t i = 0; i < status->n_clients && *ours; i++) {
        const Ringside__V1__ClientStatus *client = status->clients[i];
        if (strcmp(client->home, status->stage) != 0 || strcmp(client->state, "dead") == 0 ||
            strcmp(client->name, "ringside bench") == 0)
            continue;
        *ours = false;
        snprintf(results->reason, sizeof results->reason,
                 "a worker of the stage is there (%s); it would receive what is sent",
                 client->name);
    }
    ringside__v1__status_response__free_unpacked(status, NULL);
    return rc;
}

static int measure_hand_off(struct cli *cli, struct ringside *consumer, struct results *results)
{
    Ringside__V1__AttachRequest request = RINGSIDE__V1__ATTACH_REQUEST__INIT;
    Ringside__V1__AttachResponse *attached;
    struct exchange exchange = {0};
    bool ours;

    int status = inbox_is_ours(cli, results, &ours);
    if (status != CLI_OK || !ours)
        return status;
    request.name = "ringside bench";
    status = cli_call(cli, "Attach", &request.base, &ringside__v1__attach_response__descriptor,
                      (ProtobufCMessage **)&attached);
    if (status != CLI_OK)
        return status;
    exchange.route = find_loop(attached);
    if (getrandom(&exchange.stream_id, sizeof exchange.stream_id, 0) < 0)
        exchange.stream_id = cli_now_ns();
    if (exchange.route == NULL)
        snprintf(results->reason, sizeof results->reason,
                 "no route of this stage leads back to it, and to it alone");
    else
        status = attach(cli, &exchange.producer);
    if (status == CLI_OK && exchange.route != NULL) {
        status = exchange_messages(cli, &exchange, consumer, results);
        ringside_close(exchange.producer);
    }
    ringside__v1__attach_response__free_unpacked(attached, NULL);
    return status;
}

static void print_row(const char *what, struct sample *sample)
{
    printf("%-18s", what);
    sample_print(sample);
    putchar('\n');
}

static void print_results(struct results *results)
{
    char text[OUTPUT_NUMBER_BYTES];
    uint64_t loan_ns = sample_percentile(&results->loan, 50);

    print_row("control call", &results->control);
    print_row("attach", &results->attach);
    print_row("loan and abandon", &results->loan);
    if (loan_ns > 0)
        printf("%-18s%s a second\n", "", output_count(text, 1000000000 / loan_ns));
    if (results->reason[0] == '\0') {
        print_row("hand-off", &results->hand_off);
    } else {
        char *reason = output_escape(results->reason);
        printf("%-18snot measured: %s\n", "hand-off", reason);
        free(reason);
    }
}

static json_t *results_json(struct results *results)
{
    json_t *object = output_need(json_object());

    json_object_set_new(object, "control", sample_json(&results->control));
    json_object_set_new(object, "attach", sample_json(&results->attach));
    json_object_set_new(object, "loan_abandon", sample_json(&results->loan));
    if (results->reason[0] == '\0')
        json_object_set_new(object, "hand_off", sample_json(&results->hand_off));
    else
        json_object_set_new(object, "hand_off_skipped", json_string(results->reason));
    return object;
}

static int measure(struct cli *cli, struct results *results)
{
    struct ringside *connection;
    int status = measure_control(cli, &results->control);

    if (status == CLI_OK)
        status = measure_attach(cli, &results->attach);
    if (status == CLI_OK)
        status = attach(cli, &connection);
    if (status != CLI_OK)
        return status;
    status = measure_loan(cli, connection, &results->loan);
    if (status == CLI_OK)
        status = measure_hand_off(cli, connection, results);
    ringside_close(connection);
    return status;
}

static int run(struct cli *cli, int count, char **arguments)
{
    struct results results = {0};
    int status = cli_connect(cli);

    (void)count;
    (void)arguments;
    if (status == CLI_OK)
        status = measure(cli, &results);
    if (status == CLI_OK && cli->json)
        json_print(results_json(&results));
    else if (status == CLI_OK)
        print_results(&results);
    sample_finish(&results.control);
    sample_finish(&results.attach);
    sample_finish(&results.loan);
    sample_finish(&results.hand_off);
    return status;
}

const struct cli_command bench_command = {
    .name = "bench",
    .summary = "a quick measurement, as a worker of the sidecar sees it",
    .description =
        "Measures a call over the control socket (Status); attaching as a worker, with all that is "
        "mapped then; loaning and abandoning a slot of 64 bytes; and, where that disturbs nobody, "
        "handing one over: from before the send in one thread to after the receive in another, "
        "each with its own connection.\n\n"
        "The hand-off is measured when the stage has a route that leads to itself alone, no worker "
        "of the stage is attached and its inbox is empty; else it says why not. The other "
        "measurements hold one slot at a time and three client numbers at most.\n\n"
        "Nothing is pinned or warmed up but the hand-off's first thousand, so the figures are "
        "those of this machine as it is now. The median says what it can do, p99 and max how much "
        "others get in the way.",
    .examples = "    ringside bench\n"
                "    ringside bench --seconds 5 --json | jq .hand_off.p50_ns\n",
    .options = options,
    .run = run,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* A worker of the chaos pipeline: source, spill, middle, sink, reader, caller or callee, until its
 * stdin ends or it is killed.
 *
 * Usage: worker ROLE SOCKET LEDGER INDEX SEED
 *
 * A spill consumer takes what sources of its own stage send there. INDEX is its line of the ledger.
 * What it notes, and in which order, makes loss and doubles decidable: tests/chaos/README.md. */
#include "tests/chaos/worker.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TTL_NS    (10 * MS)   /* the longest of mortal messages */
#define TICKET_NS (200 * MS)  /* of shared ones */
#define KEPT_NS   (4000 * MS) /* of those that their owner frees: longer than it is ever stopped */
#define ONE_IN    16          /* of each rarer kind of step */

enum kind { DURABLE, MORTAL, POISON, SPILL };

struct ringside *connection;
struct ledger *ledger;
struct ledger_worker *self;
static uint64_t random_state;
static bool over; /* the driver closed stdin */
static const char *socket_path, *role;

uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void beat(void)
{
    atomic_store_explicit(&self->beat_ns, now_ns(), memory_order_relaxed);
}

uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

void tell(const char *what, const char *why)
{
    fprintf(stderr, "%s %d: %s: %s\n", role, getpid(), what, why);
}

void corrupt(const char *what, const char *why)
{
    tell(what, why);
    atomic_fetch_add(&ledger->words[LEDGER_CORRUPT], 1);
}

/* Errors that the faults explain: no room, no message; for a send a stage that is not connected;
 * for a call also too many whose callees have not let them go; for a reply a caller that waits no
 * more. */
static bool is_expected(const char *what, int rc)
{
    return rc == -RINGSIDE_ETIMEOUT || rc == -RINGSIDE_EFULL ||
           (rc == -RINGSIDE_EUNAVAILABLE &&
            (strcmp(what, "send") == 0 || strcmp(what, "forward") == 0 ||
             strcmp(what, "call") == 0)) ||
           (rc == -RINGSIDE_ELIMIT && strcmp(what, "call") == 0) ||
           (rc == -RINGSIDE_ECANCELLED && strcmp(what, "reply") == 0);
}

bool failed(const char *what, int rc)
{
    if (rc >= 0)
        return false;
    if (!is_expected(what, rc)) {
        tell(what, ringside_explain(connection));
        atomic_fetch_add(&ledger->words[LEDGER_FAILED], 1);
    }
    return true;
}

bool goes_on(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

    over = over || poll(&input, 1, 0) != 0;
    return !over;
}

static bool connect_to_stage(void)
{
    struct ringside_connect_options options = {
        .socket = socket_path, .name = role, .timeout_ns = 500 * MS};

    while (goes_on()) {
        beat();
        if (ringside_connect(&connection, &options) == 0)
            return true;
        usleep(10000);
    }
    return false;
}

void linger(void)
{
    if (draw(64) == 0)
        usleep((useconds_t)draw(3000));
}

/* ---- what it holds ---- */

void note_held(unsigned place, uint64_t id)
{
    atomic_store(&self->held[place], id);
}

uint64_t check(const struct ringside_message *message)
{
    const char *why;
    uint64_t id =
        ledger_check(message->tensors[0].data, message->tensors[0].bytes, message->ticket, &why);

    if (id == 0 || id >= atomic_load(&ledger->words[LEDGER_NEXT])) {
        corrupt("body", why);
        return 0;
    }
    if (message->sequence != id)
        corrupt("header", "it is that of another message");
    return id;
}

/* ---- sending ---- */

int loan(struct ringside_slot *slot, uint64_t bytes, int64_t timeout_ns)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {(int64_t)bytes}};

    return ringside_loan(connection, &tensor, 1, 0, timeout_ns, slot);
}

uint64_t some_bytes(void)
{
    return 64 + 8 * draw(480);
}

/* Accepted from the moment on at which the call says so; tried before, so that what comes without
 * it is no wonder. */
static void publish(struct ringside_slot *slot, uint64_t id, uint8_t kind)
{
    struct ringside_options options = {.timeout_ns = TIMEOUT_NS,
                                       .sequence = id,
                                       .ttl_ns = kind == MORTAL ? 1 + draw((uint64_t)TTL_NS) : 0};

    ledger->messages[id].kind = kind;
    atomic_store(&ledger->messages[id].sent, SENT_TRIED);
    int rc = ringside_send(connection, slot, kind == SPILL ? "spill" : "next", &options);
    atomic_store(&ledger->messages[id].sent, rc == 0 ? SENT_ACCEPTED : SENT_REFUSED);
    if (rc == 0) {
        atomic_fetch_add_explicit(&self->sent, 1, memory_order_relaxed);
    } else {
        failed("send", rc);
        failed("abandon", ringside_abandon(connection, slot));
    }
}

static uint8_t some_kind(void)
{
    uint64_t roll = draw(256);

    return roll < 32 ? MORTAL : roll < 48 ? SPILL : roll == 48 ? POISON : DURABLE;
}

static void source_step(void)
{
    struct ringside_slot slot;

    if (failed("loan", loan(&slot, some_bytes(), TIMEOUT_NS)))
        return;
    uint64_t id = draw(ONE_IN * 4) == 0 ? 0 : ledger_id(ledger);
    if (id == 0) { /* as a caller that thinks better of it; or there is no place for another */
        failed("abandon", ringside_abandon(connection, &slot));
        return;
    }
    ledger_fill(slot.tensors[0].data, slot.tensors[0].bytes, id, slot.ticket);
    publish(&slot, id, some_kind());
}

/* ---- receiving ---- */

/* A message of the own ring, made of another's: what a stage that computes does. */
static bool reproduce(const struct ringside_message *message, uint64_t id)
{
    struct ringside_options options = {
        .timeout_ns = TIMEOUT_NS, .sequence = id, .ttl_ns = message->ttl_ns};
    struct ringside_slot slot;

    if (failed("loan", loan(&slot, message->tensors[0].bytes, TIMEOUT_NS)))
        return false;
    ledger_fill(slot.tensors[0].data, slot.tensors[0].bytes, id, slot.ticket);
    if (!failed("send", ringside_send(connection, &slot, "next", &options)))
        return true;
    failed("abandon", ringside_abandon(connection, &slot));
    return false;
}

/* In place mostly; by a copy, which options other than the timeout bring about; or as a message of
 * the own. */
static bool pass_on(struct ringside_message *message, uint64_t id)
{
    struct ringside_options options = {.timeout_ns = TIMEOUT_NS};
    uint64_t roll = draw(32);

    if (roll == 0 && reproduce(message, id)) {
        linger();
        failed("release", ringside_release(connection, message));
        return true;
    }
    if (roll == 1) {
        options.sequence = id;
        options.ttl_ns = message->ttl_ns; /* a copy lives as long as the options say */
    }
    return roll != 0 && !failed("forward", ringside_forward(connection, message, "next", &options));
}

static void finish(struct ringside_message *message, uint64_t id, unsigned end)
{
    /* Noted before the release: a death between the two brings it again, which the ledger then
     * shows. */
    ledger_count(&ledger->messages[id].arrived[end]);
    linger();
    failed("release", ringside_release(connection, message));
    atomic_fetch_add_explicit(&self->received, 1, memory_order_relaxed);
}

static void handle(struct ringside_message *message, unsigned place, unsigned end)
{
    uint64_t id = check(message);

    note_held(place, id);
    linger();
    /* Nobody may have written to it meanwhile. */
    if (id != 0 && check(message) != id)
        corrupt("held body", "it changed");
    if (id == 0) {
        failed("release", ringside_release(connection, message));
    } else if (ledger->messages[id].kind == POISON || draw(ONE_IN * 16) == 0) {
        failed("nack", ringside_nack(connection, message));
    } else if (end < LEDGER_STAGES) {
        finish(message, id, end);
    } else {
        bool passed;

        /* Not a nack: what waits for room must not run out of attempts. */
        while (!(passed = pass_on(message, id)) && goes_on())
            beat();
        if (!passed)
            failed("nack", ringside_nack(connection, message));
    }
    note_held(place, 0);
}

/* `end`: where the ledger counts arrivals, or LEDGER_STAGES for who passes on. */
static void consumer_step(unsigned end)
{
    static struct ringside_message messages[BATCH];

    int count = ringside_receive_batch(connection, messages, 1 + draw(BATCH), TIMEOUT_NS);
    if (failed("receive", count))
        return;
    /* All are held by now, and a death before the last note leaves them to come again, untouched.
     */
    for (int i = 0; i < count; i++)
        handle(&messages[i], (unsigned)i, end);
}

/* ---- by ticket: readers share among themselves, in a ring of their own ---- */

/* The ticket of a message for that many readers, or 0. */
static uint64_t share_for(unsigned readers, uint64_t ttl_ns)
{
    uint64_t ticket, id = ledger_id(ledger);
    struct ringside_options options = {.ttl_ns = ttl_ns, .sequence = id};
    struct ringside_slot slot;

    if (id == 0 || failed("loan", loan(&slot, some_bytes(), TIMEOUT_NS)))
        return 0;
    ledger_fill(slot.tensors[0].data, slot.tensors[0].bytes, id, slot.ticket);
    return failed("share", ringside_share(connection, &slot, readers, &options, &ticket)) ? 0
                                                                                          : ticket;
}

static void share(void)
{
    uint64_t ticket = share_for((unsigned)draw(3), (uint64_t)TICKET_NS);

    if (ticket != 0)
        atomic_store(&ledger->tickets[draw(LEDGER_TICKETS)][0], ticket);
}

static bool is_over_for_a_ticket(int rc)
{
    return rc == -RINGSIDE_ESTALE_TICKET || rc == -RINGSIDE_EEXPIRED_TICKET;
}

static void read_some_ticket(void)
{
    uint64_t ticket = atomic_load(&ledger->tickets[draw(LEDGER_TICKETS)][0]);
    struct ringside_message message;

    if (ticket == 0)
        return;
    int rc = ringside_read(connection, ticket, &message);
    if (rc == 0) {
        uint64_t id = check(&message);

        if (message.ticket != ticket)
            corrupt("read", "another ticket");
        if (draw(4) == 0)
            usleep((useconds_t)draw(1000));
        if (check(&message) != id)
            corrupt("read body", "it changed");
        failed("release", ringside_release(connection, &message));
    } else if (!is_over_for_a_ticket(rc)) {
        failed("read", rc);
    }
    if (draw(8) == 0 && !is_over_for_a_ticket(rc = ringside_free(connection, ticket)))
        failed("free", rc);
}

/* Nobody else knows the ticket: the message is there until it is freed. */
static void keep_and_free(void)
{
    uint64_t begin = now_ns(), ticket = share_for(0, (uint64_t)KEPT_NS);
    struct ringside_message message;

    if (ticket == 0)
        return;
    linger();
    int rc = ringside_read(connection, ticket, &message);
    if (rc == 0) {
        check(&message);
        failed("release", ringside_release(connection, &message));
        rc = ringside_free(connection, ticket);
    }
    if (is_over_for_a_ticket(rc) && now_ns() - begin < (uint64_t)KEPT_NS)
        corrupt("kept message", "it is gone");
    else if (!is_over_for_a_ticket(rc))
        failed("kept message", rc);
}

static void reader_step(void)
{
    if (draw(4) == 0)
        share();
    if (draw(ONE_IN) == 0)
        keep_and_free();
    read_some_ticket();
    if (draw(4) == 0)
        usleep((useconds_t)draw(1000)); /* the pipeline needs the processor more */
}

static void step(void)
{
    bool stop = atomic_load(&ledger->words[LEDGER_STOP]) != 0;

    if (strcmp(role, "sink") == 0)
        consumer_step(LEDGER_STAGES - 1);
    else if (strcmp(role, "spill") == 0)
        consumer_step(0);
    else if (strcmp(role, "middle") == 0)
        consumer_step(LEDGER_STAGES);
    else if (strcmp(role, "callee") == 0)
        callee_step();
    else if (strcmp(role, "caller") == 0)
        caller_step(!stop);
    else if (stop)
        usleep(10000);
    else if (strcmp(role, "source") == 0)
        source_step();
    else
        reader_step();
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    role = argv[1];
    socket_path = argv[2];
    ledger = ledger_open(argv[3]);
    self = &ledger->workers[atoi(argv[4])];
    random_state = strtoull(argv[5], NULL, 10) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    atomic_store(&self->pid, (uint64_t)getpid());

    if (!connect_to_stage())
        return 0;
    for (unsigned steps = 0; steps % 16 != 0 || goes_on(); steps++) {
        beat();
        step();
    }
    ringside_close(connection);
    return 0;
}

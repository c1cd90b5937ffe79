/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that plays a script of steps, given as arguments or line by line on stdin, and may die
 * at any failpoint of it.
 *
 * Usage: actor SOCKET LEDGER STAGE NAME [COMMAND...]
 *
 * STAGE is the number of the stage for the ledger. Without commands it reads them from stdin and
 * answers each with a number: 0 or more, or a negative error. With commands it ends after the last:
 * status 0, or 1 at the first error of one that does not begin with "?". */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/c/ringside.h"
#include "tests/chaos/ledger.h"

#define MS         INT64_C(1000000)
#define HELD_MAX   64
#define BODY_BYTES 1024

static struct ringside *connection;
static struct ledger *ledger;
static unsigned stage; /* of this process: 0 for "a" */
static struct ringside_message held[HELD_MAX], reading;
static uint64_t held_ids[HELD_MAX];
static unsigned held_count;
static struct ringside_slot loans[HELD_MAX];
static unsigned loan_count;
static struct ringside_call call;

static struct ledger_message *entry(uint64_t id)
{
    return &ledger->messages[id];
}

static int corrupt(const char *why, uint64_t ticket)
{
    fprintf(stderr, "corrupt body of ticket %016llx: %s\n", (unsigned long long)ticket, why);
    atomic_fetch_add(&ledger->words[LEDGER_CORRUPT], 1);
    return -RINGSIDE_ECORRUPT;
}

static uint64_t check(const struct ringside_message *message)
{
    const char *why;
    uint64_t id =
        ledger_check(message->tensors[0].data, message->tensors[0].bytes, message->ticket, &why);

    if (id == 0 || id >= atomic_load(&ledger->words[LEDGER_NEXT]))
        corrupt(why, message->ticket);
    return id;
}

/* ---- producing ---- */

static int loan(int64_t timeout_ns)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {BODY_BYTES}};

    if (loan_count == HELD_MAX)
        return -RINGSIDE_ELIMIT;
    int rc = ringside_loan(connection, &tensor, 1, 0, timeout_ns, &loans[loan_count]);
    if (rc == 0)
        loan_count++;
    return rc;
}

static int loan_many(unsigned count, int64_t timeout_ns)
{
    unsigned before = loan_count;
    int rc = 0;

    while (loan_count - before < count && (rc = loan(timeout_ns)) == 0)
        ;
    return loan_count > before ? (int)(loan_count - before) : rc;
}

static int abandon(void)
{
    int count = (int)loan_count;

    while (loan_count > 0) {
        int rc = ringside_abandon(connection, &loans[--loan_count]);
        if (rc < 0)
            return rc;
    }
    return count;
}

/* "b" leads to the stage b, "bc" to b and c; "drop" is a second route to b. */
static unsigned stages_of(const char *route)
{
    unsigned stages = 0;

    if (strcmp(route, "drop") == 0)
        return 2;
    for (; *route != '\0'; route++)
        stages |= 1u << (*route - 'a');
    return stages;
}

static uint64_t fill(struct ringside_slot *slot, uint8_t kind)
{
    uint64_t id = ledger_id(ledger);

    ledger_fill(slot->tensors[0].data, slot->tensors[0].bytes, id, slot->ticket);
    entry(id)->kind = kind;
    return id;
}

static int send_one(const char *route, int64_t ttl_ms, int64_t timeout_ns)
{
    struct ringside_options options = {.ttl_ns = (uint64_t)(ttl_ms * MS), .timeout_ns = timeout_ns};
    int rc = loan(timeout_ns);

    if (rc < 0)
        return rc;
    struct ringside_slot *slot = &loans[--loan_count];
    uint64_t id = fill(slot, ttl_ms > 0 || strcmp(route, "drop") == 0);
    /* Noted before the send: a death right after the seal leaves a message that may come, and one
     * that was told of. */
    atomic_store(&entry(id)->sent, SENT_TRIED);
    atomic_store(&entry(id)->wanted, (uint8_t)stages_of(route));
    rc = ringside_send(connection, slot, route, &options);
    atomic_store(&entry(id)->sent, rc == 0 ? SENT_ACCEPTED : SENT_REFUSED);
    if (rc < 0)
        (void)ringside_abandon(connection, slot);
    return rc;
}

static int send_many(const char *route, unsigned count, int64_t ttl_ms, int64_t timeout_ns)
{
    for (unsigned i = 0; i < count; i++) {
        int rc = send_one(route, ttl_ms, timeout_ns);
        if (rc < 0)
            return i > 0 ? (int)i : rc;
    }
    return (int)count;
}

/* ---- consuming ---- */

static int hold(unsigned count, int64_t timeout_ns)
{
    unsigned before = held_count;

    while (held_count < HELD_MAX && held_count - before < count) {
        int rc = ringside_receive(connection, &held[held_count], timeout_ns);
        if (rc < 0)
            return held_count > before ? (int)(held_count - before) : rc;
        held_ids[held_count] = check(&held[held_count]);
        held_count++;
    }
    return (int)(held_count - before);
}

static int give_up(int (*step)(struct ringside *, struct ringside_message *), bool arrived)
{
    int count = (int)held_count;

    while (held_count > 0) {
        uint64_t id = held_ids[--held_count];
        const char *why;

        /* Nothing may have changed in it while it was held. */
        if (ledger_check(held[held_count].tensors[0].data, held[held_count].tensors[0].bytes,
                         held[held_count].ticket, &why) != id)
            corrupt(why, held[held_count].ticket);
        if (arrived)
            ledger_count(&entry(id)->arrived[stage]);
        int rc = step(connection, &held[held_count]);
        if (rc < 0)
            return rc;
    }
    return count;
}

static int take(unsigned count, int64_t timeout_ns)
{
    for (unsigned i = 0; i < count; i++) {
        int rc = hold(1, timeout_ns);
        if (rc >= 0)
            rc = give_up(ringside_release, true);
        if (rc < 0)
            return i > 0 ? (int)i : rc;
    }
    return (int)count;
}

static int forward(const char *route, bool copy)
{
    struct ringside_options options = {.sequence = copy ? 7 : 0, .timeout_ns = 1000 * MS};
    int count = (int)held_count;

    while (held_count > 0) {
        uint64_t id = held_ids[--held_count];

        atomic_fetch_or(&entry(id)->turned, (uint8_t)stages_of(route));
        int rc = ringside_forward(connection, &held[held_count], route, &options);
        if (rc < 0)
            return rc;
    }
    return count;
}

/* ---- by ticket ---- */

static int share(unsigned place, unsigned readers)
{
    int rc = loan(1000 * MS);

    if (rc < 0)
        return rc;
    struct ringside_slot *slot = &loans[--loan_count];
    uint64_t ticket, id = fill(slot, 0);
    rc = ringside_share(connection, slot, readers, NULL, &ticket);
    if (rc < 0)
        return rc;
    atomic_store(&ledger->tickets[place][1], id);
    atomic_store(&ledger->tickets[place][0], ticket);
    return 0;
}

static int begin_reading(unsigned place)
{
    uint64_t ticket = atomic_load(&ledger->tickets[place][0]);
    int rc = ringside_read(connection, ticket, &reading);

    if (rc < 0)
        return rc;
    return check(&reading) == atomic_load(&ledger->tickets[place][1])
               ? 0
               : corrupt("another message", ticket);
}

/* The reading of a ticket whose generation agrees with a message's only in the bits that `readers`
 * has. */
static int misread(unsigned place)
{
    struct ringside_message message;

    return ringside_read(connection, atomic_load(&ledger->tickets[place][0]) ^ (UINT64_C(1) << 16),
                         &message);
}

/* ---- calls ---- */

/* Bodies as of all messages, but nobody is told that they were sent: what becomes of a call its caller knows. */
static int loan_filled(struct ringside_slot **slot)
{
    int rc = loan(1000 * MS);

    if (rc < 0)
        return rc;
    *slot = &loans[--loan_count];
    (void)fill(*slot, 0);
    return 0;
}

static int begin(const char *route, unsigned credits)
{
    struct ringside_options options = {
        .ttl_ns = (uint64_t)(1500 * MS), .credits = credits, .timeout_ns = 1000 * MS};
    struct ringside_slot *slot;
    int rc = loan_filled(&slot);

    if (rc < 0)
        return rc;
    rc = ringside_call(connection, slot, route, "method", &options, &call);
    if (rc < 0)
        (void)ringside_abandon(connection, slot);
    return rc;
}

/* 1: the last reply came, or the call was told to be given up. */
static int await(void)
{
    int rc;

    while ((rc = ringside_call_wait(connection, &call, &reading, -1)) > 0) {
        check(&reading);
        ringside_release(connection, &reading);
    }
    if (rc == 0) {
        check(&reading);
        rc = ringside_release(connection, &reading);
        return rc < 0 ? rc : 1;
    }
    return rc == -RINGSIDE_EUNAVAILABLE || rc == -RINGSIDE_EINTERNAL ? 1 : rc;
}

static int call_many(const char *route, unsigned count, unsigned credits)
{
    for (unsigned i = 0; i < count; i++) {
        int rc = begin(route, credits);
        if (rc == 0)
            rc = await();
        if (rc < 0)
            return i > 0 ? (int)i : rc;
    }
    return (int)count;
}

static int cancel(int64_t after_ms)
{
    usleep((useconds_t)after_ms * 1000);
    int rc = ringside_call_cancel(connection, &call);
    return rc < 0 ? rc : 1;
}

/* To the call that is held last; that nobody waits any more is no error. */
static int reply(unsigned replies)
{
    const struct ringside_options options = {.timeout_ns = 1000 * MS};

    for (unsigned i = 0; i < replies; i++) {
        struct ringside_slot *slot;
        int rc = loan_filled(&slot);
        if (rc == 0)
            rc = ringside_reply(connection, &held[held_count - 1], slot, &options, i + 1 == replies);
        if (rc == -RINGSIDE_ECANCELLED)
            return 0;
        if (rc < 0)
            return rc;
    }
    return (int)replies;
}

static int serve(unsigned count, unsigned replies, int64_t timeout_ns)
{
    for (unsigned i = 0; i < count; i++) {
        int rc = hold(1, timeout_ns);
        if (rc >= 0)
            rc = reply(replies);
        if (rc >= 0)
            rc = give_up(ringside_release, false);
        if (rc < 0)
            return rc;
    }
    return (int)count;
}

/* ---- the script ---- */

static int obey(const char *line)
{
    char verb[24] = "", word[24] = "";
    long long first = 0, second = 0, third = 2000;
    int words = sscanf(line, "%23s %23s %lld %lld %lld", verb, word, &first, &second, &third);
    long long number = words > 1 ? atoll(word) : 0;

    if (strcmp(verb, "loan") == 0) /* COUNT TIMEOUT_MS */
        return loan_many((unsigned)number, first * MS);
    if (strcmp(verb, "abandon") == 0)
        return abandon();
    if (strcmp(verb, "send") == 0) /* ROUTE COUNT [TTL_MS [TIMEOUT_MS]] */
        return send_many(word, (unsigned)first, second, third * MS);
    if (strcmp(verb, "fill") == 0) /* ROUTE [TTL_MS]: until it is full */
        return send_many(word, HELD_MAX, first, 0);
    if (strcmp(verb, "hold") == 0) /* COUNT TIMEOUT_MS */
        return hold((unsigned)number, first * MS);
    if (strcmp(verb, "take") == 0) /* COUNT TIMEOUT_MS */
        return take((unsigned)number, first * MS);
    if (strcmp(verb, "release") == 0)
        return give_up(ringside_release, true);
    if (strcmp(verb, "nack") == 0)
        return give_up(ringside_nack, false);
    if (strcmp(verb, "forward") == 0)
        return forward(word, false);
    if (strcmp(verb, "copy") == 0)
        return forward(word, true);
    if (strcmp(verb, "share") == 0) /* PLACE READERS */
        return share((unsigned)number, (unsigned)first);
    if (strcmp(verb, "read") == 0)
        return begin_reading((unsigned)number);
    if (strcmp(verb, "unread") == 0)
        return ringside_release(connection, &reading);
    if (strcmp(verb, "pass") == 0) /* one more read, for who gets the ticket from this reader */
        return ringside_add_readers(connection, &reading, (unsigned)number);
    if (strcmp(verb, "misread") == 0)
        return misread((unsigned)number) == -RINGSIDE_ESTALE_TICKET ? 0 : -RINGSIDE_EINTERNAL;
    if (strcmp(verb, "free") == 0)
        return ringside_free(connection, atomic_load(&ledger->tickets[number][0]));
    if (strcmp(verb, "poll") == 0)
        return ringside_fd(connection) >= 0 ? 0 : -RINGSIDE_EINTERNAL;
    if (strcmp(verb, "begin") == 0) /* ROUTE CREDITS */
        return begin(word, (unsigned)first);
    if (strcmp(verb, "await") == 0)
        return await();
    if (strcmp(verb, "call") == 0) /* ROUTE COUNT CREDITS */
        return call_many(word, (unsigned)first, (unsigned)second);
    if (strcmp(verb, "cancel") == 0) /* AFTER_MS */
        return cancel(number);
    if (strcmp(verb, "reply") == 0) /* REPLIES */
        return reply((unsigned)number);
    if (strcmp(verb, "serve") == 0) /* COUNT REPLIES TIMEOUT_MS */
        return serve((unsigned)number, (unsigned)first, second * MS);
    if (strcmp(verb, "sleep") == 0)
        return usleep((useconds_t)number * 1000);
    if (strcmp(verb, "die") == 0)
        return raise(SIGKILL);
    return -RINGSIDE_EINVALID;
}

static int play(char **commands)
{
    for (; *commands != NULL; commands++) {
        bool may_fail = **commands == '?';
        int rc = obey(*commands + may_fail);
        if (rc < 0 && !may_fail) {
            fprintf(stderr, "%s: %s\n", *commands, ringside_explain(connection));
            return 1;
        }
    }
    return 0;
}

static int listen_to_stdin(void)
{
    char line[128];

    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        int rc = obey(line);
        printf("%d %s\n", rc, rc < 0 ? ringside_explain(connection) : "");
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct ringside_connect_options options = {.timeout_ns = 5000 * MS};

    if (argc < 5)
        return 2;
    options.socket = argv[1];
    options.name = argv[4];
    ledger = ledger_open(argv[2]);
    stage = (unsigned)atoi(argv[3]);
    int rc = ringside_connect(&connection, &options);
    if (rc < 0) {
        fprintf(stderr, "%s\n", ringside_explain(NULL));
        return 1;
    }
    int status = argc > 5 ? play(argv + 5) : listen_to_stdin();
    ringside_close(connection);
    return status;
}

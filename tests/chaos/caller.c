/* SPDX-License-Identifier: Apache-2.0 */
/* A caller of the chaos run: keeps calls in flight, to its own stage and to another, and notes how
 * each of them ends. */
#include "tests/chaos/worker.h"

#include <string.h>
#include <unistd.h>

#define HASTY_NS  (10 * MS)    /* the longest timeout of calls that have one */
#define STUCK_NS  (10000 * MS) /* no fault holds a call up that long */
#define CREDITS   4
#define LOOK_NS   (2 * MS)
#define LOOKS_MAX 16 /* before a call that is to be cancelled is */

/* A call in flight. Its place is that of its note in the own line. */
struct flight {
    struct ringside_call call;
    const char *method;
    uint64_t id;       /* 0: none is in flight here */
    uint64_t begin_ns; /* before it was sent */
    uint64_t ttl_ns;   /* 0: none */
    uint64_t deaths;   /* of callees of its stage when it began */
    unsigned route;    /* 0 or 1 */
    unsigned number;   /* of the next reply */
    unsigned looks;    /* until it is cancelled; 0: it is not */
};

static const char *const routes[] = {"there", "here"};
static struct flight flights[LEDGER_HELD];

static uint64_t deaths_on(unsigned route)
{
    return atomic_load(&ledger->words[LEDGER_DEATHS + route]);
}

/* ---- the end ---- */

static void end(unsigned place, enum call_outcome outcome)
{
    struct flight *flight = &flights[place];
    struct ledger_call *entry = ledger_call(ledger, flight->id);
    static struct ringside_message reply;
    uint64_t deaths = deaths_on(flight->route);

    /* Before the outcome, which is read with it. Odd: one may have died after it was counted. */
    atomic_store(&entry->near_death, deaths != flight->deaths || deaths % 2 != 0);
    if (atomic_exchange(&entry->outcome, (uint8_t)outcome) != CALL_NONE)
        corrupt("call", "it ended twice");
    if (outcome == CALL_OK)
        atomic_fetch_add(&ledger->words[LEDGER_OK + flight->route], 1);
    if (flight->call.open != 0 ||
        (outcome != CALL_CANCELLED && outcome != CALL_STUCK && draw(16) == 0 &&
         ringside_call_wait(connection, &flight->call, &reply, 0) != -RINGSIDE_ESTATE))
        corrupt("call", "it ended and goes on");
    flight->id = 0;
    note_held(place, 0);
}

static void cancel(unsigned place, enum call_outcome outcome)
{
    failed("cancel", ringside_call_cancel(connection, &flights[place].call));
    end(place, outcome);
}

/* Of a call that ended with an error. */
static enum call_outcome outcome_of(const struct flight *flight, int rc)
{
    char text[64];

    if (rc == -RINGSIDE_EUNAVAILABLE && flight->call.status == RINGSIDE_STATUS_OK)
        return CALL_UNAVAILABLE;
    if (rc == -RINGSIDE_ETIMEOUT && flight->ttl_ns != 0) {
        if (now_ns() - flight->begin_ns < flight->ttl_ns)
            corrupt("call", "its time was over too early");
        return CALL_TIMED_OUT;
    }
    snprintf(text, sizeof text, REFUSAL, (unsigned long long)flight->id);
    if (flight->call.status == RINGSIDE_STATUS_ABORTED && strcmp(flight->method, "refuse") == 0 &&
        strcmp(ringside_explain(connection), text) == 0)
        return CALL_REFUSED;
    tell("call", ringside_explain(connection));
    atomic_fetch_add(&ledger->words[LEDGER_FAILED], 1);
    return CALL_FAILED;
}

/* ---- replies ---- */

static bool is_right(const struct flight *flight, const struct ringside_message *reply)
{
    const char *why;
    uint64_t id =
        ledger_check(reply->tensors[0].data, reply->tensors[0].bytes, reply->ticket, &why);

    if (id == reply_id(flight->id, flight->number))
        return true;
    corrupt("reply", id == 0 ? why : "it is one of another call, or another one of this call");
    return false;
}

static void take(unsigned place, struct ringside_message *reply, bool last)
{
    struct flight *flight = &flights[place];
    bool right = is_right(flight, reply);

    if (reply->call_id != flight->call.id || reply->sequence != flight->number)
        corrupt("reply header", "it is that of another reply");
    linger();
    if (right && !is_right(flight, reply))
        corrupt("held reply", "it changed");
    failed("release", ringside_release(connection, reply));
    atomic_fetch_add_explicit(&ledger->words[LEDGER_REPLIES], 1, memory_order_relaxed);
    flight->number++;
    if (last != (flight->number == replies_to(flight->method, flight->id)))
        corrupt("call",
                last ? "it ended before its last reply" : "it has more replies than it should");
    if (last)
        end(place, CALL_OK);
}

static void look(unsigned place)
{
    static struct ringside_message reply;
    struct flight *flight = &flights[place];

    if (flight->looks > 0 && --flight->looks == 0) {
        cancel(place, CALL_CANCELLED);
        return;
    }
    int rc = ringside_call_wait(connection, &flight->call, &reply,
                                draw(2) == 0 ? 0 : (int64_t)draw((uint64_t)LOOK_NS));
    if (rc >= 0) {
        take(place, &reply, rc == 0);
    } else if (flight->call.open == 0) {
        end(place, outcome_of(flight, rc));
    } else if (!failed("wait", rc == -RINGSIDE_ETIMEOUT ? 0 : rc) &&
               now_ns() - flight->begin_ns > (uint64_t)STUCK_NS) {
        tell("call", "it does not end");
        cancel(place, CALL_STUCK);
    }
}

/* ---- the beginning ---- */

/* Of four calls one has a timeout and one is cancelled, before or after its end; what comes of the
 * others nobody but the callee decides. */
static void draw_flight(struct flight *flight, uint64_t id)
{
    static const char *const methods[] = {"one", "many", "many", "refuse"};
    uint64_t roll = draw(4);

    *flight = (struct flight){
        .method = methods[draw(4)],
        .id = id,
        .ttl_ns = roll == 0 ? 1 + draw((uint64_t)HASTY_NS) : 0,
        .looks = roll == 1 ? 1 + (unsigned)draw(LOOKS_MAX) : 0,
        .route = (unsigned)draw(4) == 0,
    };
    flight->deaths = deaths_on(flight->route);
}

static void begin(unsigned place)
{
    struct flight *flight = &flights[place];
    struct ringside_slot slot;

    /* Without waiting: the slots may be full of replies to its own calls. */
    if (failed("loan", loan(&slot, some_bytes(), 0)))
        return;
    uint64_t id = ledger_id(ledger);
    if (id == 0) {
        failed("abandon", ringside_abandon(connection, &slot));
        return;
    }
    draw_flight(flight, id);
    ledger_fill(slot.tensors[0].data, slot.tensors[0].bytes, id, slot.ticket);
    struct ringside_options options = {
        .ttl_ns = flight->ttl_ns, .sequence = id, .credits = 1 + (uint32_t)draw(CREDITS)};
    struct ledger_call *entry = ledger_call(ledger, id);
    entry->kind = LEDGER_CALL;
    note_held(place, id);
    atomic_store(&entry->sent, SENT_TRIED);
    flight->begin_ns = now_ns();
    int rc = ringside_call(connection, &slot, routes[flight->route], flight->method, &options,
                           &flight->call);
    atomic_store(&entry->sent, rc == 0 ? SENT_ACCEPTED : SENT_REFUSED);
    if (rc < 0) {
        failed("call", rc);
        failed("abandon", ringside_abandon(connection, &slot));
        flight->id = 0;
        note_held(place, 0);
    }
}

void caller_step(bool more)
{
    unsigned place = (unsigned)draw(LEDGER_HELD);

    if (flights[place].id != 0)
        look(place);
    else if (more)
        begin(place);
    else
        usleep(1000);
    if (draw(4) == 0)
        usleep((useconds_t)draw(500)); /* the pipeline needs the processor more */
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Weak memory: message histories, views, and one order of all seq_cst events. README.md has the
 * model. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

#define LOCATIONS 4096 /* words ever touched; power of two */
#define LOG       8192 /* stores of one execution */

struct machine machine;
struct engine engine;

static struct event {
    unsigned thread, message, newest;
    const struct weak_site *site;
    const struct location *at;
    uint64_t read, written;
    bool swapped;
    char text[40];
} trace[DEPTH];

static struct location locations[LOCATIONS];
static struct location *appended[LOG]; /* for undoing */

void die(const char *text)
{
    fprintf(stderr, "weak: %s: %s\n", engine.scenario->name, text);
    exit(2);
}

uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b * UINT64_C(0x9e3779b97f4a7c15)) + UINT64_C(0x632be59bd9b4e019);
    a = (a ^ a >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    a = (a ^ a >> 27) * UINT64_C(0x94d049bb133111eb);
    return a ^ a >> 31;
}

struct thread *running(void)
{
    return &machine.threads[engine.current];
}

/* ---- words ---- */

struct location *locate(const volatile void *address, unsigned bytes)
{
    size_t i = (uintptr_t)address / 4 * 0x9e3779b1u % LOCATIONS;

    for (unsigned tries = 0; locations[i].address != address; i = (i + 1) % LOCATIONS) {
        if (locations[i].address == NULL) {
            locations[i] = (struct location){.address = address, .bytes = bytes, .index = -1};
            break;
        }
        if (++tries == LOCATIONS)
            die("too many words");
    }
    struct location *at = &locations[i];
    if (at->count == 0 && bytes != 0) {
        at->bytes = bytes;
        memset(&at->history[0], 0, sizeof at->history[0]);
        memcpy(&at->history[0].value, (const void *)(uintptr_t)address, bytes);
        at->count = 1;
    }
    return at;
}

void forget_histories(void)
{
    for (unsigned i = 0; i < LOCATIONS; i++)
        locations[i].count = 0;
}

void weak_name(const volatile void *address, const char *name, unsigned index)
{
    struct location *at = locate(address, 0);

    at->name = name;
    at->name_index = index;
}

const struct message *newest(const struct location *at)
{
    return &at->history[at->count - 1];
}

/* ---- the order of seq_cst events ---- */

static bool holds(const struct set *set, unsigned i)
{
    return (set->bits[i / 64] >> i % 64 & 1) != 0;
}

static void add(struct set *set, unsigned i, const struct set *more)
{
    set->bits[i / 64] |= UINT64_C(1) << i % 64;
    for (unsigned j = 0; j < ORDERED / 64; j++)
        set->bits[j] |= more->bits[j];
}

/* Whether the event must stand before one that reads, or appends, that message. By C++20: when it
 * strongly happens before, or when it is coherence-ordered before. */
static bool stands_before(const struct ordered *event, const struct ordered *next,
                          const struct view *view)
{
    if (event->thread == next->thread || view->clock[event->thread] > event->clock)
        return true;
    if (event->index != next->index || event->message > next->message)
        return false;
    return event->writes ||
           (event->message < next->message && (engine.model == WEAK_C20 || next->writes));
}

/* Whether it must stand after one that reads that message, which is older. */
static bool stands_after(const struct ordered *event, const struct ordered *next)
{
    return event->index == next->index && event->message > next->message &&
           (event->writes || engine.model == WEAK_C20);
}

/* Puts a new event of a thread into the order; false when it does not fit. `probe`: changes
 * nothing. */
static bool put_in_order(const struct thread *thread, struct ordered next, bool probe)
{
    for (unsigned i = 0; i < machine.ordered_count; i++) {
        if (stands_before(&machine.ordered[i], &next, &thread->view))
            add(&next.before, i, &machine.ordered[i].before);
    }
    for (unsigned i = 0; i < machine.ordered_count; i++) {
        if (!stands_after(&machine.ordered[i], &next))
            continue;
        if (holds(&next.before, i))
            return false;
        for (unsigned j = 0; j < machine.ordered_count && !probe; j++) {
            if (j == i || holds(&machine.ordered[j].before, i))
                add(&machine.ordered[j].before, machine.ordered_count, &next.before);
        }
    }
    if (!probe)
        machine.ordered[machine.ordered_count++] = next;
    return true;
}

/* ---- events ---- */

static uint64_t next_event(void)
{
    uint8_t *clock = &running()->view.clock[engine.current];

    if (++*clock == 0)
        die("a thread has too many steps");
    return (engine.current + 1u) << 8 | *clock;
}

static void learn(struct view *view, const struct view *other)
{
    for (unsigned i = 0; i < SHARED; i++)
        view->seen[i] = view->seen[i] > other->seen[i] ? view->seen[i] : other->seen[i];
    for (unsigned i = 0; i <= WEAK_THREADS; i++)
        view->clock[i] = view->clock[i] > other->clock[i] ? view->clock[i] : other->clock[i];
}

static bool acquires(enum weak_order order)
{
    return order == WEAK_ACQUIRE || order >= WEAK_ACQ_REL;
}

static void read_message(struct location *at, unsigned message, enum weak_order order, uint64_t id)
{
    if (at->index >= 0) {
        running()->view.seen[at->index] = (uint8_t)message;
        if (acquires(order))
            learn(&running()->view, &at->history[message].view);
        machine.hash += mix(id, at->history[message].id);
    }
}

/* Appends; a read-modify-write carries on the release sequence of what it read. */
static void append_message(struct location *at, uint64_t value, enum weak_order order, bool rmw,
                           uint64_t id)
{
    struct message *message = &at->history[at->count];

    if (at->count == MESSAGES || machine.log_length == LOG)
        die("too many stores");
    memset(message, 0, sizeof *message);
    if (at->bytes == 4)
        value = (uint32_t)value;
    message->value = value;
    message->id = id;
    if (at->index >= 0) {
        running()->view.seen[at->index] = (uint8_t)at->count;
        message->view.seen[at->index] = (uint8_t)at->count;
        if (order >= WEAK_RELEASE)
            message->view = running()->view;
        if (rmw)
            learn(&message->view, &message[-1].view);
        machine.hash += mix(id ^ UINT64_C(1) << 40, message[-1].id);
    }
    at->count++;
    appended[machine.log_length++] = at;
}

uint64_t modified(enum weak_kind kind, uint64_t old, uint64_t value)
{
    switch (kind) {
    case WEAK_OR:
        return old | value;
    case WEAK_AND:
        return old & value;
    case WEAK_ADD:
        return old + value;
    default:
        return value;
    }
}

static void wake_sleepers(const struct location *at, uint64_t id)
{
    for (unsigned i = 0; i < WEAK_THREADS; i++) {
        struct thread *thread = &machine.threads[i];

        if (thread->status != ASLEEP || thread->operation.at != at)
            continue;
        thread->status = WOKEN;
        machine.hash += mix(id, i);
    }
}

static struct event *record(const struct weak_site *site)
{
    if (machine.depth == DEPTH)
        die("an execution is too long");
    struct event *event = &trace[machine.depth++];
    *event = (struct event){.thread = engine.current, .site = site};
    return event;
}

static struct ordered as_ordered(const struct operation *op, unsigned message, bool writes)
{
    return (struct ordered){.thread = (uint8_t)engine.current,
                            .clock = running()->view.clock[engine.current],
                            .index = (uint8_t)op->at->index,
                            .message = (uint8_t)message,
                            .writes = writes};
}

/* The operation of the running thread, with the message that it reads or SWAP. */
void perform(struct operation *op, unsigned choice)
{
    struct location *at = op->at;
    enum weak_kind kind = op->site->kind;
    unsigned last = at->count - 1, from = choice == SWAP ? last : choice;
    bool modifies =
        kind != WEAK_LOAD && kind < WEAK_FUTEX_WAIT && (kind != WEAK_CAS || choice == SWAP);
    uint64_t id = at->index >= 0 || kind >= WEAK_FUTEX_WAIT ? next_event() : 0;
    /* A failed compare-and-swap is a load with acquire. */
    enum weak_order order = kind != WEAK_CAS || modifies ? op->order
                            : acquires(op->order)        ? WEAK_ACQUIRE
                                                         : WEAK_RELAXED;

    if (order == WEAK_SEQ_CST && at->index >= 0) {
        if (machine.ordered_count == ORDERED)
            die("too many seq_cst accesses");
        put_in_order(running(), as_ordered(op, modifies ? at->count : from, modifies), false);
    }
    op->won = choice == SWAP;
    op->result = at->history[from].value;
    if (kind != WEAK_STORE && kind != WEAK_FUTEX_WAKE)
        read_message(at, from, order, id);
    if (modifies)
        append_message(at, modified(kind, op->result, op->value), order, kind != WEAK_STORE, id);
    if (kind == WEAK_FUTEX_WAIT && op->result == op->value)
        running()->status = ASLEEP;
    if (kind == WEAK_FUTEX_WAKE)
        wake_sleepers(at, id);
    if (at->index >= 0 || kind >= WEAK_FUTEX_WAIT) {
        struct event *event = record(op->site);

        event->at = at;
        event->message = from;
        event->newest = last;
        event->read = op->result;
        event->written = newest(at)->value;
        event->swapped = modifies;
    }
}

/* ---- steps and back ---- */

/* Whether the running thread's next step, a load or a compare-and-swap, may read that message (and
 * then fail). */
static bool may_read(const struct thread *thread, unsigned message)
{
    const struct operation *op = &thread->operation;

    if (op->site->kind == WEAK_CAS)
        return op->at->history[message].value != op->expected;
    return op->order != WEAK_SEQ_CST || put_in_order(thread, as_ordered(op, message, false), true);
}

unsigned choices(const struct thread *thread, uint8_t *choice)
{
    const struct operation *op = &thread->operation;
    unsigned count = 0;

    if (thread->status == ASLEEP || thread->status == DONE)
        return 0;
    enum weak_kind kind = op->site->kind;
    unsigned last = op->at->count - 1, oldest;
    if (thread->status == WOKEN || (kind != WEAK_LOAD && kind != WEAK_CAS)) {
        choice[0] = (uint8_t)last;
        return kind != WEAK_POLL || newest(op->at)->value != 0;
    }
    engine.current = (unsigned)(thread - machine.threads);
    if (kind == WEAK_CAS && newest(op->at)->value == op->expected)
        choice[count++] = SWAP;
    oldest = engine.model == WEAK_SC ? last : thread->view.seen[op->at->index];
    for (unsigned i = last + 1; i-- > oldest;) {
        if (may_read(thread, i))
            choice[count++] = (uint8_t)i;
    }
    return count;
}

size_t machine_bytes(void)
{
    return offsetof(struct machine, ordered) + machine.ordered_count * sizeof machine.ordered[0];
}

void undo(const void *saved, size_t bytes)
{
    unsigned length = machine.log_length;

    memcpy(&machine, saved, bytes);
    while (length > machine.log_length)
        appended[--length]->count--;
}

/* ---- plain bytes ---- */

static void body_event(const char *text, uint32_t slot, uint32_t generation)
{
    next_event();
    snprintf(record(NULL)->text, sizeof trace[0].text, "%s body %u, generation %u", text, slot,
             generation);
}

static void require_seen(unsigned thread, uint8_t clock, const char *text)
{
    if (thread != engine.current && running()->view.clock[thread] < clock)
        weak_fail(text);
}

void weak_body_write(uint32_t slot, uint32_t generation)
{
    struct body *body = &machine.bodies[slot];

    if (engine.phase == THREADS) {
        body_event("writes", slot, generation);
        require_seen(body->writer, body->written, "a body is written while another writes it");
        for (unsigned i = 0; i < WEAK_THREADS; i++)
            require_seen(i, body->read[i], "a body is written while another reads it");
    }
    body->writer = engine.current;
    body->written = running()->view.clock[engine.current];
    body->generation = generation;
}

void weak_body_read(uint32_t slot, uint32_t generation)
{
    struct body *body = &machine.bodies[slot];

    body_event("reads", slot, generation);
    require_seen(body->writer, body->written, "a body is read while another writes it");
    weak_require(body->generation == generation, "a body of another generation is read");
    body->read[engine.current] = running()->view.clock[engine.current];
}

/* ---- printing ---- */

static const char *order_name(enum weak_order order)
{
    static const char *const names[] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};

    return names[order];
}

static void print_event(unsigned step, const struct event *event)
{
    static const char *const kinds[] = {"load", "store",    "cas",  "or",   "and",
                                        "add",  "exchange", "wait", "wake", "poll"};
    char name[64] = "?";

    printf("%5u  T%u  ", step, event->thread);
    if (event->site == NULL) {
        printf("%s\n", event->text);
        return;
    }
    if (event->at->name != NULL)
        snprintf(name, sizeof name, event->at->name, event->at->name_index);
    printf("%-24s %-8s %-8s %-18s %" PRIx64, event->site->function, kinds[event->site->kind],
           order_name((enum weak_order)(event->site->mutated > 0 ? event->site->mutated - 1
                                                                 : (int)event->site->order)),
           name, event->read);
    if (event->swapped)
        printf(" -> %" PRIx64, event->written);
    else if (event->site->kind == WEAK_CAS)
        printf(" lost");
    if (event->message < event->newest)
        printf("   (stale by %u)", event->newest - event->message);
    printf("\n");
}

void print_trace(void)
{
    for (unsigned i = 0; i < machine.depth; i++)
        print_event(i, &trace[i]);
}

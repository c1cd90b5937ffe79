/* SPDX-License-Identifier: Apache-2.0 */
/* Threads on stacks of their own, what they call of the kernel, and the search through every
 * execution. */
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "private.h"

#define STACK_BYTES (64 * 1024)
#define FRAME_BYTES 512 /* more than what pause_thread keeps below its frame address */

static _Alignas(64) char stacks[WEAK_THREADS][STACK_BYTES];
static ucontext_t starts[WEAK_THREADS];

static bool stopped(void)
{
    return engine.restart || engine.result->failed || engine.result->exhausted;
}

/* ---- threads ---- */

__attribute__((noinline)) static void pause_thread(void)
{
    struct thread *thread = running();

    thread->low = (char *)__builtin_frame_address(0) - FRAME_BYTES;
    if (_setjmp(thread->context) == 0)
        _longjmp(engine.home, 1);
}

void end_thread(void)
{
    running()->status = DONE;
    running()->low = stacks[engine.current] + STACK_BYTES;
    _longjmp(engine.home, 1);
}

static void thread_main(int index)
{
    engine.scenario->thread[index]();
    end_thread();
}

/* Runs a thread up to its next shared access. */
static void resume(unsigned index, bool first)
{
    engine.current = index;
    if (_setjmp(engine.home) == 0) {
        if (first)
            setcontext(&starts[index]);
        _longjmp(machine.threads[index].context, 1);
    }
}

static bool is_mutated(const struct weak_mutation *mutation, const struct weak_site *site)
{
    return mutation != NULL && mutation->function != NULL &&
           strcmp(mutation->function, site->function) == 0 &&
           (mutation->what == NULL || strstr(site->what, mutation->what) != NULL) &&
           (mutation->which == WEAK_ALL ||
            (mutation->which == WEAK_LOADS) == (site->kind == WEAK_LOAD)) &&
           mutation->order < site->order;
}

static enum weak_order order_of(struct weak_site *site)
{
    if (site->mutated == 0) {
        bool mutated = is_mutated(engine.mutation, site);

        engine.result->mutated |= mutated;
        site->mutated = 1 + (int)(mutated ? engine.mutation->order : site->order);
    }
    return (enum weak_order)(site->mutated - 1);
}

bool weak_mutant(int number)
{
    if (engine.mutation == NULL || engine.mutation->mutant != number)
        return false;
    engine.result->mutated = true;
    return true;
}

/* Threads meet on a word when two use it and one changes it. Found while running: then all is begun
 * again, because such a word had no scheduling point so far. A word on which nobody meets needs
 * none. */
static void note_use(struct location *at, enum weak_kind kind)
{
    unsigned me = 1u << engine.current;

    at->users |= me;
    if (kind != WEAK_LOAD)
        at->writers |= me;
    if (at->index >= 0 || at->writers == 0 || (at->users & (at->users - 1)) == 0)
        return;
    if (engine.result->shared == SHARED)
        die("too many shared words");
    at->index = (int)engine.result->shared++;
    engine.restart = true;
    end_thread();
}

static uint64_t in_plain_memory(const struct weak_site *site, void *address, unsigned bytes,
                                uint64_t value, uint64_t *expected, bool *won)
{
    uint64_t old = 0, next;

    memcpy(&old, address, bytes);
    if (site->kind == WEAK_CAS) {
        *won = old == *expected;
        *expected = old;
        next = *won ? value : old;
    } else {
        next = modified(site->kind, old, value);
    }
    if (site->kind != WEAK_LOAD)
        memcpy(address, &next, bytes);
    return old;
}

uint64_t weak_access(struct weak_site *site, const volatile void *address, unsigned bytes,
                     uint64_t value, uint64_t *expected, bool *won)
{
    struct operation op = {.site = site, .order = order_of(site), .value = value};

    if (engine.phase == PLAIN)
        return in_plain_memory(site, (void *)(uintptr_t)address, bytes, value, expected, won);
    op.at = locate(address, bytes);
    op.expected = expected != NULL ? *expected : 0;
    if (engine.phase == THREADS)
        note_use(op.at, site->kind);
    if (engine.phase == THREADS && (op.at->index >= 0 || site->kind >= WEAK_FUTEX_WAIT)) {
        running()->operation = op;
        pause_thread();
        op = running()->operation;
    } else {
        bool swaps = site->kind == WEAK_CAS && newest(op.at)->value == op.expected;

        perform(&op, swaps ? SWAP : op.at->count - 1);
    }
    if (won != NULL) {
        *won = op.won;
        if (!op.won)
            *expected = op.result;
    }
    return op.result;
}

/* ---- the kernel ---- */

static uint64_t events[4]; /* counters of the eventfds */

/* A futex wait compares and sleeps in one step, on the newest value: the kernel does it under a
 * lock. */
long weak_syscall(long number, ...)
{
    static struct weak_site wait = {"futex", "wait", 0, WEAK_FUTEX_WAIT, WEAK_RELAXED, 0};
    static struct weak_site wake = {"futex", "wake", 0, WEAK_FUTEX_WAKE, WEAK_RELAXED, 0};
    va_list arguments;

    (void)number;
    va_start(arguments, number);
    void *word = va_arg(arguments, void *);
    int operation = va_arg(arguments, int);
    uint32_t value = va_arg(arguments, uint32_t);
    va_end(arguments);
    if (engine.phase == THREADS)
        weak_access(operation == FUTEX_WAIT ? &wait : &wake, word, 4, value, NULL, NULL);
    return 0;
}

ssize_t weak_write(int fd, const void *bytes, size_t size)
{
    static struct weak_site site = {"write", "eventfd", 0, WEAK_ADD, WEAK_ACQ_REL, 0};

    (void)bytes;
    weak_access(&site, &events[fd], sizeof events[fd], 1, NULL, NULL);
    return (ssize_t)size;
}

void weak_event_clear(int fd)
{
    static struct weak_site site = {"read", "eventfd", 0, WEAK_EXCHANGE, WEAK_ACQ_REL, 0};

    weak_access(&site, &events[fd], sizeof events[fd], 0, NULL, NULL);
}

void weak_event_wait(int fd)
{
    static struct weak_site site = {"poll", "eventfd", 0, WEAK_POLL, WEAK_ACQUIRE, 0};

    weak_access(&site, &events[fd], sizeof events[fd], 0, NULL, NULL);
}

/* ---- faults ---- */

static void report(const char *text)
{
    if (stopped())
        return;
    engine.result->failed = true;
    snprintf(engine.result->text, sizeof engine.result->text, "%s", text);
    if (!engine.verbose)
        return;
    printf("%s: %s\n", engine.scenario->name, text);
    print_trace();
}

void weak_fail(const char *text)
{
    report(text);
    if (engine.phase == THREADS)
        end_thread();
}

unsigned weak_thread(void)
{
    return engine.current;
}

void weak_note(unsigned index, uint64_t value)
{
    running()->notes[index] = value;
}

uint64_t weak_noted(unsigned thread, unsigned index)
{
    return machine.threads[thread].notes[index];
}

bool weak_asleep(unsigned thread)
{
    const struct thread *it = &machine.threads[thread];

    return engine.scenario->thread[thread] != NULL && it->status != DONE;
}

/* ---- the search ---- */

/* False when an execution with the same events, sources and orders has been here: its future is the
 * same. */
static bool is_new(void)
{
    uint64_t key = machine.hash, i;

    for (unsigned t = 0; t < WEAK_THREADS; t++)
        key =
            mix(key, (uint64_t)machine.threads[t].status << 16 | machine.threads[t].view.clock[t]);
    key |= key == 0;
    for (i = key & engine.mask; engine.visited[i] != 0; i = (i + 1) & engine.mask) {
        if (engine.visited[i] == key)
            return false;
    }
    engine.visited[i] = key;
    engine.stored++;
    engine.result->states++;
    engine.result->exhausted = engine.result->states >= engine.budget;
    return !engine.result->exhausted;
}

static void finish(void)
{
    static struct machine saved;

    saved = machine;
    engine.result->executions++;
    engine.phase = CHECK;
    engine.current = CHECKER;
    if (engine.scenario->check != NULL)
        engine.scenario->check();
    engine.phase = THREADS;
    undo(&saved, sizeof saved);
}

static void explore(void);

static void step(unsigned index, unsigned choice)
{
    struct thread *thread = &machine.threads[index];
    char *low = thread->low;
    size_t stack_bytes = (size_t)(stacks[index] + STACK_BYTES - low), bytes = machine_bytes();
    char stack[stack_bytes], saved[bytes];

    memcpy(stack, low, stack_bytes);
    memcpy(saved, &machine, bytes);
    engine.current = index;
    if (thread->status == WOKEN)
        thread->status = READY;
    else
        perform(&thread->operation, choice);
    if (thread->status == READY)
        resume(index, false);
    if (!stopped())
        explore();
    memcpy(low, stack, stack_bytes);
    undo(saved, bytes);
}

static void explore(void)
{
    bool ended = true;

    if (!is_new())
        return;
    for (unsigned t = 0; t < WEAK_THREADS && !stopped(); t++) {
        uint8_t choice[MESSAGES + 2];
        unsigned count = choices(&machine.threads[t], choice);

        ended &= count == 0;
        for (unsigned i = 0; i < count && !stopped(); i++)
            step(t, choice[i]);
    }
    if (ended)
        finish();
}

static void begin(void)
{
    memset(&machine, 0, sizeof machine);
    memset(events, 0, sizeof events);
    /* Executions of before are told apart by the salt; clearing the whole set each time would take
     * longer. */
    if (engine.stored > engine.budget / 4) {
        memset(engine.visited, 0, (engine.mask + 1) * sizeof *engine.visited);
        engine.stored = 0;
    }
    machine.hash = mix(0, ++engine.salt);
    forget_histories();
    engine.restart = false;
    engine.result->states = engine.result->executions = 0;
    engine.phase = PLAIN;
    engine.current = 0;
    engine.scenario->setup();
    engine.phase = THREADS;
    for (unsigned i = 0; i < WEAK_THREADS; i++) {
        machine.threads[i].status = engine.scenario->thread[i] == NULL ? DONE : READY;
        machine.threads[i].low = stacks[i] + STACK_BYTES;
    }
    for (unsigned i = 0; i < WEAK_THREADS && !stopped(); i++) {
        if (engine.scenario->thread[i] == NULL)
            continue;
        getcontext(&starts[i]);
        starts[i].uc_stack.ss_sp = stacks[i];
        starts[i].uc_stack.ss_size = STACK_BYTES;
        makecontext(&starts[i], (void (*)(void))thread_main, 1, (int)i);
        resume(i, true);
    }
}

void weak_run(const struct weak_scenario *scenario, enum weak_model model,
              const struct weak_mutation *mutation, uint64_t budget, bool verbose,
              struct weak_result *result)
{
    engine = (struct engine){.scenario = scenario,
                             .mutation = mutation,
                             .model = model,
                             .budget = budget,
                             .verbose = verbose,
                             .result = result};
    memset(result, 0, sizeof *result);
    for (engine.mask = 1; engine.mask < 2 * budget; engine.mask *= 2)
        ;
    engine.visited = calloc(engine.mask--, sizeof *engine.visited);
    if (engine.visited == NULL)
        die("no memory");
    do {
        begin();
        if (!stopped())
            explore();
    } while (engine.restart);
    free(engine.visited);
}

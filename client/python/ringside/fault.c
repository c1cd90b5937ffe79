/* SPDX-License-Identifier: Apache-2.0 */
/* Says which received tensor was written to, and how to copy it, before the process dies of it. */
#include "client/python/ringside/core.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "proto/atomic.h"

static struct core_connection *connections; /* of the process; changed with the GIL */
static struct sigaction oldest;             /* what was there before ours */
static struct sigaction newest; /* what had taken our place when ours was set again; if layered */
static bool layered;
static rs_word32 passing; /* inside of `newest`, which may call ours */

/* A flag of no meaning for faults: tells ours as we set it from ours as somebody put it back. */
#define MARK SA_RESTART

void core_fault_add(struct core_connection *connection)
{
    connection->next = connections;
    connections = connection;
    core_fault_watch();
}

void core_fault_remove(struct core_connection *connection)
{
    for (struct core_connection **at = &connections; *at; at = &(*at)->next) {
        if (*at == connection) {
            *at = connection->next;
            return;
        }
    }
}

/* ---- a text, made of nothing that a signal handler may not call ---- */

struct text {
    char chars[768];
    size_t length;
};

static void put(struct text *text, const char *chars)
{
    while (*chars && text->length < sizeof(text->chars))
        text->chars[text->length++] = *chars++;
}

static void put_number(struct text *text, uint64_t number, unsigned base)
{
    char digits[24];
    size_t at = sizeof(digits) - 1;

    digits[at] = '\0';
    do {
        digits[--at] = "0123456789abcdef"[number % base];
        number /= base;
    } while (number);
    put(text, digits + at);
}

static void put_tensor(struct text *text, const struct ringside_tensor *tensor, uint32_t index)
{
    const char *name = ringside_dtype_name(tensor->dtype);

    put(text, "tensor ");
    put_number(text, index, 10);
    put(text, " (");
    put(text, name ? name : "?");
    put(text, " [");
    for (int i = 0; i < tensor->rank; i++) {
        put(text, i ? ", " : "");
        put_number(text, (uint64_t)tensor->shape[i], 10);
    }
    put(text, "]) of message ");
}

static void put_ticket(struct text *text, struct core_connection *connection, uint64_t ticket,
                       bool forked)
{
    char name[RINGSIDE_TICKET_TEXT_BYTES];

    if (!forked && connection->ringside &&
        ringside_ticket_text(connection->ringside, ticket, name) == 0) {
        put(text, name);
    } else {
        put(text, "0x");
        put_number(text, ticket, 16);
    }
}

/* ---- the handler ---- */

static void explain(struct core_connection *connection, const struct core_lease *lease,
                    uint32_t index, bool forked)
{
    struct text text = {.length = 0};
    ssize_t written;

    put(&text, forked ? "\nringside: access in a forked child to " : "\nringside: write into ");
    put_tensor(&text, &core_lease_tensors(lease, &(uint32_t){0})[index], index);
    put_ticket(&text, connection,
               lease->is_slot ? lease->box->slot.ticket : lease->box->message.ticket, forked);
    put(&text,
        forked ? ": views belong to the parent process and are not mapped here. Pass the ticket "
                 "to the child and read it there, or copy the array before the fork.\n"
               : ": a received tensor is shared and read-only. Write to a copy: "
                 "message.torch(copy=True), message.numpy().copy(), rs.get(ticket, copy=True) or "
                 "tensor.clone(). This ends the process.\n");
    written = write(STDERR_FILENO, text.chars, text.length);
    (void)written;
}

static bool find(struct core_connection *connection, const char *address, bool forked)
{
    for (const struct core_lease *lease = connection->leases; lease; lease = lease->next) {
        uint32_t count;
        const struct ringside_tensor *tensors = core_lease_tensors(lease, &count);

        for (uint32_t i = 0; i < count; i++) {
            const char *data = tensors[i].data;

            if (address < data || address >= data + tensors[i].bytes)
                continue;
            explain(connection, lease, i, forked);
            return true;
        }
    }
    return false;
}

static void on_fault(int number, siginfo_t *info, void *context);

static int set(int flags)
{
    struct sigaction action = {.sa_sigaction = on_fault,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | flags};

    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, NULL);
}

static bool is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_fault;
}

static void call(const struct sigaction *action, int number, siginfo_t *info, void *context)
{
    if (action->sa_flags & SA_SIGINFO)
        action->sa_sigaction(number, info, context);
    else if (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN)
        action->sa_handler(number);
    else if (action->sa_handler == SIG_IGN && info->si_code <= 0)
        return; /* sent to a process that ignores it; a true fault is never ignored */
    else if (signal(number, SIG_DFL) != SIG_ERR && info->si_code <= 0)
        raise(number); /* sent, so it does not repeat. Blocked here: delivered on return */
}

/* It may do its work and put back what it found, which may be ours: then it is not called again. */
static void call_newest(int number, siginfo_t *info, void *context)
{
    struct sigaction current;

    set(MARK);
    rs_store_relaxed(&passing, 1);
    call(&newest, number, info, context);
    rs_store_relaxed(&passing, 0);
    sigaction(SIGSEGV, NULL, &current);
    if (!is_ours(&current))
        return;
    if (!(current.sa_flags & MARK))
        layered = false;
    set(0);
}

/* Other threads may change the lists meanwhile: at worst, no explanation. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    int saved = errno;

    for (struct core_connection *each = connections; each && !rs_load_relaxed(&passing);
         each = each->next) {
        bool forked = each->forks != core_forks();

        if (info->si_code == (forked ? SEGV_MAPERR : SEGV_ACCERR) &&
            find(each, info->si_addr, forked))
            break;
    }
    if (layered && !rs_load_relaxed(&passing))
        call_newest(number, info, context);
    else
        call(&oldest, number, info, context);
    errno = saved;
}

/* Again whenever a tensor is exported: others set handlers of their own. With the GIL. */
void core_fault_watch(void)
{
    static bool watching;
    const char *setting = getenv("RINGSIDE_EXPLAIN_FAULTS");
    struct sigaction current;

    if ((setting && !strcmp(setting, "0")) || sigaction(SIGSEGV, NULL, &current) < 0 ||
        is_ours(&current))
        return;
    if (watching)
        newest = current;
    else
        oldest = current;
    layered = watching;
    watching = true;
    set(0);
}

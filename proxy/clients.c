/* SPDX-License-Identifier: Apache-2.0 */
/* Who has a client number of the own ring, from admission to the end of the sweep. */
#include "proxy/clients.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#include "proto/err.h"
#include "proto/failpoint.h"
#include "proxy/client_entry.h"
#include "proxy/mend.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"
#include "proxy/session.h"
#include "proxy/tokens.h"

#define DETACH_LOOK_MS 20 /* a worker that closed its connection unmaps the ring at once */

/* Its own allocation: it closes later than the client. */
struct witness {
    uv_poll_t poll;
    struct proxy *proxy;
    int fd; /* a pidfd, owned */
    uint16_t number;
};

struct client {
    enum client_phase phase;
    bool wants_lock;
    bool foreign;
    uint8_t reader; /* 1..36, or RS_NO_READER */
    uint32_t pid;   /* 0: unknown */
    uint64_t start_time;
    struct witness *witness; /* NULL: no pidfd */
    char name[RS_NAME_BYTES];
};

struct clients {
    uint32_t count;         /* numbers 0..count-1; 0 is the sidecar */
    struct client *entries; /* owned */
    struct tokens tokens;
    uint64_t readers; /* bits of the reader numbers in use */
    uv_timer_t look;  /* soon after somebody detached */
    bool closed;
};

/* ---- witnesses ---- */

static void on_witness_closed(uv_handle_t *handle)
{
    struct witness *witness = handle->data;

    close(witness->fd);
    free(witness);
}

static void dismiss(struct client *client)
{
    if (client->witness == NULL)
        return;
    uv_close((uv_handle_t *)&client->witness->poll, on_witness_closed);
    client->witness = NULL;
}

static void on_exit_seen(uv_poll_t *poll, int status, int events)
{
    struct witness *witness = poll->data;

    (void)events;
    if (status >= 0)
        clients_died(witness->proxy, witness->number);
}

/* Takes the pidfd over. */
static int call_witness(struct proxy *proxy, uint16_t number, int pidfd)
{
    struct client *client = &proxy->clients->entries[number];
    struct witness *witness = calloc(1, sizeof *witness);
    int rc = witness != NULL ? uv_poll_init(&proxy->loop, &witness->poll, pidfd) : -ENOMEM;

    if (rc < 0) {
        free(witness);
        close(pidfd);
        return rc;
    }
    witness->proxy = proxy;
    witness->number = number;
    witness->fd = pidfd;
    witness->poll.data = witness;
    dismiss(client);
    client->witness = witness;
    return uv_poll_start(&witness->poll, UV_READABLE, on_exit_seen);
}

/* ---- judging without a witness ---- */

static bool process_is_there(const struct client *client)
{
    /* Of a process in a namespace that hides it nothing can be said: it counts as alive. */
    return client->pid == 0 || client->start_time == 0 ||
           client_start_time(client->pid) == client->start_time;
}

static bool is_gone(const struct proxy *proxy, uint16_t number)
{
    const struct client *client = &proxy->clients->entries[number];

    if (client->wants_lock)
        return !ring_files_byte_locked(&proxy->files, number);
    return client->witness == NULL && !process_is_there(client);
}

static void look_after_detached(struct proxy *proxy)
{
    for (uint32_t i = 1; i < proxy->clients->count; i++) {
        if (proxy->clients->entries[i].phase == CLIENT_DETACHED && is_gone(proxy, (uint16_t)i))
            clients_died(proxy, (uint16_t)i);
    }
}

static void on_look(uv_timer_t *timer)
{
    look_after_detached(timer->data);
}

void clients_tick(struct proxy *proxy)
{
    look_after_detached(proxy);
}

/* ---- admission ---- */

static uint8_t take_reader(struct clients *clients)
{
    for (unsigned i = 1; i < CLIENTS_SHARED_READER; i++) {
        if ((clients->readers >> i & 1) == 0) {
            clients->readers |= UINT64_C(1) << i;
            return (uint8_t)i;
        }
    }
    return RS_NO_READER;
}

static void choose_name(char to[RS_NAME_BYTES], const char *from, uint32_t pid)
{
    snprintf(to, RS_NAME_BYTES, "%s", from != NULL ? from : "");
    client_name_clean(to);
    if (to[0] == '\0')
        snprintf(to, RS_NAME_BYTES, "pid %u", pid);
}

static int admit_again(struct proxy *proxy, const struct clients_request *request,
                       struct clients_admission *admission, uint16_t number)
{
    struct client *client = &proxy->clients->entries[number];

    if (client->foreign != request->foreign)
        return -RINGSIDE_E_DENIED;
    /* Whoever still has the locked description needs no second one, and cannot get it. */
    bool lock = request->wants_lock && !ring_files_byte_locked(&proxy->files, number);
    int fd = ring_files_control_fd(&proxy->files, lock ? number : -1);
    if (fd < 0)
        return fd;
    RS_FAILPOINT(admit_again);
    client->phase = CLIENT_ATTACHED;
    client->wants_lock = request->wants_lock;
    admission->number = number;
    admission->reader = client->reader;
    admission->nonce = rs_load_relaxed(&proxy->ring.clients[number].nonce);
    admission->resumed = true;
    admission->control_fd = fd;
    return 0;
}

static int pick_number(struct proxy *proxy, bool wants_lock, uint16_t *number)
{
    struct clients *clients = proxy->clients;

    for (uint32_t i = 1; i < clients->count; i++) {
        if (clients->entries[i].phase != CLIENT_FREE)
            continue;
        int fd = ring_files_control_fd(&proxy->files, wants_lock ? (int)i : -1);
        if (fd == -RINGSIDE_E_IN_USE)
            continue; /* a child of the last owner has its description */
        *number = (uint16_t)i;
        return fd;
    }
    return -RINGSIDE_E_LIMIT;
}

static int admit_anew(struct proxy *proxy, const struct clients_request *request,
                      struct clients_admission *admission)
{
    struct clients *clients = proxy->clients;
    uint16_t number = 0;
    uint64_t nonce;

    if (!request->foreign && clients_local_count(proxy) >= proxy->config.clients.max)
        return -RINGSIDE_E_LIMIT;
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        return -errno;
    int fd = pick_number(proxy, request->wants_lock, &number);
    if (fd < 0)
        return fd;
    int rc = tokens_renew(&clients->tokens, number);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    RS_FAILPOINT(admit_locked);
    struct client *client = &clients->entries[number];
    *client = (struct client){.phase = CLIENT_ATTACHED,
                              .wants_lock = request->wants_lock,
                              .foreign = request->foreign,
                              .reader = take_reader(clients),
                              .pid = request->pid,
                              .start_time = client_start_time(request->pid)};
    choose_name(client->name, request->name, request->pid);

    struct rs_client *entry = &proxy->ring.clients[number];
    uint32_t session = rs_client_session(rs_load_relaxed(&entry->state)) + 1;
    unsigned flags =
        (request->wants_lock ? 0 : RS_CLIENT_NO_LOCK) | (request->foreign ? RS_CLIENT_FOREIGN : 0);
    rs_store_relaxed(&entry->nonce, nonce);
    rs_store_relaxed(&entry->pid, client->pid);
    rs_store_relaxed(&entry->start_time, client->start_time);
    rs_store_relaxed(&entry->attach_ns, uv_hrtime());
    client_name_store(entry, client->name);
    for (unsigned i = 0; i < RS_COUNTERS; i++)
        rs_store_relaxed(&entry->counter[i], 0);
    rs_store_release(&entry->state,
                     rs_client_state(session, client->reader, flags, RS_CLIENT_ALIVE));
    RS_FAILPOINT(admit_alive);

    admission->number = number;
    admission->reader = client->reader;
    admission->nonce = nonce;
    admission->resumed = false;
    admission->control_fd = fd;
    return 0;
}

int clients_admit(struct proxy *proxy, const struct clients_request *request,
                  struct clients_admission *admission)
{
    struct clients *clients = proxy->clients;
    int rc = proxy_is_draining(proxy) ? -RINGSIDE_E_DRAINING : 0;
    int number = -1;

    if (rc == 0 && request->token != NULL)
        number = tokens_find(&clients->tokens, request->token);
    if (number > 0 && (clients->entries[number].phase == CLIENT_ATTACHED ||
                       clients->entries[number].phase == CLIENT_DETACHED))
        rc = admit_again(proxy, request, admission, (uint16_t)number);
    else if (rc == 0)
        rc = admit_anew(proxy, request, admission);
    if (rc == -RINGSIDE_E_LIMIT)
        look_after_detached(proxy); /* for the next try */
    if (rc < 0) {
        if (request->pidfd >= 0)
            close(request->pidfd);
        return rc;
    }
    memcpy(admission->token, clients->tokens.values[admission->number], TOKEN_BYTES);
    if (request->pidfd >= 0 && call_witness(proxy, admission->number, request->pidfd) < 0)
        log_warn(&proxy->log, "clients", 0,
                 "no pidfd watch for client %u: its death is seen by its lock alone",
                 admission->number);
    return 0;
}

/* ---- the end ---- */

void clients_detach(struct proxy *proxy, uint16_t number, bool goodbye)
{
    struct client *client = &proxy->clients->entries[number];

    if (client->phase != CLIENT_ATTACHED)
        return;
    client->phase = CLIENT_DETACHED;
    if ((goodbye && !client->wants_lock) || is_gone(proxy, number))
        clients_died(proxy, number);
    else if (client->wants_lock && !proxy->clients->closed)
        uv_timer_start(&proxy->clients->look, on_look, DETACH_LOOK_MS, 0);
}

void clients_died(struct proxy *proxy, uint16_t number)
{
    struct client *client = &proxy->clients->entries[number];

    if (number == 0 || client->phase == CLIENT_FREE || client->phase == CLIENT_DYING)
        return;
    client->phase = CLIENT_DYING;
    dismiss(client);
    RS_FAILPOINT(client_dying);
    client_phase_set(&proxy->ring.clients[number], RS_CLIENT_DEAD);
    RS_FAILPOINT(client_dead);
    log_debug(&proxy->log, "clients", 0,
              "client %u (%s, pid %u) is gone: what it held is taken back", number, client->name,
              client->pid);
    session_over(proxy, number, "its process is gone");
    mend_sweep(proxy, number);
}

/* Copies counters to the sidecar's, so that totals never go back. */
static void inherit_counters(struct proxy *proxy, uint16_t number)
{
    struct rs_client *entry = &proxy->ring.clients[number];

    for (unsigned i = 0; i < RS_COUNTERS; i++) {
        uint64_t value = rs_load_relaxed(&entry->counter[i]);
        rs_store_relaxed(&entry->counter[i], 0);
        if (value != 0)
            rs_ring_count(&proxy->ring, 0, i, value);
    }
}

void clients_swept(struct proxy *proxy, uint16_t number)
{
    struct clients *clients = proxy->clients;
    struct client *client = &clients->entries[number];

    if (number == 0 || client->phase != CLIENT_DYING)
        return;
    RS_FAILPOINT(client_swept);
    inherit_counters(proxy, number);
    RS_FAILPOINT(client_counted);
    if (client->reader != RS_NO_READER)
        clients->readers &= ~(UINT64_C(1) << client->reader);
    tokens_drop(&clients->tokens, number);
    client_phase_set(&proxy->ring.clients[number], RS_CLIENT_UNUSED);
    RS_FAILPOINT(client_unused);
    client->phase = CLIENT_FREE;
    peers_session_gone(proxy, number);
    log_info(&proxy->log, "clients", 0, "client %u (%s) is gone and swept", number, client->name);
}

/* ---- life ---- */

/* An entry that an earlier sidecar left: alive and detached, or dead and to be swept. */
static void adopt(struct proxy *proxy, uint16_t number)
{
    struct clients *clients = proxy->clients;
    struct client *client = &clients->entries[number];
    struct rs_client *entry = &proxy->ring.clients[number];
    uint64_t state = rs_load_acquire(&entry->state);
    unsigned reader = rs_client_reader(state);

    if (rs_client_phase(state) == RS_CLIENT_UNUSED)
        return;
    RS_FAILPOINT(client_adopted);
    client->phase = CLIENT_DETACHED;
    client->wants_lock = (rs_client_flags(state) & RS_CLIENT_NO_LOCK) == 0;
    client->foreign = (rs_client_flags(state) & RS_CLIENT_FOREIGN) != 0;
    client->reader = RS_NO_READER;
    if (reader > 0 && reader < CLIENTS_SHARED_READER && (clients->readers >> reader & 1) == 0) {
        client->reader = (uint8_t)reader;
        clients->readers |= UINT64_C(1) << reader;
    }
    client->pid = (uint32_t)rs_load_relaxed(&entry->pid);
    client->start_time = rs_load_relaxed(&entry->start_time);
    client_name_load(entry, client->name);
    if (rs_client_phase(state) != RS_CLIENT_ALIVE || is_gone(proxy, number)) {
        clients_died(proxy, number);
        return;
    }
    int pidfd = client->pid != 0 ? (int)syscall(SYS_pidfd_open, client->pid, 0) : -1;
    if (pidfd >= 0 && client->start_time != 0 && process_is_there(client))
        call_witness(proxy, number, pidfd);
    else if (pidfd >= 0)
        close(pidfd);
    log_info(&proxy->log, "clients", 0, "client %u (%s, pid %u) lives on, detached", number,
             client->name, client->pid);
}

int clients_open(struct proxy *proxy)
{
    struct clients *clients = calloc(1, sizeof *clients);
    uint32_t count = proxy->ring.layout.client_count;

    if (clients == NULL)
        return -ENOMEM;
    clients->tokens.fd = -1;
    proxy->clients = clients;
    uv_timer_init(&proxy->loop, &clients->look);
    clients->look.data = proxy;
    clients->count = count;
    clients->entries = calloc(count, sizeof *clients->entries);
    if (clients->entries == NULL)
        return -ENOMEM;
    int rc = tokens_open(&clients->tokens, proxy->config.ring.control_dir, proxy->config.stage,
                         count, proxy->ring.layout.incarnation);
    if (rc == -ENOMEM)
        return rc;
    if (rc < 0)
        log_warn(&proxy->log, "clients", 0,
                 "cannot keep session tokens in %s: %s; sessions will not survive a restart",
                 clients->tokens.path, rs_strerror(rc));
    clients->entries[0] = (struct client){.phase = CLIENT_ATTACHED,
                                          .reader = CLIENTS_SHARED_READER,
                                          .pid = (uint32_t)getpid(),
                                          .name = "sidecar"};
    if (proxy->files.adopted)
        mend_sweep(proxy, 0);
    for (uint32_t i = 1; proxy->files.adopted && i < count; i++)
        adopt(proxy, (uint16_t)i);
    return 0;
}

void clients_close(struct proxy *proxy)
{
    struct clients *clients = proxy->clients;

    if (clients == NULL || clients->closed)
        return;
    clients->closed = true;
    uv_close((uv_handle_t *)&clients->look, NULL);
    for (uint32_t i = 0; clients->entries != NULL && i < clients->count; i++)
        dismiss(&clients->entries[i]);
}

void clients_destroy(struct proxy *proxy, bool remove)
{
    if (proxy->clients == NULL)
        return;
    tokens_close(&proxy->clients->tokens, remove);
    free(proxy->clients->entries);
    free(proxy->clients);
    proxy->clients = NULL;
}

/* ---- looks ---- */

enum client_phase clients_phase(const struct proxy *proxy, uint16_t number)
{
    return number < proxy->clients->count ? proxy->clients->entries[number].phase : CLIENT_FREE;
}

unsigned clients_reader(const struct proxy *proxy, uint16_t number)
{
    return proxy->clients->entries[number].reader;
}

const char *clients_name(const struct proxy *proxy, uint16_t number)
{
    return number < proxy->clients->count ? proxy->clients->entries[number].name : "";
}

bool clients_is_foreign(const struct proxy *proxy, uint16_t number)
{
    return proxy->clients->entries[number].foreign;
}

uint32_t clients_pid(const struct proxy *proxy, uint16_t number)
{
    return proxy->clients->entries[number].pid;
}

uint32_t clients_end(const struct proxy *proxy)
{
    return proxy->clients->count;
}

uint32_t clients_local_count(const struct proxy *proxy)
{
    uint32_t count = 0;

    for (uint32_t i = 1; i < proxy->clients->count; i++)
        count +=
            proxy->clients->entries[i].phase != CLIENT_FREE && !proxy->clients->entries[i].foreign;
    return count;
}

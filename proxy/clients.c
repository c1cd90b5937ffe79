/* SPDX-License-Identifier: Apache-2.0 */
/* Who has a client number of the own ring, from admission to the end of the sweep. */
#include "proxy/clients_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/box.h"
#include "proto/err.h"
#include "proto/failpoint.h"
#include "proxy/client_entry.h"
#include "proxy/control.h"
#include "proxy/mend.h"
#include "proxy/peers.h"
#include "proxy/proxy.h"
#include "proxy/session.h"
#include "proxy/tables.h"

#define DETACH_LOOK_MS 20 /* a worker that closed its connection unmaps the ring at once */

static void look_after_detached(struct proxy *proxy)
{
    for (uint32_t i = 1; i < proxy->clients->count; i++) {
        if (proxy->clients->entries[i].phase == CLIENT_DETACHED &&
            witness_is_gone(proxy, (uint16_t)i))
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

static bool reader_is_free(const struct clients *clients, unsigned reader)
{
    return reader > 0 && reader < CLIENTS_SHARED_READER && (clients->readers >> reader & 1) == 0;
}

static void set_in_use(struct clients *clients, uint16_t number, bool used)
{
    uint64_t bit = UINT64_C(1) << number % 64;

    clients->in_use[number / 64] &= ~bit;
    clients->in_use[number / 64] |= used ? bit : 0;
}

static void give_reader(struct clients *clients, unsigned reader, uint16_t number)
{
    clients->readers |= UINT64_C(1) << reader;
    clients->by_reader[reader] = number;
}

static uint8_t take_reader(struct clients *clients, uint16_t number)
{
    for (unsigned i = 1; i < CLIENTS_SHARED_READER; i++) {
        if (reader_is_free(clients, i)) {
            give_reader(clients, i, number);
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

/* Who is looked for when nothing else tells of the client's life, by this sidecar or the next. */
static void name_process(struct proxy *proxy, uint16_t number, uint32_t pid)
{
    struct client *client = &proxy->clients->entries[number];
    struct rs_client *entry = &proxy->ring.clients[number];

    client->pid = pid;
    client->start_time = client_start_time(pid);
    /* Unknown in between: a sidecar that dies here must not leave a pid with another's start. */
    rs_store_release(&entry->start_time, 0);
    rs_store_release(&entry->pid, client->pid);
    rs_store_release(&entry->start_time, client->start_time);
    tables_changed(proxy, entry);
}

static int admit_again(struct proxy *proxy, const struct clients_request *request,
                       struct clients_admission *admission, uint16_t number)
{
    struct client *client = &proxy->clients->entries[number];

    if (client->foreign != request->foreign)
        return -RINGSIDE_E_DENIED;
    if (client->wants_lock != request->wants_lock)
        return -RINGSIDE_E_STATE;
    /* Whoever still has the locked description needs no second one, and cannot get it. */
    bool lock = request->wants_lock && !ring_files_byte_locked(&proxy->files, number);
    int fd = ring_files_control_fd(&proxy->files, lock ? number : -1);
    if (fd < 0)
        return fd;
    RS_FAILPOINT(admit_again);
    client->phase = CLIENT_ATTACHED;
    /* An unknown pid may be that of the same process or of another. */
    if (request->pid == 0 || request->pid != client->pid) {
        client->moved = true;
        client_flag_set(&proxy->ring.clients[number], RS_CLIENT_MOVED);
    }
    name_process(proxy, number, request->pid);
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
        if (!wants_lock && ring_files_byte_locked(&proxy->files, (int)i))
            continue; /* somebody may live whose entry a stray write lost */
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
    set_in_use(clients, number, true);
    *client = (struct client){.phase = CLIENT_ATTACHED,
                              .wants_lock = request->wants_lock,
                              .foreign = request->foreign,
                              .reader = RS_NO_READER};
    if (!request->reads_nothing)
        client->reader = take_reader(clients, number);
    choose_name(client->name, request->name, request->pid);
    name_process(proxy, number, request->pid);

    struct rs_client *entry = &proxy->ring.clients[number];
    uint32_t session = rs_client_session(rs_load_relaxed(&entry->state)) + 1;
    unsigned flags =
        (request->wants_lock ? 0 : RS_CLIENT_NO_LOCK) | (request->foreign ? RS_CLIENT_FOREIGN : 0);
    clients->nonces[number] = nonce;
    rs_store_relaxed(&entry->nonce, nonce);
    rs_store_relaxed(&entry->attach_ns, uv_hrtime());
    client_name_store(entry, client->name);
    for (unsigned i = 0; i < RS_COUNTERS; i++)
        rs_store_relaxed(&entry->counter[i], 0);
    rs_box_clear(&proxy->ring.boxes[number]);
    RS_FAILPOINT(box_cleared);
    rs_store_release(&entry->state,
                     rs_client_state(session, client->reader, flags, RS_CLIENT_ALIVE));
    tables_changed(proxy, entry);
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
    int number = request->token != NULL ? tokens_find(&clients->tokens, request->token) : -1;
    int rc;

    if (number > 0 && (clients->entries[number].phase == CLIENT_ATTACHED ||
                       clients->entries[number].phase == CLIENT_DETACHED))
        rc = admit_again(proxy, request, admission, (uint16_t)number);
    else if (proxy_is_draining(proxy) && !request->foreign)
        rc = -RINGSIDE_E_DRAINING; /* a worker of the next stage takes what is left */
    else
        rc = admit_anew(proxy, request, admission);
    if (rc == -RINGSIDE_E_LIMIT)
        look_after_detached(proxy); /* for the next try */
    if (rc < 0) {
        if (request->pidfd >= 0)
            close(request->pidfd);
        return rc;
    }
    memcpy(admission->token, clients->tokens.values[admission->number], TOKEN_BYTES);
    if (request->pidfd >= 0 && witness_call(proxy, admission->number, request->pidfd) < 0)
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
    if ((goodbye && !client->wants_lock) || witness_is_gone(proxy, number))
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
    witness_dismiss(client);
    RS_FAILPOINT(client_dying);
    client_phase_set(&proxy->ring.clients[number], RS_CLIENT_DEAD);
    tables_changed(proxy, &proxy->ring.clients[number]);
    RS_FAILPOINT(client_dead);
    log_debug(&proxy->log, "clients", 0,
              "client %u (%s, pid %u) is gone: what it held is taken back", number, client->name,
              client->pid);
    session_over(proxy, number, "its process is gone");
    mend_sweep(proxy, number);
}

/*
 * The shared reader's bit in a word may be that of a session of an earlier sidecar, and nothing
 * says which: it goes when none of them is left, and nobody reads through this sidecar.
 */
static void drop_shared_readings(struct proxy *proxy)
{
    struct clients *clients = proxy->clients;
    uint64_t bit = UINT64_C(1) << CLIENTS_SHARED_READER;

    if (!clients->shared_left || clients->inherited > 0 ||
        control_sessions(proxy)->shared_count > 0)
        return;
    clients->shared_left = false;
    for (uint32_t i = 0; i < proxy->ring.layout.slot_count; i++) {
        rs_word *readers = &proxy->ring.slots[i].readers;
        if (rs_load_seq_cst(readers) & bit)
            rs_fetch_and_seq_cst(readers, ~bit);
    }
    mend_audit(proxy); /* frees what is not needed any more */
}

void clients_swept(struct proxy *proxy, uint16_t number)
{
    struct clients *clients = proxy->clients;
    struct client *client = &clients->entries[number];

    if (number == 0 || client->phase != CLIENT_DYING)
        return;
    RS_FAILPOINT(client_swept);
    client_counters_inherit(&proxy->ring.clients[number], &proxy->ring.clients[0]);
    RS_FAILPOINT(client_counted);
    if (client->reader != RS_NO_READER)
        clients->readers &= ~(UINT64_C(1) << client->reader);
    tokens_drop(&clients->tokens, number);
    client_phase_set(&proxy->ring.clients[number], RS_CLIENT_UNUSED);
    tables_changed(proxy, &proxy->ring.clients[number]);
    RS_FAILPOINT(client_unused);
    client->phase = CLIENT_FREE;
    set_in_use(clients, number, false);
    clients->inherited -= client->inherited;
    client->inherited = false;
    drop_shared_readings(proxy);
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
    bool locked = ring_files_byte_locked(&proxy->files, number);

    if (rs_client_phase(state) == RS_CLIENT_UNUSED)
        return;
    RS_FAILPOINT(client_adopted);
    if (rs_client_phase(state) == RS_CLIENT_DEAD)
        client_counters_finish(entry, &proxy->ring.clients[0]); /* before this sidecar counts anything */
    /* The kernel's word counts more than the entry's, which a stray write may have changed. */
    if (locked && rs_client_phase(state) != RS_CLIENT_ALIVE) {
        client_phase_set(entry, RS_CLIENT_ALIVE);
        tables_changed(proxy, entry);
    }
    client->phase = CLIENT_DETACHED;
    clients->nonces[number] = rs_load_relaxed(&entry->nonce);
    set_in_use(clients, number, true);
    client->wants_lock = locked || (rs_client_flags(state) & RS_CLIENT_NO_LOCK) == 0;
    client->moved = (rs_client_flags(state) & RS_CLIENT_MOVED) != 0;
    client->foreign = (rs_client_flags(state) & RS_CLIENT_FOREIGN) != 0;
    client->reader = RS_NO_READER;
    if (reader_is_free(clients, reader)) {
        client->reader = (uint8_t)reader;
        give_reader(clients, reader, number);
    }
    client->pid = (uint32_t)rs_load_relaxed(&entry->pid);
    client->start_time = rs_load_relaxed(&entry->start_time);
    client_name_load(entry, client->name);
    if ((!locked && rs_client_phase(state) != RS_CLIENT_ALIVE) || witness_is_gone(proxy, number)) {
        clients_died(proxy, number);
        return;
    }
    client->inherited = client->reader == RS_NO_READER && !client->foreign;
    clients->inherited += client->inherited;
    int pidfd = client->pid != 0 ? (int)syscall(SYS_pidfd_open, client->pid, 0) : -1;
    if (pidfd >= 0 && client->start_time != 0 && witness_process_is_there(client))
        witness_call(proxy, number, pidfd);
    else if (pidfd >= 0)
        close(pidfd);
    log_info(&proxy->log, "clients", 0, "client %u (%s, pid %u) lives on, detached", number,
             client->name, client->pid);
}

/* A lock without an entry: a child of the number's last owner, or a stray write lost the entry of a
 * worker that lives. */
static bool somebody_unknown_lives(struct proxy *proxy)
{
    for (uint32_t i = 1; i < proxy->clients->count; i++) {
        if (proxy->clients->entries[i].phase == CLIENT_FREE &&
            ring_files_byte_locked(&proxy->files, (int)i))
            return true;
    }
    return false;
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
    clients->entries = calloc(count, sizeof *clients->entries);
    if (clients->entries == NULL)
        return -ENOMEM;
    clients->count = count;
    give_reader(clients, CLIENTS_SHARED_READER, 0);
    int rc = tokens_open(&clients->tokens, proxy->config.ring.control_dir, proxy->config.stage,
                         count, proxy->ring.layout.incarnation);
    if (rc == -ENOMEM)
        return rc;
    if (rc < 0)
        log_warn(&proxy->log, "clients", 0,
                 "cannot keep session tokens in %s: %s; sessions will not survive a restart",
                 clients->tokens.path, rs_strerror(rc));
    clients->entries[0] = (struct client){.phase = CLIENT_ATTACHED,
                                          .reader = RS_NO_READER,
                                          .pid = (uint32_t)getpid(),
                                          .name = "sidecar"};
    if (proxy->files.adopted)
        mend_sweep(proxy, 0);
    for (uint32_t i = 1; proxy->files.adopted && i < count; i++)
        adopt(proxy, (uint16_t)i);
    if (!proxy->files.adopted || !somebody_unknown_lives(proxy)) {
        proxy->repair.clients_in_use = clients->in_use;
        proxy->repair.nonces = clients->nonces;
        proxy->repair.readers_in_use = &clients->readers;
    }
    if (proxy->files.adopted)
        control_adopt_calls(proxy, NULL);
    clients->shared_left = proxy->files.adopted;
    drop_shared_readings(proxy);
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
        witness_dismiss(&clients->entries[i]);
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

int clients_by_reader(const struct proxy *proxy, unsigned reader)
{
    bool used = reader < RS_MAX_READERS && (proxy->clients->readers >> reader & 1) != 0;

    return used ? proxy->clients->by_reader[reader] : -1;
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

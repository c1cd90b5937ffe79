/* SPDX-License-Identifier: Apache-2.0 */
/* Who tells that a client's process is gone: its pidfd, the lock of its byte, or its pid. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "proxy/client_entry.h"
#include "proxy/clients_private.h"
#include "proxy/proxy.h"

/* Its own allocation: it closes later than the client. */
struct witness {
    uv_poll_t poll;
    struct proxy *proxy;
    int fd; /* a pidfd, owned */
    uint16_t number;
};

static void on_witness_closed(uv_handle_t *handle)
{
    struct witness *witness = handle->data;

    close(witness->fd);
    free(witness);
}

void witness_dismiss(struct client *client)
{
    if (client->witness == NULL)
        return;
    uv_close((uv_handle_t *)&client->witness->poll, on_witness_closed);
    client->witness = NULL;
}

static void on_exit_seen(uv_poll_t *poll, int status, int events)
{
    struct witness *witness = poll->data;
    struct proxy *proxy = witness->proxy;
    uint16_t number = witness->number;
    struct client *client = &proxy->clients->entries[number];

    (void)events;
    if (status < 0)
        return;
    if (client->moved && client->wants_lock && ring_files_byte_locked(&proxy->files, number))
        witness_dismiss(
            client); /* the process that has the lock is another one: the lock tells of it */
    else
        clients_died(proxy, number);
}

int witness_call(struct proxy *proxy, uint16_t number, int pidfd)
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
    witness_dismiss(client);
    client->witness = witness;
    return uv_poll_start(&witness->poll, UV_READABLE, on_exit_seen);
}

/* ---- judging without a witness ---- */

bool witness_process_is_there(const struct client *client)
{
    /* Of a process in a namespace that hides it nothing can be said: it counts as alive. */
    if (client->pid == 0)
        return true;
    if (client->start_time == 0)
        return kill((pid_t)client->pid, 0) == 0 || errno != ESRCH;
    return client_start_time(client->pid) == client->start_time;
}

bool witness_is_gone(const struct proxy *proxy, uint16_t number)
{
    const struct client *client = &proxy->clients->entries[number];

    if (client->wants_lock && ring_files_byte_locked(&proxy->files, number))
        return false;
    if (client->wants_lock && !client->moved)
        return true;
    return client->witness == NULL && !witness_process_is_there(client);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching for the descriptors; a guard stands where the files might be cut meanwhile. */
#include "client/cli/view.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/fdpass.h"
#include "proto/guard.h"
#include "proto/layout.h"

static int attach(struct view *view, struct cli *cli, int *fds, size_t *fd_count)
{
    Ringside__V1__AttachRequest request = RINGSIDE__V1__ATTACH_REQUEST__INIT;
    ProtobufCMessage *response;
    char name[64];

    snprintf(name, sizeof name, "ringside %s", cli->command);
    request.name = name;
    request.want_descriptors = 1;
    request.layout_version = RS_LAYOUT_VERSION;
    request.layout_hash = rs_layout_hash();
    int status = cli_call_fds(cli, "Attach", &request.base,
                              &ringside__v1__attach_response__descriptor, &response, fds, fd_count);
    view->attached = (Ringside__V1__AttachResponse *)response;
    return status;
}

static int find_fd(const struct view *view, const int *fds, size_t fd_count,
                   Ringside__V1__Descriptor kind)
{
    for (size_t i = 0; i < view->attached->n_descriptors && i < fd_count; i++) {
        if (view->attached->descriptors[i] == kind)
            return fds[i];
    }
    return -1;
}

static int map(struct view *view, const struct cli *cli, int control_fd, int body_fd)
{
    struct rs_ring *ring = &view->ring;
    const char *why;

    if (control_fd < 0 || body_fd < 0)
        return cli_fail(cli, CLI_FAILED, "the sidecar passed no descriptor of its ring");
    int rc = rs_ring_map(ring, control_fd, body_fd, false, &why);
    if (rc < 0)
        return cli_fail(cli, CLI_FAILED, "cannot map the ring: %s (%s)", why, rs_error_name(rc));
    rc = rs_guard_add(ring->control, ring->layout.control_bytes);
    if (rc == 0)
        rc = rs_guard_add(ring->body, ring->layout.body_bytes);
    if (rc == 0 && mprotect(ring->control, ring->layout.control_bytes, PROT_READ) < 0)
        rc = -errno;
    return rc == 0 ? CLI_OK : cli_fail(cli, CLI_FAILED, "cannot map the ring: %s", rs_strerror(rc));
}

int view_init(struct view *view, struct cli *cli)
{
    int fds[RS_FDPASS_MAX];
    size_t fd_count = RS_FDPASS_MAX;

    *view = (struct view){.control_fd = -1};
    int status = cli_connect(cli);
    if (status == CLI_OK)
        status = attach(view, cli, fds, &fd_count);
    if (status != CLI_OK)
        return status;
    view->control_fd = find_fd(view, fds, fd_count, RINGSIDE__V1__DESCRIPTOR__CONTROL_FILE);
    status = map(view, cli, view->control_fd,
                 find_fd(view, fds, fd_count, RINGSIDE__V1__DESCRIPTOR__BODY_FILE));
    for (size_t i = 0; i < fd_count; i++) {
        if (fds[i] != view->control_fd)
            close(fds[i]);
    }
    if (status != CLI_OK)
        view_finish(view);
    return status;
}

void view_finish(struct view *view)
{
    if (view->ring.control != NULL)
        rs_guard_remove(view->ring.control);
    if (view->ring.body != NULL)
        rs_guard_remove(view->ring.body);
    rs_ring_unmap(&view->ring);
    if (view->control_fd >= 0)
        close(view->control_fd);
    if (view->attached != NULL)
        ringside__v1__attach_response__free_unpacked(view->attached, NULL);
    *view = (struct view){.control_fd = -1};
}

int view_check(const struct view *view, const struct cli *cli)
{
    char byte;
    ssize_t bytes = recv(cli->client.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR))
        return cli_fail(cli, CLI_UNREACHABLE,
                        "the sidecar at %s has closed the connection: it "
                        "ended or was started anew",
                        cli->socket);
    if (rs_guard_hit(view->ring.control) || rs_guard_hit(view->ring.body))
        return cli_fail(cli, CLI_FAILED, "the files of the ring were cut; start its sidecar anew");
    return CLI_OK;
}

void view_stage(const struct view *view, unsigned destination, char name[RS_NAME_BYTES])
{
    uint64_t words[RS_NAME_BYTES / 8] = {0};

    if (destination < view->ring.layout.destination_count) {
        for (unsigned i = 0; i < RS_NAME_BYTES / 8; i++)
            words[i] = rs_load_relaxed(&view->ring.destinations[destination].name[i]);
    }
    memcpy(name, words, RS_NAME_BYTES);
    name[RS_NAME_BYTES - 1] = '\0';
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A sidecar's ring, mapped to be looked at: what this process writes to it is nothing at all. */
#ifndef RINGSIDE_CLI_VIEW_H
#define RINGSIDE_CLI_VIEW_H

#include "client/cli/cli.h"
#include "control.pb-c.h"
#include "proto/ring.h"

struct view {
    struct rs_ring ring;                    /* control and body file, both without PROT_WRITE */
    Ringside__V1__AttachResponse *attached; /* routes; owned */
    int control_fd;                         /* owned: its lock says that we live */
};

/* Attaches over the connection of `cli`, which becomes a session, and maps the ring. CLI_OK: to be
 * finished by view_finish. Else an explained status. */
int view_init(struct view *view, struct cli *cli);
void view_finish(struct view *view);

/* Whether the sidecar's files are whole and its connection is there. CLI_OK or an explained status.
 */
int view_check(const struct view *view, const struct cli *cli);

/* Stage that a destination leads to, "" when it is none. Not yet printable. */
void view_stage(const struct view *view, unsigned destination, char name[RS_NAME_BYTES]);

#endif

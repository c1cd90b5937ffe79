/* SPDX-License-Identifier: Apache-2.0 */
/* For commands that take part: a connection of libringside, and tickets of the command line. */
#ifndef RINGSIDE_CLI_WORKER_H
#define RINGSIDE_CLI_WORKER_H

#include "client/c/ringside.h"
#include "client/cli/cli.h"

/* Attaches as a worker of the stage, named "ringside COMMAND". CLI_OK: the connection is the
 * caller's (ringside_close). Else an explained status. */
int worker_open(struct cli *cli, struct ringside **connection);

/* Says what the library last said of `connection` (NULL: of connecting), after `what` was being
 * done (NULL: what the command is for). Returns the exit status for `error`. */
int worker_explain(const struct cli *cli, const struct ringside *connection, const char *what,
                   int error);

struct worker_ticket {
    uint64_t number;  /* 0: `text` names it */
    const char *text; /* the text form, or NULL; the caller's */
};

/* Checked before anybody is asked, so that a slip of the fingers is told from a ticket that is
 * over. CLI_OK or an explained status. */
int worker_ticket(const struct cli *cli, const char *argument, struct worker_ticket *ticket);

#endif

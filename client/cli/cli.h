/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of `ringside` share: common options, the connection, the exit status. */
#ifndef RINGSIDE_CLI_H
#define RINGSIDE_CLI_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/ttrpc_client.h"

/* Part of the interface: scripts look at them. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,      /* refused by the sidecar, or went wrong here */
    CLI_USAGE = 2,       /* the command line makes no sense */
    CLI_UNREACHABLE = 3, /* no sidecar answers at the socket */
    CLI_TICKET = 4,      /* no message has this ticket (any more) */
    CLI_TIMEOUT = 5,     /* no answer in the time allowed */
};

enum cli_option_kind {
    CLI_FLAG,    /* bool *: set */
    CLI_TEXT,    /* const char **: of the command line */
    CLI_COUNT,   /* uint64_t *: 1..1000000000 */
    CLI_SECONDS, /* int64_t *: nanoseconds, of a decimal number of seconds */
};

/* One row makes the parser and the help. Tables end with a row without a name. */
struct cli_option {
    const char *name;          /* without the dashes */
    char letter;               /* of the short form, or 0 */
    enum cli_option_kind kind; /* says what `target` is */
    void *target;              /* set when the option is given */
    const char *argument;      /* for the help; NULL for a flag */
    const char *help;          /* a sentence or two, broken into lines by the printer */
};

struct cli {
    const char *socket;         /* --socket, else of the environment; NULL until cli_connect */
    int64_t timeout_ns;         /* of one call */
    bool timeout_given;         /* on the command line */
    int64_t connect_timeout_ns; /* how long to try while nobody listens; 0: once */
    bool json;                  /* for programs */
    const char *command;        /* name, for messages */
    bool connected;             /* `client` is to be finished */
    struct rs_ttrpc_client client;
};

struct cli_command {
    const char *name;
    const char *summary;              /* one line, without a full stop */
    const char *arguments;            /* for the synopsis, or NULL */
    const char *description;          /* paragraphs, separated by an empty line */
    const char *examples;             /* lines as they are to be printed */
    const struct cli_option *options; /* its own; NULL: none */
    int min_arguments, max_arguments; /* how many `run` can take */
    /* Returns an exit status; `arguments` are those after the options. */
    int (*run)(struct cli *cli, int count, char **arguments);
};

extern const struct cli_command status_command, ls_command, describe_command, ping_command,
    bench_command, drain_command, send_command, recv_command, share_command, read_command,
    free_command, tap_command, routes_command, top_command, call_command;

/* "ringside COMMAND: text" on standard error. Returns `status`. */
int cli_fail(const struct cli *cli, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The exit status that stands for an error number. */
int cli_status(int error);

/* Finds the socket: *socket is the option's or the environment's. CLI_OK, or an explained status.
 */
int cli_find_socket(struct cli *cli);

/* Connects to the sidecar. CLI_OK, or an explained status. */
int cli_connect(struct cli *cli);

/*
 * Calls a method of the control API. CLI_OK: *response is a message of `type`, the caller's
 * (protobuf_c_message_free_unpacked). Otherwise *response is NULL and the status has been
 * explained.
 */
int cli_call(struct cli *cli, const char *method, const ProtobufCMessage *request,
             const ProtobufCMessageDescriptor *type, ProtobufCMessage **response);

/* The same with room for *fd_count descriptors, which are the caller's on CLI_OK; *fd_count says
 * how many came. */
int cli_call_fds(struct cli *cli, const char *method, const ProtobufCMessage *request,
                 const ProtobufCMessageDescriptor *type, ProtobufCMessage **response, int *fds,
                 size_t *fd_count);

/* Ends the connection of cli_connect before the command ends. */
void cli_disconnect(struct cli *cli);

/* Manual pages in the terminal: of the tool (`command` NULL) or of one command. */
void help_print(const struct cli_command *command, const struct cli_command *const *commands,
                const struct cli_option *common);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t cli_now_ns(void);

#endif

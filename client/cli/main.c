/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside`: finds the command, reads the options, and ends with a status that scripts can use. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"

#define COUNT_MAX   1000000000u
#define SECONDS_MAX 1000000.0
#define OPTIONS_MAX 16  /* common ones and a command's */
#define FIRST_VALUE 256 /* of getopt's values: above every letter */

static struct cli cli = {.timeout_ns = INT64_C(5000000000)};
static bool wants_help, wants_version;

static const struct cli_option common[] = {
    {"socket", 's', CLI_TEXT, &cli.socket, "PATH",
     "The sidecar's control socket. Default: RINGSIDE_SOCKET."},
    {"timeout", 't', CLI_SECONDS, &cli.timeout_ns, "SECONDS",
     "How long to wait for an answer. Default: 5."},
    {"connect-timeout", 0, CLI_SECONDS, &cli.connect_timeout_ns, "SECONDS",
     "How long to keep trying while no sidecar listens at the socket. Default: 0, one try."},
    {"json", 'j', CLI_FLAG, &cli.json, NULL,
     "Print JSON: one document, or one object a line from send, recv, call, tap and top."},
    {"help", 'h', CLI_FLAG, &wants_help, NULL, "Print this and exit."},
    {"version", 'V', CLI_FLAG, &wants_version, NULL, "Print the version and exit."},
    {0},
};

static const struct cli_command *const commands[] = {
    &status_command, &top_command,  &ls_command,    &describe_command, &send_command,
    &recv_command,   &call_command,  &share_command, &read_command,     &free_command,
    &tap_command,    &routes_command, &ping_command, &bench_command,    &drain_command,
    NULL,
};

static int usage(const char *command)
{
    fprintf(stderr, "Try 'ringside %s%s--help'.\n", command, command[0] != '\0' ? " " : "");
    return CLI_USAGE;
}

static const struct cli_command *find(const char *name)
{
    for (size_t i = 0; commands[i] != NULL; i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    fprintf(stderr, "ringside: no command '%s'; there are:", name);
    for (size_t i = 0; commands[i] != NULL; i++)
        fprintf(stderr, " %s", commands[i]->name);
    fputc('\n', stderr);
    return NULL;
}

static bool read_count(const char *text, uint64_t *count)
{
    char *end;

    errno = 0;
    *count = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *count >= 1 &&
           *count <= COUNT_MAX;
}

static bool read_seconds(const char *text, int64_t *duration_ns)
{
    char *end;
    double seconds = strtod(text, &end);
    bool plain = text[0] != '\0' && text[strspn(text, "0123456789.")] == '\0';

    if (!plain || *end != '\0' || seconds > SECONDS_MAX)
        return false;
    *duration_ns = (int64_t)(seconds * 1e9);
    return true;
}

/* Stores what an option says; explains and returns false when it says nothing sensible. */
static bool set(const struct cli_option *option, const char *value)
{
    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)option->target = true;
        return true;
    case CLI_TEXT:
        *(const char **)option->target = value;
        return true;
    case CLI_COUNT:
        if (read_count(value, option->target))
            return true;
        cli_fail(&cli, CLI_USAGE, "--%s is '%s'; it must be a whole number, 1 to %u", option->name,
                 value, COUNT_MAX);
        return false;
    case CLI_SECONDS:
        if (read_seconds(value, option->target)) {
            cli.timeout_given |= option->target == &cli.timeout_ns;
            return true;
        }
        cli_fail(&cli, CLI_USAGE, "--%s is '%s'; it must be a number of seconds, 0 to %.0f",
                 option->name, value, SECONDS_MAX);
        return false;
    }
    return false;
}

/* Lists both tables for getopt. Returns how many options there are. */
static int list(const struct cli_option *own, const struct cli_option **options,
                struct option *longs, char *letters)
{
    const struct cli_option *tables[] = {common, own};
    int count = 0;

    for (size_t i = 0; i < 2; i++) {
        for (const struct cli_option *option = tables[i]; option != NULL && option->name != NULL;
             option++) {
            int takes = option->argument != NULL ? required_argument : no_argument;
            longs[count] = (struct option){option->name, takes, NULL, FIRST_VALUE + count};
            options[count++] = option;
            if (option->letter != 0)
                letters += sprintf(letters, "%c%s", option->letter, takes ? ":" : "");
        }
    }
    longs[count] = (struct option){0};
    return count;
}

/* Reads the options in front of the command (`own` NULL) or after it. CLI_OK or CLI_USAGE. */
static int read_options(const struct cli_option *own, bool stop_at_command, int argc, char **argv)
{
    const struct cli_option *options[OPTIONS_MAX];
    struct option longs[OPTIONS_MAX + 1];
    char letters[2 * OPTIONS_MAX + 2] = "+";
    int count = list(own, options, longs, letters + (stop_at_command ? 1 : 0));
    int value;

    optind = 0; /* makes getopt begin anew */
    while ((value = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        if (value == '?')
            return CLI_USAGE;
        const struct cli_option *option = NULL;
        for (int i = 0; i < count; i++) {
            if (value == FIRST_VALUE + i || value == options[i]->letter)
                option = options[i];
        }
        if (option == NULL || !set(option, optarg))
            return CLI_USAGE;
    }
    return CLI_OK;
}

static int run(const struct cli_command *command, int count, char **arguments)
{
    if (count < command->min_arguments) {
        cli_fail(&cli, CLI_USAGE, "%s is missing", command->arguments);
        return usage(command->name);
    }
    if (count > command->max_arguments) {
        cli_fail(&cli, CLI_USAGE, "'%s' is one argument too many",
                 arguments[command->max_arguments]);
        return usage(command->name);
    }
    if (cli.timeout_ns == 0)
        return cli_fail(&cli, CLI_USAGE, "--timeout must be more than 0 seconds");
    int status = command->run(&cli, count, arguments);
    cli_disconnect(&cli);
    return status;
}

/* A full disk or a closed pipe must not look like success. */
static int flush(int status)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == CLI_OK)
        return cli_fail(&cli, CLI_FAILED, "cannot write to standard output: %s", strerror(errno));
    return status;
}

static int help(const struct cli_command *command)
{
    help_print(command, commands, common);
    return flush(CLI_OK);
}

static int print_version(void)
{
    puts("ringside " RINGSIDE_VERSION);
    return flush(CLI_OK);
}

/* `argv` begins with the command. */
static int run_command(int argc, char **argv)
{
    char name[64];

    if (strcmp(argv[0], "help") == 0 && argc <= 2) {
        const struct cli_command *topic = argc == 2 ? find(argv[1]) : NULL;
        return argc == 2 && topic == NULL ? usage("") : help(topic);
    }
    const struct cli_command *command = find(argv[0]);
    if (command == NULL)
        return usage("");
    cli.command = command->name;
    snprintf(name, sizeof name, "ringside %s", command->name);
    argv[0] = name; /* for getopt's messages */
    if (read_options(command->options, false, argc, argv) != CLI_OK)
        return usage(command->name);
    if (wants_help)
        return help(command);
    if (wants_version)
        return print_version();
    return flush(run(command, argc - optind, argv + optind));
}

int main(int argc, char **argv)
{
    setlocale(LC_CTYPE, "");
    if (read_options(NULL, true, argc, argv) != CLI_OK)
        return usage("");
    if (optind < argc)
        return run_command(argc - optind, argv + optind);
    if (wants_help)
        return help(NULL);
    if (wants_version)
        return print_version();
    fputs("ringside: no command given\n", stderr);
    return usage("");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* --help, in the order of a manual page, made from the tables that the parser uses. */
#include <stdio.h>
#include <string.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"

#define INDENT "    "
#define WIDTH  OUTPUT_COLUMNS

static void paragraphs(const char *text, size_t indent)
{
    while (*text != '\0') {
        const char *end = strstr(text, "\n\n");
        size_t bytes = end != NULL ? (size_t)(end - text) : strlen(text);
        char paragraph[2048];
        snprintf(paragraph, sizeof paragraph, "%.*s", (int)bytes, text);
        output_paragraph(stdout, "", paragraph, indent, WIDTH);
        text += bytes;
        if (end != NULL) {
            text += 2;
            putchar('\n');
        }
    }
}

static void print_options(const struct cli_option *option)
{
    for (; option != NULL && option->name != NULL; option++) {
        printf(INDENT);
        if (option->letter != 0)
            printf("-%c, ", option->letter);
        printf("--%s%s%s\n", option->name, option->argument != NULL ? " " : "",
               option->argument != NULL ? option->argument : "");
        paragraphs(option->help, 8);
    }
}

static void print_exit_status(void)
{
    puts("\nEXIT STATUS\n"
         "    0   done\n"
         "    1   refused by the sidecar, or failed here\n"
         "    2   the command line makes no sense\n"
         "    3   no sidecar can be reached at the socket\n"
         "    4   no message has this ticket: stale, expired, or of another ring\n"
         "    5   no answer in the time allowed\n"
         "\nENVIRONMENT\n"
         "    RINGSIDE_SOCKET\n"
         "        Path of the sidecar's socket where --socket is not given.");
}

static void print_tool(const struct cli_command *const *commands)
{
    puts("NAME\n"
         "    ringside - look at, steer and use a running Ringside sidecar\n"
         "\nSYNOPSIS\n"
         "    ringside [OPTION]... COMMAND [OPTION]... [ARGUMENT]...\n"
         "    ringside help [COMMAND]\n"
         "\nDESCRIPTION");
    paragraphs("Asks the sidecar behind a control socket and prints what it says: as text for "
               "people, cut to the width of the terminal, or whole and as JSON for programs.\n\n"
               "send, recv, call, share, read and free take part as a worker of the stage does; recv takes "
               "messages from the stage's workers. bench holds a slot. All others take no slot and "
               "no message and may be used on a pipeline that is at work; tap and routes have a "
               "client number while they run.\n\n"
               "In text, control characters and what the locale cannot show are escaped as in C "
               "(\"\\n\", \"\\x1b\"), and a backslash is doubled.\n\n"
               "With --json a command prints one JSON document; send, recv, call, tap and top, which may "
               "have several things to say, print one object a line as they happen. Fields are named "
               "as in control.proto: times in nanoseconds (_ns), sizes in bytes, tickets and other "
               "64-bit words as hexadecimal strings because a JSON number ends at 2^53. Errors are "
               "text on standard error, and the exit status says of what kind, also with --json.",
               4);
    puts("\nCOMMANDS");
    for (; *commands != NULL; commands++)
        printf(INDENT "%-10s%s\n", (*commands)->name, (*commands)->summary);
}

static void print_command(const struct cli_command *command)
{
    printf("NAME\n" INDENT "ringside %s - %s\n", command->name, command->summary);
    printf("\nSYNOPSIS\n" INDENT "ringside %s [OPTION]...%s%s\n", command->name,
           command->arguments != NULL ? " " : "",
           command->arguments != NULL ? command->arguments : "");
    puts("\nDESCRIPTION");
    paragraphs(command->description, 4);
}

void help_print(const struct cli_command *command, const struct cli_command *const *commands,
                const struct cli_option *common)
{
    if (command != NULL)
        print_command(command);
    else
        print_tool(commands);
    puts("\nOPTIONS");
    if (command != NULL)
        print_options(command->options);
    print_options(common);
    print_exit_status();
    printf("\nEXAMPLES\n%s",
           command != NULL ? command->examples
                           : INDENT
               "ringside --socket /run/ringside/features.sock status\n" INDENT
               "RINGSIDE_SOCKET=/run/ringside/features.sock ringside ls --held\n" INDENT
               "ringside help describe\n");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside top`: stages, rates, slots and who has them, refreshed each second. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/to_json.h"
#include "client/cli/top_draw.h"
#include "client/cli/top_screen.h"
#include "proto/err.h"

#define STAGES_MAX   64
#define HOLDERS_ONCE 10                  /* in one report */
#define PATIENCE_NS  INT64_C(1000000000) /* for an answer, where --timeout does not say */

static bool once;
static uint64_t reports;
static int64_t interval_ns = INT64_C(1000000000);

static const struct cli_option options[] = {
    {"once", '1', CLI_FLAG, &once, NULL,
     "Look twice, --interval apart, print one report and end. What happens anyway where standard "
     "output is no terminal and --count is not given."},
    {"count", 'n', CLI_COUNT, &reports, "N", "Print N reports, one below the other, and end."},
    {"interval", 'i', CLI_SECONDS, &interval_ns, "SECONDS", "Time between two looks. Default: 1."},
    {0},
};

struct top {
    struct cli *cli;
    struct top_stage *stages; /* `count` of them */
    size_t count;
};

static void look(const struct top *top)
{
    /* One sidecar that hangs must not hide the others for long. */
    int64_t timeout_ns = top->cli->timeout_given ? top->cli->timeout_ns : PATIENCE_NS;

    for (size_t i = 0; i < top->count; i++)
        top_stage_look(&top->stages[i], timeout_ns);
}

static void pause_until(uint64_t at_ns)
{
    const struct timespec at = {(time_t)(at_ns / 1000000000), (long)(at_ns % 1000000000)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0)
        ;
}

/* ---- reports ---- */

static void print_report(const struct top *top)
{
    if (top->cli->json) {
        json_print_line(top_json(top->stages, top->count));
        return;
    }
    top_draw(stdout, top->stages, top->count, output_columns(), HOLDERS_ONCE);
    fflush(stdout);
}

/* That of the first sidecar which did not answer. */
static int report_status(const struct top *top)
{
    for (size_t i = 0; i < top->count; i++) {
        if (top->stages[i].error[0] != '\0')
            return cli_fail(top->cli, CLI_UNREACHABLE, "%s: %s", top->stages[i].socket,
                            top->stages[i].error);
    }
    return CLI_OK;
}

static int run_reports(const struct top *top)
{
    uint64_t count = reports > 0 ? reports : once ? 1 : UINT64_MAX;

    look(top); /* rates need two */
    for (uint64_t i = 0; i < count && !ferror(stdout); i++) {
        pause_until(cli_now_ns() + (uint64_t)interval_ns);
        look(top);
        if (i > 0 && !top->cli->json)
            putchar('\n');
        print_report(top);
    }
    return report_status(top);
}

/* ---- the screen ---- */

static int show(const struct top *top)
{
    size_t columns, rows, bytes;
    char *frame, clock[16], text[OUTPUT_COLUMNS];
    FILE *file = output_need(open_memstream(&frame, &bytes));
    time_t now = time(NULL);
    struct tm local;

    screen_size(&columns, &rows);
    strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&now, &local));
    snprintf(text, sizeof text, "ringside top - %zu stage%s - %s - q quits", top->count,
             top->count == 1 ? "" : "s", clock);
    output_field(file, text, columns, false);
    fputs("\n", file);
    /* More holders than there are rows never help. */
    top_draw(file, top->stages, top->count, columns, rows);
    output_need(fclose(file) == 0 ? frame : NULL);
    int rc = screen_show(frame);
    free(frame);
    return rc;
}

static int run_screen(const struct top *top)
{
    uint64_t at_ns = cli_now_ns();
    enum screen_event event = SCREEN_TIME;
    int rc = screen_begin();

    while (rc == 0 && event != SCREEN_QUIT) {
        if (event == SCREEN_TIME) {
            look(top);
            at_ns += (uint64_t)interval_ns;
            uint64_t now_ns = cli_now_ns();
            if (at_ns < now_ns) /* behind: looks that were missed are not made up for */
                at_ns = now_ns + (uint64_t)interval_ns;
        }
        rc = show(top);
        if (rc == 0)
            event = screen_wait(at_ns);
    }
    screen_end();
    return rc == 0 ? CLI_OK
                   : cli_fail(top->cli, CLI_FAILED, "cannot use the terminal: %s", rs_strerror(rc));
}

static int run(struct cli *cli, int count, char **arguments)
{
    bool terminal = isatty(STDOUT_FILENO);
    struct top top = {.cli = cli};
    int status = CLI_OK;

    if (interval_ns < 10000000)
        return cli_fail(cli, CLI_USAGE, "--interval is %.3g s; it must be 0.01 or more",
                        (double)interval_ns / 1e9);
    if (count == 0)
        status = cli_find_socket(cli);
    if (status != CLI_OK)
        return status;
    top.count = count > 0 ? (size_t)count : 1;
    top.stages = output_need(calloc(top.count, sizeof *top.stages));
    for (size_t i = 0; i < top.count; i++)
        top_stage_init(&top.stages[i], count > 0 ? arguments[i] : cli->socket);
    once = once || (!terminal && reports == 0);
    if (once || reports > 0 || cli->json)
        status = run_reports(&top);
    else
        status = run_screen(&top);
    for (size_t i = 0; i < top.count; i++)
        top_stage_finish(&top.stages[i]);
    free(top.stages);
    return status;
}

const struct cli_command top_command = {
    .name = "top",
    .summary = "stages, rates, slots and their oldest holders, each second",
    .arguments = "[SOCKET...]",
    .description =
        "Shows the sidecars at the sockets given (default: that of --socket or RINGSIDE_SOCKET) on "
        "the whole terminal, refreshed each second. q ends it, and so does Ctrl-C. Where standard "
        "output is no terminal it prints one report.\n\n"
        "SENT/s and RECV/s are messages that workers of the stage sent and received between the "
        "last two looks; MB/s are the bytes sent, in 10^6. INBOX is how many messages wait for the "
        "stage, of how many may. QUEUED p50 and p99 are the ages of messages of the stage's ring "
        "that were seen waiting, in whatever inbox, at the last ten looks: what waits long is seen "
        "more often than what is taken at once, and the age of a message without a time to live is "
        "exact to a tick of the kernel, some milliseconds. HAND-OFF is always \"-\": it takes "
        "about "
        "a microsecond and no sidecar sees it; ringside bench measures it. \"-\" elsewhere: "
        "nothing "
        "was seen, or there has been one look only.\n\n"
        "SLOTS OF are the ring's size classes with their slots by state; OLDEST is how long the "
        "holder beside it has had one (loaned, held or reading). Below are the holders, the oldest "
        "first; one that is much older than a request takes hangs or leaks.\n\n"
        "It asks for the sidecar's status and the list of live slots, as ringside status and ls "
        "do; "
        "of the list it reads some thousand slots at most, and it waits a second for an answer "
        "unless "
        "--timeout says how long. With --json each report is an object a "
        "line: what is unknown is null.\n\n"
        "Exit status 3: some sidecar did not answer at the last look.",
    .examples = "    ringside top /run/ringside/*.sock\n"
                "    ringside top --once --json | jq '.stages[] | {stage, sent_per_s}'\n",
    .options = options,
    .max_arguments = STAGES_MAX,
    .run = run,
};

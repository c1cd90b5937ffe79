/* SPDX-License-Identifier: Apache-2.0 */
/* The alternate screen without a cursor. What signal handlers do is write and tcsetattr alone. */
#include "client/cli/top_screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "client/cli/output.h"

#define ENTER                                                                                    \
    "\033[?1049h\033[?25l\033[?7l\033[2J" /* other screen, no cursor, no lines that go on in the \
                                             next */
#define LEAVE "\033[?7h\033[?25h\033[?1049l"
#define ROWS  24

static const int deadly[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static struct termios before;
static bool has_keys;       /* standard input is a terminal; `before` is how it was */
static _Atomic int active;  /* the terminal is ours */
static _Atomic int resized; /* another size, or back from Ctrl-Z */
static sigset_t outside;    /* signals that were blocked before: those that arrive while we wait */

static int write_all(const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t step = write(STDOUT_FILENO, bytes, count);
        if (step < 0 && errno == EINTR)
            continue;
        if (step < 0)
            return -errno;
        bytes += step;
        count -= (size_t)step;
    }
    return 0;
}

static int enter(void)
{
    if (has_keys) {
        struct termios ours = before;
        ours.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        ours.c_cc[VMIN] = 1;
        ours.c_cc[VTIME] = 0;
        if (tcsetattr(STDIN_FILENO, TCSANOW, &ours) < 0)
            return -errno;
    }
    active = 1;
    return write_all(ENTER, sizeof ENTER - 1);
}

static void leave(void)
{
    if (!active)
        return;
    active = 0;
    (void)write_all(LEAVE, sizeof LEAVE - 1);
    if (has_keys)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void die(int number)
{
    sigset_t only;

    leave();
    signal(number, SIG_DFL);
    sigemptyset(&only);
    sigaddset(&only, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
}

static void pause_here(int number)
{
    int error = errno;

    (void)number;
    leave();
    raise(SIGSTOP); /* until SIGCONT */
    (void)enter();
    resized = 1;
    errno = error;
}

static void note_size(int number)
{
    (void)number;
    resized = 1;
}

/* Signals only arrive while we wait, so that none comes between a look at `resized` and the sleep;
 * what a sidecar takes to answer is short. Those that end us come at any time. */
static void set_handlers(void)
{
    struct sigaction action = {.sa_handler = die};
    sigset_t inside;

    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; i++)
        sigaction(deadly[i], &action, NULL);
    action.sa_handler = pause_here;
    sigaction(SIGTSTP, &action, NULL);
    action.sa_handler = note_size;
    sigaction(SIGWINCH, &action, NULL);
    sigemptyset(&inside);
    sigaddset(&inside, SIGWINCH);
    sigaddset(&inside, SIGTSTP);
    sigprocmask(SIG_BLOCK, &inside, &outside);
}

int screen_begin(void)
{
    has_keys = tcgetattr(STDIN_FILENO, &before) == 0;
    set_handlers();
    atexit(leave);
    return enter();
}

void screen_end(void)
{
    leave();
}

void screen_size(size_t *columns, size_t *rows)
{
    struct winsize size = {0};

    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    *columns = size.ws_col > 0 ? size.ws_col : OUTPUT_COLUMNS;
    *rows = size.ws_row > 0 ? size.ws_row : ROWS;
}

static void put_line(FILE *file, const char *line, size_t columns)
{
    size_t width = output_width(line);

    output_field(file, line, width < columns ? width : columns, false);
}

int screen_show(const char *text)
{
    size_t columns, rows, lines = 0, bytes;
    char *frame;
    FILE *file = output_need(open_memstream(&frame, &bytes));

    screen_size(&columns, &rows);
    for (const char *at = text; *at != '\0'; at++)
        lines += *at == '\n';
    fputs("\033[H", file);
    for (size_t row = 0; row < rows && row < lines; row++) {
        size_t length = strcspn(text, "\n");
        char *line = output_need(strndup(text, length)), more[OUTPUT_COLUMNS];
        bool cut = row + 1 == rows && lines > rows;
        snprintf(more, sizeof more, "... %zu more lines", lines - row);
        if (row > 0)
            fputs("\r\n", file);
        put_line(file, cut ? more : line, columns);
        fputs("\033[K", file);
        free(line);
        text += length + 1;
    }
    fputs("\033[J", file);
    bool whole = fclose(file) == 0;
    int rc = whole ? write_all(frame, bytes) : -ENOMEM;
    free(frame);
    return rc;
}

/* True when one of the keys that were pressed means to quit. */
static bool read_keys(bool *ended)
{
    char keys[64];
    ssize_t count = read(STDIN_FILENO, keys, sizeof keys);

    *ended = count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
    for (ssize_t i = 0; i < count; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q')
            return true;
    }
    return false;
}

enum screen_event screen_wait(uint64_t at_ns)
{
    static bool ended; /* no more keys will come */

    for (;;) {
        uint64_t now_ns = cli_now_ns();
        struct pollfd keys = {.fd = has_keys && !ended ? STDIN_FILENO : -1, .events = POLLIN};
        if (resized) {
            resized = 0;
            return SCREEN_RESIZED;
        }
        if (now_ns >= at_ns)
            return SCREEN_TIME;
        const struct timespec left = {(time_t)((at_ns - now_ns) / 1000000000),
                                      (long)((at_ns - now_ns) % 1000000000)};
        if (ppoll(&keys, 1, &left, &outside) > 0 && read_keys(&ended))
            return SCREEN_QUIT;
    }
}

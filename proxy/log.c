/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: limited per kind, made into text or JSON, written without ever waiting. */
#include "proxy/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/decode.h"

static int64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void log_init(struct log *log, int fd)
{
    char path[32];
    struct stat info;

    memset(log, 0, sizeof *log);
    log->fd = fd;
    log->level = RS_CONFIG_INFO;
    if (fstat(fd, &info) < 0 || S_ISREG(info.st_mode))
        return;
    if (S_ISSOCK(info.st_mode)) {
        log->is_socket = true;
        return;
    }
    /* The flag for not blocking belongs to the description, which a terminal or a pipe shares with
     * others. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    log->must_poll = own < 0;
    log->owned = own >= 0;
    if (own >= 0)
        log->fd = own;
}

void log_configure(struct log *log, const struct rs_config *config)
{
    log->level = config->log.level;
    log->format = config->log.format;
    snprintf(log->stage, sizeof log->stage, "%s", config->stage);
}

/* ---- writing ---- */

static void lose_buffer(struct log *log)
{
    for (size_t i = log->begin; i < log->end; i++) {
        if (log->buffer[i] == '\n') {
            log->dropped++;
            log->dropped_unreported++;
        }
    }
    log->begin = log->end = 0;
}

static ssize_t write_once(struct log *log)
{
    const char *from = log->buffer + log->begin;
    size_t bytes = log->end - log->begin;

    if (log->is_socket)
        return send(log->fd, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (log->must_poll) {
        struct pollfd ready = {.fd = log->fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) {
            errno = EAGAIN;
            return -1;
        }
        bytes = bytes < PIPE_BUF ? bytes : PIPE_BUF; /* what a pipe that polls writable takes */
    }
    return write(log->fd, from, bytes);
}

static void flush(struct log *log)
{
    while (log->begin < log->end) {
        ssize_t written = write_once(log);
        if (written >= 0)
            log->begin += (size_t)written;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        else if (errno != EINTR)
            lose_buffer(log);
    }
    log->begin = log->end = 0;
}

static void enqueue(struct log *log, const char *line, size_t bytes)
{
    if (log->end + bytes > LOG_BUFFER_BYTES && log->begin > 0) {
        memmove(log->buffer, log->buffer + log->begin, log->end - log->begin);
        log->end -= log->begin;
        log->begin = 0;
    }
    if (log->end + bytes > LOG_BUFFER_BYTES) {
        log->dropped++;
        log->dropped_unreported++;
        return;
    }
    memcpy(log->buffer + log->end, line, bytes);
    log->end += bytes;
}

/* ---- lines ---- */

static void format_time(char text[32])
{
    struct timespec now;
    struct tm parts;
    size_t length;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    length = strftime(text, 32, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text + length, 32 - length, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

/* One line stays one line whatever a peer calls itself. */
static void clean(char *text)
{
    size_t bytes = strlen(text);

    for (size_t i = 0; i < bytes;) {
        size_t step = rs_utf8_character((const uint8_t *)text + i, bytes - i);
        if (step == 0 || (unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            text[i] = '?';
        i += step > 0 ? step : 1;
    }
}

static size_t escape(char *to, size_t room, const char *from)
{
    size_t used = 0;

    for (; *from != '\0' && used + 3 < room; from++) {
        if (*from == '"' || *from == '\\')
            to[used++] = '\\';
        to[used++] = *from;
    }
    to[used] = '\0';
    return used;
}

static size_t make_line(const struct log *log, char *line, size_t room,
                        enum rs_config_log_level level, const char *subsystem, uint64_t session,
                        const char *message)
{
    char time[32], tag[32] = "", escaped[LOG_LINE_BYTES * 2];
    int length;

    format_time(time);
    if (log->format == RS_CONFIG_JSON) {
        escape(escaped, sizeof escaped, message);
        if (session != 0)
            snprintf(tag, sizeof tag, "\"session\":%llu,", (unsigned long long)session);
        length =
            snprintf(line, room,
                     "{\"time\":\"%s\",\"level\":\"%s\",\"stage\":\"%s\",\"subsystem\":\"%s\","
                     "%s\"message\":\"%s\"}\n",
                     time, rs_config_log_level_names[level], log->stage, subsystem, tag, escaped);
    } else {
        if (session != 0)
            snprintf(tag, sizeof tag, " #%llu", (unsigned long long)session);
        length = snprintf(line, room, "%s %s %s%s %s\n", time, rs_config_log_level_names[level],
                          subsystem, tag, message);
    }
    return (size_t)length < room ? (size_t)length : room - 1;
}

static void put(struct log *log, enum rs_config_log_level level, const char *subsystem,
                uint64_t session, char *message)
{
    char line[LOG_LINE_BYTES * 2 + 512];

    clean(message);
    enqueue(log, line, make_line(log, line, sizeof line, level, subsystem, session, message));
}

/* ---- rate ---- */

static void report_suppressed(struct log *log, struct log_kind *kind)
{
    char message[LOG_LINE_BYTES];

    if (kind->suppressed == 0)
        return;
    snprintf(message, sizeof message, "%u more lines like this one were left out: %s",
             kind->suppressed, kind->format);
    kind->suppressed = 0;
    put(log, RS_CONFIG_WARN, "log", 0, message);
}

static struct log_kind *find_kind(struct log *log, const char *format)
{
    size_t at = ((uintptr_t)format >> 3) * UINT64_C(0x9e3779b97f4a7c15) >> 57;

    for (size_t i = 0; i < 8; i++) {
        struct log_kind *kind = &log->kinds[(at + i) % LOG_KINDS];
        if (kind->format == format || kind->format == NULL) {
            kind->format = format;
            return kind;
        }
    }
    report_suppressed(log, &log->kinds[at]); /* the table is crowded: kinds share an entry */
    log->kinds[at] = (struct log_kind){.format = format};
    return &log->kinds[at];
}

static bool within_rate(struct log *log, const char *format)
{
    struct log_kind *kind = find_kind(log, format);
    int64_t now = monotonic_ns();

    if (kind->lines == 0 || now - kind->window_ns >= LOG_WINDOW_NS) {
        report_suppressed(log, kind);
        kind->window_ns = now;
        kind->lines = 0;
    }
    if (kind->lines < LOG_BURST) {
        kind->lines++;
        return true;
    }
    kind->suppressed++;
    log->suppressed++;
    return false;
}

void log_write(struct log *log, enum rs_config_log_level level, const char *subsystem,
               uint64_t session, const char *format, ...)
{
    char message[LOG_LINE_BYTES];
    va_list arguments;
    int saved = errno;

    if (level < log->level)
        return;
    /* An error that ends the process is worth a line whatever came before. */
    if (level == RS_CONFIG_LOG_ERROR || within_rate(log, format)) {
        errno = saved;
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        put(log, level, subsystem, session, message);
        flush(log);
    }
    errno = saved;
}

void log_tick(struct log *log)
{
    char message[96];
    int saved = errno;
    int64_t now = monotonic_ns();

    for (size_t i = 0; i < LOG_KINDS; i++) {
        if (log->kinds[i].suppressed > 0 && now - log->kinds[i].window_ns >= LOG_WINDOW_NS)
            report_suppressed(log, &log->kinds[i]);
    }
    flush(log);
    if (log->dropped_unreported > 0 && log->end == 0) {
        snprintf(message, sizeof message, "%llu lines were lost because nobody read them",
                 (unsigned long long)log->dropped_unreported);
        log->dropped_unreported = 0;
        put(log, RS_CONFIG_WARN, "log", 0, message);
        flush(log);
    }
    errno = saved;
}

void log_finish(struct log *log)
{
    if (log == NULL)
        return;
    flush(log);
    if (log->owned)
        close(log->fd);
    log->owned = false;
    log->fd = -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's log: one structured line per event, limited per kind, never blocking on who reads
 * it. */
#ifndef RINGSIDE_PROXY_LOG_H
#define RINGSIDE_PROXY_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

#define LOG_BUFFER_BYTES 65536u /* what may wait for a slow reader */
#define LOG_LINE_BYTES   1024u  /* a longer line is cut */
#define LOG_KINDS        128u   /* kinds whose rate is known; a power of two */
#define LOG_BURST        10u    /* lines of a kind per window */
#define LOG_WINDOW_NS    INT64_C(10000000000)

/* Lines of one format string count as one kind. */
struct log_kind {
    const char *format;  /* identity of the kind, NULL: unused */
    int64_t window_ns;   /* start of its window, CLOCK_MONOTONIC */
    uint32_t lines;      /* in that window */
    uint32_t suppressed; /* since a line of it was last written */
};

/* One thread at a time: the loop's. */
struct log {
    int fd;                         /* written to; owned when `owned` */
    bool owned;                     /* fd was opened by log_init */
    bool is_socket;                 /* sent to instead, which has a flag for not blocking */
    bool must_poll;                 /* fd may block: only written to after it polled writable */
    enum rs_config_log_level level; /* lines below are not written */
    enum rs_config_log_format format;
    char stage[RS_CONFIG_NAME_BYTES]; /* in JSON lines; empty: left out */
    uint64_t suppressed;              /* lines not written because of their rate, ever */
    uint64_t dropped;                 /* lines lost because nobody read, ever */
    uint64_t dropped_unreported;      /* of these, not yet told */
    size_t begin, end;                /* what waits in buffer */
    struct log_kind kinds[LOG_KINDS];
    char buffer[LOG_BUFFER_BYTES];
};

/* Logs to `fd` through a description of its own where one can be had, so that others' is not
 * changed. Cannot fail. */
void log_init(struct log *log, int fd);
void log_configure(struct log *log, const struct rs_config *config);

/* Writes what waits as far as the reader takes it; the buffer is lost then. */
void log_finish(struct log *log);

/*
 * One line: "time level subsystem #session message". `session` 0: none. Control characters and
 * bytes that are not UTF-8 become '?'. Preserves errno, never blocks. The format is the kind for
 * the rate limit.
 */
void log_write(struct log *log, enum rs_config_log_level level, const char *subsystem,
               uint64_t session, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Sends what waits, tells of suppressed and dropped lines. Called every second or so. */
void log_tick(struct log *log);

#define log_debug(log, subsystem, session, ...) \
    log_write((log), RS_CONFIG_DEBUG, (subsystem), (session), __VA_ARGS__)
#define log_info(log, subsystem, session, ...) \
    log_write((log), RS_CONFIG_INFO, (subsystem), (session), __VA_ARGS__)
#define log_warn(log, subsystem, session, ...) \
    log_write((log), RS_CONFIG_WARN, (subsystem), (session), __VA_ARGS__)
#define log_error(log, subsystem, session, ...) \
    log_write((log), RS_CONFIG_LOG_ERROR, (subsystem), (session), __VA_ARGS__)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Where a configuration comes from: a file, a text, the environment, and the defaults below them.
 */
#include "config/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/address.h"
#include "config/document.h"
#include "config/json.h"
#include "proto/err.h"

static void set_defaults(struct rs_config *config)
{
    *config = (struct rs_config){
        .socket = {.mode = 0660},
        .ring = {.control_dir = "/dev/shm/ringside",
                 .body_dir = "/dev/shm/ringside",
                 .numa_node = RS_CONFIG_NUMA_AUTO,
                 .classes = {{UINT64_C(256) << 10, 64}, {UINT64_C(16) << 20, 8}},
                 .class_count = 2},
        .inbox = {.cells = 4096, .depth = 1024},
        .clients = {.max = 64, .spin_us = 50},
        .tickets = {.ttl_ms = 600000},
        .drain_timeout_ms = 10000,
        .stall_report_ms = 2000,
        .log = {.level = RS_CONFIG_INFO, .format = RS_CONFIG_TEXT},
    };
}

static void report_init(struct rs_json_report *report, const char *name, char *error,
                        size_t error_bytes)
{
    *report = (struct rs_json_report){.name = name, .error = error, .error_bytes = error_bytes};
    if (error_bytes > 0)
        error[0] = '\0';
}

static int parse(struct rs_config *config, const char *text, size_t length,
                 struct rs_json_report *report)
{
    json_t *document = rs_json_parse(report, text, length);

    set_defaults(config);
    if (document != NULL)
        rs_config_read_document(config, (struct rs_json){.report = report, .value = document});
    json_decref(document);
    if (report->status != 0)
        rs_config_finish(config);
    return report->status;
}

int rs_config_parse(struct rs_config *config, const char *text, size_t length, const char *name,
                    char *error, size_t error_bytes)
{
    struct rs_json_report report;

    report_init(&report, name, error, error_bytes);
    return parse(config, text, length, &report);
}

/* Reads up to capacity bytes; a pipe will do as well as a file. Returns the length or -errno. */
static ssize_t read_file(const char *path, char *text, size_t capacity)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    size_t length = 0;
    ssize_t got;

    if (file < 0)
        return -errno;
    do {
        got = read(file, text + length, capacity - length);
        if (got > 0)
            length += (size_t)got;
    } while ((got > 0 && length < capacity) || (got < 0 && errno == EINTR));
    if (got < 0)
        got = -errno;
    close(file);
    return got < 0 ? got : (ssize_t)length;
}

int rs_config_load(struct rs_config *config, const char *path, char *error, size_t error_bytes)
{
    const size_t capacity = RS_CONFIG_FILE_BYTES_MAX + 1;
    struct rs_json_report report;
    char *text = malloc(capacity);
    ssize_t length = text == NULL ? -ENOMEM : read_file(path, text, capacity);

    report_init(&report, path, error, error_bytes);
    if (length < 0)
        rs_json_report_refuse(&report, (int)length, "cannot be read: %s", rs_strerror((int)length));
    else if (length > RS_CONFIG_FILE_BYTES_MAX)
        rs_json_report_refuse(&report, -RINGSIDE_E_INVALID,
                              "larger than 1 MiB, which no configuration is");
    if (report.status == 0)
        parse(config, text, (size_t)length, &report);
    else
        *config = (struct rs_config){0};
    free(text);
    return report.status;
}

/* A variable is read as the JSON string that it could have been, so that one set of rules holds. */
static void read_variable(struct rs_json_report *report, const char *name,
                          void (*read_value)(struct rs_json, char *), char *out)
{
    const char *text = getenv(name);
    json_t *value;

    if (text == NULL || text[0] == '\0')
        return;
    report->name = name;
    value = json_string(text);
    if (value == NULL)
        rs_json_report_refuse(report, -RINGSIDE_E_INVALID, "not valid UTF-8");
    else
        read_value((struct rs_json){.report = report, .value = value}, out);
    json_decref(value);
}

int rs_config_apply_environment(struct rs_config *config, char *error, size_t error_bytes)
{
    struct rs_json_report report;

    report_init(&report, "environment", error, error_bytes);
    read_variable(&report, "RINGSIDE_CONTROL_DIR", rs_address_read_directory,
                  config->ring.control_dir);
    read_variable(&report, "RINGSIDE_BODY_DIR", rs_address_read_directory, config->ring.body_dir);
    read_variable(&report, "RINGSIDE_SOCKET", rs_address_read_socket, config->socket.path);
    rs_config_check_routes(config, &report);
    return report.status;
}

void rs_config_finish(struct rs_config *config)
{
    if (config == NULL)
        return;
    free(config->routes);
    *config = (struct rs_config){0};
}

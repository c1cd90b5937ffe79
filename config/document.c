/* SPDX-License-Identifier: Apache-2.0 */
/* From a JSON document to resolved values: every key of the file and its range. */
#include "config/document.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/address.h"
#include "config/json.h"
#include "config/quantity.h"
#include "proto/err.h"

#define KI              UINT64_C(1024)
#define MI              (KI * KI)
#define GI              (KI * MI)
#define TI              (KI * GI)
#define ALIGNMENT_BYTES UINT64_C(4096)
#define DAY_MS          UINT64_C(86400000)
#define TTL_MS_MAX      (365 * DAY_MS) /* in nanoseconds still far below 2^63 */

const char *const rs_config_lock_names[] = {"auto", "require", "off", NULL};
const char *const rs_config_when_full_names[] = {"block", "error", "drop-oldest", NULL};
const char *const rs_config_log_level_names[] = {"debug", "info", "warn", "error", NULL};
const char *const rs_config_log_format_names[] = {"text", "json", NULL};
const char *const rs_config_page_names[] = {"auto", "4Ki", "2Mi", "1Gi", NULL};
const uint64_t rs_config_page_bytes[] = {0, 4 * KI, 2 * MI, GI};

static void read_id(struct rs_config *config, struct rs_json at)
{
    const char *text = json_string_value(at.value);

    if (at.value == NULL || (text != NULL && strcmp(text, "auto") == 0))
        return;
    if (json_is_integer(at.value))
        config->id = (uint16_t)rs_json_integer(at, 1, UINT16_MAX, 0);
    else
        rs_json_refuse(at, "\"auto\" or an integer from 1 to 65535");
}

static void read_mode(struct rs_config *config, struct rs_json at)
{
    const char *text = json_string_value(at.value);
    mode_t mode = 0;

    if (at.value == NULL)
        return;
    if (text == NULL || strlen(text) != 4 || text[0] != '0' || strspn(text, "01234567") != 4) {
        rs_json_refuse(at, "a string of four octal digits from \"0000\" to \"0777\"");
        return;
    }
    for (; *text != '\0'; text++)
        mode = mode * 8 + (mode_t)(*text - '0');
    config->socket.mode = mode;
}

static void read_allow_uids(struct rs_config *config, struct rs_json at)
{
    uint32_t count = (uint32_t)rs_json_array(at, 0, RS_CONFIG_UIDS_MAX);

    for (uint32_t i = 0; i < count; i++) {
        struct rs_json element = rs_json_element(&at, i);
        /* 2^32 - 1 means "no user" to the kernel. */
        uint32_t uid = (uint32_t)rs_json_integer(element, 0, UINT32_MAX - 1, 0);

        for (uint32_t j = 0; j < i; j++)
            if (config->socket.allow_uids[j] == uid)
                rs_json_refuse(element, "each user once");
        config->socket.allow_uids[i] = uid;
    }
    config->socket.allow_uid_count = count;
}

static void read_socket(struct rs_config *config, struct rs_json at)
{
    static const char *const keys[] = {"path", "mode", "group", "allow_uids", NULL};
    static const char *const group_expected =
        "a group's name or number, a string of at most 255 bytes";
    struct rs_json member;
    const char *group;

    if (!rs_json_is_object(at, keys))
        return;
    rs_address_read_socket(rs_json_member(&at, "path"), config->socket.path);
    read_mode(config, rs_json_member(&at, "mode"));
    member = rs_json_member(&at, "group");
    group = rs_json_text(member, group_expected);
    if (group != NULL && strlen(group) >= RS_CONFIG_GROUP_BYTES)
        rs_json_refuse(member, "%s", group_expected);
    else if (group != NULL)
        strcpy(config->socket.group, group);
    read_allow_uids(config, rs_json_member(&at, "allow_uids"));
}

static void read_numa(struct rs_config *config, struct rs_json at)
{
    const char *text = json_string_value(at.value);

    if (at.value == NULL)
        return;
    if (json_is_integer(at.value))
        config->ring.numa_node = (int)rs_json_integer(at, 0, 1023, 0);
    else if (text != NULL && strcmp(text, "auto") == 0)
        config->ring.numa_node = RS_CONFIG_NUMA_AUTO;
    else if (text != NULL && strcmp(text, "off") == 0)
        config->ring.numa_node = RS_CONFIG_NUMA_OFF;
    else
        rs_json_refuse(at, "\"auto\", \"off\" or a node from 0 to 1023");
}

static uint64_t read_slot_bytes(struct rs_json at)
{
    const char *text = json_string_value(at.value);
    uint64_t bytes = 0;

    if (at.value == NULL)
        return 0;
    if (json_is_integer(at.value) && json_integer_value(at.value) > 0)
        bytes = (uint64_t)json_integer_value(at.value);
    else if (text != NULL && rs_quantity_parse(text, &bytes) != 0)
        bytes = 0;
    if (bytes < ALIGNMENT_BYTES || bytes > TI || bytes % ALIGNMENT_BYTES != 0)
        rs_json_refuse(at, "a multiple of 4Ki from 4Ki to 1Ti: whole bytes or a quantity "
                           "such as \"256Ki\" (suffixes Ki, Mi, Gi, Ti)");
    return bytes;
}

static void read_classes(struct rs_config *config, struct rs_json at)
{
    static const char *const keys[] = {"slot_bytes", "slots", NULL};
    uint32_t count = (uint32_t)rs_json_array(at, 1, RS_CONFIG_CLASSES_MAX);
    uint64_t before_bytes = 0, total_slots = 0;

    if (at.value == NULL)
        return;
    memset(config->ring.classes, 0, sizeof(config->ring.classes));
    for (uint32_t i = 0; i < count; i++) {
        struct rs_json element = rs_json_element(&at, i), member;
        struct rs_config_class *class = &config->ring.classes[i];

        if (!rs_json_is_object(element, keys))
            return;
        member = rs_json_required(&element, "slot_bytes");
        class->slot_bytes = read_slot_bytes(member);
        if (class->slot_bytes <= before_bytes)
            rs_json_refuse(member, "more than the class before it: order the classes by size");
        before_bytes = class->slot_bytes;
        member = rs_json_required(&element, "slots");
        class->slots = (uint32_t)rs_json_integer(member, 1, RS_CONFIG_SLOTS_MAX, 1);
        total_slots += class->slots;
        if (total_slots > RS_CONFIG_SLOTS_MAX)
            rs_json_refuse(member, "at most %d slots in all classes together", RS_CONFIG_SLOTS_MAX);
    }
    config->ring.class_count = count;
}

static void read_ring(struct rs_config *config, struct rs_json at)
{
    static const char *const keys[] = {"control_dir", "body_dir", "pages", "numa",
                                       "lock",        "classes",  NULL};

    if (!rs_json_is_object(at, keys))
        return;
    rs_address_read_directory(rs_json_member(&at, "control_dir"), config->ring.control_dir);
    rs_address_read_directory(rs_json_member(&at, "body_dir"), config->ring.body_dir);
    config->ring.page_bytes =
        rs_config_page_bytes[rs_json_choice(rs_json_member(&at, "pages"), rs_config_page_names, 0)];
    read_numa(config, rs_json_member(&at, "numa"));
    config->ring.lock =
        rs_json_choice(rs_json_member(&at, "lock"), rs_config_lock_names, config->ring.lock);
    read_classes(config, rs_json_member(&at, "classes"));
}

static void read_inbox(struct rs_config *config, struct rs_json at)
{
    static const char *const keys[] = {"cells", "depth", NULL};
    struct rs_json cells = rs_json_member(&at, "cells");
    uint32_t count;

    if (!rs_json_is_object(at, keys))
        return;
    count = (uint32_t)rs_json_integer(cells, 8, 1048576, config->inbox.cells);
    if ((count & (count - 1)) != 0)
        rs_json_refuse(cells, "a power of two from 8 to 1048576");
    config->inbox.cells = count;
    /* A smaller inbox alone is no contradiction: its default depth shrinks with it. */
    if (config->inbox.depth > count)
        config->inbox.depth = count;
    config->inbox.depth =
        (uint32_t)rs_json_integer(rs_json_member(&at, "depth"), 1, count, config->inbox.depth);
}

static void read_clients(struct rs_config *config, struct rs_json at)
{
    static const char *const keys[] = {"max", "spin_us", NULL};

    if (!rs_json_is_object(at, keys))
        return;
    config->clients.max =
        (uint32_t)rs_json_integer(rs_json_member(&at, "max"), 1, 4095, config->clients.max);
    config->clients.spin_us = (uint32_t)rs_json_integer(rs_json_member(&at, "spin_us"), 0, 1000000,
                                                        config->clients.spin_us);
}

static void read_targets(struct rs_config_route *route, struct rs_json at)
{
    uint32_t count = (uint32_t)rs_json_array(at, 1, RS_CONFIG_TARGETS_MAX);

    for (uint32_t i = 0; i < count; i++) {
        struct rs_json element = rs_json_element(&at, i);

        rs_address_read_peer(element, route->to[i]);
        for (uint32_t j = 0; j < i; j++)
            if (rs_address_same_path(route->to[i], route->to[j]))
                rs_json_refuse(element, "each stage once in a route");
    }
    route->to_count = count;
}

static void read_route(struct rs_config_route *route, struct rs_json at)
{
    static const char *const keys[] = {"to", "when_full", "ttl_ms", "attempts", NULL};

    if (!rs_json_is_object(at, keys))
        return;
    read_targets(route, rs_json_required(&at, "to"));
    route->when_full = rs_json_choice(rs_json_member(&at, "when_full"), rs_config_when_full_names,
                                      RS_CONFIG_BLOCK);
    route->ttl_ms = rs_json_integer(rs_json_member(&at, "ttl_ms"), 0, TTL_MS_MAX, 0);
    route->attempts = (uint32_t)rs_json_integer(rs_json_member(&at, "attempts"), 1, 15, 3);
}

static void read_routes(struct rs_config *config, struct rs_json at)
{
    size_t count = json_object_size(at.value);
    const char *name;
    json_t *value;

    if (!rs_json_is_object(at, NULL) || count == 0)
        return;
    if (count > RS_CONFIG_ROUTES_MAX) {
        rs_json_refuse(at, "at most %d routes, not %zu", RS_CONFIG_ROUTES_MAX, count);
        return;
    }
    config->routes = calloc(count, sizeof(*config->routes));
    if (config->routes == NULL) {
        rs_json_report_refuse(at.report, -ENOMEM, "out of memory");
        return;
    }
    json_object_foreach(at.value, name, value)
    {
        struct rs_config_route *route = &config->routes[config->route_count];

        if (!rs_address_check_key(at, name))
            return;
        strcpy(route->name, name);
        read_route(route, rs_json_member(&at, name));
        config->route_count++;
    }
}

static void read_tickets(struct rs_config *config, struct rs_json at)
{
    static const char *const keys[] = {"ttl_ms", NULL};

    if (rs_json_is_object(at, keys))
        config->tickets.ttl_ms =
            rs_json_integer(rs_json_member(&at, "ttl_ms"), 1, TTL_MS_MAX, config->tickets.ttl_ms);
}

static void read_log(struct rs_config *config, struct rs_json at)
{
    static const char *const keys[] = {"level", "format", NULL};

    if (!rs_json_is_object(at, keys))
        return;
    config->log.level =
        rs_json_choice(rs_json_member(&at, "level"), rs_config_log_level_names, config->log.level);
    config->log.format = rs_json_choice(rs_json_member(&at, "format"), rs_config_log_format_names,
                                        config->log.format);
}

void rs_config_read_document(struct rs_config *config, struct rs_json at)
{
    static const char *const keys[] = {
        "$schema",         "stage",   "id",     "socket",  "ring",
        "inbox",           "clients", "routes", "tickets", "drain_timeout_ms",
        "stall_report_ms", "log",     NULL};

    if (!rs_json_is_object(at, keys))
        return;
    rs_json_text(rs_json_member(&at, "$schema"), "the address of the schema, for editors");
    rs_address_read_name(rs_json_required(&at, "stage"), config->stage);
    snprintf(config->socket.path, sizeof(config->socket.path), "/run/ringside/%s.sock",
             config->stage);
    read_id(config, rs_json_member(&at, "id"));
    read_socket(config, rs_json_member(&at, "socket"));
    read_ring(config, rs_json_member(&at, "ring"));
    read_inbox(config, rs_json_member(&at, "inbox"));
    read_clients(config, rs_json_member(&at, "clients"));
    read_routes(config, rs_json_member(&at, "routes"));
    read_tickets(config, rs_json_member(&at, "tickets"));
    config->drain_timeout_ms = rs_json_integer(rs_json_member(&at, "drain_timeout_ms"), 0, DAY_MS,
                                               config->drain_timeout_ms);
    config->stall_report_ms =
        rs_json_integer(rs_json_member(&at, "stall_report_ms"), 0, DAY_MS, config->stall_report_ms);
    read_log(config, rs_json_member(&at, "log"));
    rs_config_check_routes(config, at.report);
}

/* A producer that blocks on its own inbox waits for the consumer that it is. */
void rs_config_check_routes(const struct rs_config *config, struct rs_json_report *report)
{
    for (uint32_t i = 0; i < config->route_count; i++) {
        const struct rs_config_route *route = &config->routes[i];

        for (uint32_t j = 0; route->when_full == RS_CONFIG_BLOCK && j < route->to_count; j++)
            if (rs_address_same_path(route->to[j], config->socket.path))
                rs_json_report_refuse(
                    report, -RINGSIDE_E_INVALID,
                    "/routes/%s/to/%u: got \"unix:%s\"; a route that leads to the stage itself "
                    "would wait for itself when full; expected another stage, or when_full "
                    "\"error\" or \"drop-oldest\"",
                    route->name, j, route->to[j]);
    }
}

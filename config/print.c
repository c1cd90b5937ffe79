/* SPDX-License-Identifier: Apache-2.0 */
/* A resolved configuration as the JSON that says the same. */
#include "config/config.h"

#include <errno.h>
#include <jansson.h>

#include "config/quantity.h"

static json_t *uids_json(const struct rs_config *config)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < config->socket.allow_uid_count; i++)
        if (json_array_append_new(array, json_integer(config->socket.allow_uids[i])) != 0)
            goto err_after_array;
    return array;

err_after_array:
    json_decref(array);
    return NULL;
}

static json_t *classes_json(const struct rs_config *config)
{
    json_t *array = json_array();

    for (uint32_t i = 0; i < config->ring.class_count; i++) {
        const struct rs_config_class *class = &config->ring.classes[i];
        char size[RS_QUANTITY_TEXT_BYTES];

        rs_quantity_format(class->slot_bytes, size);
        if (json_array_append_new(array, json_pack("{s:s, s:I}", "slot_bytes", size, "slots",
                                                   (json_int_t) class->slots)) != 0)
            goto err_after_array;
    }
    return array;

err_after_array:
    json_decref(array);
    return NULL;
}

static json_t *route_json(const struct rs_config_route *route)
{
    json_t *to = json_array();

    for (uint32_t i = 0; i < route->to_count; i++)
        if (json_array_append_new(to, json_sprintf("unix:%s", route->to[i])) != 0)
            goto err_after_to;
    return json_pack("{s:o, s:s, s:I, s:I}", "to", to, "when_full",
                     rs_config_when_full_names[route->when_full], "ttl_ms",
                     (json_int_t)route->ttl_ms, "attempts", (json_int_t)route->attempts);

err_after_to:
    json_decref(to);
    return NULL;
}

static json_t *routes_json(const struct rs_config *config)
{
    json_t *object = json_object();

    for (uint32_t i = 0; i < config->route_count; i++)
        if (json_object_set_new(object, config->routes[i].name, route_json(&config->routes[i])) !=
            0)
            goto err_after_object;
    return object;

err_after_object:
    json_decref(object);
    return NULL;
}

static json_t *numa_json(int node)
{
    if (node >= 0)
        return json_integer(node);
    return json_string(node == RS_CONFIG_NUMA_AUTO ? "auto" : "off");
}

static const char *pages_name(uint64_t page_bytes)
{
    int i = 0;

    while (rs_config_page_names[i + 1] != NULL && rs_config_page_bytes[i] != page_bytes)
        i++;
    return rs_config_page_names[i];
}

static json_t *config_json(const struct rs_config *config)
{
    char mode[8];

    snprintf(mode, sizeof(mode), "%04o", (unsigned)config->socket.mode);
    /* clang-format off: a line a key */
    return json_pack(
        "{s:s, s:o, s:{s:s, s:s, s:s, s:o}, s:{s:s, s:s, s:s, s:o, s:s, s:o},"
        " s:{s:I, s:I}, s:{s:I, s:I}, s:o, s:{s:I}, s:I, s:I, s:{s:s, s:s}}",
        "stage", config->stage, "id",
        config->id == 0 ? json_string("auto") : json_integer(config->id), "socket", "path",
        config->socket.path, "mode", mode, "group", config->socket.group, "allow_uids",
        uids_json(config), "ring", "control_dir", config->ring.control_dir, "body_dir",
        config->ring.body_dir, "pages", pages_name(config->ring.page_bytes), "numa",
        numa_json(config->ring.numa_node), "lock", rs_config_lock_names[config->ring.lock],
        "classes", classes_json(config), "inbox", "cells", (json_int_t)config->inbox.cells, "depth",
        (json_int_t)config->inbox.depth, "clients", "max", (json_int_t)config->clients.max,
        "spin_us", (json_int_t)config->clients.spin_us, "routes", routes_json(config), "tickets",
        "ttl_ms", (json_int_t)config->tickets.ttl_ms, "drain_timeout_ms",
        (json_int_t)config->drain_timeout_ms, "stall_report_ms",
        (json_int_t)config->stall_report_ms, "log", "level",
        rs_config_log_level_names[config->log.level], "format",
        rs_config_log_format_names[config->log.format]);
    /* clang-format on */
}

int rs_config_print(const struct rs_config *config, FILE *file)
{
    json_t *document = config_json(config);
    int status = 0;

    if (document == NULL)
        return -ENOMEM;
    if (json_dumpf(document, file, JSON_INDENT(2)) != 0 || fputc('\n', file) == EOF ||
        fflush(file) != 0)
        status = -EIO;
    json_decref(document);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* `ringside routes`: where the stage's messages can go. */
#include <inttypes.h>
#include <stdio.h>

#include "client/cli/output.h"
#include "client/cli/to_json.h"
#include "client/cli/view.h"

#define STAGES_BYTES 640 /* RS_MAX_DELIVERIES names */

static const struct table_column columns[] = {
    {"ROUTE", false, false}, {"TO", false, true},       {"WHEN FULL", false, false},
    {"TTL", true, false},    {"ATTEMPTS", true, false},
};

static bool is_connected(const struct view *view, unsigned destination)
{
    return destination < view->ring.layout.destination_count &&
           rs_destination_connected(rs_load_acquire(&view->ring.destinations[destination].state));
}

static const char *when_full(const Ringside__V1__Route *route)
{
    static const char *const names[] = {"block", "error", "drop-oldest"};

    return (unsigned)route->when_full < 3 ? names[route->when_full] : "?";
}

/* "embeddings, latent (away)" */
static void list_stages(const struct view *view, const Ringside__V1__Route *route, char *text)
{
    size_t at = 0;

    text[0] = '\0';
    for (size_t i = 0; i < route->n_destinations && at + 1 < STAGES_BYTES; i++) {
        char name[RS_NAME_BYTES];
        view_stage(view, route->destinations[i], name);
        int bytes = snprintf(text + at, STAGES_BYTES - at, "%s%s%s", i > 0 ? ", " : "",
                             name[0] != '\0' ? name : "?",
                             is_connected(view, route->destinations[i]) ? "" : " (away)");
        at += bytes > 0 ? (size_t)bytes : 0;
    }
}

static void print(const struct view *view)
{
    struct table table;

    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < view->attached->n_routes; i++) {
        const Ringside__V1__Route *route = view->attached->routes[i];
        char stages[STAGES_BYTES];
        list_stages(view, route, stages);
        table_text(&table, route->name);
        table_text(&table, stages);
        table_text(&table, when_full(route));
        if (route->ttl_ns > 0)
            table_duration(&table, route->ttl_ns);
        else
            table_text(&table, "-");
        table_format(&table, "%" PRIu32, route->attempts);
    }
    if (table.cell_count > 0)
        table_print(&table, stdout, output_columns());
    table_finish(&table);
}

static json_t *route_json(const struct view *view, const Ringside__V1__Route *route)
{
    json_t *stages = output_need(json_array());

    for (size_t i = 0; i < route->n_destinations; i++) {
        char name[RS_NAME_BYTES];
        view_stage(view, route->destinations[i], name);
        json_t *stage = json_pack("{s:s?, s:b}", "stage", name[0] != '\0' ? name : NULL,
                                  "connected", (int)is_connected(view, route->destinations[i]));
        if (stage == NULL) /* not UTF-8 */
            stage = json_pack("{s:n, s:b}", "stage", "connected",
                              (int)is_connected(view, route->destinations[i]));
        json_array_append_new(stages, output_need(stage));
    }
    return output_need(json_pack("{s:s, s:o, s:s, s:I, s:i}", "name", route->name, "to", stages,
                                 "when_full", when_full(route), "ttl_ns", (json_int_t)route->ttl_ns,
                                 "attempts", (int)route->attempts));
}

static int run(struct cli *cli, int count, char **arguments)
{
    struct view view;
    int status = view_init(&view, cli);

    (void)count;
    (void)arguments;
    if (status != CLI_OK)
        return status;
    if (cli->json) {
        json_t *routes = output_need(json_array());
        for (size_t i = 0; i < view.attached->n_routes; i++)
            json_array_append_new(routes, route_json(&view, view.attached->routes[i]));
        json_print(json_pack("{s:o}", "routes", routes));
    } else {
        print(&view);
    }
    view_finish(&view);
    return CLI_OK;
}

const struct cli_command routes_command = {
    .name = "routes",
    .summary = "the routes of a stage and where they lead",
    .description =
        "Lists the routes of the sidecar's config: the stages that each leads to, what happens "
        "when one of their inboxes is full, the default time to live (-: none) and how many times "
        "a message is delivered before it is given up. A stage whose sidecar is not connected now "
        "is marked (away); until it has been connected once its name is not known (?).\n\n"
        "Takes a client number for the moment, as a worker does. Prints nothing when the stage has "
        "no route; a sidecar that drains takes nobody, and answers DRAINING.",
    .examples = "    ringside routes\n"
                "    ringside routes --json | jq -r '.routes[].name'\n",
    .run = run,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Routes find their entry of the destination table, the same one after an adoption. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/err.h"
#include "proxy/routes.h"

#define ENTRIES 4

struct fixture {
    struct rs_ring ring;
    struct rs_destination entries[ENTRIES];
    struct rs_config config;
    struct rs_config_route table[RS_CONFIG_ROUTES_MAX];
    struct routes routes;
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);

    fixture->ring.destinations = fixture->entries;
    fixture->ring.layout.destination_count = ENTRIES;
    fixture->ring.layout.incarnation[0] = 77;
    fixture->config.routes = fixture->table;
    strcpy(fixture->config.stage, "me");
    strcpy(fixture->config.socket.path, "/run/me.sock");
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;

    routes_finish(&fixture->routes);
    free(fixture);
    return 0;
}

static void add_route(struct fixture *fixture, const char *name, unsigned attempts,
                      const char *first, const char *second)
{
    struct rs_config_route *route = &fixture->table[fixture->config.route_count++];

    snprintf(route->name, sizeof route->name, "%s", name);
    snprintf(route->to[0], sizeof route->to[0], "%s", first);
    route->to_count = 1;
    if (second != NULL)
        snprintf(route->to[route->to_count++], sizeof route->to[0], "%s", second);
    route->attempts = attempts;
}

static int init(struct fixture *fixture)
{
    return routes_init(&fixture->routes, &fixture->config, &fixture->ring);
}

static void address_has_one_entry(void **state)
{
    struct fixture *fixture = *state;

    add_route(fixture, "a", 3, "/run/x.sock", "/run/y.sock");
    add_route(fixture, "b", 7, "/run/y.sock", NULL);
    assert_int_equal(init(fixture), 0);
    const struct route *a = routes_find(&fixture->routes, "a");
    const struct route *b = routes_find(&fixture->routes, "b");
    assert_int_equal(a->destinations[1], b->destinations[0]);
    assert_int_not_equal(a->destinations[0], a->destinations[1]);
    assert_string_equal(fixture->routes.paths[b->destinations[0]], "/run/y.sock");
    assert_null(routes_find(&fixture->routes, "c"));
    assert_int_equal(fixture->routes.self, RS_NO_DESTINATION);
}

static void shared_destination_is_as_patient_as_the_most_patient_route(void **state)
{
    struct fixture *fixture = *state;

    add_route(fixture, "a", 3, "/run/x.sock", NULL);
    add_route(fixture, "b", 7, "/run/x.sock", NULL);
    assert_int_equal(init(fixture), 0);
    assert_int_equal(rs_destination_attempts(fixture->entries[0].state), 7);
    assert_int_equal(rs_destination_kind(fixture->entries[0].state), RS_DEST_INBOX);
    assert_false(rs_destination_connected(fixture->entries[0].state));
}

static void own_inbox_is_connected_at_once(void **state)
{
    struct fixture *fixture = *state;

    add_route(fixture, "again", 1, "/run/me.sock", NULL);
    assert_int_equal(init(fixture), 0);
    struct rs_destination *entry = &fixture->entries[fixture->routes.self];
    assert_true(rs_destination_connected(entry->state));
    assert_int_equal(rs_destination_ring(entry->state), 0);
    assert_int_equal(entry->incarnation[0], 77);
    assert_string_equal((char *)entry->name, "me");
}

static void entry_is_kept_over_an_adoption(void **state)
{
    struct fixture *fixture = *state;

    add_route(fixture, "a", 1, "/run/x.sock", "/run/y.sock");
    assert_int_equal(init(fixture), 0);
    uint16_t before = fixture->routes.routes[0].destinations[1];
    routes_set_connected(&fixture->ring, before, true, 9, NULL, NULL);
    routes_finish(&fixture->routes);
    fixture->config.route_count = 0;
    add_route(fixture, "new", 1, "/run/z.sock", "/run/y.sock");
    assert_int_equal(init(fixture), 0);
    assert_int_equal(fixture->routes.routes[0].destinations[1], before);
    assert_false(rs_destination_connected(fixture->entries[before].state));
    assert_int_equal(rs_destination_ring(fixture->entries[before].state), 9);
    assert_int_equal(fixture->routes.routes[0].destinations[0], 2);
}

static void more_addresses_than_entries_are_refused(void **state)
{
    struct fixture *fixture = *state;
    char path[32];

    for (int i = 0; i < ENTRIES + 1; i++) {
        snprintf(path, sizeof path, "/run/%d.sock", i);
        add_route(fixture, path + 5, 1, path, NULL);
    }
    assert_int_equal(init(fixture), -RINGSIDE_E_LIMIT);
    assert_int_equal(fixture->routes.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        CASE(address_has_one_entry),
        CASE(shared_destination_is_as_patient_as_the_most_patient_route),
        CASE(own_inbox_is_connected_at_once),
        CASE(entry_is_kept_over_an_adoption),
        CASE(more_addresses_than_entries_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

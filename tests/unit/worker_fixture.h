/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that libringside connects to the fake sidecars, for the tests of its verbs. */
#ifndef RINGSIDE_TESTS_WORKER_FIXTURE_H
#define RINGSIDE_TESTS_WORKER_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/c/ringside.h"
#include "tests/unit/fake_sidecar.h"

#define MS INT64_C(1000000)

static struct ringside *a, *b; /* workers of stages 0 and 1 */
static struct ringside_slot slot;
static char last_log[512];

/* Done once, within the next line of the log. */
static _Atomic(void (*)(void)) after_log;

static void do_once(_Atomic(void (*)(void)) *hook)
{
    void (*call)(void) = atomic_exchange(hook, NULL);

    if (call != NULL)
        call();
}

static void keep_log(void *data, const char *line)
{
    (void)data;
    snprintf(last_log, sizeof last_log, "%s", line);
    do_once(&after_log);
}

static struct ringside *join(unsigned stage)
{
    struct ringside_connect_options options = {
        .socket = fake_stages[stage].path, .name = "test", .log = keep_log};
    struct ringside *connection = NULL;

    if (ringside_connect(&connection, &options) != 0)
        fail_msg("%s", ringside_explain(NULL));
    return connection;
}

#define OK(expression)                                                         \
    do {                                                                       \
        int ok_ = (expression);                                                \
        if (ok_ < 0)                                                           \
            fail_msg("%s: %s: %s / %s", #expression, ringside_error_name(ok_), \
                     ringside_explain(a), ringside_explain(b));                \
    } while (0)

#endif

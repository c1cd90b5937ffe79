/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of libringside that are served: by a table of methods, and by many threads at once. */
#include "tests/unit/call_fixture.h"

static int twice(struct ringside *connection, struct ringside_message *message, void *data)
{
    loan(connection, 2 * value_of(message));
    (*(int *)data)++;
    return ringside_reply(connection, message, &slot, NULL, 1);
}

static int breaks(struct ringside *connection, struct ringside_message *message, void *data)
{
    (void)connection, (void)message, (void)data;
    return -RINGSIDE_ESHAPE;
}

static int plain(struct ringside *connection, struct ringside_message *message, void *data)
{
    assert_false(ringside_is_call(message));
    (*(int *)data)++;
    return ringside_release(connection, message);
}

static void call_served(void **state)
{
    int count = 0;
    const struct ringside_method methods[] = {
        {"twice", twice, &count}, {"breaks", breaks, NULL}, {NULL, plain, &count}};

    (void)state;
    assert_int_equal(ringside_serve(b, methods, 3, 0), -RINGSIDE_ETIMEOUT);
    begin("twice", 21, NULL, &call);
    OK(ringside_serve(b, methods, 3, LONG));
    OK(wait_reply(LONG));
    assert_int_equal(value_of(&reply), 42);
    OK(ringside_release(a, &reply));
    begin("thrice", 21, NULL, &call);
    OK(ringside_serve(b, methods, 3, LONG));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EUNIMPLEMENTED);
    assert_non_null(strstr(ringside_explain(a), "\"thrice\"; it has: twice, breaks"));
    begin("breaks", 1, NULL, &call);
    OK(ringside_serve(b, methods, 3, LONG));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EINVALID);
    assert_non_null(strstr(ringside_explain(a), "SHAPE"));
    loan(a, 1);
    OK(ringside_send(a, &slot, "1", NULL));
    OK(ringside_serve(b, methods, 3, LONG));
    assert_int_equal(count, 2);
    loan(a, 1);
    OK(ringside_send(a, &slot, "1", NULL));
    OK(ringside_serve(b, methods, 2, LONG)); /* nobody's: given back */
    OK(ringside_serve(b, methods, 3, LONG));
    assert_int_equal(count, 3);
}

/* ---- many threads, one connection on each side ---- */

#define THREADS 4
#define ROUNDS  2000

static _Atomic int serving;

static void *serve(void *data)
{
    (void)data;
    while (atomic_load(&serving)) {
        struct ringside_message message;
        struct ringside_slot mine;
        const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT32, .rank = 1, .shape = {16}};

        if (ringside_receive(b, &message, 20 * MS) < 0)
            continue;
        if (ringside_loan(b, &tensor, 1, 0, LONG, &mine) < 0)
            abort();
        *(uint32_t *)mine.tensors[0].data = value_of(&message) + 1;
        int rc = ringside_reply(b, &message, &mine, NULL, 1);
        if ((rc < 0 && rc != -RINGSIDE_ECANCELLED) || ringside_release(b, &message) < 0) {
            fprintf(stderr, "reply: %d %s\n", rc, ringside_explain(b));
            abort();
        }
    }
    return NULL;
}

static void *call_many(void *first)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT32, .rank = 1, .shape = {16}};
    uint32_t wrong = 0;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        struct ringside_slot mine;
        struct ringside_message got;
        struct ringside_call one;

        if (ringside_loan(a, &tensor, 1, 0, LONG, &mine) < 0)
            abort();
        *(uint32_t *)mine.tensors[0].data = *(uint32_t *)first + i;
        if (ringside_call(a, &mine, "1", "x", NULL, &one) < 0)
            abort();
        if (i % 16 == 5) {
            ringside_call_cancel(a, &one);
            continue;
        }
        if (ringside_call_wait(a, &one, &got, LONG) != 0)
            abort();
        wrong += value_of(&got) != *(uint32_t *)first + i + 1;
        ringside_release(a, &got);
    }
    *(uint32_t *)first = wrong;
    return NULL;
}

static void call_from_many_threads(void **state)
{
    pthread_t callers[THREADS], server;
    uint32_t firsts[THREADS];

    (void)state;
    atomic_store(&serving, 1);
    assert_int_equal(pthread_create(&server, NULL, serve, NULL), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        firsts[i] = i * 1000000;
        assert_int_equal(pthread_create(&callers[i], NULL, call_many, &firsts[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(callers[i], NULL);
        assert_int_equal(firsts[i], 0);
    }
    atomic_store(&serving, 0);
    pthread_join(server, NULL);
    assert_all_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(call_served),
        CASE(call_from_many_threads),
    };

    return cmocka_run_group_tests_name("call_serve", tests, NULL, NULL);
}

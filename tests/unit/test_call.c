/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of libringside against rings that no real sidecar serves: replies, errors, cancellation,
 * flow control, and the many ways in which no reply comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <time.h>

#include "client/c/ringside.h"
#include "proto/repair.h"
#include "tests/unit/fake_sidecar.h"

#define MS   INT64_C(1000000)
#define LONG (20000 * MS) /* never reached when all is well */

static struct ringside *a, *b; /* workers of stages 0 and 1 */
static struct ringside_slot slot;
static struct ringside_message request, reply;
static struct ringside_call call;

#define OK(expression)                                                         \
    do {                                                                       \
        int ok_ = (expression);                                                \
        if (ok_ < 0)                                                           \
            fail_msg("%s: %s: %s / %s", #expression, ringside_error_name(ok_), \
                     ringside_explain(a), ringside_explain(b));                \
    } while (0)

static struct ringside *join(unsigned stage)
{
    struct ringside_connect_options options = {.socket = fake_stages[stage].path, .name = "test"};
    struct ringside *connection = NULL;

    if (ringside_connect(&connection, &options) != 0)
        fail_msg("%s", ringside_explain(NULL));
    return connection;
}

static int start(void **state)
{
    const struct rs_class_spec classes[] = {{4096, 80}, {65536, 4}};

    (void)state;
    fake_ttl_ns = 0;
    fake_start_all(classes, 2, 128, 100);
    a = join(0);
    b = join(1);
    return 0;
}

static void assert_all_free(void)
{
    for (unsigned i = 0; i < FAKE_STAGES; i++)
        assert_int_equal(fake_count(i, RS_FREE), 84);
}

static int stop(void **state)
{
    (void)state;
    ringside_close(a);
    ringside_close(b);
    assert_all_free();
    fake_stop_all();
    return 0;
}

static void loan(struct ringside *worker, uint32_t value)
{
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT32, .rank = 1, .shape = {16}};

    OK(ringside_loan(worker, &tensor, 1, 0, LONG, &slot));
    *(uint32_t *)slot.tensors[0].data = value;
}

static uint32_t value_of(const struct ringside_message *message)
{
    return *(const uint32_t *)message->tensors[0].data;
}

static void begin(const char *method, uint32_t value, const struct ringside_options *options,
                  struct ringside_call *into)
{
    loan(a, value);
    OK(ringside_call(a, &slot, "1", method, options, into));
}

static void answer(struct ringside_message *to, uint32_t value, int last)
{
    loan(b, value);
    OK(ringside_reply(b, to, &slot, NULL, last));
}

static int wait_reply(int64_t timeout_ns)
{
    return ringside_call_wait(a, &call, &reply, timeout_ns);
}

static void call_unary(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        begin("add", i, NULL, &call);
        assert_int_equal(call.open, 1);
        assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
        assert_int_equal(call.open, 1);
        OK(ringside_receive(b, &request, LONG));
        assert_true(ringside_is_call(&request));
        assert_int_equal(request.method_bytes, 3);
        assert_memory_equal(request.method, "add", 3);
        assert_int_equal(request.call_id, call.id);
        assert_int_equal(value_of(&request), i);
        assert_int_equal(ringside_cancelled(b, &request), 0);
        answer(&request, i + 1, 1);
        OK(ringside_release(b, &request));
        assert_int_equal(wait_reply(LONG), 0);
        assert_int_equal(call.open, 0);
        assert_int_equal(reply.call_id, call.id);
        assert_null(reply.method);
        assert_false(ringside_is_call(&reply));
        assert_int_equal(value_of(&reply), i + 1);
        OK(ringside_release(a, &reply));
        assert_int_equal(wait_reply(0), -RINGSIDE_ESTATE);
        assert_int_equal(ringside_call_cancel(a, &call), 0);
    }
    assert_int_equal(fake_counter(0, 1, RS_CALLS), 300);
    assert_int_equal(fake_counter(1, 1, RS_REPLIES), 300);
}

static void call_with_metadata(void **state)
{
    const struct ringside_options options = {.metadata = "{\"x\":1}",
                                             .metadata_bytes = 7,
                                             .metadata_kind = RINGSIDE_JSON,
                                             .trace_id = {9}};
    char name[65] = "";

    (void)state;
    memset(name, 'm', 63);
    begin(name, 1, &options, &call);
    OK(ringside_receive(b, &request, LONG));
    assert_int_equal(request.method_bytes, 63);
    assert_memory_equal(request.method, name, 63);
    assert_int_equal(request.metadata_bytes, 7);
    assert_memory_equal(request.metadata, "{\"x\":1}", 7);
    assert_int_equal(request.trace_id[0], 9);
    loan(b, 2);
    OK(ringside_reply(b, &request, &slot, &options, 1));
    OK(ringside_release(b, &request));
    OK(wait_reply(LONG));
    assert_memory_equal(reply.metadata, "{\"x\":1}", 7);
    OK(ringside_release(a, &reply));
    loan(a, 1);
    name[63] = 'm';
    assert_int_equal(ringside_call(a, &slot, "1", name, NULL, &call), -RINGSIDE_EINVALID);
    assert_int_equal(ringside_call(a, &slot, "1", "", NULL, &call), -RINGSIDE_EINVALID);
    assert_int_equal(ringside_call(a, &slot, "1", NULL, NULL, &call), -RINGSIDE_EINVALID);
    assert_int_equal(ringside_call(a, &slot, "all", "x", NULL, &call), -RINGSIDE_EINVALID);
    assert_int_equal(ringside_call(a, &slot, "none", "x", NULL, &call), -RINGSIDE_ENO_ROUTE);
    OK(ringside_abandon(a, &slot));
}

static void call_name_needs_room(void **state)
{
    const struct ringside_tensor whole = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {65536}};

    (void)state;
    OK(ringside_loan(a, &whole, 1, 0, LONG, &slot));
    assert_int_equal(ringside_call(a, &slot, "1", "add", NULL, &call), -RINGSIDE_ETOO_BIG);
    assert_non_null(strstr(ringside_explain(a), "reserve 8 bytes"));
    OK(ringside_abandon(a, &slot));
}

/* Both are workers of one stage. */
static void call_own_stage(void **state)
{
    struct ringside *other = join(0);

    (void)state;
    loan(a, 5);
    OK(ringside_call(a, &slot, "0", "x", NULL, &call));
    OK(ringside_receive(other, &request, LONG));
    loan(other, 6);
    OK(ringside_reply(other, &request, &slot, NULL, 1));
    OK(ringside_release(other, &request));
    OK(wait_reply(LONG));
    assert_int_equal(value_of(&reply), 6);
    OK(ringside_release(a, &reply));
    ringside_close(other);
}

static void call_out_of_order(void **state)
{
    struct ringside_message requests[8];
    struct ringside_call calls[8];

    (void)state;
    for (uint32_t i = 0; i < 8; i++)
        begin("x", i, NULL, &calls[i]);
    for (uint32_t i = 0; i < 8; i++)
        OK(ringside_receive(b, &requests[i], LONG));
    for (uint32_t i = 8; i-- > 0;) {
        answer(&requests[i], 100 + value_of(&requests[i]), 1);
        OK(ringside_release(b, &requests[i]));
    }
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t j = (i * 3 + 5) % 8;

        assert_int_equal(ringside_call_wait(a, &calls[j], &reply, LONG), 0);
        assert_int_equal(value_of(&reply), 100 + j);
        OK(ringside_release(a, &reply));
    }
}

static void call_64_in_flight_and_no_more(void **state)
{
    struct ringside_call calls[64];
    const struct ringside_options three = {.credits = 3}, many = {.credits = 65};

    (void)state;
    loan(a, 0);
    assert_int_equal(ringside_call(a, &slot, "1", "x", &many, &call), -RINGSIDE_EINVALID);
    OK(ringside_abandon(a, &slot));
    for (uint32_t i = 0; i < 64; i++)
        begin("x", i, NULL, &calls[i]);
    loan(a, 64);
    assert_int_equal(ringside_call(a, &slot, "1", "x", NULL, &call), -RINGSIDE_ELIMIT);
    assert_non_null(strstr(ringside_explain(a), "64"));
    for (uint32_t i = 0; i < 64; i++) {
        OK(ringside_receive(b, &request, LONG));
        struct ringside_slot kept = slot;
        answer(&request, i, 1);
        slot = kept;
        OK(ringside_release(b, &request));
    }
    for (unsigned i = 10; i < 12; i++) { /* two in a row are no room for three */
        OK(ringside_call_wait(a, &calls[i], &reply, LONG));
        OK(ringside_release(a, &reply));
    }
    assert_int_equal(ringside_call(a, &slot, "1", "x", &three, &call), -RINGSIDE_ELIMIT);
    OK(ringside_call_wait(a, &calls[12], &reply, LONG));
    OK(ringside_release(a, &reply));
    OK(ringside_call(a, &slot, "1", "x", &three, &call));
    OK(ringside_call_cancel(a, &call));
    for (unsigned i = 0; i < 64; i++) {
        if (i >= 10 && i <= 12)
            continue;
        OK(ringside_call_wait(a, &calls[i], &reply, LONG));
        assert_int_equal(value_of(&reply), i);
        OK(ringside_release(a, &reply));
    }
}

/* As many replies as credits are there unread; the next one waits. */
static void call_streaming_with_credits(void **state)
{
    const struct ringside_options options = {.credits = 3};
    const struct ringside_options now = {.timeout_ns = 0}, soon = {.timeout_ns = MS};

    (void)state;
    begin("count", 0, &options, &call);
    OK(ringside_receive(b, &request, LONG));
    for (uint32_t i = 0; i < 3; i++)
        answer(&request, i, 0);
    loan(b, 3);
    assert_int_equal(ringside_reply(b, &request, &slot, &now, 0), -RINGSIDE_EFULL);
    assert_int_equal(ringside_reply(b, &request, &slot, &soon, 0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(wait_reply(LONG), 1);
    assert_int_equal(value_of(&reply), 0);
    OK(ringside_release(a, &reply));
    OK(ringside_reply(b, &request, &slot, &now, 0));
    for (uint32_t i = 1; i < 200; i++) {
        assert_int_equal(wait_reply(LONG), 1);
        assert_int_equal(value_of(&reply), i);
        OK(ringside_release(a, &reply));
        if (i + 3 <= 200)
            answer(&request, i + 3, i + 3 == 200);
    }
    loan(b, 0);
    assert_int_equal(ringside_reply(b, &request, &slot, NULL, 1),
                     -RINGSIDE_ESTATE); /* the last one went */
    OK(ringside_abandon(b, &slot));
    OK(ringside_release(b, &request));
    assert_int_equal(wait_reply(LONG), 0);
    assert_int_equal(value_of(&reply), 200);
    OK(ringside_release(a, &reply));
}

static void call_error_reply(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    assert_int_equal(ringside_reply_error(b, &request, 0, "x"), -RINGSIDE_EINVALID);
    OK(ringside_reply_error(b, &request, RINGSIDE_STATUS_INVALID_ARGUMENT, "three\nis too many"));
    assert_int_equal(ringside_reply_error(b, &request, 3, "x"), -RINGSIDE_ESTATE);
    OK(ringside_release(b, &request));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EINVALID);
    assert_string_equal(ringside_explain(a), "three is too many");
    assert_int_equal(call.status, RINGSIDE_STATUS_INVALID_ARGUMENT);
    assert_int_equal(call.open, 0);
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    answer(&request, 1, 0); /* some, then an error */
    assert_int_equal(wait_reply(LONG), 1);
    OK(ringside_release(a, &reply));
    OK(ringside_reply_error(b, &request, 99, NULL));
    OK(ringside_release(b, &request));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EINTERNAL);
    assert_int_equal(call.status, 99);
}

static void call_released_without_a_reply(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    OK(ringside_release(b, &request));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EINTERNAL);
    assert_non_null(strstr(ringside_explain(a), "without a last reply"));
}

/* Where there is no slot for an answer the caller hears of it all the same. */
static void call_released_with_no_slot_left(void **state)
{
    struct ringside_slot all[84];
    const struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 0};

    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    unsigned count = 0;
    while (count < 80 && ringside_loan(b, &tensor, 1, 0, 0, &all[count]) == 0)
        count++;
    assert_int_equal(count, 80);
    OK(ringside_release(b, &request));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EUNAVAILABLE);
    while (count > 0)
        OK(ringside_abandon(b, &all[--count]));
}

static void call_nacked(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    OK(ringside_nack(b, &request));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EUNAVAILABLE);
    assert_int_equal(ringside_receive(b, &request, 0), -RINGSIDE_ETIMEOUT); /* at most once */
}

static void call_is_not_forwarded(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    assert_int_equal(ringside_forward(b, &request, "2", NULL), -RINGSIDE_ESTATE);
    assert_non_null(strstr(ringside_explain(b), "\"x\""));
    OK(ringside_release(b, &request));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EINTERNAL);
}

/* A reply is a message like any other then. */
static void call_reply_is_forwarded(void **state)
{
    struct ringside *c = join(2);

    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    answer(&request, 77, 1);
    OK(ringside_release(b, &request));
    OK(wait_reply(LONG));
    OK(ringside_forward(a, &reply, "2", NULL));
    OK(ringside_receive(c, &request, LONG));
    assert_int_equal(value_of(&request), 77);
    assert_false(ringside_is_call(&request));
    OK(ringside_release(c, &request));
    ringside_close(c);
}

static void call_cancelled_before_it_is_taken(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_call_cancel(a, &call));
    assert_int_equal(call.open, 0);
    assert_int_equal(ringside_receive(b, &request, 0), -RINGSIDE_ETIMEOUT);
    assert_all_free();
    struct ringside_call nonsense = {.open = 1};
    assert_int_equal(ringside_call_cancel(a, &nonsense), -RINGSIDE_ESTATE);
    assert_int_equal(ringside_call_cancel(a, NULL), -RINGSIDE_ESTATE);
}

static void call_cancelled_while_held(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    assert_int_equal(ringside_cancelled(b, &request), 0);
    OK(ringside_call_cancel(a, &call));
    assert_int_equal(ringside_cancelled(b, &request), 1);
    loan(b, 1);
    assert_int_equal(ringside_reply(b, &request, &slot, NULL, 1), -RINGSIDE_ECANCELLED);
    assert_int_equal(ringside_abandon(b, &slot), -RINGSIDE_ESTATE); /* it is spent */
    OK(ringside_release(b, &request));
    assert_all_free();
}

static void call_cancelled_with_replies_unread(void **state)
{
    const struct ringside_options options = {.credits = 4};

    (void)state;
    begin("x", 0, &options, &call);
    OK(ringside_receive(b, &request, LONG));
    for (uint32_t i = 0; i < 4; i++)
        answer(&request, i, 0);
    assert_int_equal(wait_reply(LONG), 1); /* one is read while the others are dropped */
    OK(ringside_call_cancel(a, &call));
    assert_int_equal(value_of(&reply), 0);
    assert_int_equal(fake_count(1, RS_FREE), 83);
    OK(ringside_release(a, &reply));
    assert_int_equal(fake_count(1, RS_FREE), 84);
    loan(b, 1);
    assert_int_equal(ringside_reply(b, &request, &slot, NULL, 1), -RINGSIDE_ECANCELLED);
    OK(ringside_release(b, &request));
    assert_all_free();
}

/* The cells of a cancelled call are not another's while its callee may post there. */
static void call_cancelled_keeps_its_cells(void **state)
{
    const struct ringside_options all = {.credits = 64};

    (void)state;
    begin("x", 0, &all, &call);
    OK(ringside_receive(b, &request, LONG));
    OK(ringside_call_cancel(a, &call));
    loan(a, 1);
    assert_int_equal(ringside_call(a, &slot, "1", "x", NULL, &call), -RINGSIDE_ELIMIT);
    struct ringside_slot kept = slot;
    OK(ringside_release(b, &request));
    OK(ringside_call(a, &kept, "1", "x", NULL, &call));
    OK(ringside_call_cancel(a, &call));
}

static void call_over_its_time(void **state)
{
    const struct ringside_options options = {.ttl_ns = 5 * MS};

    (void)state;
    begin("x", 0, &options, &call);
    OK(ringside_receive(b, &request, LONG));
    assert_int_equal(wait_reply(LONG), -RINGSIDE_ETIMEOUT);
    assert_int_equal(call.open, 0);
    assert_int_equal(ringside_cancelled(b, &request), 1);
    OK(ringside_release(b, &request));
    begin("x", 0, &options, &call); /* nobody takes it in time */
    assert_int_equal(wait_reply(LONG), -RINGSIDE_ETIMEOUT);
    assert_int_equal(ringside_receive(b, &request, 0), -RINGSIDE_ETIMEOUT);
    begin("x", 0, &options, &call); /* looked for too late */
    nanosleep(&(struct timespec){0, 6 * MS}, NULL);
    assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(call.open, 0);
}

static void sweep(unsigned stage, uint16_t client)
{
    struct rs_repair repair;
    uint32_t cursor = 0;

    assert_int_equal(rs_repair_init(&repair, &fake_stages[stage].ring), 0);
    rs_repair_sweep(&repair, client, RS_NO_READER, &cursor, UINT32_MAX);
    rs_repair_wake(&repair);
    rs_repair_finish(&repair);
}

static void *wait_in_thread(void *rc)
{
    *(int *)rc = wait_reply(LONG);
    return NULL;
}

/* The sweep of the dead callee wakes the caller. */
static void call_callee_dies(void **state)
{
    pthread_t thread;
    int rc = 1;

    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    assert_int_equal(pthread_create(&thread, NULL, wait_in_thread, &rc), 0);
    nanosleep(&(struct timespec){0, 2 * MS}, NULL);
    for (uint16_t client = 2; client < 5; client++) /* b's number in ring 0 is among them */
        sweep(0, client);
    pthread_join(thread, NULL);
    assert_int_equal(rc, -RINGSIDE_EUNAVAILABLE);
    assert_int_equal(ringside_release(b, &request), -RINGSIDE_ESTATE);
    assert_all_free();
}

/* In its own entries the callee sees that the caller is gone, in the one ring or in the other. */
static void call_caller_dies(void **state)
{
    (void)state;
    for (unsigned stage = 0; stage < 2; stage++) {
        begin("x", 0, NULL, &call);
        OK(ringside_receive(b, &request, LONG));
        struct rs_client *clients = fake_stages[stage].ring.clients;
        uint64_t states[8];
        for (unsigned i = 0; i < 8; i++) {
            states[i] = rs_load_relaxed(&clients[i].state);
            rs_store_relaxed(&clients[i].state, rs_client_state(1, 0, 0, RS_CLIENT_DEAD));
        }
        assert_int_equal(ringside_cancelled(b, &request), 1);
        loan(b, 1);
        assert_int_equal(ringside_reply(b, &request, &slot, NULL, 1), -RINGSIDE_ECANCELLED);
        for (unsigned i = 0; i < 8; i++)
            rs_store_relaxed(&clients[i].state, states[i]);
        OK(ringside_release(b, &request));
        assert_int_equal(wait_reply(LONG), -RINGSIDE_EINTERNAL);
    }
}

/* What a slot of another stage, or somebody's stray write, leaves in a cell is dropped. */
static void call_strays_are_dropped(void **state)
{
    struct rs_box *box = &fake_stages[0].ring.boxes[1];

    (void)state;
    begin("x", 0, NULL, &call);
    for (unsigned i = 0; i < RS_BOX_CELLS; i++)
        rs_store_relaxed(&box->cell[i], i % 2 == 0 ? UINT64_MAX : rs_ticket_pack(102, 3, 1));
    OK(ringside_receive(b, &request, LONG));
    loan(b, 9);
    const struct ringside_options now = {.timeout_ns = 0};
    assert_int_equal(ringside_reply(b, &request, &slot, &now, 1), -RINGSIDE_EFULL);
    assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
    OK(ringside_reply(b, &request, &slot, &now, 1));
    OK(ringside_release(b, &request));
    OK(wait_reply(LONG));
    assert_int_equal(value_of(&reply), 9);
    OK(ringside_release(a, &reply));
    for (unsigned i = 0; i < RS_BOX_CELLS; i++)
        rs_store_relaxed(&box->cell[i], 0);
}

static void call_closed_callee(void **state)
{
    (void)state;
    begin("x", 0, NULL, &call);
    OK(ringside_receive(b, &request, LONG));
    ringside_close(b);
    b = NULL;
    assert_int_equal(wait_reply(LONG), -RINGSIDE_EUNAVAILABLE);
    b = join(1);
}

/* A caller that closes lets go of replies that it has read and of those that it has not. */
static void call_closed_caller(void **state)
{
    const struct ringside_options options = {.credits = 2};

    (void)state;
    begin("x", 0, &options, &call);
    OK(ringside_receive(b, &request, LONG));
    answer(&request, 1, 0);
    answer(&request, 2, 1);
    OK(ringside_release(b, &request));
    OK(wait_reply(LONG));
    ringside_close(a);
    a = NULL;
    assert_all_free();
    a = join(0);
}

static void call_polled(void **state)
{
    struct pollfd poller = {.events = POLLIN};

    (void)state;
    poller.fd = ringside_fd(a);
    assert_true(poller.fd >= 0);
    begin("x", 0, NULL, &call);
    while (ringside_receive(a, &request, 0) == 0) /* the first edge */
        ringside_release(a, &request);
    assert_int_equal(wait_reply(0), -RINGSIDE_ETIMEOUT);
    assert_int_equal(poll(&poller, 1, 0), 0);
    OK(ringside_receive(b, &request, LONG));
    answer(&request, 4, 1);
    OK(ringside_release(b, &request));
    assert_int_equal(poll(&poller, 1, 5000), 1);
    assert_int_equal(wait_reply(0), 0);
    OK(ringside_release(a, &reply));
}

/* ---- serving ---- */

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

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(call_unary),
        CASE(call_with_metadata),
        CASE(call_name_needs_room),
        CASE(call_own_stage),
        CASE(call_out_of_order),
        CASE(call_64_in_flight_and_no_more),
        CASE(call_streaming_with_credits),
        CASE(call_error_reply),
        CASE(call_released_without_a_reply),
        CASE(call_released_with_no_slot_left),
        CASE(call_nacked),
        CASE(call_is_not_forwarded),
        CASE(call_reply_is_forwarded),
        CASE(call_cancelled_before_it_is_taken),
        CASE(call_cancelled_while_held),
        CASE(call_cancelled_with_replies_unread),
        CASE(call_cancelled_keeps_its_cells),
        CASE(call_over_its_time),
        CASE(call_callee_dies),
        CASE(call_caller_dies),
        CASE(call_strays_are_dropped),
        CASE(call_closed_callee),
        CASE(call_closed_caller),
        CASE(call_polled),
        CASE(call_served),
        CASE(call_from_many_threads),
    };

    return cmocka_run_group_tests_name("call", tests, NULL, NULL);
}

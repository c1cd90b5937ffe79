/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of libringside against rings that no real sidecar serves: replies, errors, flow control. */
#include "tests/unit/call_fixture.h"

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

/* Of the errors that share a status, the one that is named; a name of another status is a part of the text. */
static void call_error_reply_by_name(void **state)
{
    static const struct {
        unsigned status;
        int error;
        const char *sent, *told;
    } cases[] = {
        {RINGSIDE_STATUS_NOT_FOUND, -RINGSIDE_ENO_ROUTE, "NO_ROUTE: to Rome", "to Rome"},
        {RINGSIDE_STATUS_NOT_FOUND, -RINGSIDE_ESTALE_TICKET, "no such voice", "no such voice"},
        {RINGSIDE_STATUS_INTERNAL, -RINGSIDE_EINTERNAL, "NO_ROUTE: x", "NO_ROUTE: x"},
        {RINGSIDE_STATUS_RESOURCE_EXHAUSTED, -RINGSIDE_ELIMIT, "LIMIT: ", "the callee gave no reason"},
        {RINGSIDE_STATUS_RESOURCE_EXHAUSTED, -RINGSIDE_EFULL, "LIMIT:", "LIMIT:"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin("x", 0, NULL, &call);
        OK(ringside_receive(b, &request, LONG));
        OK(ringside_reply_error(b, &request, cases[i].status, cases[i].sent));
        OK(ringside_release(b, &request));
        assert_int_equal(wait_reply(LONG), cases[i].error);
        assert_string_equal(ringside_explain(a), cases[i].told);
        assert_int_equal(call.status, cases[i].status);
    }
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
        CASE(call_error_reply_by_name),
        CASE(call_released_without_a_reply),
        CASE(call_released_with_no_slot_left),
        CASE(call_nacked),
        CASE(call_is_not_forwarded),
        CASE(call_reply_is_forwarded),
    };

    return cmocka_run_group_tests_name("call", tests, NULL, NULL);
}

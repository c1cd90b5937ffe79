/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the control API as JSON: every kind of field that they use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "client/cli/to_json.h"
#include "control.pb-c.h"

static void check(const ProtobufCMessage *message, const char *expected)
{
    json_t *json = json_from_message(message);
    char *text = json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII);

    assert_string_equal(text, expected);
    free(text);
    json_decref(json);
}

static void tensor_with_enum_and_shape(void **state)
{
    Ringside__V1__Tensor tensor = RINGSIDE__V1__TENSOR__INIT;
    int64_t shape[] = {8, 0, INT64_MAX};

    (void)state;
    tensor.dtype = RINGSIDE__V1__DTYPE__FLOAT8_E4M3FN;
    tensor.shape = shape;
    tensor.n_shape = 3;
    tensor.offset = 256;
    check(&tensor.base, "{\"dtype\":\"float8_e4m3fn\",\"shape\":[8,0,9223372036854775807],"
                        "\"offset\":256,\"bytes\":0}");
    tensor.n_shape = 0;
    tensor.dtype = (Ringside__V1__Dtype)99; /* of a later version */
    check(&tensor.base, "{\"dtype\":99,\"shape\":[],\"offset\":256,\"bytes\":0}");
}

static void lease_with_ticket_and_bytes(void **state)
{
    Ringside__V1__Lease lease = RINGSIDE__V1__LEASE__INIT;
    uint8_t ring[] = {0, 0xff, 0x1b};

    (void)state;
    lease.ticket = UINT64_C(0x8001000000000002);
    lease.delivery = -1;
    check(&lease.base, "{\"ticket\":\"0x8001000000000002\",\"delivery\":-1,\"ring\":\"\"}");
    lease.ring.data = ring;
    lease.ring.len = sizeof ring;
    check(&lease.base, "{\"ticket\":\"0x8001000000000002\",\"delivery\":-1,\"ring\":\"00ff1b\"}");
}

/* An unset message is left out, text cannot break the output, and 2^64 - 1 keeps its digits. */
static void client_with_hostile_name(void **state)
{
    Ringside__V1__ClientStatus client = RINGSIDE__V1__CLIENT_STATUS__INIT;

    (void)state;
    client.name = "\"\x1b\n\u202e";
    client.oldest_lease_ns = UINT64_MAX;
    check(&client.base,
          "{\"number\":0,\"name\":\"\\\"\\u001B\\n\\u202E\",\"state\":\"\",\"pid\":0,\"loans\":0,"
          "\"leases\":0,\"oldest_lease_ns\":\"18446744073709551615\",\"home\":\"\"}");
}

static void list_with_messages_within(void **state)
{
    Ringside__V1__ListResponse list = RINGSIDE__V1__LIST_RESPONSE__INIT;
    Ringside__V1__Slot slot = RINGSIDE__V1__SLOT__INIT;
    Ringside__V1__Holder holder = RINGSIDE__V1__HOLDER__INIT;
    Ringside__V1__Slot *slots[] = {&slot, &slot};
    Ringside__V1__Holder *holders[] = {&holder};

    (void)state;
    holder.state = "held";
    holder.delivery = 3;
    slot.holders = holders;
    slot.n_holders = 1;
    list.slots = slots;
    list.n_slots = 2;
    json_t *json = json_from_message(&list.base);
    const json_t *second = json_array_get(json_object_get(json, "slots"), 1);
    const json_t *held = json_array_get(json_object_get(second, "holders"), 0);
    assert_string_equal(json_string_value(json_object_get(held, "state")), "held");
    assert_int_equal(json_integer_value(json_object_get(held, "delivery")), 3);
    json_decref(json);
}

static void oneof_shows_the_one_that_is_set(void **state)
{
    Ringside__V1__DescribeRequest request = RINGSIDE__V1__DESCRIBE_REQUEST__INIT;

    (void)state;
    check(&request.base, "{}");
    request.by_case = RINGSIDE__V1__DESCRIBE_REQUEST__BY_TICKET;
    request.ticket = 1;
    check(&request.base, "{\"ticket\":\"0x0000000000000001\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_with_enum_and_shape),
        cmocka_unit_test(lease_with_ticket_and_bytes),
        cmocka_unit_test(client_with_hostile_name),
        cmocka_unit_test(list_with_messages_within),
        cmocka_unit_test(oneof_shows_the_one_that_is_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

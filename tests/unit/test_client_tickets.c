/* SPDX-License-Identifier: Apache-2.0 */
/* libringside: messages read by ticket. */
#include "tests/unit/client_fixture.h"

static uint64_t share(unsigned readers, uint64_t ttl_ns)
{
    struct ringside_options options = {.ttl_ns = ttl_ns};
    uint64_t ticket = 0;

    loan_bytes(a, 4);
    memcpy(slot.tensors[0].data, "abcd", 4);
    OK(ringside_share(a, &slot, readers, &options, &ticket));
    return ticket;
}

static void client_ticket_counted_readers(void **state)
{
    static struct ringside_message second;
    uint64_t ticket = share(2, 0);

    (void)state;
    OK(ringside_read(a, ticket, &message));
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_read(a, ticket, &second)); /* a second thread's, say: one bit and one count */
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    OK(ringside_release(a, &second));
    OK(ringside_read(a, ticket, &message));
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(ringside_read(a, ticket, &message), -RINGSIDE_ESTALE_TICKET);
    assert_int_equal(fake_counter(0, 1, RS_SHARED), 1);
    assert_int_equal(fake_counter(0, 1, RS_READS), 3);
}

static struct ringside_message first_reading;

static void end_first_reading(void)
{
    assert_int_equal(ringside_release(a, &first_reading), -RINGSIDE_ECORRUPT);
}

/* Of two readings at once one counts and ends first, the other fails and ends last. */
static void client_ticket_counts_when_any_did(void **state)
{
    uint64_t ticket = share(1, 0);

    (void)state;
    ringside_close(join(0)); /* the library's guard comes before the test framework's handler again */
    OK(ringside_read(a, ticket, &first_reading));
    assert_int_equal(ftruncate(fake_stages[0].body_fd, 0), 0);
    assert_int_equal(*(volatile const uint8_t *)first_reading.tensors[0].data, 0);
    after_log = end_first_reading; /* the log tells of the cut file in the middle of the second reading */
    assert_int_equal(ringside_read(a, ticket, &message), -RINGSIDE_ECORRUPT);
    assert_null(after_log);
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_ticket_kept_until_freed(void **state)
{
    uint64_t ticket = share(0, 0);

    (void)state;
    for (int i = 0; i < 5; i++) {
        OK(ringside_read(a, ticket, &message));
        OK(ringside_release(a, &message));
    }
    OK(ringside_read(a, ticket, &message));
    OK(ringside_free(a, ticket)); /* while it is being read: through the sidecar */
    assert_int_equal(fake_count(0, RS_SEALED), 1);
    assert_int_equal(ringside_read(a, ticket, &message), -RINGSIDE_ESTALE_TICKET);
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(ringside_free(a, ticket), -RINGSIDE_ESTALE_TICKET);
    ticket = share(0, 0);
    OK(ringside_free(a, ticket));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

/* It has the 16 bits of generation that `readers` compares, and the slot's bit of this process is on already. */
static void client_ticket_stale_beside_a_reading(void **state)
{
    uint64_t ticket = share(0, 0), stale = ticket ^ UINT64_C(1) << 20;

    (void)state;
    OK(ringside_read(a, ticket, &message));
    static struct ringside_message second;
    assert_int_equal(ringside_read(a, stale, &second), -RINGSIDE_ESTALE_TICKET);
    OK(ringside_free(a, ticket));
    assert_int_equal(fake_count(0, RS_SEALED), 1); /* the first reading has kept its bit */
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_ticket_errors_are_distinct(void **state)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES];
    uint64_t ticket = share(1, 0);

    (void)state;
    assert_int_equal(ringside_read(a, 0, &message), -RINGSIDE_EMALFORMED_TICKET);
    assert_int_equal(ringside_read_text(a, "rst1-", &message), -RINGSIDE_EMALFORMED_TICKET);
    assert_int_equal(ringside_read(a, rs_ticket_pack(999, 1, 1), &message),
                     -RINGSIDE_EFOREIGN_TICKET);
    assert_int_equal(ringside_read(a, ticket + 1, &message), -RINGSIDE_ESTALE_TICKET);
    OK(ringside_ticket_text(a, ticket, text));
    uint64_t bare;
    OK(ringside_ticket_parse(text, &bare));
    assert_int_equal(bare, ticket);
    struct rs_ticket parts;
    rs_ticket_parse(&parts, text);
    char other[RINGSIDE_TICKET_TEXT_BYTES];
    rs_ticket_format(other, parts.sidecar_id, parts.slot, parts.generation, parts.incarnation ^ 1);
    assert_int_equal(ringside_read_text(a, other, &message), -RINGSIDE_EFOREIGN_TICKET);
    /* Equal in the 28 bits that a bare ticket has. */
    rs_ticket_format(other, parts.sidecar_id, parts.slot, parts.generation ^ 1u << 31,
                     parts.incarnation);
    assert_int_equal(ringside_read_text(a, other, &message), -RINGSIDE_ESTALE_TICKET);
    OK(ringside_read_text(a, text, &message));
    OK(ringside_release(a, &message));
    assert_int_equal(ringside_ticket_text(a, ticket, text), -RINGSIDE_ESTALE_TICKET);
    ticket = share(1, 1);
    assert_int_equal(ringside_read(a, ticket, &message), -RINGSIDE_EEXPIRED_TICKET);
    OK(ringside_free(a, ticket));
    loan_bytes(a, 1);
    struct ringside_options longer = {.ttl_ns = fake_ticket_ttl_ns + 1};
    assert_int_equal(ringside_share(a, &slot, 1, &longer, &ticket), -RINGSIDE_EINVALID);
    assert_int_equal(ringside_share(a, &slot, 256, NULL, &ticket), -RINGSIDE_EINVALID);
    OK(ringside_abandon(a, &slot));
}

static void client_ticket_of_another_stage(void **state)
{
    uint64_t ticket;

    (void)state;
    OK(send_byte(a, "1", 1)); /* b maps the ring */
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    ticket = share(1, 0);
    OK(ringside_read(b, ticket, &message));
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_release(b, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

static void client_ticket_without_reader_number(void **state)
{
    (void)state;
    fake_no_readers = true;
    struct ringside *worker = join(0);
    uint64_t ticket = share(1, 0);
    OK(ringside_read(worker, ticket, &message));
    assert_memory_equal(message.tensors[0].data, "abcd", 4);
    OK(ringside_release(worker, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    assert_int_equal(ringside_read(worker, ticket, &message), -RINGSIDE_ESTALE_TICKET);
    ticket = share(0, 0);
    OK(ringside_free(worker, ticket));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
    ringside_close(worker);
}

static void client_close_ends_readings(void **state)
{
    struct ringside *worker = join(0);
    uint64_t ticket = share(1, 0);

    (void)state;
    OK(ringside_read(worker, ticket, &message));
    ringside_close(worker);
    OK(ringside_read(a, ticket, &message)); /* not counted: its reader went away */
    OK(ringside_release(a, &message));
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_ticket_counted_readers),
        CASE(client_ticket_counts_when_any_did),
        CASE(client_ticket_kept_until_freed),
        CASE(client_ticket_stale_beside_a_reading),
        CASE(client_ticket_errors_are_distinct),
        CASE(client_ticket_of_another_stage),
        CASE(client_ticket_without_reader_number),
        CASE(client_close_ends_readings),
    };

    return cmocka_run_group_tests_name("client_tickets", tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* libringside when a ring number comes to mean another ring. */
#include "tests/unit/client_fixture.h"

#include <sys/stat.h>

/* How many read-only mappings of a stage's body this process has. */
static int body_views(unsigned stage)
{
    struct stat body;
    char line[512];
    int count = 0;

    fstat(fake_stages[stage].body_fd, &body);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long inode;
        char rights[8];

        if (sscanf(line, "%*s %7s %*s %*s %lu", rights, &inode) == 2 && inode == body.st_ino &&
            rights[1] == '-')
            count++;
    }
    fclose(maps);
    return count;
}

/* What is held of a ring that left stays readable and can be given back; then its body goes. */
static void client_ring_number_means_another(void **state)
{
    static struct ringside_message held;
    uint64_t ticket;

    (void)state;
    OK(send_byte(a, "1", 7));
    OK(ringside_receive(b, &held, 0));
    ticket = held.ticket;
    fake_renumber(1, fake_number(1, 0), 2);
    assert_int_equal(ringside_receive(b, &message, MS), -RINGSIDE_ETIMEOUT); /* waiting notices */
    OK(send_byte(c, "1", 8));
    take_byte(b, 8);
    assert_int_equal(message.ticket >> 48, 103);
    assert_int_equal(value_of(&held), 7);
    assert_int_equal(held.ticket, ticket);
    assert_int_equal(body_views(0), 1);
    OK(ringside_release(b, &held));
    assert_int_equal(fake_count(0, RS_FREE), 12);
    for (int i = 0; i < 100 && body_views(0) != 0; i++)
        assert_int_equal(ringside_receive(b, &message, 100 * MS), -RINGSIDE_ETIMEOUT);
    assert_int_equal(body_views(0), 0);
    OK(send_byte(c, "1", 9)); /* the other one goes on */
    take_byte(b, 9);
}

/* A worker that is never idle notices as well. */
static void client_ring_number_means_another_when_busy(void **state)
{
    (void)state;
    OK(send_byte(a, "1", 7));
    take_byte(b, 7);
    fake_renumber(1, fake_number(1, 0), 2);
    for (int i = 0; i < 4096; i++) {
        OK(send_byte(b, "1", 3));
        take_byte(b, 3);
    }
    OK(send_byte(c, "1", 8));
    take_byte(b, 8);
}

/* A reading by ticket of a ring that left, begun through the sidecar for want of a reader number, keeps the body. */
static void client_retired_ring_is_still_read(void **state)
{
    uint64_t ticket;

    (void)state;
    fake_no_readers = true;
    OK(send_byte(a, "1", 7));
    take_byte(b, 7);
    loan_bytes(a, 1);
    *(uint8_t *)slot.tensors[0].data = 0x5a;
    OK(ringside_share(a, &slot, 1, NULL, &ticket));
    static struct ringside_message reading;
    OK(ringside_read(b, ticket, &reading));
    fake_renumber(1, fake_number(1, 0), 2);
    assert_int_equal(ringside_receive(b, &message, MS), -RINGSIDE_ETIMEOUT);
    assert_int_equal(body_views(0), 1);
    assert_int_equal(value_of(&reading), 0x5a);
    OK(ringside_release(b, &reading));
    for (int i = 0; i < 100 && body_views(0) != 0; i++)
        assert_int_equal(ringside_receive(b, &message, 100 * MS), -RINGSIDE_ETIMEOUT);
    assert_int_equal(body_views(0), 0);
}

/* An inbox in which a message was passed on judges cells of that ring's number by that ring, but only as long as the
 * number means it. */
static void client_forward_forgets_ring_numbers(void **state)
{
    struct rs_inbox *inbox = &fake_stages[2].inbox;
    unsigned number = fake_number(2, 0);

    (void)state;
    restart(RINGSIDE__V1__ROUTE__WHEN_FULL__ERROR, 8, 8);
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    assert_int_equal(ringside_forward(b, &message, "2", NULL), 1);
    take_byte(c, 1);
    OK(send_byte(a, "1", 2));
    static struct ringside_message later;
    OK(ringside_receive(b, &later, 0));
    fake_renumber(2, number, 2);
    for (int i = 0; i < 8; i++)
        OK(send_byte(c, "2", (uint8_t)(10 + i)));
    /* All cells are full, but the hint says that there is room, as it may when producers race. */
    uint64_t tail = rs_load_relaxed(&inbox->shared->tail), cells[8];
    rs_store_relaxed(&inbox->shared->head, tail);
    for (int i = 0; i < 8; i++) {
        cells[i] = rs_load_relaxed(&inbox->cells[i]);
        assert_int_equal(rs_cell_ring(cells[i]), number);
    }
    OK(send_byte(b, "2", 20));
    for (int i = 0; i < 8; i++)
        assert_true(rs_load_relaxed(&inbox->cells[i]) == cells[i]);
    /* The first stage believes yet that its number holds: no cell of another ring may be made. */
    assert_int_equal(ringside_forward(b, &later, "2", NULL), 0);
    for (int i = 0; i < 8; i++)
        assert_true(rs_load_relaxed(&inbox->cells[i]) == cells[i]);
    assert_int_equal(fake_count(0, RS_SEALED), 0);
}

/* The own ring's number may come to mean another one, too, before the own sidecar knows it. */
static void client_send_waits_for_its_number(void **state)
{
    struct rs_inbox *inbox = &fake_stages[1].inbox;
    unsigned number = fake_number(1, 0);

    (void)state;
    OK(send_byte(a, "1", 1));
    take_byte(b, 1);
    fake_renumber(1, number, 2);
    uint64_t tail = rs_load_relaxed(&inbox->shared->tail);
    assert_int_equal(send_byte(a, "1", 2), -RINGSIDE_EUNAVAILABLE);
    assert_true(rs_load_relaxed(&inbox->shared->tail) == tail);
    fake_renumber(1, number + 2, 0); /* it gets another one */
    OK(send_byte(a, "1", 3));
    assert_int_equal(rs_cell_ring(rs_load_relaxed(&inbox->cells[tail % 16])), number + 2);
    assert_int_equal(ringside_receive(b, &message, 50 * MS), 0);
    assert_int_equal(value_of(&message), 3);
    OK(ringside_release(b, &message));
    OK(send_byte(c, "1", 4));
    take_byte(b, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_ring_number_means_another),
        CASE(client_ring_number_means_another_when_busy),
        CASE(client_retired_ring_is_still_read),
        CASE(client_forward_forgets_ring_numbers),
        CASE(client_send_waits_for_its_number),
    };

    return cmocka_run_group_tests_name("client_rings", tests, NULL, NULL);
}

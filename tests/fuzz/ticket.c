/* SPDX-License-Identifier: Apache-2.0 */
/* A ticket as a number and as text: malformed, or exactly one way to write it. */
#include "proto/ticket.h"

#include "tests/fuzz/fuzz.h"

static void check_number(uint64_t number)
{
    struct rs_ticket ticket;

    if (rs_ticket_unpack(&ticket, number) < 0)
        return;
    CHECK(ticket.sidecar_id != 0 && !ticket.has_text);
    CHECK(rs_ticket_pack(ticket.sidecar_id, ticket.slot, ticket.generation) == number);
}

static void check_text(const char *text)
{
    struct rs_ticket ticket;
    char again[RS_TICKET_TEXT_BYTES];

    if (rs_ticket_parse(&ticket, text) < 0)
        return;
    CHECK(ticket.has_text && ticket.slot < 1u << 20);
    rs_ticket_format(again, ticket.sidecar_id, ticket.slot, ticket.generation, ticket.incarnation);
    CHECK(strcmp(again, text) == 0);
}

/* One that was written is read as it was; with one character changed it is not. */
static void check_damage(struct input *input)
{
    uint16_t sidecar = (uint16_t)(next(input, 2) | 1);
    uint32_t slot = (uint32_t)next(input, 3) & 0xfffff, generation = (uint32_t)next(input, 4);
    uint32_t incarnation = (uint32_t)next(input, 4);
    char text[RS_TICKET_TEXT_BYTES];
    struct rs_ticket ticket;

    rs_ticket_format(text, sidecar, slot, generation, incarnation);
    CHECK(rs_ticket_parse(&ticket, text) == 0);
    CHECK(ticket.sidecar_id == sidecar && ticket.slot == slot && ticket.generation == generation &&
          ticket.incarnation == incarnation);
    size_t at = (size_t)next(input, 1) % strlen(text);
    char other = (char)next(input, 1);
    if (other == text[at])
        return;
    text[at] = other;
    CHECK(rs_ticket_parse(&ticket, text) == -RINGSIDE_E_MALFORMED_TICKET);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    char text[RS_TICKET_TEXT_BYTES + 8];

    text[next_bytes(&input, text, sizeof text - 1)] = '\0';
    check_text(text);
    input = (struct input){data, size};
    check_number(next(&input, 8));
    check_damage(&input);
    return 0;
}

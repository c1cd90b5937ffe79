/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets apart and together, and their text form. */
#include "proto/ticket.h"

#include <stddef.h>
#include <string.h>

#include "proto/err.h"

#define PREFIX       "rst1-"
#define PREFIX_CHARS 5

enum { SIDECAR_AT = 5, SLOT_AT = 9, GENERATION_AT = 14, INCARNATION_AT = 23, CHECK_AT = 32 };
enum { FIRST_DASH_AT = 22, SECOND_DASH_AT = 31, TEXT_CHARS = 36 };
_Static_assert(TEXT_CHARS < RS_TICKET_TEXT_BYTES, "the text and its NUL fit");

int rs_ticket_unpack(struct rs_ticket *ticket, uint64_t value)
{
    uint16_t sidecar_id = (uint16_t)(value >> 48);

    if (sidecar_id == 0)
        return -RINGSIDE_E_MALFORMED_TICKET;
    *ticket = (struct rs_ticket){
        .sidecar_id = sidecar_id,
        .slot = (uint32_t)(value >> 28) & 0xfffff,
        .generation = (uint32_t)value & RS_TICKET_GENERATION_MASK,
    };
    return 0;
}

/* CRC-16/CCITT: what catches a digit lost or changed on the way through somebody's JSON. */
static uint16_t check_of(const char *text, size_t chars)
{
    unsigned crc = 0xffff;

    for (size_t i = 0; i < chars; i++) {
        crc ^= (unsigned)(unsigned char)text[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 0x8000) != 0 ? (crc << 1 ^ 0x1021) & 0xffff : crc << 1;
    }
    return (uint16_t)crc;
}

static void put_hex(char *text, unsigned digits, uint32_t value)
{
    while (digits-- > 0) {
        text[digits] = "0123456789abcdef"[value & 15];
        value >>= 4;
    }
}

static bool get_hex(const char *text, unsigned digits, uint32_t *value)
{
    *value = 0;
    for (unsigned i = 0; i < digits; i++) {
        char c = text[i];

        if (c >= '0' && c <= '9')
            *value = *value << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            *value = *value << 4 | (uint32_t)(c - 'a' + 10);
        else
            return false;
    }
    return true;
}

void rs_ticket_format(char *text, uint16_t sidecar_id, uint32_t slot, uint32_t generation,
                      uint32_t incarnation)
{
    memcpy(text, PREFIX, PREFIX_CHARS);
    put_hex(text + SIDECAR_AT, 4, sidecar_id);
    put_hex(text + SLOT_AT, 5, slot);
    put_hex(text + GENERATION_AT, 8, generation);
    text[FIRST_DASH_AT] = '-';
    put_hex(text + INCARNATION_AT, 8, incarnation);
    text[SECOND_DASH_AT] = '-';
    put_hex(text + CHECK_AT, 4, check_of(text, SECOND_DASH_AT));
    text[TEXT_CHARS] = '\0';
}

int rs_ticket_parse(struct rs_ticket *ticket, const char *text)
{
    uint32_t sidecar_id, slot, generation, incarnation, check;

    if (text == NULL || strnlen(text, TEXT_CHARS + 1) != TEXT_CHARS ||
        memcmp(text, PREFIX, PREFIX_CHARS) != 0 || text[FIRST_DASH_AT] != '-' ||
        text[SECOND_DASH_AT] != '-')
        return -RINGSIDE_E_MALFORMED_TICKET;
    if (!get_hex(text + SIDECAR_AT, 4, &sidecar_id) || !get_hex(text + SLOT_AT, 5, &slot) ||
        !get_hex(text + GENERATION_AT, 8, &generation) ||
        !get_hex(text + INCARNATION_AT, 8, &incarnation) || !get_hex(text + CHECK_AT, 4, &check))
        return -RINGSIDE_E_MALFORMED_TICKET;
    if (check != check_of(text, SECOND_DASH_AT) || sidecar_id == 0)
        return -RINGSIDE_E_MALFORMED_TICKET;
    *ticket = (struct rs_ticket){
        .sidecar_id = (uint16_t)sidecar_id,
        .slot = slot,
        .generation = generation,
        .incarnation = incarnation,
        .has_text = true,
    };
    return 0;
}

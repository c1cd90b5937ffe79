/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets: 64 bits that name a message, and their text form that carries 64 bits more. */
#ifndef RINGSIDE_PROTO_TICKET_H
#define RINGSIDE_PROTO_TICKET_H

#include <stdbool.h>
#include <stdint.h>

/* "rst1-" sidecar 4 hex, slot 5 hex, full generation 8 hex, "-" incarnation 8 hex, "-" check 4 hex, NUL */
#define RS_TICKET_TEXT_BYTES 40
#define RS_TICKET_GENERATION_MASK 0x0fffffffu

/* A ticket taken apart. has_text: generation is whole and incarnation is set. */
struct rs_ticket {
    uint16_t sidecar_id;
    uint32_t slot;        /* 20 bits */
    uint32_t generation;  /* 28 bits, or 32 with has_text */
    uint32_t incarnation; /* low 32 bits of incarnation[0] of the ring */
    bool has_text;
};

/* sidecar id 16 | slot 20 | generation 28 */
static inline uint64_t rs_ticket_pack(uint16_t sidecar_id, uint32_t slot, uint32_t generation)
{
    return (uint64_t)sidecar_id << 48 | (uint64_t)(slot & 0xfffff) << 28 |
           (generation & RS_TICKET_GENERATION_MASK);
}

static inline unsigned rs_ticket_sidecar(uint64_t ticket)
{
    return (unsigned)(ticket >> 48);
}
static inline uint32_t rs_ticket_slot(uint64_t ticket)
{
    return (uint32_t)(ticket >> 28) & 0xfffff;
}
static inline uint32_t rs_ticket_generation(uint64_t ticket)
{
    return (uint32_t)ticket & RS_TICKET_GENERATION_MASK;
}

/* -RINGSIDE_E_MALFORMED_TICKET for 0 or a sidecar id of 0. */
int rs_ticket_unpack(struct rs_ticket *ticket, uint64_t value);

/* text must hold RS_TICKET_TEXT_BYTES. */
void rs_ticket_format(char *text, uint16_t sidecar_id, uint32_t slot, uint32_t generation,
                      uint32_t incarnation);

/* Accepts the text form exactly. -RINGSIDE_E_MALFORMED_TICKET. */
int rs_ticket_parse(struct rs_ticket *ticket, const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Tickets and their text form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/err.h"
#include "proto/ticket.h"

static void ticket_pack_and_unpack(void **state)
{
    struct rs_ticket ticket;

    (void)state;
    assert_int_equal(rs_ticket_unpack(&ticket, rs_ticket_pack(0xffff, 0xfffff, 0xffffffff)), 0);
    assert_int_equal(ticket.sidecar_id, 0xffff);
    assert_int_equal(ticket.slot, 0xfffff);
    assert_int_equal(ticket.generation, 0x0fffffff);
    assert_false(ticket.has_text);
    assert_int_equal(rs_ticket_unpack(&ticket, rs_ticket_pack(1, 2, 3)), 0);
    assert_int_equal(ticket.sidecar_id, 1);
    assert_int_equal(ticket.slot, 2);
    assert_int_equal(ticket.generation, 3);
}

static void ticket_without_sidecar_is_malformed(void **state)
{
    struct rs_ticket ticket;

    (void)state;
    assert_int_equal(rs_ticket_unpack(&ticket, 0), -RINGSIDE_E_MALFORMED_TICKET);
    assert_int_equal(rs_ticket_unpack(&ticket, rs_ticket_pack(0, 5, 6)),
                     -RINGSIDE_E_MALFORMED_TICKET);
}

static void ticket_text_leads_back(void **state)
{
    char text[RS_TICKET_TEXT_BYTES];
    struct rs_ticket ticket;

    (void)state;
    rs_ticket_format(text, 0xbeef, 0xfedcb, 0xf1234567, 0x89abcdef);
    assert_int_equal(strncmp(text, "rst1-beeffedcbf1234567-89abcdef-", 32), 0);
    assert_int_equal(strlen(text), 36);
    assert_int_equal(rs_ticket_parse(&ticket, text), 0);
    assert_int_equal(ticket.sidecar_id, 0xbeef);
    assert_int_equal(ticket.slot, 0xfedcb);
    assert_int_equal(ticket.generation, 0xf1234567);
    assert_int_equal(ticket.incarnation, 0x89abcdef);
    assert_true(ticket.has_text);
}

/* Each single character changed to each other one is refused: the check covers every place. */
static void ticket_text_refuses_any_other_character(void **state)
{
    char good[RS_TICKET_TEXT_BYTES], bad[RS_TICKET_TEXT_BYTES];
    struct rs_ticket ticket;

    (void)state;
    rs_ticket_format(good, 7, 9, 0x10203040, 0x50607080);
    for (size_t at = 0; at < strlen(good); at++) {
        for (int c = 0; c < 256; c++) {
            if ((char)c == good[at])
                continue;
            memcpy(bad, good, sizeof bad);
            bad[at] = (char)c;
            assert_int_equal(rs_ticket_parse(&ticket, bad), -RINGSIDE_E_MALFORMED_TICKET);
        }
    }
}

static void ticket_text_refuses_other_forms(void **state)
{
    char text[RS_TICKET_TEXT_BYTES + 8];
    struct rs_ticket ticket;

    (void)state;
    assert_int_equal(rs_ticket_parse(&ticket, NULL), -RINGSIDE_E_MALFORMED_TICKET);
    assert_int_equal(rs_ticket_parse(&ticket, ""), -RINGSIDE_E_MALFORMED_TICKET);
    assert_int_equal(rs_ticket_parse(&ticket, "12345"), -RINGSIDE_E_MALFORMED_TICKET);
    rs_ticket_format(text, 0, 9, 10, 11); /* no sidecar has the id 0 */
    assert_int_equal(rs_ticket_parse(&ticket, text), -RINGSIDE_E_MALFORMED_TICKET);
    rs_ticket_format(text, 1, 9, 10, 11);
    strcat(text, " ");
    assert_int_equal(rs_ticket_parse(&ticket, text), -RINGSIDE_E_MALFORMED_TICKET);
    text[35] = '\0';
    assert_int_equal(rs_ticket_parse(&ticket, text), -RINGSIDE_E_MALFORMED_TICKET);
}

/* Parsing reads nothing past the end of a short string. */
static void ticket_text_short_strings_stay_inside(void **state)
{
    char whole[RS_TICKET_TEXT_BYTES];
    struct rs_ticket ticket;

    (void)state;
    rs_ticket_format(whole, 1, 2, 3, 4);
    for (size_t length = 0; length < strlen(whole); length++) {
        char *text = strndup(whole, length);

        assert_non_null(text);
        assert_int_equal(rs_ticket_parse(&ticket, text), -RINGSIDE_E_MALFORMED_TICKET);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticket_pack_and_unpack),
        cmocka_unit_test(ticket_without_sidecar_is_malformed),
        cmocka_unit_test(ticket_text_leads_back),
        cmocka_unit_test(ticket_text_refuses_any_other_character),
        cmocka_unit_test(ticket_text_refuses_other_forms),
        cmocka_unit_test(ticket_text_short_strings_stay_inside),
    };

    return cmocka_run_group_tests_name("ticket", tests, NULL, NULL);
}

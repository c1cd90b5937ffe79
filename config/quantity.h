/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: "256Ki", "16Mi", "1Gi", "1Ti". */
#ifndef RINGSIDE_CONFIG_QUANTITY_H
#define RINGSIDE_CONFIG_QUANTITY_H

#include <stdint.h>

enum { RS_QUANTITY_TEXT_BYTES = 24 }; /* room for any formatted 64-bit size and its NUL */

/*
 * Reads a decimal whole number without leading zeros and one of the suffixes Ki, Mi, Gi, Ti.
 * Returns 0 and sets *bytes, -RINGSIDE_E_INVALID for any other text, -ERANGE past 2^63 - 1
 * (*bytes is then untouched). Any thread; no locale matters.
 */
int rs_quantity_parse(const char *text, uint64_t *bytes);

/* Writes bytes with the largest suffix that divides it, or as a plain integer. Any thread. */
void rs_quantity_format(uint64_t bytes, char text[RS_QUANTITY_TEXT_BYTES]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: "256Ki", "16Mi", "1Gi", "1Ti". */
#include "config/quantity.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/err.h"

static const struct {
    char text[3];
    unsigned shift;
} suffixes[] = {{"Ti", 40}, {"Gi", 30}, {"Mi", 20}, {"Ki", 10}};

enum { SUFFIXES = sizeof(suffixes) / sizeof(suffixes[0]) };

/* Not strtoull: it takes blanks, signs and "0x", and turns -1 into 2^64 - 1. */
int rs_quantity_parse(const char *text, uint64_t *bytes)
{
    const char *digit = text;
    uint64_t value = 0;
    int status = 0;

    if (*digit < '1' || *digit > '9')
        return -RINGSIDE_E_INVALID;
    for (; *digit >= '0' && *digit <= '9'; digit++) {
        if (value > (INT64_MAX - 9) / 10)
            status = -ERANGE; /* read on: a wrong suffix is the better complaint */
        else
            value = value * 10 + (uint64_t)(*digit - '0');
    }
    for (int i = 0; i < SUFFIXES; i++) {
        if (strcmp(digit, suffixes[i].text) != 0)
            continue;
        if (status == 0 && value > (uint64_t)INT64_MAX >> suffixes[i].shift)
            status = -ERANGE;
        if (status == 0)
            *bytes = value << suffixes[i].shift;
        return status;
    }
    return -RINGSIDE_E_INVALID;
}

void rs_quantity_format(uint64_t bytes, char text[RS_QUANTITY_TEXT_BYTES])
{
    for (int i = 0; i < SUFFIXES; i++) {
        uint64_t value = bytes >> suffixes[i].shift;

        if (value != 0 && value << suffixes[i].shift == bytes) {
            snprintf(text, RS_QUANTITY_TEXT_BYTES, "%" PRIu64 "%s", value, suffixes[i].text);
            return;
        }
    }
    snprintf(text, RS_QUANTITY_TEXT_BYTES, "%" PRIu64, bytes);
}

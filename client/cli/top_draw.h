/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of `ringside top`, and the same as JSON. */
#ifndef RINGSIDE_CLI_TOP_DRAW_H
#define RINGSIDE_CLI_TOP_DRAW_H

#include <jansson.h>
#include <stdio.h>

#include "client/cli/top_data.h"

/* Stages, slots, then the oldest holders, at most `holders` of them. */
void top_draw(FILE *file, struct top_stage *stages, size_t count, size_t columns, size_t holders);
/* {"stages": [...]} */
json_t *top_json(struct top_stage *stages, size_t count);

#endif

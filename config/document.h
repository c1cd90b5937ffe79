/* SPDX-License-Identifier: Apache-2.0 */
/* From a JSON document to resolved values: every key of the file and its range. */
#ifndef RINGSIDE_CONFIG_DOCUMENT_H
#define RINGSIDE_CONFIG_DOCUMENT_H

#include "config/config.h"
#include "config/json.h"

/* Fills config, which holds the defaults, from a document. Refusals go to the document's report. */
void rs_config_read_document(struct rs_config *config, struct rs_json at);

/* Refuses what no single value shows: a blocking route that leads back to the stage itself. */
void rs_config_check_routes(const struct rs_config *config, struct rs_json_report *report);

#endif

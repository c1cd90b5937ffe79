/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringside top` knows of each sidecar, from Status and List alone. */
#ifndef RINGSIDE_CLI_TOP_DATA_H
#define RINGSIDE_CLI_TOP_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cli/sample.h"
#include "control.pb-c.h"
#include "proto/ring_layout.h"
#include "proto/ttrpc_client.h"

#define TOP_TEXT_BYTES 160
#define TOP_LOOKS      10 /* that percentiles are of */

/* Somebody who has a slot. */
struct top_holder {
    char state[16];             /* "loaned", "held", "reading"; "": nobody */
    char client[RS_NAME_BYTES]; /* not printable yet */
    char ticket[40];
    uint64_t age_ns; /* as far as the sidecar has seen */
    uint64_t bytes;  /* of the message; 0 of a loan */
};

struct top_class {
    uint64_t slot_bytes;
    uint32_t slots, free, loaned, sealed, quarantined;
    struct top_holder oldest;
};

/* Counters as of one look. */
struct top_counts {
    uint64_t at_ns; /* 0: there has been none */
    uint64_t sent, received, sent_bytes;
    uint8_t incarnation[16]; /* of the ring that they are of */
};

struct top_stage {
    const char *socket; /* the caller's */
    struct rs_ttrpc_client client;
    bool connected;             /* `client` is to be finished */
    char error[TOP_TEXT_BYTES]; /* why there is no answer; "": there is one */
    char stage[RS_NAME_BYTES], state[16];
    uint32_t inbox_depth, inbox_limit, clients;
    struct top_counts last;
    bool has_rates;                             /* there were two looks at one ring */
    double sent_rate, received_rate, byte_rate; /* a second */
    struct sample looks[TOP_LOOKS]; /* ages of the messages that waited at each of the last looks */
    unsigned next_look;             /* where the next one goes */
    struct sample queued;           /* all of `looks` together */
    struct top_class classes[RS_MAX_CLASSES];
    size_t class_count;
    struct top_holder *holders; /* the oldest first; owned */
    size_t holder_count, holder_room;
    bool partial; /* the ring has more live slots than were looked at */
};

/* `socket` stays the caller's. Nothing is asked yet. */
void top_stage_init(struct top_stage *stage, const char *socket);
void top_stage_finish(struct top_stage *stage);
/* Asks the sidecar, connecting first where need be; no question takes longer than `timeout_ns`.
 * What cannot be had is said in stage->error. */
void top_stage_look(struct top_stage *stage, int64_t timeout_ns);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A callee of the chaos run: answers each call as its method says, and notes that it does before it
 * does.
 *
 * RINGSIDE_CHAOS_PLANT makes it answer some calls wrongly, which the run must tell. */
#include "tests/chaos/worker.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_planted(const char *fault)
{
    const char *plant = getenv("RINGSIDE_CHAOS_PLANT");

    return plant != NULL && strcmp(plant, fault) == 0 && draw(16) == 0;
}

static bool is_in_vain(int rc)
{
    return rc == -RINGSIDE_ETIMEOUT || rc == -RINGSIDE_EFULL;
}

/* Waits for a slot, and for room, as long as somebody waits for the reply. False: no more of them.
 */
static bool reply(struct ringside_message *message, uint64_t id, unsigned number, bool last)
{
    struct ringside_options options = {.timeout_ns = TIMEOUT_NS,
                                       .sequence = number + is_planted("order")};
    uint64_t bytes = some_bytes();
    struct ringside_slot slot;
    int rc;

    while (is_in_vain(rc = loan(&slot, bytes, TIMEOUT_NS)) && goes_on()) {
        beat();
        if (ringside_cancelled(connection, message) != 0)
            return false;
    }
    if (failed("loan", rc))
        return false;
    ledger_fill(slot.tensors[0].data, slot.tensors[0].bytes,
                reply_id(id + is_planted("body"), number), slot.ticket);
    if (last)
        ledger_count(&ledger_call(ledger, id)->answered);
    while (is_in_vain(rc = ringside_reply(connection, message, &slot, &options, last)) && goes_on())
        beat();
    if (is_in_vain(rc))
        failed("abandon", ringside_abandon(connection, &slot));
    return !failed("reply", rc);
}

static void refuse(struct ringside_message *message, uint64_t id)
{
    char text[64];
    int rc;

    snprintf(text, sizeof text, REFUSAL, (unsigned long long)id);
    ledger_count(&ledger_call(ledger, id)->answered);
    while (
        is_in_vain(rc = ringside_reply_error(connection, message, RINGSIDE_STATUS_ABORTED, text)) &&
        ringside_cancelled(connection, message) == 0 && goes_on())
        beat();
    failed("reply", rc);
}

static void execute(struct ringside_message *message, const char *method, uint64_t id)
{
    unsigned replies = replies_to(method, id);

    replies -= replies > 1 && is_planted("early");
    if (method[0] == 'r') {
        refuse(message, id);
        return;
    }
    for (unsigned number = 0; number < replies; number++) {
        if (!reply(message, id, number, number + 1 == replies))
            return;
        linger();
        /* As one that thinks of others: then its release is the last reply. */
        if (draw(4) == 0 && ringside_cancelled(connection, message) != 0)
            return;
    }
}

static void handle(struct ringside_message *message, unsigned place)
{
    char method[16] = "";
    uint64_t id = check(message);

    note_held(place, id);
    if (id == 0 || !ringside_is_call(message) || message->method_bytes >= sizeof method) {
        corrupt("call", "it is none");
        failed("release", ringside_release(connection, message));
        note_held(place, 0);
        return;
    }
    memcpy(method, message->method, message->method_bytes);
    ledger_count(&ledger_call(ledger, id)->executed);
    linger();
    if (check(message) != id)
        corrupt("held call", "it changed");
    for (bool hold = is_planted("hold"); hold && ringside_cancelled(connection, message) == 0;
         beat())
        usleep(1000);
    if (is_planted("drop")) {
        failed("nack", ringside_nack(connection, message));
    } else {
        execute(message, method, id);
        linger();
        failed("release", ringside_release(connection, message));
    }
    note_held(place, 0);
}

void callee_step(void)
{
    static struct ringside_message messages[BATCH];

    int count = ringside_receive_batch(connection, messages, 1 + draw(BATCH), TIMEOUT_NS);
    if (failed("receive", count))
        return;
    /* A death before a note leaves calls that nobody will execute. */
    for (int i = 0; i < count; i++)
        handle(&messages[i], (unsigned)i);
}

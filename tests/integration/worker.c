/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that does what it is told, one command a line on stdin, one answer a line: tests put it
 * where they want it. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/c/ringside.h"

#define HELD_MAX 64
#define MS       INT64_C(1000000)

static struct ringside *connection;
static struct ringside_slot slots[HELD_MAX];
static struct ringside_message messages[HELD_MAX];
static struct ringside_call call;
static unsigned slot_count, message_count;

static void answer(int rc)
{
    if (rc < 0)
        printf("error %s %s\n", ringside_error_name(rc), ringside_explain(connection));
    else
        printf("ok %d\n", rc);
}

/* Every byte of the body is the value's last one, so that a page of somebody else's is seen. */
static void answer_value(int rc, const struct ringside_message *message)
{
    const uint8_t *data = message->tensors[0].data;

    if (rc < 0) {
        answer(rc);
        return;
    }
    bool same = true;
    for (uint64_t i = 1; i < message->tensors[0].bytes; i++)
        same = same && data[i] == data[0];
    printf("ok %d %u %016llx\n", same ? data[0] : -1, message->attempts,
           (unsigned long long)message->ticket);
}

static void loan(const char *argument)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1};
    long long bytes = 0, timeout_ms = 0;

    (void)sscanf(argument, "%lld %lld", &bytes, &timeout_ms);
    tensor.shape[0] = bytes;
    int rc = slot_count == HELD_MAX
                 ? -RINGSIDE_ELIMIT
                 : ringside_loan(connection, &tensor, 1, 0, timeout_ms * MS, &slots[slot_count]);
    slot_count += rc >= 0;
    answer(rc);
}

static void send_value(const char *argument)
{
    char route[64] = "";
    int value = 0;

    if (slot_count == 0) {
        answer(-RINGSIDE_ESTATE);
        return;
    }
    struct ringside_slot *slot = &slots[slot_count - 1];
    (void)sscanf(argument, "%63s %d", route, &value);
    memset(slot->tensors[0].data, value, slot->tensors[0].bytes);
    int rc = ringside_send(connection, slot, route, NULL);
    slot_count -= rc >= 0;
    answer(rc);
}

static void share_value(const char *argument)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES] = "";
    uint64_t ticket = 0;
    int rc = -RINGSIDE_ESTATE;

    if (slot_count > 0) {
        struct ringside_slot *slot = &slots[slot_count - 1];
        memset(slot->tensors[0].data, atoi(argument), slot->tensors[0].bytes);
        rc = ringside_share(connection, slot, 0, NULL, &ticket);
    }
    if (rc >= 0)
        rc = ringside_ticket_text(connection, ticket, text);
    if (rc < 0) {
        answer(rc);
        return;
    }
    slot_count--;
    printf("ok %s\n", text);
}

static void take(bool by_ticket, const char *argument)
{
    struct ringside_message *message = &messages[message_count];
    int rc = message_count == HELD_MAX ? -RINGSIDE_ELIMIT
             : by_ticket               ? ringside_read_text(connection, argument, message)
                                       : ringside_receive(connection, message, atoi(argument) * MS);

    message_count += rc >= 0;
    answer_value(rc, message);
}

/* By the 64 bits of a ticket. */
static void take_bare(const char *argument)
{
    struct ringside_message *message = &messages[message_count];
    int rc = message_count == HELD_MAX ? -RINGSIDE_ELIMIT
                                       : ringside_read(connection, strtoull(argument, NULL, 0), message);

    message_count += rc >= 0;
    answer_value(rc, message);
}

static void give_up(int (*verb)(struct ringside *, struct ringside_message *))
{
    int rc = message_count > 0 ? verb(connection, &messages[message_count - 1]) : -RINGSIDE_ESTATE;

    message_count -= message_count > 0;
    answer(rc);
}

/* ROUTE METHOD VALUE TTL_MS CREDITS: 16 bytes of the value. One call at a time. */
static void make_call(const char *argument)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {16}};
    struct ringside_options options = {.timeout_ns = 5000 * MS};
    struct ringside_slot slot;
    char route[64] = "", method[64] = "";
    long long ttl_ms = 0;
    int value = 0;

    (void)sscanf(argument, "%63s %63s %d %lld %u", route, method, &value, &ttl_ms,
                 &options.credits);
    options.ttl_ns = (uint64_t)(ttl_ms * MS);
    int rc = ringside_loan(connection, &tensor, 1, 64, 5000 * MS, &slot);
    if (rc == 0) {
        memset(slot.tensors[0].data, value, 16);
        rc = ringside_call(connection, &slot, route, method, &options, &call);
        if (rc < 0)
            (void)ringside_abandon(connection, &slot);
    }
    answer(rc);
}

static void wait_for_reply(const char *argument)
{
    struct ringside_message *message = &messages[message_count];
    int rc = message_count == HELD_MAX
                 ? -RINGSIDE_ELIMIT
                 : ringside_call_wait(connection, &call, message, atoi(argument) * MS);

    message_count += rc >= 0;
    answer_value(rc, message);
}

static struct ringside_message *newest(void)
{
    return message_count > 0 ? &messages[message_count - 1] : NULL;
}

static void answer_method(void)
{
    const struct ringside_message *message = newest();

    if (message == NULL || message->method == NULL)
        answer(-RINGSIDE_ESTATE);
    else
        printf("ok %.*s\n", (int)message->method_bytes, message->method);
}

/* VALUE LAST, to the call that was received last. */
static void reply(const char *argument)
{
    struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {16}};
    struct ringside_options options = {.timeout_ns = 5000 * MS};
    struct ringside_slot slot;
    int value = 0, last = 1;

    (void)sscanf(argument, "%d %d", &value, &last);
    int rc = ringside_loan(connection, &tensor, 1, 0, 5000 * MS, &slot);
    if (rc == 0) {
        memset(slot.tensors[0].data, value, 16);
        rc = ringside_reply(connection, newest(), &slot, &options, last);
    }
    answer(rc);
}

static void reply_error(const char *argument)
{
    int after = 0;
    unsigned status = 0;

    (void)sscanf(argument, "%u %n", &status, &after);
    answer(ringside_reply_error(connection, newest(), status, argument + after));
}

static void obey(const char *verb, const char *argument)
{
    if (strcmp(verb, "loan") == 0) {
        loan(argument);
    } else if (strcmp(verb, "send") == 0) {
        send_value(argument);
    } else if (strcmp(verb, "share") == 0) {
        share_value(argument);
    } else if (strcmp(verb, "receive") == 0) {
        take(false, argument);
    } else if (strcmp(verb, "read") == 0) {
        take(true, argument);
    } else if (strcmp(verb, "bare") == 0) {
        take_bare(argument);
    } else if (strcmp(verb, "look") == 0) { /* at the message that was taken last, again */
        answer_value(message_count > 0 ? 0 : -RINGSIDE_ESTATE,
                     &messages[message_count > 0 ? message_count - 1 : 0]);
    } else if (strcmp(verb, "release") == 0) {
        give_up(ringside_release);
    } else if (strcmp(verb, "nack") == 0) {
        give_up(ringside_nack);
    } else if (strcmp(verb, "free") == 0) {
        answer(ringside_free_text(connection, argument));
    } else if (strcmp(verb, "abandon") == 0) {
        answer(slot_count > 0 ? ringside_abandon(connection, &slots[--slot_count])
                              : -RINGSIDE_ESTATE);
    } else if (strcmp(verb, "fork") ==
               0) { /* a child that has all the parent's descriptors and never ends */
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            (void)!freopen("/dev/null", "r", stdin);
            (void)!freopen("/dev/null", "w", stdout);
            for (;;)
                pause();
        }
        answer(child);
    } else if (strcmp(verb, "call") == 0) {
        make_call(argument);
    } else if (strcmp(verb, "wait") == 0) {
        wait_for_reply(argument);
    } else if (strcmp(verb, "cancel") == 0) {
        answer(ringside_call_cancel(connection, &call));
    } else if (strcmp(verb, "method") == 0) {
        answer_method();
    } else if (strcmp(verb, "reply") == 0) {
        reply(argument);
    } else if (strcmp(verb, "error") == 0) {
        reply_error(argument);
    } else if (strcmp(verb, "cancelled") == 0) {
        answer(ringside_cancelled(connection, newest()));
    } else if (strcmp(verb, "pid") == 0) {
        answer(getpid());
    } else {
        answer(-RINGSIDE_EINVALID);
    }
}

int main(int argc, char **argv)
{
    struct ringside_connect_options options = {.timeout_ns = 10000 * MS};
    char line[256], verb[32];

    if (argc < 2)
        return 2;
    options.socket = argv[1];
    options.name = argc > 2 ? argv[2] : "worker";
    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = ringside_connect(&connection, &options);
    answer(rc);
    if (rc < 0)
        return 1;
    while (fgets(line, sizeof line, stdin) != NULL) {
        int after = 0;

        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%31s %n", verb, &after) >= 1)
            obey(verb, line + after);
    }
    ringside_close(connection);
    return 0;
}

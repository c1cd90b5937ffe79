/* SPDX-License-Identifier: Apache-2.0 */
/* Serving: a received call goes to the handler of its method. */
#include "client/c/private.h"

#include <stdio.h>
#include <string.h>

#define TEXT_BYTES 1024

static const struct ringside_method *find_method(const struct ringside_method *methods,
                                                 size_t count,
                                                 const struct ringside_message *message)
{
    for (size_t i = 0; i < count; i++) {
        const char *name = methods[i].name;

        if (message->method == NULL ? name == NULL
                                    : name != NULL && strlen(name) == message->method_bytes &&
                                          memcmp(name, message->method, message->method_bytes) == 0)
            return &methods[i];
    }
    return NULL;
}

static void answer_unknown(struct ringside *connection, struct ringside_message *message,
                           const struct ringside_method *methods, size_t count)
{
    char text[TEXT_BYTES];
    size_t at =
        (size_t)snprintf(text, sizeof text, "stage \"%s\" has no method \"%.*s\"; it has: ",
                         ringside_stage(connection), (int)message->method_bytes, message->method);
    const char *separator = "";

    for (size_t i = 0; i < count && at < sizeof text; i++) {
        if (methods[i].name == NULL)
            continue;
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", separator, methods[i].name);
        separator = ", ";
    }
    (void)ringside_reply_error(connection, message, RINGSIDE_STATUS_UNIMPLEMENTED, text);
}

static void answer_failure(struct ringside *connection, struct ringside_message *message, int error)
{
    char text[TEXT_BYTES];

    snprintf(text, sizeof text, "the handler of \"%.*s\" failed: %s (%s)",
             (int)message->method_bytes, message->method, rs_strerror(error), rs_error_name(error));
    (void)ringside_reply_error(connection, message, (unsigned)rs_error_status(error), text);
}

static bool is_held(const struct ringside *connection, const struct ringside_message *message)
{
    return message->private_[MESSAGE_TAG] == tag_of(connection, TAG_HELD);
}

int ringside_serve(struct ringside *connection, const struct ringside_method *methods, size_t count,
                   int64_t timeout_ns)
{
    struct ringside_message message;
    int rc = ringside_receive(connection, &message, timeout_ns);

    if (rc < 0)
        return rc;
    const struct ringside_method *method = find_method(methods, count, &message);
    if (method == NULL && message.method == NULL)
        return ringside_nack(connection, &message);
    if (method == NULL) {
        answer_unknown(connection, &message, methods, count);
        return ringside_release(connection, &message);
    }
    rc = method->handler(connection, &message, method->data);
    if (!is_held(connection, &message))
        return 0;
    if (rc < 0 && message.method != NULL &&
        (message.private_[MESSAGE_REPLIES] & MESSAGE_ANSWERED) == 0)
        answer_failure(connection, &message, rc);
    return ringside_release(connection, &message);
}

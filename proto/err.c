/* SPDX-License-Identifier: Apache-2.0 */
/* Names, texts and gRPC statuses of the error numbers. */
#include "proto/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int number;
    enum rs_status status;
    const char *name;
    const char *text;
} errors[] = {
#define RS_X(name, number, status, text) {number, RS_STATUS_##status, #name, text},
    RINGSIDE_ERRORS(RS_X)
#undef RS_X
};

#define ERROR_COUNT (sizeof errors / sizeof errors[0])
#define FIRST_ERROR 1000

static int index_of(int error)
{
    int index = -error - FIRST_ERROR;

    return index >= 0 && index < (int)ERROR_COUNT ? index : -1;
}

const char *rs_strerror(int error)
{
    int index = index_of(error);

    if (error >= 0)
        return "success";
    if (index >= 0)
        return errors[index].text;
    const char *text = strerrordesc_np(-error);
    return text != NULL ? text : "unknown error";
}

const char *rs_error_name(int error)
{
    int index = index_of(error);

    if (error >= 0)
        return "OK";
    if (index >= 0)
        return errors[index].name;
    const char *name = strerrorname_np(-error);
    return name != NULL ? name : "UNKNOWN";
}

enum rs_status rs_error_status(int error)
{
    int index = index_of(error);

    if (error >= 0)
        return RS_STATUS_OK;
    if (index >= 0)
        return errors[index].status;
    switch (-error) {
    case EINVAL:
    case ENAMETOOLONG:
        return RS_STATUS_INVALID_ARGUMENT;
    case ENOENT:
        return RS_STATUS_NOT_FOUND;
    case EACCES:
    case EPERM:
        return RS_STATUS_PERMISSION_DENIED;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
        return RS_STATUS_RESOURCE_EXHAUSTED;
    case ETIMEDOUT:
        return RS_STATUS_DEADLINE_EXCEEDED;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
        return RS_STATUS_UNAVAILABLE;
    case ECANCELED:
        return RS_STATUS_CANCELLED;
    default:
        return RS_STATUS_INTERNAL;
    }
}

int rs_status_error(int status)
{
    switch (status) {
    case RS_STATUS_OK:
        return 0;
    case RS_STATUS_CANCELLED:
        return -RINGSIDE_E_CANCELLED;
    case RS_STATUS_INVALID_ARGUMENT:
        return -RINGSIDE_E_INVALID;
    case RS_STATUS_DEADLINE_EXCEEDED:
        return -RINGSIDE_E_TIMEOUT;
    case RS_STATUS_NOT_FOUND:
        return -RINGSIDE_E_STALE_TICKET;
    case RS_STATUS_ALREADY_EXISTS:
        return -RINGSIDE_E_IN_USE;
    case RS_STATUS_PERMISSION_DENIED:
    case RS_STATUS_UNAUTHENTICATED:
        return -RINGSIDE_E_DENIED;
    case RS_STATUS_RESOURCE_EXHAUSTED:
        return -RINGSIDE_E_FULL;
    case RS_STATUS_FAILED_PRECONDITION:
        return -RINGSIDE_E_STATE;
    case RS_STATUS_ABORTED:
        return -RINGSIDE_E_EXPIRED_TICKET;
    case RS_STATUS_OUT_OF_RANGE:
        return -RINGSIDE_E_TOO_BIG;
    case RS_STATUS_UNIMPLEMENTED:
        return -RINGSIDE_E_UNIMPLEMENTED;
    case RS_STATUS_UNAVAILABLE:
        return -RINGSIDE_E_UNAVAILABLE;
    case RS_STATUS_DATA_LOSS:
        return -RINGSIDE_E_CORRUPT;
    default:
        return -RINGSIDE_E_INTERNAL;
    }
}

int rs_error_from_name(const char *name)
{
    for (size_t i = 0; i < ERROR_COUNT; i++) {
        if (strcmp(errors[i].name, name) == 0)
            return -errors[i].number;
    }
    return 0;
}

void rs_require_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "ringside: broken invariant: %s (%s:%d)\n", condition, file, line);
    abort();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Words for tensors and holders. What they are made of comes from the sidecar and is not trusted.
 */
#include "client/cli/slots.h"

#include <inttypes.h>
#include <stdio.h>

#include "proto/tensor.h"

/* Appends as snprintf would, and stays at the end once the text is cut. */
#define APPEND(text, bytes, at, ...)                                       \
    do {                                                                   \
        int added_ = snprintf((text) + (at), (bytes) - (at), __VA_ARGS__); \
        (at) += added_ < 0 ? 0 : (size_t)added_;                           \
        if ((at) >= (bytes))                                               \
            (at) = (bytes)-1;                                              \
    } while (0)

char *slots_tensor(char *text, size_t bytes, const Ringside__V1__Tensor *tensor)
{
    const struct rs_dtype_info *dtype = rs_dtype_info((unsigned)tensor->dtype);
    size_t at = 0;

    if (dtype != NULL)
        APPEND(text, bytes, at, "%s[", dtype->name);
    else
        APPEND(text, bytes, at, "dtype-%d[", (int)tensor->dtype);
    for (size_t i = 0; i < tensor->n_shape; i++)
        APPEND(text, bytes, at, "%s%" PRId64, i > 0 ? "," : "", tensor->shape[i]);
    APPEND(text, bytes, at, "]");
    return text;
}

char *slots_holder(char *text, size_t bytes, const Ringside__V1__Holder *holder)
{
    text[0] = '\0';
    if (holder->client[0] != '\0')
        snprintf(text, bytes, "%s", holder->client);
    else if (holder->client_number != 0)
        snprintf(text, bytes, "client %" PRIu32, holder->client_number);
    return text;
}

uint64_t slots_tensor_bytes(const Ringside__V1__Slot *slot)
{
    uint64_t total = 0;

    for (size_t i = 0; i < slot->n_tensors; i++) {
        if (__builtin_add_overflow(total, slot->tensors[i]->bytes, &total))
            return UINT64_MAX;
    }
    return total;
}

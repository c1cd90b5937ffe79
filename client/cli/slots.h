/* SPDX-License-Identifier: Apache-2.0 */
/* How a slot of the control API is put in words; shared by ls and describe. */
#ifndef RINGSIDE_CLI_SLOTS_H
#define RINGSIDE_CLI_SLOTS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "control.pb-c.h"

/* "float32[8,80,3000]", cut to `bytes`. Returns `text`. */
char *slots_tensor(char *text, size_t bytes, const Ringside__V1__Tensor *tensor);

/* Who holds it: the client's name, or its number when it has none; "" for nobody. Returns `text`.
 */
char *slots_holder(char *text, size_t bytes, const Ringside__V1__Holder *holder);

/* Bytes of all tensors together. */
uint64_t slots_tensor_bytes(const Ringside__V1__Slot *slot);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Every message that a socket may carry, by number. */
#ifndef RINGSIDE_TESTS_FUZZ_TYPES_H
#define RINGSIDE_TESTS_FUZZ_TYPES_H

#include "proto/control.pb-c.h"
#include "proto/peer.pb-c.h"
#include "proto/ttrpc_wire.pb-c.h"

static const ProtobufCServiceDescriptor *const services[] = {
    &ringside__v1__control__descriptor,
    &ringside__peer__v1__peer__descriptor,
};

/* The frame's own two, then requests and responses of all methods. */
static inline const ProtobufCMessageDescriptor *type_of(unsigned number)
{
    unsigned count = 2;

    for (size_t i = 0; i < 2; i++)
        count += 2 * services[i]->n_methods;
    number %= count;
    if (number < 2)
        return number == 0 ? &ringside__ttrpc__v1__request__descriptor
                           : &ringside__ttrpc__v1__response__descriptor;
    number -= 2;
    for (size_t i = 0; i < 2; i++) {
        if (number < 2 * services[i]->n_methods) {
            const ProtobufCMethodDescriptor *method = &services[i]->methods[number / 2];
            return number % 2 == 0 ? method->input : method->output;
        }
        number -= 2 * services[i]->n_methods;
    }
    return NULL;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What is run. Each table ends with a row without a name. */
#ifndef RINGSIDE_TESTS_WEAK_SCENARIOS_H
#define RINGSIDE_TESTS_WEAK_SCENARIOS_H

#include "machine.h"

extern const struct weak_scenario weak_inbox_scenarios[], weak_slot_scenarios[],
    weak_call_scenarios[];
extern const struct weak_mutation weak_mutations[];

/* A scenario whose check fails when an outcome is seen, and whether it may be. */
struct weak_litmus {
    struct weak_scenario scenario;
    bool allowed;
};

extern const struct weak_litmus weak_litmus[];

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the names of all failpoints, in the order of their counters. */
#include <stdio.h>

#include "proto/failpoint.h"

int main(void)
{
    for (unsigned i = 0; rs_failpoint_name(i) != NULL; i++)
        puts(rs_failpoint_name(i));
    return 0;
}

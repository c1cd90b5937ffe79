/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA placement of the bodies, by libnuma. */
#include "proxy/placement.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "proto/err.h"

enum { SAMPLES = 64 };

static void say(struct placement *placement, bool degraded, const char *text)
{
    placement->degraded = degraded;
    snprintf(placement->text, sizeof(placement->text), "%s", text);
}

static const char *cause(int error)
{
    switch (error) {
    case EPERM:
        return "EPERM: a seccomp profile or a missing capability forbids mbind";
    case ENOSYS:
        return "ENOSYS: this kernel, or a seccomp profile, has no mbind";
    case EINVAL:
        return "EINVAL: the node has no memory, or the cpuset of this process excludes it";
    default:
        return rs_strerror(-error);
    }
}

static int policy(struct placement *placement, int node, void *base, uint64_t bytes)
{
    struct bitmask *nodes = numa_allocate_nodemask();

    if (!nodes)
        return ENOMEM;
    numa_bitmask_setbit(nodes, (unsigned)node);
    long rc = mbind(base, bytes, placement->strict ? MPOL_BIND : MPOL_PREFERRED, nodes->maskp,
                    nodes->size + 1, 0);
    int error = rc < 0 ? errno : 0;

    numa_free_nodemask(nodes);
    return error;
}

void placement_bind(struct placement *placement, int wanted, void *base, uint64_t bytes)
{
    *placement = (struct placement){.node = -1, .strict = wanted >= 0};
    if (wanted == RS_CONFIG_NUMA_OFF) {
        say(placement, false, "off");
        return;
    }
    if (numa_available() < 0) {
        say(placement, wanted >= 0,
            "not bound: this kernel, or a seccomp profile, has no NUMA calls (get_mempolicy)");
        return;
    }
    if (wanted == RS_CONFIG_NUMA_AUTO && numa_num_configured_nodes() <= 1) {
        say(placement, false, "one node");
        return;
    }
    int node = wanted >= 0 ? wanted : numa_node_of_cpu(sched_getcpu());
    if (node < 0 || node > numa_max_node() ||
        !numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)node)) {
        placement->degraded = true;
        snprintf(placement->text, sizeof(placement->text),
                 "not bound: there is no node %d with memory for this process (nodes 0..%d)", node,
                 numa_max_node());
        return;
    }
    int error = policy(placement, node, base, bytes);
    placement->degraded = error != 0;
    if (error != 0) {
        snprintf(placement->text, sizeof(placement->text), "not bound to node %d: %s", node,
                 cause(error));
        return;
    }
    placement->node = node;
    snprintf(placement->text, sizeof(placement->text),
             placement->strict ? "bound to node %d" : "node %d preferred", node);
}

void placement_verify(struct placement *placement, const void *base, uint64_t bytes)
{
    unsigned elsewhere = 0, known = 0;
    uint64_t pages = bytes / 4096;

    if (placement->node < 0)
        return;
    for (uint64_t i = 0; i < SAMPLES && i < pages; i++) {
        const uint8_t *at = (const uint8_t *)base + pages / SAMPLES * i * 4096;
        int node = -1;

        if (get_mempolicy(&node, NULL, 0, (void *)(uintptr_t)at, MPOL_F_NODE | MPOL_F_ADDR) < 0) {
            size_t used = strlen(placement->text);

            snprintf(placement->text + used, sizeof(placement->text) - used,
                     "; where the pages lie cannot be checked: get_mempolicy: %s",
                     rs_error_name(-errno));
            return;
        }
        known++;
        elsewhere += node != placement->node;
    }
    if (elsewhere == 0)
        return;
    placement->degraded = true;
    snprintf(placement->text, sizeof(placement->text),
             "node %d wanted, but %u of %u sampled pages lie on another one: it has too little "
             "free memory",
             placement->node, elsewhere, known);
}

int64_t placement_free_bytes(int node)
{
    long long free_bytes = -1;

    if (node < 0 || numa_available() < 0 || numa_node_size64(node, &free_bytes) < 0)
        return -1;
    return free_bytes;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Repair of the own ring in slices: sweeps after deaths, then the audit that ends them, and audits
 * that were asked for. */
#ifndef RINGSIDE_PROXY_MEND_H
#define RINGSIDE_PROXY_MEND_H

#include <stdbool.h>
#include <stdint.h>

struct proxy;

/* Needs proxy->repair. 0 or -ENOMEM. */
int mend_open(struct proxy *proxy);
/* Stops; what was pending is left to the next sidecar. Its memory goes with mend_destroy, after the
 * loop. Idempotent. */
void mend_close(struct proxy *proxy);
void mend_destroy(struct proxy *proxy);

/* Sweeps what client `number` left; then an audit, then clients_swept(). Idempotent. */
void mend_sweep(struct proxy *proxy, uint16_t number);
/* An audit soon, but not more often than every 20 ms. */
void mend_audit(struct proxy *proxy);

struct mend_counts {
    uint64_t audits; /* complete ones */
    uint64_t sweeps; /* complete ones */
};
struct mend_counts mend_counts(const struct proxy *proxy);
/* Whether a sweep or an audit is under way. */
bool mend_busy(const struct proxy *proxy);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What only the sidecar writes into its control file, kept privately, so that a stray write of a
 * worker does not last. */
#ifndef RINGSIDE_PROXY_TABLES_H
#define RINGSIDE_PROXY_TABLES_H

struct proxy;

/* Takes what the superblock and the tables hold now as right; after the ring was adopted or made. 0
 * or -ENOMEM. */
int tables_open(struct proxy *proxy);
/* The sidecar has just changed a client, a destination or a ring of the tables: any address within
 * the entry. */
void tables_changed(struct proxy *proxy, const void *entry);
/* Puts back what is not as the sidecar wrote it; logs how much. Every second. */
void tables_tick(struct proxy *proxy);
void tables_destroy(struct proxy *proxy);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the service manager how this process is. */
#ifndef RINGSIDE_PROXY_NOTIFY_H
#define RINGSIDE_PROXY_NOTIFY_H

/* Sends `state` ("READY=1") to NOTIFY_SOCKET. 0 also when there is none; -errno,
 * -RINGSIDE_E_INVALID for its address. */
int notify(const char *state);

#endif

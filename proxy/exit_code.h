/* SPDX-License-Identifier: Apache-2.0 */
/* What the exit code of ringside-proxy means. */
#ifndef RINGSIDE_PROXY_EXIT_CODE_H
#define RINGSIDE_PROXY_EXIT_CODE_H

enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_FAILURE = 1, /* the config is refused, or the start failed */
    EXIT_CODE_USAGE = 2,
    EXIT_CODE_IN_USE = 3, /* a living sidecar has the socket or the ring */
};

#endif

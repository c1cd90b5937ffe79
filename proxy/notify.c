/* SPDX-License-Identifier: Apache-2.0 */
/* The datagram of sd_notify, without its library. */
#include "proxy/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/err.h"

int notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (path == NULL || *path == '\0')
        return 0;
    size_t bytes = strlen(path);
    if ((*path != '/' && *path != '@') || bytes < 2 || bytes >= sizeof address.sun_path)
        return -RINGSIDE_E_INVALID;
    memcpy(address.sun_path, path, bytes);
    if (*path == '@') /* an abstract name: a NUL in front, none at the end */
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    int rc = sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT,
                    (struct sockaddr *)&address, size) < 0
                 ? -errno
                 : 0;
    close(fd);
    return rc;
}

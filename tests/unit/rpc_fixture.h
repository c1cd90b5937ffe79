/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of sockets and decoders: counts descriptors, and fails or counts allocations. */
#ifndef RINGSIDE_TESTS_RPC_FIXTURE_H
#define RINGSIDE_TESTS_RPC_FIXTURE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* Descriptors open in this process. */
static inline int open_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* Setup and teardown that fail a test which leaks a descriptor. */
static inline int note_fds(void **state)
{
    *state = (void *)(intptr_t)open_fds();
    return 0;
}

static inline int same_fds(void **state)
{
    return open_fds() == (int)(intptr_t)*state ? 0 : -1;
}

/* A file without a name, told from others by its size. */
static inline int file_of_bytes(off_t bytes)
{
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    return fd;
}

static inline void make_pair(int sockets[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
}

static inline void close_pair(int sockets[2])
{
    close(sockets[0]);
    close(sockets[1]);
}

/* Needs -Wl,--wrap=malloc,--wrap=realloc: what goes through the code under test. */
#ifdef RS_WRAP_ALLOC
void *__real_malloc(size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);

static int alloc_countdown = INT_MAX; /* allocations that still succeed */
static size_t alloc_bytes;            /* asked for so far */

void *__wrap_malloc(size_t bytes)
{
    alloc_bytes += bytes;
    return alloc_countdown-- > 0 ? __real_malloc(bytes) : NULL;
}

void *__wrap_realloc(void *block, size_t bytes)
{
    alloc_bytes += bytes;
    return alloc_countdown-- > 0 ? __real_realloc(block, bytes) : NULL;
}
#endif

#endif

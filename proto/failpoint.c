/* SPDX-License-Identifier: Apache-2.0 */
/* Counts hits of failpoints in a shared file and ends the process at the armed one. Compiled only
 * with -Dfailpoints=true. */
#include "proto/failpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/atomic.h"

#define EXIT_STATUS 70
#define FILE_BYTES  ((1 + (size_t)RS_FAILPOINT_COUNT) * sizeof(rs_word))

static const char *const names[] = {
#define NAME(name) #name,
    RS_FAILPOINTS(NAME)
#undef NAME
};

static rs_word private_words[1 + RS_FAILPOINT_COUNT];
static rs_word *words; /* the file's, or private_words; NULL: neither armed nor counted */

const char *rs_failpoint_name(unsigned point)
{
    return point < RS_FAILPOINT_COUNT ? names[point] : NULL;
}

/* A test that arms nothing by a slip of the pen would pass: end at once. */
static void refuse(const char *what, const char *value)
{
    fprintf(stderr, "%s: \"%s\" cannot be used: %s\n", what, value, strerror(errno));
    _exit(EXIT_STATUS);
}

static uint64_t parse(const char *text)
{
    char name[64] = "", action[8] = "kill";
    unsigned nth = 1;
    uint64_t code = RS_FAILPOINT_KILL;

    errno = EINVAL;
    if (sscanf(text, "%63[a-z_]:%u:%7s", name, &nth, action) < 2)
        (void)sscanf(text, "%63[a-z_]:%7s", name, action);
    if (strcmp(action, "stop") == 0)
        code = RS_FAILPOINT_STOP;
    else if (strcmp(action, "exit") == 0)
        code = RS_FAILPOINT_EXIT;
    else if (strcmp(action, "kill") != 0)
        refuse("RINGSIDE_FAILPOINT", text);
    for (uint64_t i = 0; nth > 0 && i < RS_FAILPOINT_COUNT; i++) {
        if (strcmp(names[i], name) == 0)
            return code << 48 | (i + 1) << 32 | nth;
    }
    refuse("RINGSIDE_FAILPOINT", text);
    return 0;
}

static rs_word *map_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    if (fd < 0 || ftruncate(fd, FILE_BYTES) < 0)
        refuse("RINGSIDE_FAILPOINT_LOG", path);
    void *base = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        refuse("RINGSIDE_FAILPOINT_LOG", path);
    close(fd);
    return base;
}

__attribute__((constructor)) static void start(void)
{
    const char *armed = getenv("RINGSIDE_FAILPOINT"), *path = getenv("RINGSIDE_FAILPOINT_LOG");

    if (path != NULL && path[0] != '\0')
        words = map_file(path);
    if (armed == NULL || armed[0] == '\0')
        return;
    if (words == NULL)
        words = private_words;
    rs_store_relaxed(&words[0], parse(armed));
}

static void act(uint64_t action)
{
    if (action == RS_FAILPOINT_EXIT)
        _exit(EXIT_STATUS);
    kill(getpid(), action == RS_FAILPOINT_STOP ? SIGSTOP : SIGKILL);
}

void rs_failpoint(enum rs_failpoint point)
{
    if (words == NULL)
        return;
    rs_fetch_add_relaxed(&words[1 + point], 1);
    uint64_t armed = rs_load_relaxed(&words[0]);
    while ((armed >> 32 & 0xffff) == (uint64_t)point + 1) {
        bool last = (uint32_t)armed <= 1;

        if (!rs_cas_relaxed(&words[0], &armed, last ? 0 : armed - 1))
            continue;
        if (last)
            act(armed >> 48);
        return;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into a sidecar of its own: its allocations fail when a test says so, through a file that
 * both have mapped. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>

#include "proto/atomic.h"
#include "proto/err.h"

/* What the linker leads the sidecar's own calls to; other libraries than libuv keep theirs. */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);

struct oom {
    rs_word left;    /* allocations until the first that fails; 0: none does */
    rs_word goes_on; /* not 0: all after it fail too, until left is 0 again */
    rs_word failed;  /* how many have failed */
};

static struct oom *oom;

__attribute__((constructor)) static void map_oom(void)
{
    const char *path = getenv("RINGSIDE_OOM");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

    if (path == NULL)
        return;
    oom = mmap(NULL, sizeof *oom, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    RS_REQUIRE(oom != MAP_FAILED);
    close(fd);
    RS_REQUIRE(uv_replace_allocator(__wrap_malloc, __wrap_realloc, __wrap_calloc, free) == 0);
}

static bool fails(void)
{
    uint64_t left = oom != NULL ? rs_load_relaxed(&oom->left) : 0;

    if (left == 0 || (left > 1 && rs_cas_relaxed(&oom->left, &left, left - 1)))
        return false;
    if (rs_load_relaxed(&oom->goes_on) == 0)
        rs_store_relaxed(&oom->left, 0);
    rs_fetch_add_relaxed(&oom->failed, 1);
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *block, size_t bytes)
{
    return fails() ? NULL : __real_realloc(block, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

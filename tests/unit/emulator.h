/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a test of another processor's build runs under qemu-user, which lacks what some cases
 * look at. */
#ifndef RINGSIDE_TESTS_EMULATOR_H
#define RINGSIDE_TESTS_EMULATOR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

/* It takes every madvise for advice that may be ignored; the kernel refuses a number that it does
 * not know. */
static inline bool emulated(void)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool ignored = page != MAP_FAILED && madvise(page, bytes, 0x7fff) == 0;

    if (page != MAP_FAILED)
        munmap(page, bytes);
    return ignored;
}

static inline void skip_if_emulated(const char *why)
{
    if (!emulated())
        return;
    print_message("skipped: the emulator %s\n", why);
    skip();
}

#endif

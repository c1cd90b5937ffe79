/* SPDX-License-Identifier: Apache-2.0 */
/* Page sizes for the body file: where each can be had, how much of it is free, and what would make
 * more. */
#ifndef RINGSIDE_PROXY_PAGES_H
#define RINGSIDE_PROXY_PAGES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGES_SMALL UINT64_C(4096)

/* A directory that files with one page size can be made in. */
struct pages_place {
    char dir[PATH_MAX];
    bool shared; /* not the stage's own body_dir: others' files are there as well */
};

/* "4 KiB", "2 MiB", "1 GiB": static text. */
const char *pages_name(uint64_t page_bytes);

/* Page size of the files in the directory of that descriptor; 4 KiB unless it is a hugetlbfs. */
uint64_t pages_of_dir(int dir);

/*
 * Where files with such pages can be made: body_dir (which must exist) if it has them, else a
 * mounted hugetlbfs that this process may write to. 0, -ENOENT (nowhere) or -errno; `why` is then a
 * text.
 */
int pages_find(struct pages_place *place, uint64_t page_bytes, const char *body_dir, char *why,
               size_t why_bytes);

/*
 * Bytes that can still be allocated in the directory of that descriptor without taking what others
 * have reserved; INT64_MAX when nothing bounds them. `overcommit`: pages that the kernel would make
 * on demand count as well.
 */
int64_t pages_available(int dir, uint64_t page_bytes, bool overcommit);

/* The command that makes room for `bytes` more in pages of that size; for people. */
void pages_advice(char *text, size_t text_bytes, uint64_t page_bytes, uint64_t bytes,
                  int64_t available);

#endif

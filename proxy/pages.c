/* SPDX-License-Identifier: Apache-2.0 */
/* Page sizes: what is mounted, what is free. */
#include "proxy/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "proto/err.h"

const char *pages_name(uint64_t page_bytes)
{
    switch (page_bytes) {
    case UINT64_C(1) << 12:
        return "4 KiB";
    case UINT64_C(1) << 21:
        return "2 MiB";
    case UINT64_C(1) << 30:
        return "1 GiB";
    default:
        return "odd";
    }
}

static bool is_hugetlbfs(const struct statfs *status)
{
    return (unsigned long)status->f_type == HUGETLBFS_MAGIC;
}

uint64_t pages_of_dir(int dir)
{
    struct statfs status;

    return fstatfs(dir, &status) == 0 && is_hugetlbfs(&status) ? (uint64_t)status.f_bsize
                                                               : PAGES_SMALL;
}

/* mountinfo writes space, tab, newline and backslash as three octal digits. */
static void unescape(char *text)
{
    char *out = text;

    for (; *text; text++) {
        if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] && text[3]) {
            *out++ = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
            text += 3;
        } else {
            *out++ = *text;
        }
    }
    *out = '\0';
}

/* The mount point of a hugetlbfs line of mountinfo, cut out of the line; else NULL. */
static char *hugetlbfs_of_line(char *line)
{
    char *type = strstr(line, " - "), *field = line;

    if (!type || strncmp(type + 3, "hugetlbfs ", 10) != 0)
        return NULL;
    for (int i = 0; i < 4; i++) { /* mount id, parent, device, root */
        field = strchr(field, ' ');
        if (!field)
            return NULL;
        field++;
    }
    field[strcspn(field, " ")] = '\0';
    unescape(field);
    return field;
}

static int find_mounted(struct pages_place *place, uint64_t page_bytes, char *why, size_t why_bytes)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t room = 0;
    bool seen = false, found = false;

    if (!file) {
        int error = -errno;

        snprintf(why, why_bytes, "/proc/self/mountinfo: %s", rs_strerror(error));
        return error;
    }
    while (!found && getline(&line, &room, file) > 0) {
        char *path = hugetlbfs_of_line(line);
        struct statfs status;

        if (!path || strlen(path) >= sizeof(place->dir) || statfs(path, &status) < 0 ||
            !is_hugetlbfs(&status) || (uint64_t)status.f_bsize != page_bytes)
            continue;
        seen = true;
        found = faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0;
        if (found)
            strcpy(place->dir, path);
    }
    free(line);
    fclose(file);
    snprintf(why, why_bytes,
             found  ? ""
             : seen ? "the hugetlbfs for %s pages is not writable for this user"
                    : "no hugetlbfs for %s pages is mounted",
             pages_name(page_bytes));
    return found ? 0 : -ENOENT;
}

int pages_find(struct pages_place *place, uint64_t page_bytes, const char *body_dir, char *why,
               size_t why_bytes)
{
    struct statfs status;

    if (statfs(body_dir, &status) < 0) {
        int error = -errno;

        snprintf(why, why_bytes, "%s: %s", body_dir, rs_strerror(error));
        return error;
    }
    bool here =
        is_hugetlbfs(&status) ? (uint64_t)status.f_bsize == page_bytes : page_bytes == PAGES_SMALL;
    place->shared = !here;
    if (here) {
        snprintf(place->dir, sizeof(place->dir), "%s", body_dir);
        return 0;
    }
    if (page_bytes == PAGES_SMALL) {
        snprintf(why, why_bytes, "body_dir is a hugetlbfs for %s pages",
                 pages_name((uint64_t)status.f_bsize));
        return -ENOENT;
    }
    return find_mounted(place, page_bytes, why, why_bytes);
}

static int64_t read_count(uint64_t page_bytes, const char *name)
{
    char path[128];
    long long value = 0;

    snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-%llukB/%s",
             (unsigned long long)(page_bytes >> 10), name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%lld", &value) != 1)
        value = 0;
    fclose(file);
    return value;
}

static int64_t huge_available(const struct statfs *status, uint64_t page_bytes, bool overcommit)
{
    int64_t pages =
        read_count(page_bytes, "free_hugepages") - read_count(page_bytes, "resv_hugepages");

    if (overcommit)
        pages += read_count(page_bytes, "nr_overcommit_hugepages") -
                 read_count(page_bytes, "surplus_hugepages");
    /* A mount without a size limit counts no blocks. */
    if (status->f_blocks > 0 && (int64_t)status->f_bavail < pages)
        pages = (int64_t)status->f_bavail;
    return (pages > 0 ? pages : 0) * (int64_t)page_bytes;
}

/* What the kernel could give without killing anybody; INT64_MAX when it does not say. */
static int64_t memory_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    long long available = -1, swap = 0;

    while (file && fgets(line, sizeof(line), file)) {
        (void)sscanf(line, "MemAvailable: %lld kB", &available);
        (void)sscanf(line, "SwapFree: %lld kB", &swap);
    }
    if (file)
        fclose(file);
    return available < 0 ? INT64_MAX : (available + swap) * 1024;
}

int64_t pages_available(int dir, uint64_t page_bytes, bool overcommit)
{
    struct statfs status;

    if (fstatfs(dir, &status) < 0)
        return INT64_MAX;
    if (is_hugetlbfs(&status))
        return huge_available(&status, page_bytes, overcommit);
    int64_t room =
        status.f_blocks > 0 ? (int64_t)status.f_bavail * (int64_t)status.f_bsize : INT64_MAX;

    if (status.f_type == TMPFS_MAGIC) {
        int64_t memory = memory_available();

        return room < memory ? room : memory;
    }
    return room;
}

void pages_advice(char *text, size_t text_bytes, uint64_t page_bytes, uint64_t bytes,
                  int64_t available)
{
    uint64_t missing = bytes > (uint64_t)available ? bytes - (uint64_t)available : 0;

    if (page_bytes == PAGES_SMALL) {
        snprintf(
            text, text_bytes,
            "free %llu bytes there, mount it with a larger size=, or make ring.classes smaller",
            (unsigned long long)missing);
        return;
    }
    uint64_t pages =
        (uint64_t)read_count(page_bytes, "nr_hugepages") + (missing + page_bytes - 1) / page_bytes;
    snprintf(
        text, text_bytes,
        "reserve them with: echo %llu > /sys/kernel/mm/hugepages/hugepages-%llukB/nr_hugepages",
        (unsigned long long)pages, (unsigned long long)(page_bytes >> 10));
}

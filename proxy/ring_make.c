/* SPDX-License-Identifier: Apache-2.0 */
/* Making a ring's two files. */
#include "proxy/ring_make.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/err.h"
#include "proxy/placement.h"
#include "proxy/prefault.h"

#define NAME_OF(path) (strrchr((path), '/') + 1)

void ring_geometry(struct rs_geometry *geometry, const struct rs_config *config,
                   uint64_t page_bytes)
{
    memset(geometry, 0, sizeof(*geometry));
    geometry->stage = config->stage;
    geometry->class_count = config->ring.class_count;
    for (uint32_t i = 0; i < config->ring.class_count; i++) {
        geometry->classes[i].slot_bytes = config->ring.classes[i].slot_bytes;
        geometry->classes[i].slots = config->ring.classes[i].slots;
    }
    geometry->client_count = config->clients.max + 1;
    geometry->inbox_cells = config->inbox.cells;
    geometry->inbox_depth = config->inbox.depth;
    geometry->sidecar_id = config->id;
    geometry->page_bytes = page_bytes;
}

uint16_t ring_auto_id(const uint64_t incarnation[2])
{
    return (uint16_t)(incarnation[1] % 65535 + 1);
}

/* On a file system that several rings share, stages of one name are told apart by their control
 * files. */
int ring_body_place(struct ring_opening *opening, const struct pages_place *place)
{
    struct ring_files *files = opening->files;
    uint32_t hash = 2166136261u;
    int length;

    for (const char *c = files->control_path; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    if (place->shared)
        length = snprintf(files->body_path, sizeof(files->body_path), "%s/ringside-%s-%08x.body",
                          place->dir, opening->config->stage, hash);
    else
        length = snprintf(files->body_path, sizeof(files->body_path), "%s/%s.body", place->dir,
                          opening->config->stage);
    if (length < 0 || (size_t)length >= sizeof(files->body_path))
        return startup_fail(&opening->error, -ENAMETOOLONG, "%s: %s", place->dir,
                            rs_strerror(-ENAMETOOLONG));
    return ring_dir_open(place->dir, &opening->access, &opening->error);
}

/* An old body without a control file that names it: of no use, unless somebody owns it. */
static int remove_stale_body(struct ring_opening *opening, int dir)
{
    const char *path = opening->files->body_path;
    int fd = ring_dir_existing(dir, NAME_OF(path), path, &opening->error);

    if (fd == -ENOENT)
        return 0;
    if (fd < 0)
        return fd;
    int rc = ring_lock_byte(fd, 0);
    if (rc < 0)
        rc = startup_fail(
            &opening->error, -RINGSIDE_E_IN_USE,
            "%s belongs to the ring of a living sidecar; name another body_dir or stage", path);
    else if (ring_dir_is(dir, NAME_OF(path), fd) && unlinkat(dir, NAME_OF(path), 0) < 0)
        rc = startup_fail(&opening->error, -errno, "%s: cannot be removed: %s", path,
                          rs_strerror(-errno));
    close(fd);
    return rc;
}

/* Says what was needed and what there is. Enough free huge pages and still none to be had is a
 * limit's doing. */
static int no_room(const struct ring_opening *opening, int dir, const char *path, uint64_t bytes,
                   uint64_t page_bytes, int node)
{
    int64_t available = pages_available(dir, page_bytes, true);
    int64_t on_node = placement_free_bytes(node);
    char advice[256], where[96] = "";

    pages_advice(advice, sizeof(advice), page_bytes, bytes, available);
    if (on_node >= 0 && on_node < available)
        snprintf(where, sizeof(where), " (%lld on NUMA node %d)", (long long)on_node, node);
    if (page_bytes > PAGES_SMALL && available >= (int64_t)bytes)
        snprintf(
            advice, sizeof(advice),
            "the pages are free, so a limit forbids them: look at the hugetlb cgroup controller "
            "(hugetlb.*.max or limit_in_bytes) of this process");
    return startup_fail(
        &opening->error, -ENOSPC, "%s needs %llu bytes in %s pages, %lld are available%s: %s", path,
        (unsigned long long)bytes, pages_name(page_bytes), (long long)available, where, advice);
}

/* Gives the file its size and every page of it, in a mapping that the caller ends. NULL: the text
 * says why. */
static void *fill_file(const struct ring_opening *opening, int dir, int fd, const char *path,
                       uint64_t bytes, uint64_t page_bytes, struct placement *placement)
{
    int node = -1;

    if (pages_available(dir, page_bytes, true) < (int64_t)bytes)
        goto err_no_room;
    if (ftruncate(fd, (off_t)bytes) < 0) {
        startup_fail(&opening->error, -errno, "%s: cannot be made %llu bytes long: %s", path,
                     (unsigned long long)bytes, rs_strerror(-errno));
        return NULL;
    }
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED && errno == ENOMEM)
        goto err_no_room;
    if (base == MAP_FAILED) {
        startup_fail(&opening->error, -errno, "%s: cannot be mapped: %s", path,
                     rs_strerror(-errno));
        return NULL;
    }
    if (placement) {
        placement_bind(placement, opening->config->ring.numa_node, base, bytes);
        node = placement->node;
    }
    /* Not fallocate: it would give the same pages, but one thread at a time. */
    int rc = prefault(base, bytes, page_bytes);
    if (rc == 0)
        return base;
    munmap(base, bytes);
    /* The pages that the kernel still reserves for the file are available. */
    (void)!ftruncate(fd, 0);
    if (rc != -ENOSPC) {
        startup_fail(&opening->error, rc, "%s: cannot be pre-faulted: %s", path, rs_strerror(rc));
        return NULL;
    }
err_no_room:
    no_room(opening, dir, path, bytes, page_bytes, node);
    return NULL;
}

static int make_body_in(struct ring_opening *opening, int dir, const struct rs_superblock *plan)
{
    struct ring_files *files = opening->files;
    const char *name = NAME_OF(files->body_path);
    struct placement placement;
    int rc = remove_stale_body(opening, dir);

    if (rc < 0)
        return rc;
    int fd = ring_dir_create(dir, name, &opening->access);
    if (fd < 0)
        return startup_fail(&opening->error, fd, "%s: cannot be made: %s", files->body_path,
                            rs_strerror(fd));
    rc = ring_lock_byte(fd, 0);
    void *base = rc < 0 ? NULL
                        : fill_file(opening, dir, fd, files->body_path, plan->body_bytes,
                                    plan->page_bytes, &placement);
    if (!base) {
        unlinkat(dir, name, 0);
        close(fd);
        return rc < 0 ? startup_fail(&opening->error, rc, "%s: cannot be locked: %s",
                                     files->body_path, rs_strerror(rc))
                      : -ENOSPC;
    }
    placement_verify(&placement, base, plan->body_bytes);
    munmap(base, plan->body_bytes);
    files->numa_degraded = placement.degraded;
    snprintf(files->numa, sizeof(files->numa), "%s", placement.text);
    files->body_fd = fd;
    files->page_bytes = plan->page_bytes;
    return 0;
}

/* Makes the body with pages of one size. -ENOENT: nowhere to be had; the text says why in any case.
 */
static int make_body(struct ring_opening *opening, struct rs_geometry *geometry,
                     uint64_t page_bytes, bool spare_only, struct rs_superblock *plan)
{
    struct pages_place place;
    char why[192];

    geometry->page_bytes = page_bytes;
    int rc = rs_layout_plan(plan, geometry);
    if (rc < 0)
        return startup_fail(&opening->error, rc,
                            "ring: sizes out of range; make ring.classes smaller");
    rc = pages_find(&place, page_bytes, opening->config->ring.body_dir, why, sizeof(why));
    if (rc < 0)
        return startup_fail(&opening->error, rc, "%s", why);
    int dir = ring_body_place(opening, &place);
    if (dir < 0)
        return dir;
    int64_t available = pages_available(dir, page_bytes, false);
    if (spare_only && available < (int64_t)plan->body_bytes)
        rc = startup_fail(&opening->error, -ENOSPC, "%llu of %llu pages free",
                          (unsigned long long)available / page_bytes,
                          (unsigned long long)(plan->body_bytes / page_bytes));
    else
        rc = make_body_in(opening, dir, plan);
    close(dir);
    return rc;
}

static int make_explicit(struct ring_opening *opening, struct rs_geometry *geometry,
                         uint64_t page_bytes, struct rs_superblock *plan)
{
    int rc = make_body(opening, geometry, page_bytes, false, plan);

    if (rc == -ENOENT && page_bytes > PAGES_SMALL) {
        char advice[256], why[192];

        snprintf(why, sizeof(why), "%s", opening->error.text);
        pages_advice(advice, sizeof(advice), page_bytes, plan->body_bytes, 0);
        return startup_fail(
            &opening->error, rc,
            "ring.pages: %s: mount one with: mount -t hugetlbfs -o pagesize=%lluM none "
            "DIR; %llu bytes are needed; %s",
            why, (unsigned long long)page_bytes >> 20, (unsigned long long)plan->body_bytes,
            advice);
    }
    if (rc == 0)
        snprintf(opening->files->pages, sizeof(opening->files->pages), "%s pages, as configured",
                 pages_name(page_bytes));
    return rc;
}

/* The largest size that can be had without making the kernel reserve more; says why not a larger
 * one. */
static int make_auto(struct ring_opening *opening, struct rs_geometry *geometry,
                     struct rs_superblock *plan)
{
    static const uint64_t sizes[] = {UINT64_C(1) << 30, UINT64_C(1) << 21, PAGES_SMALL};
    char reasons[224] = "";
    int rc = -ENOENT;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        rc = make_body(opening, geometry, sizes[i], sizes[i] > PAGES_SMALL, plan);
        if (rc == 0) {
            snprintf(opening->files->pages, sizeof(opening->files->pages), "%s pages%s%s",
                     pages_name(sizes[i]), reasons[0] ? "; " : "", reasons);
            return 0;
        }
        /* Small pages cannot be had either: their reason is the one that the operator can act upon.
         */
        size_t used = strlen(reasons), path = strlen(opening->files->body_path);
        const char *reason = opening->error.text;

        if (path > 0 && strncmp(reason, opening->files->body_path, path) == 0)
            reason += path + 1; /* a file that is no more; the room is for the cause */
        snprintf(reasons + used, sizeof(reasons) - used, "%s%s: %.140s", used ? "; " : "",
                 pages_name(sizes[i]), reason);
    }
    return rc;
}

static int make_control(struct ring_opening *opening, const struct rs_superblock *plan)
{
    struct ring_files *files = opening->files;

    /* What an interrupted start left is all zeroes again. */
    if (ftruncate(files->control_fd, 0) < 0)
        return startup_fail(&opening->error, -errno, "%s: %s", files->control_path,
                            rs_strerror(-errno));
    void *base = fill_file(opening, opening->control_dir, files->control_fd, files->control_path,
                           plan->control_bytes, PAGES_SMALL, NULL);
    if (!base)
        return -ENOSPC;
    rs_layout_format(base, plan);
    munmap(base, plan->control_bytes);
    return 0;
}

int ring_make(struct ring_opening *opening)
{
    struct ring_files *files = opening->files;
    struct rs_geometry geometry;
    struct rs_superblock plan;
    int rc;

    ring_geometry(&geometry, opening->config, 0);
    if (getrandom(geometry.incarnation, sizeof(geometry.incarnation), 0) !=
        (ssize_t)sizeof(geometry.incarnation))
        return startup_fail(&opening->error, -EIO, "no random numbers from the kernel");
    if (geometry.sidecar_id == 0)
        geometry.sidecar_id = ring_auto_id(geometry.incarnation);
    if (opening->config->ring.page_bytes == 0)
        rc = make_auto(opening, &geometry, &plan);
    else
        rc = make_explicit(opening, &geometry, opening->config->ring.page_bytes, &plan);
    if (rc < 0)
        return rc;
    rc = make_control(opening, &plan);
    if (rc < 0) {
        unlink(files->body_path);
        close(files->body_fd);
        files->body_fd = -1;
    }
    return rc;
}

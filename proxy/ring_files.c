/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns a ring's files: claiming them by a lock, adopting what is there, or having them made
 * anew. */
#include "proxy/ring_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "proto/err.h"
#include "proto/guard.h"
#include "proxy/client_entry.h"
#include "proxy/prefault.h"
#include "proxy/ring_make.h"

#define NAME_OF(path) (strrchr((path), '/') + 1)
/* Each further try follows a file that vanished or was made under our eyes. */
enum { CLAIM_TRIES = 64, OWNED_MAX = 8 };

/* Descriptors that hold owner locks: a forked child that kept them would keep a dead parent's ring.
 */
static pthread_mutex_t owned_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t owned_once = PTHREAD_ONCE_INIT;
static int owned[OWNED_MAX]; /* descriptor + 1, or 0 */

static void close_owned_in_child(void)
{
    for (int i = 0; i < OWNED_MAX; i++) {
        if (owned[i] > 0)
            close(owned[i] - 1);
        owned[i] = 0;
    }
}

static void register_child_handler(void)
{
    pthread_atfork(NULL, NULL, close_owned_in_child);
}

/* Swaps one entry: (0, fd + 1) adds, (fd + 1, 0) removes. */
static void owned_swap(int from, int to)
{
    pthread_once(&owned_once, register_child_handler);
    pthread_mutex_lock(&owned_lock);
    for (int i = 0; i < OWNED_MAX; i++) {
        if (owned[i] == from) {
            owned[i] = to;
            break;
        }
    }
    pthread_mutex_unlock(&owned_lock);
}

enum claim {
    CLAIM_EMPTY, /* the control file is ours and nothing was ever published in it */
    CLAIM_FULL,  /* the control file is ours and holds a ring */
};

/* What the first 4 KiB say. -RINGSIDE_E_DENIED for a file that is none of ours. */
static int judge(const struct ring_opening *opening, struct rs_superblock *superblock)
{
    const struct ring_files *files = opening->files;
    ssize_t got = pread(files->control_fd, superblock, sizeof(*superblock), 0);

    if (got < 0)
        return startup_fail(&opening->error, -errno, "%s: %s", files->control_path,
                            rs_strerror(-errno));
    if (got == 0)
        return CLAIM_EMPTY;
    bool whole = got == (ssize_t)sizeof(*superblock);
    if (whole && superblock->magic == RS_MAGIC && rs_load_relaxed(&superblock->version) != 0)
        return CLAIM_FULL;
    /* Its sidecar died before it stored the version: no client was ever told of it. Else it was
     * spoiled. */
    if (whole && (superblock->magic == RS_MAGIC || superblock->magic == 0) &&
        rs_load_relaxed(&superblock->version) == 0) {
        if (!ring_bytes_locked(files->control_fd, 1, RS_MAX_CLIENTS - 1))
            return CLAIM_EMPTY;
        return startup_fail(&opening->error, -RINGSIDE_E_CORRUPT,
                            "%s: its first words were wiped out, and living workers use it: stop "
                            "them, and it is made anew",
                            files->control_path);
    }
    return startup_fail(
        &opening->error, -RINGSIDE_E_DENIED,
        "%s: not a control file of Ringside; it is left alone: remove it, or name another "
        "control_dir",
        files->control_path);
}

/*
 * Opens or makes the control file and locks its byte 0. Of several sidecars that start at once one
 * gets the lock; that the name still leads to the locked file rules out one that its last owner
 * unlinked meanwhile. enum claim, -EAGAIN (look again), -RINGSIDE_E_IN_USE or another error.
 */
static int claim(struct ring_opening *opening, struct rs_superblock *superblock)
{
    struct ring_files *files = opening->files;
    const char *name = NAME_OF(files->control_path);
    int fd = ring_dir_create(opening->control_dir, name, &opening->access);

    if (fd == -EEXIST)
        fd = ring_dir_existing(opening->control_dir, name, files->control_path, &opening->error);
    else if (fd < 0)
        return startup_fail(&opening->error, fd, "%s: cannot be made: %s", files->control_path,
                            rs_strerror(fd));
    if (fd < 0)
        return fd == -ENOENT ? -EAGAIN : fd;
    int rc = ring_lock_byte(fd, 0);
    if (rc == -EAGAIN)
        rc = startup_fail(
            &opening->error, -RINGSIDE_E_IN_USE,
            "%s is owned by a living sidecar of stage \"%s\"; stop that one, or use another "
            "stage name or control_dir",
            files->control_path, opening->config->stage);
    else if (rc < 0)
        rc = startup_fail(&opening->error, rc, "%s: cannot be locked: %s", files->control_path,
                          rs_strerror(rc));
    else if (!ring_dir_is(opening->control_dir, name, fd))
        rc = -EAGAIN;
    if (rc == 0) {
        files->control_fd = fd;
        rc = judge(opening, superblock);
    }
    if (rc < 0) {
        files->control_fd = -1;
        close(fd);
    }
    return rc;
}

/* Opens and locks the body that belongs to a superblock; files->body_fd stays -1 when there is
 * none. */
static int find_body(struct ring_opening *opening, uint64_t page_bytes)
{
    struct ring_files *files = opening->files;
    struct pages_place place;
    char why[192];

    if (pages_find(&place, page_bytes, opening->config->ring.body_dir, why, sizeof(why)) < 0)
        return 0;
    int dir = ring_body_place(opening, &place);
    if (dir < 0)
        return dir;
    int fd = ring_dir_existing(dir, NAME_OF(files->body_path), files->body_path, &opening->error);
    close(dir);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    if (ring_lock_byte(fd, 0) < 0) {
        close(fd);
        return startup_fail(
            &opening->error, -RINGSIDE_E_IN_USE,
            "%s belongs to the ring of a living sidecar; name another body_dir or stage",
            files->body_path);
    }
    files->body_fd = fd;
    return 0;
}

/* Names the first thing in which the ring and the config differ; NULL when there is none. */
static const char *difference(const struct rs_superblock *ring, const struct rs_config *config)
{
    struct rs_geometry geometry;
    struct rs_superblock plan;

    if (config->ring.page_bytes != 0 && config->ring.page_bytes != ring->page_bytes)
        return "ring.pages";
    if (config->id != 0 && config->id != ring->sidecar_id)
        return "id";
    if (strcmp(config->stage, ring->stage) != 0)
        return "stage";
    ring_geometry(&geometry, config, ring->page_bytes);
    geometry.sidecar_id = ring->sidecar_id;
    if (rs_layout_plan(&plan, &geometry) < 0 || plan.class_count != ring->class_count)
        return "ring.classes";
    for (uint32_t i = 0; i < plan.class_count; i++) {
        if (plan.classes[i].slot_bytes != ring->classes[i].slot_bytes ||
            plan.classes[i].slots != ring->classes[i].slots)
            return "ring.classes";
    }
    if (plan.client_count != ring->client_count)
        return "clients.max";
    return plan.inbox_cells != ring->inbox_cells ? "inbox.cells" : NULL;
}

/* Whether a client without a lock byte may live. A pid alone says little: after a restart of a
 * container it soon belongs to somebody else. */
static bool may_live(const struct rs_client *client)
{
    uint64_t state = rs_load_acquire(&client->state);
    uint64_t start_time = rs_load_relaxed(&client->start_time);
    uint32_t pid = (uint32_t)rs_load_relaxed(&client->pid);

    if (rs_client_phase(state) != RS_CLIENT_ALIVE ||
        !(rs_client_flags(state) & RS_CLIENT_NO_LOCK) || (pid_t)pid <= 0 ||
        (kill((pid_t)pid, 0) < 0 && errno != EPERM))
        return false;
    uint64_t started = client_start_time(pid);

    return start_time == 0 || started == 0 || started == start_time;
}

static uint32_t count_unlocked_clients(const struct rs_ring *ring)
{
    uint32_t count = 0;

    for (uint32_t i = 1; i < ring->layout.client_count; i++)
        count += may_live(&ring->clients[i]);
    return count;
}

static uint32_t count_messages(const struct rs_ring *ring)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < ring->layout.slot_count; i++)
        count += rs_state_phase(rs_load_relaxed(&ring->slots[i].state)) == RS_SEALED;
    return count;
}

/*
 * A ring that this sidecar cannot take over, with the reason. Nobody's memory is taken: while a
 * client lives or a message waits the start fails. `ring` is NULL when its words cannot be read
 * (another layout, or nonsense). Then only the lock bytes speak: every version locks byte N for
 * client N; and with no client alive nobody of this node is left who could read what may be in it.
 * -EAGAIN: it was removed.
 */
static int replace_ring(struct ring_opening *opening, const struct rs_ring *ring, int cause,
                        const char *reason)
{
    struct ring_files *files = opening->files;
    bool locked = ring_bytes_locked(files->control_fd, 1, RS_MAX_CLIENTS - 1);
    uint32_t unlocked = ring ? count_unlocked_clients(ring) : 0;
    uint32_t messages = ring ? count_messages(ring) : 0;

    if (locked || unlocked > 0 || messages > 0)
        return startup_fail(
            &opening->error, cause,
            "%s holds a ring that cannot be taken over (%s), and %s%s%u messages are in it. "
            "Start what made it to drain it, or stop the workers and remove the file",
            files->control_path, reason, locked || unlocked ? "living workers use it" : "",
            locked || unlocked ? "; " : "", messages);
    snprintf(files->found, sizeof(files->found), "ring made anew: %s; nobody used the old one",
             reason);
    if (files->body_fd >= 0)
        unlink(files->body_path);
    if (unlinkat(opening->control_dir, NAME_OF(files->control_path), 0) < 0)
        return startup_fail(&opening->error, -errno, "%s: cannot be removed: %s",
                            files->control_path, rs_strerror(-errno));
    return -EAGAIN;
}

static int adopt(struct ring_opening *opening, const struct rs_superblock *superblock)
{
    struct ring_files *files = opening->files;
    struct rs_ring *ring = opening->ring;
    char reason[200];
    const char *why;
    int rc = find_body(opening, superblock->page_bytes);

    if (rc < 0)
        return rc;
    rc = rs_ring_map(ring, files->control_fd, files->body_fd, true, &why);
    if (rc == -RINGSIDE_E_VERSION || rc == -RINGSIDE_E_CORRUPT)
        return replace_ring(opening, NULL, rc, why);
    if (rc < 0)
        return startup_fail(&opening->error, rc, "%s: %s: %s", files->control_path, why,
                            rs_strerror(rc));
    why = difference(&ring->layout, opening->config);
    if (why)
        snprintf(reason, sizeof(reason), "the config has another %s", why);
    else if (files->body_fd < 0)
        snprintf(reason, sizeof(reason), "its body file %.120s is gone", files->body_path);
    if (why || files->body_fd < 0) {
        rc = replace_ring(opening, ring, -RINGSIDE_E_INVALID, reason);
        rs_ring_unmap(ring);
        return rc;
    }
    files->adopted = true;
    files->page_bytes = ring->layout.page_bytes;
    snprintf(files->pages, sizeof(files->pages), "%s pages, as the ring was made",
             pages_name(files->page_bytes));
    snprintf(files->numa, sizeof(files->numa), "as the ring was made");
    return 0;
}

/* Guards, pre-faults (an adopted ring: into this process) and locks what is mapped. */
static int settle(struct ring_opening *opening)
{
    struct ring_files *files = opening->files;
    struct rs_ring *ring = opening->ring;
    uint64_t bytes = ring->layout.body_bytes;
    int rc = 0;

    if (files->adopted) {
        /* Holes are filled here: a body that lost pages has lost data, but not this process. */
        rc = prefault(ring->control, ring->layout.control_bytes, PAGES_SMALL);
        if (rc == 0)
            rc = prefault(ring->body, bytes, files->page_bytes);
        if (rc < 0)
            return startup_fail(&opening->error, rc,
                                "%s: a page of the ring cannot be had any more: %s",
                                files->body_path, rs_strerror(rc));
    }
    rc = rs_guard_add(ring->control, ring->layout.control_bytes);
    if (rc == 0)
        rc = rs_guard_add(ring->body, bytes);
    if (rc < 0)
        return startup_fail(&opening->error, rc, "SIGBUS guard: %s", rs_strerror(rc));
    madvise(ring->control, ring->layout.control_bytes, MADV_DONTFORK);
    madvise(ring->body, bytes, MADV_DONTFORK);
    madvise(ring->body, bytes, MADV_DONTDUMP);
    struct rs_superblock *shared = (void *)ring->control;
    rs_store_relaxed(&shared->inbox_depth, opening->config->inbox.depth);
    rs_store_relaxed(&ring->layout.inbox_depth, opening->config->inbox.depth);
    return memory_lock(ring->body, bytes, files->page_bytes, opening->config->ring.lock,
                       files->lock, sizeof(files->lock), &files->lock_degraded, &opening->error);
}

static void forget(struct ring_files *files)
{
    if (files->control_fd >= 0)
        close(files->control_fd);
    if (files->body_fd >= 0)
        close(files->body_fd);
    files->control_fd = files->body_fd = -1;
}

static int make(struct ring_opening *opening)
{
    struct ring_files *files = opening->files;
    const char *why;
    int rc = ring_make(opening);

    if (rc == 0) {
        rc = rs_ring_map(opening->ring, files->control_fd, files->body_fd, true, &why);
        if (rc < 0)
            startup_fail(&opening->error, rc, "%s: %s: %s", files->control_path, why,
                         rs_strerror(rc));
    }
    return rc;
}

/* Claims until it gets hold of a ring: each round that ends with -EAGAIN saw a file go or come. */
static int get_ring(struct ring_opening *opening)
{
    struct rs_superblock superblock;
    int rc = -EAGAIN;

    for (int i = 0; rc == -EAGAIN && i < CLAIM_TRIES; i++) {
        forget(opening->files);
        rc = claim(opening, &superblock);
        if (rc < 0)
            continue;
        bool full = rc == CLAIM_FULL;
        rc = full ? adopt(opening, &superblock) : make(opening);
        if (rc == 0)
            rc = settle(opening);
        /* Not an adopted ring's: it may be whole, and is somebody's. */
        if (rc < 0 && rc != -EAGAIN && !full)
            ring_files_close(opening->files, opening->ring, true);
    }
    if (rc == -EAGAIN)
        return startup_fail(
            &opening->error, -RINGSIDE_E_IN_USE,
            "%s comes and goes: another sidecar starts and stops with the same files",
            opening->files->control_path);
    return rc;
}

int ring_files_open(struct ring_files *files, struct rs_ring *ring, const struct rs_config *config,
                    char *error, size_t error_bytes)
{
    struct ring_opening opening = {
        .files = files, .ring = ring, .config = config, .error = {error, error_bytes}};

    memset(files, 0, sizeof(*files));
    memset(ring, 0, sizeof(*ring));
    files->control_fd = files->body_fd = -1;
    error[0] = '\0';
    int rc = ring_access_init(&opening.access, config, &opening.error);
    if (rc < 0)
        return rc;
    snprintf(files->control_path, sizeof(files->control_path), "%s/%s.control",
             config->ring.control_dir, config->stage);
    opening.control_dir = ring_dir_open(config->ring.control_dir, &opening.access, &opening.error);
    if (opening.control_dir < 0)
        return opening.control_dir;
    if (pages_of_dir(opening.control_dir) != PAGES_SMALL)
        rc = startup_fail(&opening.error, -RINGSIDE_E_INVALID,
                          "%s: a hugetlbfs; control_dir must have small pages (a tmpfs)",
                          config->ring.control_dir);
    else
        rc = ring_dir_open(config->ring.body_dir, &opening.access, &opening.error);
    if (rc >= 0) {
        close(rc);
        rc = get_ring(&opening);
    }
    close(opening.control_dir);
    if (rc < 0) {
        ring_files_close(files, ring, false);
        return rc;
    }
    owned_swap(0, files->control_fd + 1);
    owned_swap(0, files->body_fd + 1);
    return 0;
}

/* Opens the file of a descriptor again: a lock belongs to a description, and ours stays here. */
static int reopen(int fd, const char *path, int flags)
{
    char link[64];
    struct stat held, named;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    int fresh = open(link, flags | O_CLOEXEC);
    if (fresh >= 0)
        return fresh;
    /* No /proc here: by its name, if that still is the same file. */
    fresh = open(path, flags | O_CLOEXEC | O_NOFOLLOW);
    if (fresh < 0)
        return -errno;
    if (fstat(fd, &held) == 0 && fstat(fresh, &named) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev)
        return fresh;
    close(fresh);
    return -ESTALE;
}

int ring_files_control_fd(const struct ring_files *files, int byte)
{
    int fd = reopen(files->control_fd, files->control_path, O_RDWR);

    if (fd < 0 || byte < 0)
        return fd;
    int rc = ring_lock_byte(fd, (uint32_t)byte);
    if (rc < 0) {
        close(fd);
        return rc == -EAGAIN ? -RINGSIDE_E_IN_USE : rc;
    }
    return fd;
}

int ring_files_body_fd(const struct ring_files *files, bool writable)
{
    return reopen(files->body_fd, files->body_path, writable ? O_RDWR : O_RDONLY);
}

bool ring_files_byte_locked(const struct ring_files *files, int byte)
{
    return ring_bytes_locked(files->control_fd, (uint32_t)byte, 1);
}

bool ring_file_is_cut(int fd, uint64_t bytes)
{
    struct stat status;
    struct statfs system;

    if (fstat(fd, &status) < 0)
        return false;
    if ((uint64_t)status.st_size < bytes)
        return true;
    /* Every page was there once. On a disk blocks say nothing: there is compression. */
    return (uint64_t)status.st_blocks * 512 < bytes && fstatfs(fd, &system) == 0 &&
           (system.f_type == TMPFS_MAGIC || (unsigned long)system.f_type == HUGETLBFS_MAGIC);
}

bool ring_files_damaged(const struct rs_ring *ring)
{
    return rs_guard_hit(ring->control) || rs_guard_hit(ring->body);
}

static void unlink_own(const char *path, int fd)
{
    if (fd >= 0 && ring_dir_is(AT_FDCWD, path, fd))
        unlink(path);
}

void ring_files_close(struct ring_files *files, struct rs_ring *ring, bool remove)
{
    if (remove) {
        unlink_own(files->body_path, files->body_fd);
        unlink_own(files->control_path, files->control_fd);
    }
    if (ring->control)
        rs_guard_remove(ring->control);
    if (ring->body)
        rs_guard_remove(ring->body);
    rs_ring_unmap(ring);
    owned_swap(files->control_fd + 1, 0);
    owned_swap(files->body_fd + 1, 0);
    forget(files);
}

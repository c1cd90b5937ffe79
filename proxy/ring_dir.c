/* SPDX-License-Identifier: Apache-2.0 */
/* Directories and files of a ring. */
#include "proxy/ring_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/err.h"

static int find_group(const char *name, gid_t *gid)
{
    char buffer[16384];
    struct group group, *found = NULL;
    char *end;
    unsigned long number = strtoul(name, &end, 10);

    if (name[0] >= '0' && name[0] <= '9' && *end == '\0' && number < (gid_t)-1) {
        *gid = (gid_t)number;
        return 0;
    }
    if (getgrnam_r(name, &group, buffer, sizeof(buffer), &found) != 0 || !found)
        return -ENOENT;
    *gid = group.gr_gid;
    return 0;
}

int ring_access_init(struct ring_access *access, const struct rs_config *config,
                     const struct startup_error *error)
{
    access->file_mode = config->socket.mode & 0666;
    access->dir_mode = 0700;
    if (access->file_mode & 0060)
        access->dir_mode |= 0050;
    if (access->file_mode & 0006)
        access->dir_mode |= 0055;
    access->file_mode |= 0600;
    access->gid = (gid_t)-1;
    if (config->socket.group[0] != '\0' && find_group(config->socket.group, &access->gid) < 0)
        return startup_fail(
            error, -RINGSIDE_E_INVALID,
            "socket.group: there is no group \"%s\" on this machine; name an existing "
            "one, give its number, or leave it empty",
            config->socket.group);
    return 0;
}

/* Owner and mode by descriptor, so that neither the umask nor a swapped name matters. */
static int settle(int fd, mode_t mode, gid_t gid)
{
    if (gid != (gid_t)-1 && fchown(fd, (uid_t)-1, gid) < 0)
        return -errno;
    return fchmod(fd, mode) < 0 ? -errno : 0;
}

static int make_one(const char *path, const struct ring_access *access)
{
    if (mkdir(path, 0700) < 0)
        return errno == EEXIST ? 0 : -errno;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    int rc = settle(fd, access->dir_mode, access->gid);
    close(fd);
    return rc;
}

static int make_all(const char *path, const struct ring_access *access,
                    const struct startup_error *error)
{
    char part[PATH_MAX];
    size_t length = strlen(path);

    if (length == 0 || length >= sizeof(part))
        return startup_fail(error, -ENAMETOOLONG, "%s: %s", path, rs_strerror(-ENAMETOOLONG));
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        part[i] = '\0';
        int rc = make_one(part, access);

        /* Only the last one has to be writable; one above it may be read-only and there. */
        if (rc < 0 && faccessat(AT_FDCWD, part, F_OK, 0) < 0)
            return startup_fail(error, rc,
                                "%s: cannot be made: %s; make it, or name another directory", part,
                                rs_strerror(rc));
        part[i] = path[i];
    }
    return 0;
}

int ring_dir_open(const char *path, const struct ring_access *access,
                  const struct startup_error *error)
{
    struct stat status;
    int rc = make_all(path, access, error);

    if (rc < 0)
        return rc;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        rc = -errno;
        return startup_fail(error, rc, "%s: %s", path,
                            rc == -ELOOP || rc == -ENOTDIR
                                ? "a symbolic link or no directory; name the directory itself"
                                : rs_strerror(rc));
    }
    if (fstat(fd, &status) < 0) {
        rc = startup_fail(error, -errno, "%s: %s", path, rs_strerror(-errno));
        goto err_after_open;
    }
    if (status.st_uid != geteuid() && status.st_uid != 0) {
        /* Its owner could swap the ring for another at any time. */
        rc = startup_fail(
            error, -RINGSIDE_E_DENIED,
            "%s: belongs to uid %u, not to uid %u or root; remove it, give it to uid %u, "
            "or name another directory",
            path, status.st_uid, geteuid(), geteuid());
        goto err_after_open;
    }
    return fd;

err_after_open:
    close(fd);
    return rc;
}

int ring_dir_create(int dir, const char *name, const struct ring_access *access)
{
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (fd < 0)
        return -errno;
    int rc = settle(fd, access->file_mode, access->gid);

    if (rc < 0) {
        unlinkat(dir, name, 0);
        close(fd);
        return rc;
    }
    return fd;
}

int ring_dir_existing(int dir, const char *name, const char *path,
                      const struct startup_error *error)
{
    struct stat status;
    /* Not blocking: what is there may be a FIFO. */
    int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int rc = fd < 0 ? -errno : 0;

    if (rc == -ENOENT)
        return rc;
    if (rc == -ELOOP)
        return startup_fail(error, rc, "%s: a symbolic link; remove it", path);
    if (rc == 0 && fstat(fd, &status) < 0)
        rc = -errno;
    if (rc < 0) {
        startup_fail(error, rc, "%s: %s; remove it, or start as the user that made it", path,
                     rs_strerror(rc));
        goto err_after_open;
    }
    if (!S_ISREG(status.st_mode) || status.st_nlink > 1 || status.st_uid != geteuid()) {
        rc = startup_fail(
            error, -RINGSIDE_E_DENIED,
            "%s: not a plain file of uid %u with one name (uid %u, %lu names, mode %o); it "
            "is left alone: remove it, or name another directory",
            path, geteuid(), status.st_uid, (unsigned long)status.st_nlink, status.st_mode);
        goto err_after_open;
    }
    return fd;

err_after_open:
    if (fd >= 0)
        close(fd);
    return rc;
}

bool ring_dir_is(int dir, const char *name, int fd)
{
    struct stat named, held;

    return fstatat(dir, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &held) == 0 &&
           named.st_ino == held.st_ino && named.st_dev == held.st_dev;
}

int ring_lock_byte(int fd, uint32_t byte)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};

    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}

bool ring_bytes_locked(int fd, uint32_t first, uint32_t count)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = (off_t)count};

    return fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns the files of a ring: claims, races, adoption, descriptors. */
#include "tests/unit/ring_fixture.h"
#include "tests/unit/emulator.h"

#include <sys/mman.h>
#include <sys/wait.h>

/* ---- creation ---- */
static void open_fresh(void **state)
{
    (void)state;
    struct stage a;
    struct stat status;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    assert_false(a.files.adopted);
    assert_int_equal(a.files.page_bytes, 4096);
    assert_string_equal(a.files.found, "");
    assert_int_equal(stat(a.files.body_path, &status), 0);
    assert_int_equal(status.st_size, 1 << 20);
    bool sparse = emulated(); /* an emulator ignores madvise */
    assert_true(sparse || status.st_blocks * 512 == 1 << 20);
    assert_int_equal(stat(a.files.control_path, &status), 0);
    assert_int_equal(status.st_size, a.ring.layout.control_bytes);
    assert_true(sparse || status.st_blocks * 512 >= status.st_size);
    assert_true(a.ring.layout.sidecar_id >= 1 && a.ring.layout.sidecar_id <= 65535);
    assert_true(a.ring.layout.incarnation[0] != 0 && a.ring.layout.incarnation[1] != 0);
    assert_true(fcntl(a.files.control_fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(a.files.body_fd, F_GETFD) & FD_CLOEXEC);
    memset(a.ring.body, 1, 1 << 20);
    stop(&a, true);
    assert_int_equal(entries("control") + entries("body"), 0);
}

static void open_modes(void **state)
{
    (void)state;
    static const struct {
        const char *mode;
        mode_t file, dir;
    } cases[] = {{"0600", 0600, 0700}, {"0660", 0660, 0750}, {"0666", 0666, 0755}};
    mode_t masks[] = {0, 077};

    for (size_t i = 0; i < 6; i++) {
        struct stage a;
        struct stat status;
        mode_t before = umask(masks[i % 2]);

        remove_base();
        configure(&a, "", SMALL_PAGES, SMALL_CLASS);
        a.config.socket.mode = (mode_t)strtoul(cases[i / 2].mode, NULL, 8);
        strcpy(a.config.socket.group, "12345");
        int rc = start(&a);
        umask(before);
        if (geteuid() != 0 && rc == -EPERM) {
            print_message("skipped: only root may give files to another group\n");
            skip();
        }
        assert_int_equal(rc, 0);
        assert_int_equal(stat(a.files.control_path, &status), 0);
        assert_int_equal(status.st_mode & 07777, cases[i / 2].file);
        assert_int_equal(status.st_gid, 12345);
        assert_int_equal(stat(a.files.body_path, &status), 0);
        assert_int_equal(status.st_mode & 07777, cases[i / 2].file);
        assert_int_equal(stat(a.config.ring.control_dir, &status), 0);
        assert_int_equal(status.st_mode & 07777, cases[i / 2].dir);
        assert_int_equal(status.st_gid, 12345);
        stop(&a, true);
    }
    struct stage b;
    configure(&b, "", SMALL_PAGES, SMALL_CLASS);
    strcpy(b.config.socket.group, "no-such-group-here");
    assert_int_equal(start(&b), -RINGSIDE_E_INVALID);
    assert_non_null(strstr(b.error, "no-such-group-here"));
    rs_config_finish(&b.config);
}

static void plant(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void open_leaves_others_alone(void **state)
{
    (void)state;
    struct stage a;
    char control[128], real[128], text[64] = "";

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    strcpy(control, a.files.control_path);
    ring_files_close(&a.files, &a.ring, true);

    plant(control, "somebody's notes"); /* a regular file that is no ring */
    assert_int_equal(start(&a), -RINGSIDE_E_DENIED);
    assert_non_null(strstr(a.error, control));
    FILE *file = fopen(control, "re");
    assert_non_null(fgets(text, sizeof(text), file));
    fclose(file);
    assert_string_equal(text, "somebody's notes");

    snprintf(real, sizeof(real), "%s/real", base_dir);
    assert_int_equal(rename(control, real), 0);
    assert_int_equal(symlink(real, control), 0);
    assert_int_equal(start(&a), -ELOOP);
    assert_non_null(strstr(a.error, "symbolic link"));
    unlink(control);
    assert_int_equal(mkfifo(control, 0600), 0);
    assert_int_equal(start(&a), -RINGSIDE_E_DENIED);
    unlink(control);
    assert_int_equal(mkdir(control, 0700), 0);
    assert_true(start(&a) < 0);
    rmdir(control);

    snprintf(real, sizeof(real), "%s/elsewhere", base_dir);
    assert_int_equal(rename(a.config.ring.control_dir, real), 0);
    assert_int_equal(symlink(real, a.config.ring.control_dir), 0);
    assert_true(start(&a) < 0);
    assert_non_null(strstr(a.error, "symbolic link"));
    assert_int_equal(entries("elsewhere"), 0);
    unlink(a.config.ring.control_dir);
    rs_config_finish(&a.config);
}

static void open_foreign_owner(void **state)
{
    (void)state;
    struct stage a;

    if (geteuid() != 0) {
        print_message("skipped: only root can give a directory away\n");
        skip();
    }
    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    mkdir(base_dir, 0755);
    assert_int_equal(mkdir(a.config.ring.control_dir, 0755), 0);
    assert_int_equal(chown(a.config.ring.control_dir, 1001, 1001), 0);
    assert_int_equal(start(&a), -RINGSIDE_E_DENIED);
    assert_non_null(strstr(a.error, "1001"));
    assert_int_equal(chown(a.config.ring.control_dir, 0, 0), 0);
    assert_int_equal(start(&a), 0);
    char control[PATH_MAX];
    strcpy(control, a.files.control_path);
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(chown(control, 1001, 1001), 0);
    assert_int_equal(start(&a), -RINGSIDE_E_DENIED);
    assert_true(exists(control));
    rs_config_finish(&a.config);
}

/* ---- ownership ---- */
static void open_in_use(void **state)
{
    (void)state;
    struct stage a, b;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    configure(&b, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    assert_int_equal(start(&b), -RINGSIDE_E_IN_USE); /* even within one process */
    assert_non_null(strstr(b.error, a.files.control_path));
    assert_true(exists(a.files.control_path));
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&b), 0);
    assert_true(b.files.adopted);
    rs_config_finish(&a.config);
    stop(&b, true);
}

static void open_adopts(void **state)
{
    (void)state;
    struct stage a;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    uint64_t incarnation = a.ring.layout.incarnation[0];
    rs_store_relaxed(&a.ring.slots[3].state, rs_state(77, 0, RS_SEALED, 0));
    a.ring.body[12345] = 99;
    ring_files_close(&a.files, &a.ring, false);
    a.config.inbox.depth = 8; /* the one thing that may change over a living ring */
    assert_int_equal(start(&a), 0);
    assert_true(a.files.adopted);
    assert_int_equal(a.ring.layout.incarnation[0], incarnation);
    assert_int_equal(a.ring.body[12345], 99);
    assert_int_equal(rs_state_generation(rs_load_relaxed(&a.ring.slots[3].state)), 77);
    const struct rs_superblock *shared = (const void *)a.ring.control;
    assert_int_equal(rs_load_relaxed(&shared->inbox_depth), 8);
    stop(&a, true);
}

static void open_incomplete(void **state)
{
    (void)state;
    struct stage a;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    uint64_t incarnation = a.ring.layout.incarnation[0];
    struct rs_superblock *shared = (void *)a.ring.control;
    rs_store_release(&shared->version, 0); /* as if its sidecar had died before the last store */
    memset(a.ring.body, 5, 4096);
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&a), 0);
    assert_false(a.files.adopted);
    assert_true(a.ring.layout.incarnation[0] != incarnation);
    assert_int_equal(a.ring.body[0], 0);
    assert_int_equal(truncate(a.files.control_path, 0),
                     0); /* ... or before it gave the file its size */
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&a), 0);
    assert_false(a.files.adopted);
    stop(&a, true);
    assert_int_equal(entries("control") + entries("body"), 0);
}

/* Two that start at the same moment, on fresh files and on those of one that was killed. */
static void open_race(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        int go[2], result[2], hold[2];
        pid_t pids[2];
        char won[2];

        assert_int_equal(pipe2(go, O_CLOEXEC), 0);
        assert_int_equal(pipe2(result, O_CLOEXEC), 0);
        assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
        fflush(NULL);
        for (int i = 0; i < 2; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                struct stage a;
                char byte;
                close(go[1]);
                close(hold[1]);
                configure(&a, "", SMALL_PAGES, SMALL_CLASS);
                if (read(go[0], &byte, 1) != 0)
                    _exit(1);
                int rc = start(&a);
                byte = rc == 0 ? 'w' : rc == -RINGSIDE_E_IN_USE ? 'l' : 'x';
                if (byte == 'x')
                    fprintf(stderr, "%s\n", a.error);
                if (write(result[1], &byte, 1) != 1 || read(hold[0], &byte, 1) != 0)
                    _exit(1);
                _exit(0); /* without closing anything, like one that is killed */
            }
        }
        close(go[0]);
        close(go[1]);
        close(hold[0]);
        assert_int_equal(read(result[0], &won[0], 1), 1);
        assert_int_equal(read(result[0], &won[1], 1), 1);
        close(hold[1]);
        close(result[0]);
        close(result[1]);
        for (int i = 0; i < 2; i++)
            waitpid(pids[i], NULL, 0);
        assert_true((won[0] == 'w' && won[1] == 'l') || (won[0] == 'l' && won[1] == 'w'));
        if (round % 2)
            remove_base();
    }
}

static void open_after_fork(void **state)
{
    (void)state;
    skip_if_emulated("ignores madvise");
    struct stage a, b;
    int hold[2], ready[2];
    char byte = 0;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    configure(&b, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork(); /* outlives its parent's ring, and was given copies of all descriptors */
    if (pid == 0) {
        close(hold[1]);
        _exit(write(ready[1], &byte, 1) == 1 && read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    ring_files_close(&a.files, &a.ring, false);
    int rc = start(&b);
    close(hold[1]);
    close(hold[0]);
    waitpid(pid, NULL, 0);
    assert_int_equal(rc, 0);
    assert_true(b.files.adopted);
    rs_config_finish(&a.config);
    stop(&b, true);
}

/* ---- rings that cannot be taken over ---- */
static void open_other_geometry(void **state)
{
    (void)state;
    struct stage a, b;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    configure(&b, "", SMALL_PAGES, "{\"slot_bytes\":\"64Ki\",\"slots\":17}");
    assert_int_equal(start(&a), 0);
    rs_store_relaxed(&a.ring.slots[3].state, rs_state(77, 0, RS_SEALED, 0));
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&b), -RINGSIDE_E_INVALID); /* a message waits in it */
    assert_non_null(strstr(b.error, "ring.classes"));
    assert_non_null(strstr(b.error, "1 messages"));

    assert_int_equal(start(&a), 0); /* the old config still gets it */
    assert_true(a.files.adopted);
    rs_store_relaxed(&a.ring.slots[3].state, rs_state(77, 0, RS_FREE, 0));
    int worker = ring_files_control_fd(&a.files, 5);
    assert_true(worker >= 0);
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&b), -RINGSIDE_E_INVALID); /* a client lives */
    assert_non_null(strstr(b.error, "living workers"));
    close(worker);

    assert_int_equal(start(&b), 0);
    assert_false(b.files.adopted);
    assert_non_null(strstr(b.files.found, "ring.classes"));
    assert_int_equal(b.ring.layout.slot_count, 17);
    assert_int_equal(entries("control") + entries("body"), 2);
    rs_config_finish(&a.config);
    stop(&b, true);
}

static void open_differences(void **state)
{
    (void)state;
    struct stage a, b;

    configure(&a, "\"id\":6,", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    assert_int_equal(a.ring.layout.sidecar_id, 6);
    ring_files_close(&a.files, &a.ring, false);
    configure(&b, "\"id\":7,", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&b), 0);
    assert_non_null(strstr(b.files.found, "another id"));
    ring_files_close(&b.files, &b.ring, false);
    b.config.clients.max = 9;
    assert_int_equal(start(&b), 0);
    assert_non_null(strstr(b.files.found, "clients.max"));
    ring_files_close(&b.files, &b.ring, false);
    b.config.inbox.cells = 128;
    assert_int_equal(start(&b), 0);
    assert_non_null(strstr(b.files.found, "inbox.cells"));
    ring_files_close(&b.files, &b.ring, false);
    b.config.id = 0; /* auto keeps what is there */
    assert_int_equal(start(&b), 0);
    assert_true(b.files.adopted);
    assert_int_equal(b.ring.layout.sidecar_id, 7);
    rs_config_finish(&a.config);
    stop(&b, true);
}

static void open_other_version(void **state)
{
    (void)state;
    struct stage a;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    struct rs_superblock *shared = (void *)a.ring.control;
    shared->layout_hash ^= 1;
    int worker = ring_files_control_fd(&a.files, 5);
    assert_true(worker >= 0);
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&a), -RINGSIDE_E_VERSION);
    assert_non_null(strstr(a.error, "living workers"));
    close(worker);
    assert_int_equal(start(&a), 0);
    assert_false(a.files.adopted);
    assert_non_null(strstr(a.files.found, "made anew"));
    stop(&a, true);
    assert_int_equal(entries("control") + entries("body"), 0);
}

static void open_body_lost(void **state)
{
    (void)state;
    struct stage a;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    unlink(a.files.body_path);
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&a), 0);
    assert_non_null(strstr(a.files.found, "is gone"));
    assert_int_equal(ftruncate(a.files.body_fd, 4096), 0);
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&a), 0);
    assert_non_null(strstr(a.files.found, "truncated"));
    unlink(a.files.control_path); /* a body alone is of no use */
    ring_files_close(&a.files, &a.ring, false);
    assert_int_equal(start(&a), 0);
    assert_false(a.files.adopted);
    assert_int_equal(entries("control") + entries("body"), 2);
    stop(&a, true);
}

/* ---- descriptors ---- */
static void fds_and_locks(void **state)
{
    (void)state;
    struct stage a;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    assert_false(ring_files_byte_locked(&a.files, 5));
    int worker = ring_files_control_fd(&a.files, 5);
    assert_true(worker >= 0);
    assert_true(fcntl(worker, F_GETFD) & FD_CLOEXEC);
    assert_true(ring_files_byte_locked(&a.files, 5));
    assert_false(ring_files_byte_locked(&a.files, 4));
    assert_int_equal(ring_files_control_fd(&a.files, 5), -RINGSIDE_E_IN_USE);
    assert_int_equal(ring_files_control_fd(&a.files, 0), -RINGSIDE_E_IN_USE); /* the owner's */
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, worker, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    close(worker);
    assert_true(ring_files_byte_locked(&a.files, 5)); /* the mapping keeps the description */
    munmap(map, 4096);
    assert_false(ring_files_byte_locked(&a.files, 5));
    int plain = ring_files_control_fd(&a.files, -1);
    assert_true(plain >= 0);
    close(plain);

    int body = ring_files_body_fd(&a.files, false);
    assert_true(body >= 0);
    assert_ptr_equal(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, body, 0), MAP_FAILED);
    assert_true(ftruncate(body, 0) < 0);
    close(body);
    body = ring_files_body_fd(&a.files, true);
    assert_int_equal(pwrite(body, "x", 1, 0), 1);
    assert_int_equal(a.ring.body[0], 'x');
    close(body);
    stop(&a, true);
}

static void truncated_later(void **state)
{
    (void)state;
    struct stage a;

    configure(&a, "", SMALL_PAGES, SMALL_CLASS);
    assert_int_equal(start(&a), 0);
    assert_false(ring_files_damaged(&a.ring));
    assert_int_equal(truncate(a.files.body_path, 0), 0);
    assert_int_equal(((volatile uint8_t *)a.ring.body)[70000], 0);
    assert_true(ring_files_damaged(&a.ring));
    stop(&a, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(open_fresh),          CASE(open_modes),       CASE(open_leaves_others_alone),
        CASE(open_foreign_owner),  CASE(open_in_use),      CASE(open_adopts),
        CASE(open_incomplete),     CASE(open_race),        CASE(open_after_fork),
        CASE(open_other_geometry), CASE(open_differences), CASE(open_other_version),
        CASE(open_body_lost),      CASE(fds_and_locks),    CASE(truncated_later),
    };
    return run_ring_tests(tests, sizeof(tests) / sizeof(tests[0]));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* libringside in a process that forks. */
#include "tests/unit/client_fixture.h"
#include "tests/unit/emulator.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

/* Done once, after the next madvise: in the middle of mapping a ring. */
static _Atomic(void (*)(void)) after_madvise;

/* The library's, too: it stands in front of the C library's. */
__attribute__((visibility("default"))) int madvise(void *base, size_t bytes, int advice)
{
    int rc = (int)syscall(SYS_madvise, base, bytes, advice);

    do_once(&after_madvise);
    return rc;
}

static struct ringside_slot loaned; /* of a */

static bool every_call_says_forked(void)
{
    char text[RINGSIDE_TICKET_TEXT_BYTES] = "rst1-00070000312345678-9abcdef0-5efc";
    uint64_t ticket = (uint64_t)101 << 48 | 1;
    const int codes[] = {
        ringside_send(a, &loaned, "1", NULL),
        ringside_share(a, &loaned, 1, NULL, &ticket),
        ringside_abandon(a, &loaned),
        ringside_receive(b, &message, RINGSIDE_FOREVER),
        ringside_receive_batch(b, &message, 1, 0),
        ringside_read(b, ticket, &message),
        ringside_read_text(b, text, &message),
        ringside_nack(b, &message),
        ringside_forward(b, &message, "2", NULL),
        ringside_free(b, ticket),
        ringside_free_text(b, text),
        ringside_ticket_text(b, ticket, text),
    };

    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (codes[i] != -RINGSIDE_EFORKED)
            return false;
    }
    return true;
}

static void client_forked_child_is_told(void **state)
{
    int status;

    (void)state;
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    loan_bytes(a, 1);
    loaned = slot;
    pid_t child = fork();
    if (child == 0) {
        struct ringside_tensor tensor = {.dtype = RINGSIDE_UINT8, .rank = 1, .shape = {1}};
        int rc = 0;

        rc |= ringside_loan(a, &tensor, 1, 0, 0, &slot) != -RINGSIDE_EFORKED;
        rc |= (ringside_receive(b, &message, 0) != -RINGSIDE_EFORKED) << 1;
        rc |= (ringside_release(b, &message) != -RINGSIDE_EFORKED) << 2;
        rc |= (ringside_fd(b) != -RINGSIDE_EFORKED || !every_call_says_forked()) << 3;
        rc |= (strstr(ringside_explain(b), "fork") == NULL) << 4;
        ringside_close(a);
        ringside_close(b);
        ringside_close(c);
        char path[64];
        snprintf(path, sizeof path, "%s/1.sock", fake_dir);
        struct ringside_connect_options options = {.socket = path};
        struct ringside *anew;
        rc |= (ringside_connect(&anew, &options) != 0) << 5;
        ringside_close(anew);
        _exit(rc);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    OK(ringside_release(b, &message)); /* the parent goes on */
    OK(ringside_abandon(a, &loaned));
}

/* A child that lives on must not keep descriptions of the parent's: they hold the lock of its byte. */
static void client_forked_child_keeps_no_descriptor(void **state)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1};
    int status, go[2], started[2];

    (void)state;
    skip_if_emulated("ignores madvise");
    OK(send_byte(a, "1", 1));
    OK(ringside_receive(b, &message, 0));
    OK(ringside_release(b, &message));
    /* Stand in for the sidecar: lock through a descriptor that only the library has. */
    struct stat mine, theirs;
    int taken = -1;
    fstat(fake_stages[1].control_fd, &mine);
    for (int fd = 3; fd < 256 && taken < 0; fd++) {
        char path[40], target[40];

        /* By name first: other threads are closing descriptors of other kinds. */
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target);
        if (length < 14 || memcmp(target, "/memfd:control", 14) != 0)
            continue;
        if (fd != fake_stages[1].control_fd && fstat(fd, &theirs) == 0 &&
            theirs.st_ino == mine.st_ino && theirs.st_dev == mine.st_dev &&
            fcntl(fd, F_OFD_SETLK, &lock) == 0)
            taken = fd;
    }
    assert_true(taken >= 0);
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(started), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte = 0;

        close(go[1]);
        (void)!write(started[1], &byte, 1);
        (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    char byte;
    assert_int_equal(read(started[0], &byte, 1), 1);
    ringside_close(a);
    ringside_close(b);
    ringside_close(c);
    a = b = c = NULL;
    lock.l_type = F_WRLCK;
    int rc = fcntl(fake_stages[1].control_fd, F_OFD_SETLK, &lock);
    close(go[1]);
    close(go[0]);
    close(started[1]);
    close(started[0]);
    waitpid(child, &status, 0);
    assert_int_equal(rc, 0);
}

/* How many descriptors of a stage's control file this process has. */
static int control_files(unsigned stage)
{
    struct stat control, each;
    int count = 0;

    fstat(fake_stages[stage].control_fd, &control);
    for (int fd = 0; fd < 256; fd++) {
        char path[40];

        /* By path: other threads close descriptors meanwhile. */
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        count += stat(path, &each) == 0 && each.st_ino == control.st_ino &&
                 each.st_dev == control.st_dev;
    }
    return count;
}

static _Atomic int fork_asked, forked, kept_by_child;

static void *fork_when_asked(void *data)
{
    const struct timespec moment = {0, 1000000};
    int status;

    while (!fork_asked)
        nanosleep(&moment, NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(control_files(0) - 1); /* the fake sidecar's own */
    forked = 1;
    waitpid(child, &status, 0);
    kept_by_child = status;
    return data;
}

static void fork_now(void)
{
    const struct timespec moment = {0, 1000000};

    /* The fake sidecar's, that of a, and the one that b is about to keep; not the copy that the fake sidecar sent. */
    while (control_files(0) != 3)
        nanosleep(&moment, NULL);
    fork_asked = 1;
    for (int i = 0; i < 200 && !forked; i++) /* it is not done before we are */
        nanosleep(&moment, NULL);
}

/* Nor a descriptor that was on its way from the socket to its place when the child was made. */
static void client_fork_waits_for_descriptors(void **state)
{
    pthread_t thread;

    (void)state;
    OK(send_byte(a, "1", 1));
    fork_asked = forked = 0;
    pthread_create(&thread, NULL, fork_when_asked, NULL);
    after_madvise = fork_now;
    take_byte(b, 1);
    assert_null(after_madvise);
    pthread_join(thread, NULL);
    assert_int_equal(kept_by_child, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(client_forked_child_is_told),
        CASE(client_forked_child_keeps_no_descriptor),
        CASE(client_fork_waits_for_descriptors),
    };

    return cmocka_run_group_tests_name("client_fork", tests, NULL, NULL);
}

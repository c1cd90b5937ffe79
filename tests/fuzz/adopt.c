/* SPDX-License-Identifier: Apache-2.0 */
/* What a sidecar that starts finds in the files of the last one: refused with a reason, made anew,
 * or adopted. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/inbox.h"
#include "proto/repair.h"
#include "proxy/ring_files.h"
#include "tests/fuzz/fuzz.h"

static char directory[64], control_path[96], body_path[96], error[1024];
static struct rs_config config;
static uint8_t fresh[1 << 20]; /* the control file of a new ring */
static size_t fresh_bytes, body_bytes;

static void remove_files(void)
{
    unlink(control_path);
    unlink(body_path);
    rmdir(directory);
}

/* Makes a ring once, whose files are what the inputs change. */
static void begin(void)
{
    struct ring_files files;
    struct rs_ring ring;
    char text[512];

    snprintf(directory, sizeof directory, "/dev/shm/ringside-fuzz-%d", (int)getpid());
    snprintf(control_path, sizeof control_path, "%s/fuzz.control", directory);
    snprintf(body_path, sizeof body_path, "%s/fuzz.body", directory);
    int length = snprintf(
        text, sizeof text,
        "{\"stage\":\"fuzz\",\"clients\":{\"max\":3},"
        "\"inbox\":{\"cells\":8,\"depth\":8},\"socket\":{\"path\":\"%s/s\"},"
        "\"ring\":{\"control_dir\":\"%s\",\"body_dir\":\"%s\",\"pages\":\"4Ki\",\"lock\":\"off\","
        "\"classes\":[{\"slot_bytes\":\"4Ki\",\"slots\":5},{\"slot_bytes\":\"64Ki\",\"slots\":1}]}"
        "}",
        directory, directory, directory);
    CHECK(rs_config_parse(&config, text, (size_t)length, "fuzz", error, sizeof error) == 0);
    atexit(remove_files);
    CHECK(ring_files_open(&files, &ring, &config, error, sizeof error) == 0);
    ssize_t got = pread(files.control_fd, fresh, sizeof fresh, 0);
    CHECK(got == (ssize_t)ring.layout.control_bytes);
    fresh_bytes = (size_t)got;
    body_bytes = ring.layout.body_bytes;
    ring_files_close(&files, &ring, true);
}

static void put(const char *path, const void *data, size_t bytes, size_t file_bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    CHECK(fd >= 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes &&
          ftruncate(fd, (off_t)file_bytes) == 0);
    close(fd);
}

/* What an adopting sidecar does before it serves; then nothing in the ring is nonsense. */
static void mend(struct rs_ring *ring)
{
    static struct rs_inbox inbox;
    struct rs_repair repair;
    uint32_t cursor;

    rs_inbox_init(&inbox, ring, -1);
    rs_inbox_admit(&inbox, 0, ring, 0, 0);
    CHECK(rs_repair_init(&repair, ring) == 0);
    repair.own = repair.inboxes[0] = &inbox;
    rs_repair_adopt(&repair);
    for (uint16_t client = 0; client < ring->layout.client_count; client++)
        for (cursor = 0; !rs_repair_sweep(&repair, client, client, &cursor, 64);)
            ;
    for (int i = 0; i < 2; i++)
        for (cursor = 0; !rs_repair_audit(&repair, 1, &cursor, 64);)
            ;
    for (uint32_t i = 0; i < ring->layout.slot_count; i++)
        CHECK(rs_state_phase(rs_load_relaxed(&ring->slots[i].state)) <= RS_QUARANTINED);
    rs_repair_finish(&repair);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t control[sizeof fresh];
    struct input input = {data, size};
    struct ring_files files;
    struct rs_ring ring;

    if (fresh_bytes == 0)
        begin();
    memcpy(control, fresh, fresh_bytes);
    unsigned kind = (unsigned)next(&input, 1);
    size_t bytes = kind % 8 == 1 ? (size_t)next(&input, 3) % (2 * fresh_bytes) : fresh_bytes;
    while (input.left > 0) {
        size_t at = kind % 2 == 0 ? (size_t)next(&input, 1) * 2
                                  : (size_t)next(&input, 3) % (fresh_bytes - 8);
        next_bytes(&input, control + at, 8);
    }
    CHECK(mkdir(directory, 0700) == 0 || access(directory, W_OK) == 0);
    put(control_path, control, bytes < fresh_bytes ? bytes : fresh_bytes, bytes);
    if (kind % 16 != 15)
        put(body_path, "", 0, kind % 16 == 14 ? body_bytes / 2 : body_bytes);
    int rc = ring_files_open(&files, &ring, &config, error, sizeof error);
    CHECK(rc == 0 || error[0] != '\0');
    if (rc == 0)
        mend(&ring);
    ring_files_close(&files, &ring, true);
    unlink(control_path);
    unlink(body_path);
    return 0;
}

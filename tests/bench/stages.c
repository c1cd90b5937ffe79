/* SPDX-License-Identifier: Apache-2.0 */
/* Two real sidecars, each other's route, in a private directory. */
#include "tests/bench/stages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 20000 /* a ring of many pages takes its time */

static const char *const names[2] = {"bench0", "bench1"};

static int write_config(const struct bench_stages *stages, int side, const char *ring,
                        const char *clients, const char *path)
{
    FILE *file = fopen(path, "w");

    if (file == NULL)
        return -errno;
    fprintf(file,
            "{\"stage\": \"%s\", \"socket\": {\"path\": \"%s\"},\n"
            " \"ring\": {\"control_dir\": \"%s\", \"body_dir\": \"%s\"%s%s},\n"
            " \"clients\": {%s},\n"
            " \"routes\": {\"other\": {\"to\": [\"unix:%s\"]}}}\n",
            names[side], stages->socket[side], stages->ring_dir, stages->ring_dir, ring ? ", " : "",
            ring ? ring : "", clients ? clients : "", stages->socket[1 - side]);
    return fclose(file) == 0 ? 0 : -errno;
}

static int spawn(struct bench *bench, struct bench_stages *stages, int side, const char *ring,
                 const char *clients)
{
    char *proxy = getenv("RINGSIDE_PROXY"), config[96], log[96];

    if (proxy == NULL)
        return bench_skip(bench, "RINGSIDE_PROXY does not name the sidecar");
    snprintf(config, sizeof config, "%s/%s.json", stages->dir, names[side]);
    snprintf(log, sizeof log, "%s/%s.log", stages->dir, names[side]);
    if (write_config(stages, side, ring, clients, config) < 0)
        return bench_fail(bench, "cannot write %s", config);
    pid_t pid = bench_spawn((char *[]){proxy, config, NULL}, log);
    if (pid < 0)
        return bench_fail(bench, "cannot start %s: %s", proxy, strerror(-pid));
    stages->sidecar[side] = pid;
    return 0;
}

/* What a sidecar that ended early said last. */
static int fail_early(struct bench *bench, struct bench_stages *stages, int side)
{
    char log[96], line[160], last[sizeof line] = "it said nothing";

    snprintf(log, sizeof log, "%s/%s.log", stages->dir, names[side]);
    FILE *file = fopen(log, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        strcpy(last, line);
    if (file != NULL)
        fclose(file);
    last[strcspn(last, "\n")] = '\0';
    stages->sidecar[side] = 0;
    return bench_fail(bench, "a sidecar ended at once: %s", last);
}

static int await_socket(struct bench *bench, struct bench_stages *stages, int side)
{
    for (int ms = 0; ms < START_MS; ms++) {
        if (bench_interrupted())
            return bench_fail(bench, "interrupted");
        if (access(stages->socket[side], F_OK) == 0)
            return 0;
        if (waitpid(stages->sidecar[side], NULL, WNOHANG) != 0)
            return fail_early(bench, stages, side);
        usleep(1000);
    }
    return bench_fail(bench, "%s: the sidecar did not open it within %d s", stages->socket[side],
                      START_MS / 1000);
}

static int make_dir(struct bench *bench, char *dir, const char *template)
{
    strcpy(dir, template);
    if (mkdtemp(dir) != NULL)
        return 0;
    bench_fail(bench, "%s: %s", template, strerror(errno));
    dir[0] = '\0';
    return -1;
}

int bench_stages_start(struct bench *bench, struct bench_stages *stages, const char *ring,
                       const char *clients)
{
    int rc;

    memset(stages, 0, sizeof *stages);
    rc = make_dir(bench, stages->dir, "/tmp/ringside-bench-XXXXXX");
    if (rc == 0)
        rc = make_dir(bench, stages->ring_dir, "/dev/shm/ringside-bench-XXXXXX");
    for (int side = 0; side < 2; side++)
        snprintf(stages->socket[side], sizeof stages->socket[side], "%s/%s.sock", stages->dir,
                 names[side]);
    for (int side = 0; rc == 0 && side < 2; side++)
        rc = spawn(bench, stages, side, ring, clients);
    for (int side = 0; rc == 0 && side < 2; side++)
        rc = await_socket(bench, stages, side);
    return rc;
}

static void remove_dir(const char *dir, const char *const suffixes[])
{
    char path[160];

    if (dir[0] == '\0')
        return;
    for (int side = 0; side < 2; side++) {
        for (int i = 0; suffixes[i] != NULL; i++) {
            snprintf(path, sizeof path, "%s/%s%s", dir, names[side], suffixes[i]);
            unlink(path);
        }
    }
    if (rmdir(dir) < 0)
        fprintf(stderr, "ringside-bench: %s: %s\n", dir, strerror(errno));
}

void bench_stages_stop(struct bench_stages *stages)
{
    for (int side = 0; side < 2; side++)
        bench_end(stages->sidecar[side]);
    remove_dir(stages->dir, (const char *[]){".json", ".log", ".sock", ".sock.lock", NULL});
    remove_dir(stages->ring_dir, (const char *[]){".control", ".body", ".sessions", NULL});
}

struct ringside *bench_stages_connect(struct bench *bench, const struct bench_stages *stages,
                                      int side)
{
    struct ringside_connect_options options = {
        .socket = stages->socket[side], .name = "bench", .timeout_ns = INT64_C(20000000000)};
    struct ringside *rs;
    int rc = ringside_connect(&rs, &options);

    if (rc < 0) {
        bench_fail(bench, "connect: %s", ringside_explain(NULL));
        return NULL;
    }
    return rs;
}

int bench_stages_serve(struct bench *bench)
{
    struct bench_stages stages;
    char byte;
    int rc = bench_stages_start(bench, &stages, NULL, NULL);

    if (rc == 0) {
        printf("%s %s\n", stages.socket[0], stages.socket[1]);
        fflush(stdout);
        while (read(STDIN_FILENO, &byte, 1) > 0) /* the end, or an interrupt */
            ;
    }
    bench_stages_stop(&stages);
    return rc;
}

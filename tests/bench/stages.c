/* SPDX-License-Identifier: Apache-2.0 */
/* Two real sidecars, each other's route, in a private directory. */
#include "tests/bench/stages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[2] = {"bench0", "bench1"};

static int write_config(const struct bench_stages *stages, int side, const char *ring,
                        const char *clients, char *path, size_t path_bytes)
{
    snprintf(path, path_bytes, "%s/%s.json", stages->dir, names[side]);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return -errno;
    fprintf(file,
            "{\"stage\": \"%s\", \"socket\": {\"path\": \"%s\"},\n"
            " \"ring\": {\"control_dir\": \"%s\", \"body_dir\": \"%s\"%s%s},\n"
            " \"clients\": {%s},\n"
            " \"routes\": {\"other\": {\"to\": [\"unix:%s\"]}}}\n",
            names[side], stages->socket[side], stages->ring_dir, stages->ring_dir,
            ring ? ", " : "", ring ? ring : "", clients ? clients : "", stages->socket[1 - side]);
    return fclose(file) == 0 ? 0 : -errno;
}

int bench_stages_start(struct bench *bench, struct bench_stages *stages, const char *ring,
                       const char *clients)
{
    const char *proxy = getenv("RINGSIDE_PROXY");
    char config[128];

    memset(stages, 0, sizeof *stages);
    if (proxy == NULL)
        return bench_skip(bench, "RINGSIDE_PROXY does not name the sidecar");
    strcpy(stages->dir, "/tmp/ringside-bench-XXXXXX");
    strcpy(stages->ring_dir, "/dev/shm/ringside-bench-XXXXXX");
    if (mkdtemp(stages->dir) == NULL || mkdtemp(stages->ring_dir) == NULL)
        return bench_fail(bench, "mkdtemp: %s", strerror(errno));
    for (int side = 0; side < 2; side++)
        snprintf(stages->socket[side], sizeof stages->socket[side], "%s/%s.sock", stages->dir, names[side]);
    for (int side = 0; side < 2; side++) {
        if (write_config(stages, side, ring, clients, config, sizeof config) < 0)
            return bench_fail(bench, "cannot write %s", config);
        stages->sidecar[side] = bench_spawn((char *[]){(char *)proxy, config, NULL});
        if (stages->sidecar[side] < 0)
            return bench_fail(bench, "cannot start %s: %s", proxy, strerror(-stages->sidecar[side]));
    }
    return 0;
}

static void remove_dir(const char *dir, const char *const suffixes[])
{
    char path[160];

    for (int side = 0; side < 2; side++) {
        for (int i = 0; suffixes[i] != NULL; i++) {
            snprintf(path, sizeof path, "%s/%s%s", dir, names[side], suffixes[i]);
            unlink(path);
        }
    }
    rmdir(dir);
}

void bench_stages_stop(struct bench_stages *stages)
{
    for (int side = 0; side < 2; side++)
        bench_end(stages->sidecar[side]);
    if (stages->dir[0] != '\0')
        remove_dir(stages->dir, (const char *[]){".json", ".sock", ".sock.lock", NULL});
    if (stages->ring_dir[0] != '\0')
        remove_dir(stages->ring_dir, (const char *[]){".control", ".body", ".sessions", NULL});
}

struct ringside *bench_stages_connect(struct bench *bench, const struct bench_stages *stages, int side)
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

/* SPDX-License-Identifier: Apache-2.0 */
/* ringside-bench: runs each measurement once and prints `NAME VALUE`, or why there is none. */
#include "tests/bench/stages.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One entry a measurement. What is compared stands together: a disturbance shall hit both. The
 * copies and the cache line come first, because bench_python.py has just run what is held against
 * them. */
static const struct bench_case {
    const char *names[BENCH_OUT_MAX + 1]; /* of out[0], out[1], …; NULL ends */
    int (*run)(struct bench *bench, double *out);
} cases[] = {
    {{"memcpy_16MiB_ms_p50"}, bench_memcpy_warm},
    {{"memcpy_cold_16MiB_ms_p50"}, bench_memcpy_cold},
    {{"memcpy_read_8MiB_ns_p50", "copy_read_8MiB_ns_p50", "memcpy_read_16MiB_ms_p50",
      "copy_read_16MiB_ms_p50"}, bench_copy},
    {{"cacheline_one_way_ns_p50", "cacheline_pause_one_way_ns_p50", "handoff_one_way_ns_p50",
      "handoff_one_way_ns_p99_9", "tickets_per_second", "call_rtt_ns_p50"},
     bench_awake},
    {{"iceoryx_one_way_ns_p50"}, bench_iceoryx},
    {{"handoff_64B_ns_p50", "handoff_256MiB_ns_p50"}, bench_handoff_sizes},
    {{"handoff_cold_one_way_ns_p50"}, bench_handoff_cold},
    {{"handoff_alone_ns_p50"}, bench_handoff_alone},
    {{"line_more_read_ns", "line_more_chained_ns", "line_more_locked_ns"}, bench_lines},
    {{"futex_wake_rtt_ns_p50", "wake_rtt_ns_p50"}, bench_wake},
    {{"uds_echo_rtt_ns_p50", "control_rtt_ns_p50"}, bench_control},
    {{"syscalls_per_million_handoffs", "mallocs_per_million_handoffs"}, bench_counts},
    {{"context_switches_per_s_at_120rps_busy"}, bench_busy},
};
#define CASES (sizeof(cases) / sizeof(*cases))

#if !BENCH_HAVE_ICEORYX
int bench_iceoryx(struct bench *bench, double *out)
{
    (void)out;
    return bench_skip(bench, "built without libiceoryx-binding-c-dev");
}
#endif

static bool listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0))
            return true;
    return false;
}

static bool wanted(const struct bench_case *c, const char *only)
{
    for (int i = 0; c->names[i]; i++)
        if (!only || listed(only, c->names[i]))
            return true;
    return false;
}

static int run_case(struct bench *bench, const struct bench_case *c)
{
    double out[BENCH_OUT_MAX] = {0};
    bench->reason[0] = 0;
    int rc = c->run(bench, out);
    for (int i = 0; c->names[i]; i++) {
        if (rc == 0)
            printf("%s %.6g\n", c->names[i], out[i]);
        else
            printf("%s %s %s\n", c->names[i], rc == BENCH_SKIP ? "skip" : "fail", bench->reason);
    }
    if (fflush(stdout) != 0) /* whoever reads this shows it as it comes, and is gone now */
        exit(1);
    return rc < 0 ? 1 : 0;
}

static int self_check(struct bench *bench)
{
    int rc = bench_counters_check(bench);
    printf("counters: %s\n", rc == 0 ? "exact" : bench->reason);
    return rc == 0 ? 0 : rc == BENCH_SKIP ? 77 : 1;
}

static int serve_stages(struct bench *bench)
{
    int rc = bench_stages_serve(bench);
    if (rc != 0)
        fprintf(stderr, "ringside-bench: %s\n", bench->reason);
    return rc == 0 ? 0 : rc == BENCH_SKIP ? 77 : 1;
}

static void first_two_cpus(int cpu[2])
{
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof(set), &set);
    for (int i = 0, found = 0; i < CPU_SETSIZE && found < 2; i++)
        if (CPU_ISSET((size_t)i, &set))
            cpu[found++] = i;
}

static const char usage[] =
    "ringside-bench [--only NAME,...] [--cpus A,B] [--quick] [--list] [--self-check] [--stages]\n"
    "Measures once and prints NAME VALUE a line (NAME skip WHY, NAME fail WHY).\n"
    "`run bench` takes the median of several runs and judges it.\n"
    "--stages starts two sidecars, prints their sockets and ends them when standard input ends.\n"
    "The environment's RINGSIDE_PROXY names the sidecar.\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"only", required_argument, NULL, 'o'}, {"cpus", required_argument, NULL, 'c'},
        {"quick", no_argument, NULL, 'q'},      {"list", no_argument, NULL, 'l'},
        {"self-check", no_argument, NULL, 's'}, {"stages", no_argument, NULL, 't'},
        {"help", no_argument, NULL, 'h'},       {NULL, 0, NULL, 0},
    };
    const char *only = NULL;
    bool quick = false, check = false, list = false, stages = false;
    int cpu[2] = {-1, -1}, failed = 0, ran = 0;
    first_two_cpus(cpu);
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'o') {
            only = optarg;
        } else if (o == 'c' && sscanf(optarg, "%d,%d", &cpu[0], &cpu[1]) < 1) {
            fprintf(stderr, "ringside-bench: --cpus %s: expected two numbers as in 0,1\n", optarg);
            return 2;
        } else if (o == '?' || o == 'h') {
            fputs(usage, o == 'h' ? stdout : stderr);
            return o == 'h' ? 0 : 2;
        }
        quick |= o == 'q';
        list |= o == 'l';
        check |= o == 's';
        stages |= o == 't';
    }
    struct bench *bench = bench_create(quick, cpu);
    if (!bench)
        return fputs("ringside-bench: no memory\n", stderr), 1;
    if (check || stages)
        return check ? self_check(bench) : serve_stages(bench);
    for (size_t i = 0; i < CASES; i++) {
        for (int k = 0; list && cases[i].names[k]; k++)
            puts(cases[i].names[k]);
        if (!list && !bench_interrupted() && wanted(&cases[i], only))
            failed |= run_case(bench, &cases[i]), ran++;
    }
    bench_destroy(bench);
    if (!list && ran == 0 && only)
        fprintf(stderr, "ringside-bench: --only %s: no such measurement, see --list\n", only);
    return failed || (!list && ran == 0) ? 1 : 0;
}

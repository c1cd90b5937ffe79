/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned processes that share one mapping, child programs, percentiles. */
#include "tests/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIDE_SKIPS 77 /* exit status of a side */
#define SIDE_FAILS 78

static double calibrate(void)
{
    uint64_t start_ns = bench_now_ns(), start = bench_ticks(), ns;
    do
        ns = bench_now_ns() - start_ns;
    while (ns < 50 * 1000 * 1000);
    return (double)ns / (double)(bench_ticks() - start);
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    interrupted = signal_number;
}

bool bench_interrupted(void)
{
    return interrupted != 0;
}

struct bench *bench_create(bool quick, const int cpu[2])
{
    struct bench *bench = mmap(NULL, sizeof(*bench), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bench == MAP_FAILED)
        return NULL;
    bench->quick = quick;
    bench->cpu[0] = cpu[0];
    bench->cpu[1] = cpu[1];
    bench->ns_per_tick = calibrate();
    struct sigaction action = {.sa_handler =
                                   on_interrupt}; /* no SA_RESTART: waitpid shall return */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* whoever read our output went: what we started must be ended */
    return bench;
}

void bench_destroy(struct bench *bench)
{
    if (bench)
        munmap(bench, sizeof(*bench));
}

static void set_reason(struct bench *bench, const char *format, va_list args)
{
    if (!bench->reason[0]) /* the first cause, not what followed from it */
        vsnprintf(bench->reason, sizeof(bench->reason), format, args);
}

int bench_fail(struct bench *bench, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_reason(bench, format, args);
    va_end(args);
    return -1;
}

int bench_skip(struct bench *bench, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_reason(bench, format, args);
    va_end(args);
    return BENCH_SKIP;
}

void bench_pin(struct bench *bench, int side)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)bench->cpu[side], &set);
    if (sched_setaffinity(0, sizeof(set), &set) < 0) {
        bench_fail(bench, "cannot pin to cpu %d: %s", bench->cpu[side], strerror(errno));
        _exit(SIDE_FAILS);
    }
}

void bench_meet(struct bench *bench)
{
    uint32_t mine = atomic_fetch_add(&bench->arrived, 1);
    while (atomic_load(&bench->arrived) < (mine | 1) + 1)
        ;
}

static _Noreturn void run_side(struct bench *bench, int side, bench_side *run, void *arg)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, bench->patient ? SIG_IGN : SIG_DFL);
    signal(SIGTERM, bench->patient ? SIG_IGN : SIG_DFL);
    if (interrupted) /* between the fork and here */
        _exit(SIDE_FAILS);
    alarm(BENCH_DEADLINE_S); /* a peer that died leaves us spinning */
    bench_pin(bench, side);
    int rc = run(bench, side, arg);
    if (rc != 0)
        rc = rc == BENCH_SKIP ? SIDE_SKIPS : SIDE_FAILS;
    exit(rc); /* not _exit: a library's destructors tidy up */
}

static int wait_sides(struct bench *bench, pid_t *pid, int sides)
{
    int worst = 0;
    for (int left = sides; left > 0;) {
        int status;
        for (int side = 0; interrupted && !bench->patient && side < sides; side++)
            if (pid[side] > 0)
                kill(pid[side], SIGKILL);
        pid_t gone = waitpid(-1, &status, 0);
        if (gone < 0 && errno != EINTR)
            return bench_fail(bench, "waitpid: %s", strerror(errno));
        int side = gone == pid[0] ? 0 : sides == 2 && gone == pid[1] ? 1 : -1;
        if (side < 0) /* a spawned program that ended early; its measurement will notice */
            continue;
        left--;
        pid[side] = 0;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : SIDE_FAILS;
        if (WIFSIGNALED(status) && worst == 0)
            bench_fail(bench, "side %d: %s", side,
                       WTERMSIG(status) == SIGALRM ? "took too long" : strsignal(WTERMSIG(status)));
        if (code != 0 && worst == 0) /* the first to end: we kill the other for it */
            worst = code == SIDE_SKIPS ? SIDE_SKIPS : SIDE_FAILS;
        if (code != 0 && sides == 2 && pid[1 - side] > 0)
            kill(pid[1 - side], SIGKILL);
    }
    return worst == 0 ? 0 : worst == SIDE_SKIPS ? BENCH_SKIP : bench_fail(bench, "a side failed");
}

int bench_fork(struct bench *bench, int sides, bench_side *run, void *arg)
{
    pid_t pid[2] = {0, 0};
    if (bench->cpu[sides - 1] < 0)
        return bench_skip(bench, "needs %d cores", sides);
    if (interrupted)
        return bench_fail(bench, "interrupted");
    bench->batches = bench->singles = 0;
    atomic_store(&bench->arrived, 0);
    memset((void *)bench->word, 0, sizeof(bench->word));
    fflush(NULL);
    for (int side = 0; side < sides; side++) {
        pid[side] = fork();
        if (pid[side] == 0)
            run_side(bench, side, run, arg);
        if (pid[side] < 0) {
            bench_fail(bench, "fork: %s", strerror(errno));
            if (side == 1)
                kill(pid[0], SIGKILL);
            return side == 1 ? wait_sides(bench, pid, 1) : -1;
        }
    }
    return wait_sides(bench, pid, sides);
}

pid_t bench_spawn(char *const argv[], const char *log)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        int output = log ? open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600) : null;
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        signal(SIGPIPE, SIG_DFL);
        setsid(); /* an interrupt from the terminal is ours: first its clients end, then it */
        dup2(null, 0);
        dup2(output, 1);
        dup2(output, 2);
        execvp(argv[0], argv);
        int error = errno;
        _exit(write(report[1], &error, sizeof(error)) == sizeof(error) ? 127 : 126);
    }
    int error = pid < 0 ? errno : 0;
    close(report[1]);
    if (pid > 0 && read(report[0], &error, sizeof(error)) == sizeof(error))
        waitpid(pid, NULL, 0);
    close(report[0]);
    return error ? -error : pid;
}

void bench_end(pid_t pid)
{
    if (pid <= 0)
        return;
    for (int i = 0; i < 500; i++) {
        /* A sidecar drains after the first one; what an interrupt left in it nobody wants. */
        if (i == 0 || i == 100)
            kill(pid, SIGTERM);
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return;
        usleep(10 * 1000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_percentile(double *values, uint32_t count, double percent)
{
    if (count == 0)
        return NAN;
    qsort(values, count, sizeof(*values), by_value);
    double rank = ceil(percent / 100.0 * (double)count); /* nearest rank: a value that was seen */
    return values[rank < 1 ? 0 : (uint32_t)rank - 1];
}

double bench_batch_p50(struct bench *bench)
{
    return bench_percentile(bench->batch_ns, bench->batches, 50);
}

uint32_t bench_scaled(const struct bench *bench, uint32_t rounds)
{
    return bench->quick ? (rounds + 9) / 10 : rounds;
}

double bench_single_percentile(struct bench *bench, double percent)
{
    return bench_percentile(bench->single_ns, bench->singles, percent);
}

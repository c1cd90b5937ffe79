/* SPDX-License-Identifier: Apache-2.0 */
/* Counts a process's own system calls (by a seccomp trap) and allocations (by interposition). */
#include "tests/bench/bench.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static _Atomic uint64_t syscalls, mallocs;
static _Atomic bool mallocs_on;

uint64_t bench_syscalls_seen(void)
{
    return atomic_load(&syscalls);
}

#if defined(__x86_64__)

/* The one place whose calls the filter lets through: the kernel reports the address after it. */
long bench_gadget(long number, long a, long b, long c, long d, long e, long f);
extern const char bench_gadget_ip[];
__asm__(".text\n.globl bench_gadget\n.hidden bench_gadget\n.type bench_gadget,@function\n"
        "bench_gadget:\n"
        "mov %rdi,%rax\nmov %rsi,%rdi\nmov %rdx,%rsi\nmov %rcx,%rdx\nmov %r8,%r10\nmov %r9,%r8\n"
        "mov 8(%rsp),%r9\nsyscall\n"
        ".globl bench_gadget_ip\n.hidden bench_gadget_ip\nbench_gadget_ip:\nret\n"
        ".size bench_gadget,.-bench_gadget\n");

static void on_trap(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number;
    (void)info;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    atomic_fetch_add(&syscalls, 1);
    r[REG_RAX] = bench_gadget(r[REG_RAX], r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8],
                              r[REG_R9]);
}

int bench_syscalls_watch(void)
{
    uint64_t ip = (uint64_t)bench_gadget_ip;
#define FIELD(name) (uint32_t) offsetof(struct seccomp_data, name)
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_rt_sigreturn, 4, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)ip, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(ip >> 32), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
#undef FIELD
    struct sock_fprog program = {.len = sizeof(code) / sizeof(*code), .filter = code};
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (sigaction(SIGSYS, &action, NULL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    /* TSYNC: the threads that a library started count as well. */
    if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
        return errno ? -errno : -EBUSY;
    return 0;
}

#else

int bench_syscalls_watch(void)
{
    return -ENOTSUP;
}

#endif

/* ---- allocations: these definitions in the executable win over glibc's in every library ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOCATOR_IS_OURS 0
#else
#define ALLOCATOR_IS_OURS 1

#define INTERPOSED __attribute__((visibility("default")))

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void count_malloc(void)
{
    if (atomic_load_explicit(&mallocs_on, memory_order_relaxed))
        atomic_fetch_add(&mallocs, 1);
}

INTERPOSED void *malloc(size_t bytes)
{
    count_malloc();
    return __libc_malloc(bytes);
}

INTERPOSED void *calloc(size_t count, size_t bytes)
{
    count_malloc();
    return __libc_calloc(count, bytes);
}

INTERPOSED void *realloc(void *old, size_t bytes)
{
    count_malloc();
    return __libc_realloc(old, bytes);
}

void *memalign(size_t alignment, size_t bytes);
INTERPOSED void *memalign(size_t alignment, size_t bytes)
{
    count_malloc();
    return __libc_memalign(alignment, bytes);
}

INTERPOSED void *aligned_alloc(size_t alignment, size_t bytes)
{
    count_malloc();
    return __libc_memalign(alignment, bytes);
}

INTERPOSED int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    count_malloc();
    if (alignment % sizeof(void *) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0)
        return EINVAL;
    void *memory = __libc_memalign(alignment, bytes);
    if (!memory)
        return ENOMEM;
    *out = memory;
    return 0;
}

#endif

int bench_mallocs_watch(bool on)
{
    atomic_store(&mallocs_on, on);
    return ALLOCATOR_IS_OURS ? 0 : -ENOTSUP;
}

uint64_t bench_mallocs_seen(void)
{
    return atomic_load(&mallocs);
}

uint64_t bench_voluntary_switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_nvcsw;
}

/* ---- self-check: sections with a known number of each ---- */

#define THREAD_CALLS 10

enum { STARTING, READY, CALL, CALLED };

static void await(_Atomic int *state, int wanted)
{
    while (atomic_load(state) != wanted) /* no yield: it would be counted */
        ;
}

static void *call_from_thread(void *state)
{
    atomic_store((_Atomic int *)state, READY);
    await(state, CALL);
    for (int i = 0; i < THREAD_CALLS; i++)
        syscall(__NR_getppid);
    atomic_store((_Atomic int *)state, CALLED);
    await(state, STARTING); /* never: a watched thread must not end */
    return NULL;
}

static int check_mallocs(struct bench *bench)
{
    void *volatile keep;
    uint64_t start = bench_mallocs_seen();
    if (bench_mallocs_watch(true) < 0)
        return bench_skip(bench, "a sanitizer has the allocator");
    free((keep = malloc(10)));
    free((keep = calloc(2, 10)));
    keep = realloc(NULL, 10);
    free((keep = realloc(keep, 1 << 20)));
    free((keep = aligned_alloc(64, 64)));
    free((keep = strdup("a library's own")));
    bench_mallocs_watch(false);
    uint64_t seen = bench_mallocs_seen() - start;
    free((keep = malloc(10)));
    if (bench_mallocs_seen() - start != seen)
        return bench_fail(bench, "allocations are counted while the counter is off");
    return seen == 6 ? 0 : bench_fail(bench, "6 allocations, counted %lu", (unsigned long)seen);
}

static int check_syscalls(struct bench *bench, long parent)
{
    uint64_t start = bench_syscalls_seen();
    bench_spin_us(1000);
    if (bench_syscalls_seen() != start)
        return bench_fail(bench, "system calls counted where there are none");
    for (int i = 0; i < 1000; i++)
        if (syscall(__NR_getppid) != parent)
            return bench_fail(bench, "a counted system call gave a wrong result");
    uint64_t seen = bench_syscalls_seen() - start;
    if (seen != 1000)
        return bench_fail(bench, "1000 system calls, counted %lu", (unsigned long)seen);
    if (syscall(__NR_close, -1) != -1 || errno != EBADF)
        return bench_fail(bench, "a counted system call lost its error");
    return 0;
}

static int check_side(struct bench *bench, int side, void *arg)
{
    (void)side;
    (void)arg;
    _Atomic int state = STARTING;
    pthread_t thread;
    long parent = syscall(__NR_getppid);
    int rc = check_mallocs(bench);
    if (rc == 0 && pthread_create(&thread, NULL, call_from_thread, &state) != 0)
        rc = bench_fail(bench, "no thread");
    if (rc != 0)
        return rc;
    await(&state, READY);
    rc = bench_syscalls_watch();
    if (rc < 0)
        return bench_skip(bench, "no seccomp filter: %s", strerror(-rc));
    rc = check_syscalls(bench, parent);
    uint64_t start = bench_syscalls_seen();
    atomic_store(&state, CALL);
    await(&state, CALLED);
    uint64_t seen = bench_syscalls_seen() - start;
    if (rc == 0 && seen != THREAD_CALLS)
        rc = bench_fail(bench, "%d system calls of a thread, counted %lu", THREAD_CALLS,
                        (unsigned long)seen);
    return rc;
}

int bench_counters_check(struct bench *bench)
{
    return bench_fork(bench, 1, check_side, NULL);
}

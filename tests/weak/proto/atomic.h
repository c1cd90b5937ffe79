/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the real proto/atomic.h: the same names, but each access is a step of the checker's
 * machine. */
#ifndef RINGSIDE_PROTO_ATOMIC_H
#define RINGSIDE_PROTO_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint64_t rs_word;
typedef _Atomic uint32_t rs_word32;

enum weak_order { WEAK_RELAXED, WEAK_ACQUIRE, WEAK_RELEASE, WEAK_ACQ_REL, WEAK_SEQ_CST };
enum weak_kind {
    WEAK_LOAD,
    WEAK_STORE,
    WEAK_CAS,
    WEAK_OR,
    WEAK_AND,
    WEAK_ADD,
    WEAK_EXCHANGE,
    WEAK_FUTEX_WAIT,
    WEAK_FUTEX_WAKE,
    WEAK_POLL
};

/* One access in the source. */
struct weak_site {
    const char *function;
    const char *what; /* the address as written there */
    int line;
    enum weak_kind kind;
    enum weak_order order; /* as written there */
    int mutated;           /* the order in force, plus 1; 0: not looked up yet */
};

/* Returns what was read. For a compare-and-swap *expected is compared, and reloaded when it
 * differs: *won says. */
uint64_t weak_access(struct weak_site *site, const volatile void *address, unsigned bytes,
                     uint64_t value, uint64_t *expected, bool *won);
/* Whether fault `number` of mutate.py is to be shown. */
bool weak_mutant(int number);

#define WEAK_SITE(kind, order, text)                                                    \
    ({                                                                                  \
        static struct weak_site weak_site = {__func__, text, __LINE__, kind, order, 0}; \
        &weak_site;                                                                     \
    })
#define WEAK_VALUE(p) __typeof__(atomic_load_explicit((p), memory_order_relaxed))
#define WEAK_CALL(kind, order, text, p, v) \
    weak_access(WEAK_SITE(kind, order, text), (p), sizeof *(p), (uint64_t)(v), NULL, NULL)
#define WEAK_ACCESS(kind, order, text, p, v) ((WEAK_VALUE(p))WEAK_CALL(kind, order, text, p, v))
#define WEAK_SWAP(order, text, p, e, v)                                                      \
    ({                                                                                       \
        uint64_t weak_expected = *(e);                                                       \
        bool weak_won = false;                                                               \
        weak_access(WEAK_SITE(WEAK_CAS, order, text), (p), sizeof *(p), (v), &weak_expected, \
                    &weak_won);                                                              \
        *(e) = (__typeof__(*(e)))weak_expected;                                              \
        weak_won;                                                                            \
    })

#define rs_load_relaxed(p) WEAK_ACCESS(WEAK_LOAD, WEAK_RELAXED, #p, p, 0)
#define rs_load_acquire(p) WEAK_ACCESS(WEAK_LOAD, WEAK_ACQUIRE, #p, p, 0)
#define rs_load_seq_cst(p) WEAK_ACCESS(WEAK_LOAD, WEAK_SEQ_CST, #p, p, 0)

#define rs_store_relaxed(p, v) ((void)WEAK_ACCESS(WEAK_STORE, WEAK_RELAXED, #p, p, v))
#define rs_store_release(p, v) ((void)WEAK_ACCESS(WEAK_STORE, WEAK_RELEASE, #p, p, v))

#define rs_cas_seq_cst(p, e, v) WEAK_SWAP(WEAK_SEQ_CST, #p, p, e, v)
#define rs_cas_acq_rel(p, e, v) WEAK_SWAP(WEAK_ACQ_REL, #p, p, e, v)
#define rs_cas_relaxed(p, e, v) WEAK_SWAP(WEAK_RELAXED, #p, p, e, v)

#define rs_fetch_or_seq_cst(p, v)  WEAK_ACCESS(WEAK_OR, WEAK_SEQ_CST, #p, p, v)
#define rs_fetch_and_seq_cst(p, v) WEAK_ACCESS(WEAK_AND, WEAK_SEQ_CST, #p, p, v)
#define rs_fetch_add_relaxed(p, v) WEAK_CALL(WEAK_ADD, WEAK_RELAXED, #p, p, v)
#define rs_exchange_seq_cst(p, v)  WEAK_ACCESS(WEAK_EXCHANGE, WEAK_SEQ_CST, #p, p, v)

/* No rs_fence_seq_cst: the machine has no fences, and a source that begins to use one must not
 * compile here. */

static inline void rs_pause(void) {}

#define rs_prefetch_read(p)  ((void)(p))
#define rs_prefetch_write(p) ((void)(p))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that names a memory order. Each release says in proto/README.md which acquire it pairs with. */
#ifndef RINGSIDE_PROTO_ATOMIC_H
#define RINGSIDE_PROTO_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint64_t rs_word;   /* an ownership word, a cell or a hint of a ring */
typedef _Atomic uint32_t rs_word32; /* a futex word */

/* Dekker pairs need both sides sequentially consistent: a locked RMW (or CASAL), then a plain (or LDAR) load. */
#define rs_load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define rs_load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define rs_load_seq_cst(p) atomic_load_explicit((p), memory_order_seq_cst)

#define rs_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define rs_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)

/* On failure *e is reloaded with acquire; a failed compare-and-swap is no fence. */
#define rs_cas_seq_cst(p, e, v)                                                                    \
    atomic_compare_exchange_strong_explicit((p), (e), (v), memory_order_seq_cst,                   \
                                            memory_order_acquire)
#define rs_cas_acq_rel(p, e, v)                                                                    \
    atomic_compare_exchange_strong_explicit((p), (e), (v), memory_order_acq_rel,                   \
                                            memory_order_acquire)
#define rs_cas_relaxed(p, e, v)                                                                    \
    atomic_compare_exchange_strong_explicit((p), (e), (v), memory_order_relaxed,                   \
                                            memory_order_relaxed)

#define rs_fetch_or_seq_cst(p, v) atomic_fetch_or_explicit((p), (v), memory_order_seq_cst)
#define rs_fetch_and_seq_cst(p, v) atomic_fetch_and_explicit((p), (v), memory_order_seq_cst)
#define rs_fetch_add_relaxed(p, v) atomic_fetch_add_explicit((p), (v), memory_order_relaxed)
#define rs_exchange_seq_cst(p, v) atomic_exchange_explicit((p), (v), memory_order_seq_cst)

#define rs_fence_seq_cst() atomic_thread_fence(memory_order_seq_cst)

/* Tells the processor that this is a spin loop. */
static inline void rs_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Hints: fetch the line for reading, or with ownership because a compare-and-swap on it is near. */
#define rs_prefetch_read(p) __builtin_prefetch((const void *)(p), 0, 3)
#define rs_prefetch_write(p) __builtin_prefetch((const void *)(p), 1, 3)

#endif

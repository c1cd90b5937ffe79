/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that the checker must see, and weakenings that are none: each order of proto/README.md
 * section 6, either side. */
#include <stddef.h>

#include "scenarios.h"

/* A row is one thing. */
/* clang-format off */
#define FOUND(name, scenario, function, what, which, order)                                        \
    {name, scenario, function, what, WEAK_##which, WEAK_##order, NULL, 0}
#define HARMLESS(name, scenario, function, what, which, order, why)                                \
    {name, scenario, function, what, WEAK_##which, WEAK_##order, why, 0}
#define OWN_LOAD "a seq_cst load of the same word follows, and stands for it (C++20)"

const struct weak_mutation weak_mutations[] = {
    /* Dekker pair a */
    FOUND("a: push, cell", "push_sleep", "rs_inbox_push", "cell_at", SWAPS, ACQ_REL),
    FOUND("a: wake, look", "push_sleep", "rs_wait_wake", NULL, LOADS, ACQUIRE),
    FOUND("a: arm", "push_sleep", "rs_wait_arm", NULL, SWAPS, ACQ_REL),
    FOUND("a: take, look at the cell", "push_sleep", "take_from", "cell_at", LOADS, ACQUIRE),
    FOUND("a: push, cell (event)", "push_event", "rs_inbox_push", "cell_at", SWAPS, ACQ_REL),
    FOUND("a: wake, look (event)", "push_event", "rs_wait_wake", NULL, LOADS, ACQUIRE),
    FOUND("a: arm (event)", "push_event", "rs_wait_arm", NULL, SWAPS, ACQ_REL),
    FOUND("a: take, look (event)", "push_event", "take_from", "cell_at", LOADS, ACQUIRE),
    /* b */
    FOUND("b: clear, in take", "sweep_take", "clear_cell", NULL, SWAPS, ACQ_REL),
    FOUND("b: clear, in push", "sweep_push", "clear_cell", NULL, SWAPS, ACQ_REL),
    FOUND("b: clear, in drop-oldest", "drop_audit", "clear_cell", NULL, SWAPS, ACQ_REL),
    FOUND("b: clear, and a seal", "seal_audit", "clear_cell", NULL, SWAPS, ACQ_REL),
    FOUND("b: re-check, word, in take", "sweep_take", "rs_ring_takeable", "delivery", LOADS,
          ACQUIRE),
    FOUND("b: re-check, word, in push", "sweep_push", "rs_ring_takeable", "delivery", LOADS,
          ACQUIRE),
    FOUND("b: re-check, word, in drop-oldest", "drop_audit", "rs_ring_takeable", "delivery", LOADS,
          ACQUIRE),
    FOUND("b: re-check, state", "seal_audit", "rs_ring_takeable", "state", LOADS, ACQUIRE),
    HARMLESS("b: sweep, queued again", "sweep_take", "sweep_delivery", NULL, SWAPS, ACQ_REL,
             OWN_LOAD),
    HARMLESS("b: nack, queued again", "nack_audit", "leave_held", NULL, SWAPS, ACQ_REL, OWN_LOAD),
    HARMLESS("b: forward, queued again", "forward_audit", "leave_held", NULL, SWAPS, ACQ_REL,
             OWN_LOAD),
    HARMLESS("b: audit, look at the word", "sweep_take", "words_make_sense", NULL, LOADS, ACQUIRE,
             OWN_LOAD),
    FOUND("b: audit, look at the cells", "sweep_take", "find_cells", NULL, LOADS, ACQUIRE),
    HARMLESS("b: seal", "seal_audit", "rs_ring_seal", NULL, SWAPS, RELEASE,
             "the seal may be a plain release"),
    /* c */
    FOUND("c: release", "release_release", "leave_held", NULL, SWAPS, ACQ_REL),
    FOUND("c: free check, words", "release_release", "rs_ring_free_check", "delivery", LOADS,
          ACQUIRE),
    /* d */
    HARMLESS("d: read end", "read_release", "end_reading", NULL, SWAPS, ACQ_REL, OWN_LOAD),
    FOUND("d: release", "read_release", "leave_held", NULL, SWAPS, ACQ_REL),
    FOUND("d: free check, words", "read_release", "rs_ring_free_check", "delivery", LOADS, ACQUIRE),
    FOUND("d: free check, readers", "read_release", "rs_ring_readers_are_done", NULL, LOADS,
          ACQUIRE),
    HARMLESS("d: sweep, reader bit off", "dead_reader", "sweep_slot", "readers", SWAPS, ACQ_REL,
             OWN_LOAD),
    /* e */
    FOUND("e: free", "release_sleep", "rs_ring_free_check", "state", SWAPS, ACQ_REL),
    FOUND("e: abandon", "abandon_sleep", "rs_ring_abandon", NULL, SWAPS, ACQ_REL),
    FOUND("e: wake, look", "release_sleep_off", "rs_wait_wake", NULL, LOADS, ACQUIRE),
    FOUND("e: arm", "release_sleep_off", "rs_wait_arm", NULL, SWAPS, ACQ_REL),
    FOUND("e: loan, look at the state", "release_sleep", "try_loan", NULL, LOADS, ACQUIRE),
    /* f */
    FOUND("f: head", "room_sleep", "help_head", NULL, SWAPS, ACQ_REL),
    FOUND("f: wake, look", "room_sleep", "rs_wait_wake", NULL, LOADS, ACQUIRE),
    FOUND("f: arm", "room_sleep", "rs_wait_arm", NULL, SWAPS, ACQ_REL),
    FOUND("f: room, look at the head", "room_sleep", "rs_inbox_has_room", "shared->head", LOADS,
          ACQUIRE),
    /* g */
    FOUND("g: overflow", "overflow_sleep", "rs_inbox_overflow", NULL, SWAPS, ACQ_REL),
    FOUND("g: wake, look", "overflow_sleep", "rs_wait_wake", NULL, LOADS, ACQUIRE),
    FOUND("g: arm", "overflow_sleep", "rs_wait_arm", NULL, SWAPS, ACQ_REL),
    FOUND("g: take, look at overflow", "overflow_sleep", "take_overflowed", NULL, LOADS, ACQUIRE),
    /* bitmap */
    FOUND("bitmap: bit off", "release_loan", "loan_from_word", NULL, SWAPS, ACQ_REL),
    FOUND("bitmap: loan, look at the state", "release_loan", "try_loan", NULL, LOADS, ACQUIRE),
    FOUND("bitmap: free", "release_loan", "rs_ring_free_check", "state", SWAPS, ACQ_REL),
    FOUND("bitmap: abandon", "abandon_loan", "rs_ring_abandon", NULL, SWAPS, ACQ_REL),
    FOUND("bitmap: free, look at the bit", "release_loan", "set_bit", NULL, LOADS, ACQUIRE),
    FOUND("summary: bit off", "release_loan_summary", "loan_from_bitmap", "summary", SWAPS,
          ACQ_REL),
    FOUND("summary: look at the word again", "release_loan_summary", "loan_from_bitmap",
          "words[index]", LOADS, ACQUIRE),
    FOUND("summary: bit of the word on", "release_loan_summary", "set_bit", NULL, SWAPS, ACQ_REL),
    FOUND("summary: free, look at the summary", "release_loan_summary", "set_bit", NULL, LOADS,
          ACQUIRE),
    /* releases and acquires */
    FOUND("seal, release", "seal_audit", "rs_ring_seal", NULL, SWAPS, ACQUIRE),
    FOUND("takeable, state", "seal_audit", "rs_ring_takeable", "state", LOADS, RELAXED),
    FOUND("nack, release", "nack_take", "leave_held", NULL, SWAPS, ACQUIRE),
    HARMLESS("takeable, word", "nack_take", "rs_ring_takeable", "delivery", LOADS, RELAXED,
             "the swap that takes the word acquires"),
    FOUND("done, release", "release_reuse", "leave_held", NULL, SWAPS, ACQUIRE),
    FOUND("free check, words", "release_reuse", "rs_ring_free_check", "delivery", LOADS, RELAXED),
    FOUND("read end, release", "read_free", "end_reading", NULL, SWAPS, ACQUIRE),
    FOUND("free check, readers", "read_free", "rs_ring_readers_are_done", NULL, LOADS, RELAXED),
    FOUND("free, release", "release_reuse", "rs_ring_free_check", "state", SWAPS, ACQUIRE),
    FOUND("abandon, release", "abandon_sleep", "rs_ring_abandon", NULL, SWAPS, ACQUIRE),
    FOUND("loan, acquire", "release_reuse", "try_loan", NULL, ALL, RELAXED),
    HARMLESS("loan, acquire of the swap alone", "release_reuse", "try_loan", NULL, SWAPS, RELAXED,
             "the load before it acquires"),
    FOUND("read begin, state", "publish_read", "rs_ring_read_begin", "state", LOADS, RELAXED),
    FOUND("push, cell, release", "push_take", "rs_inbox_push", "cell_at", SWAPS, ACQUIRE),
    HARMLESS("take, cell, acquire", "push_take", "take_from", "cell_at", LOADS, RELAXED,
             "the swap that clears the cell acquires, before the second look"),
    FOUND("take, head, acquire", "take_behind", "rs_inbox_take", "shared->head", LOADS, RELAXED),
    FOUND("overflow, release", "overflow_walk", "rs_inbox_overflow", NULL, SWAPS, ACQUIRE),
    FOUND("overflow, acquire", "overflow_walk", "take_overflowed", NULL, LOADS, RELAXED),
    FOUND("bell, release", "bell", "rs_ring_bell", NULL, SWAPS, ACQUIRE),
    FOUND("bell, acquire", "bell", "rs_ring_bell_clear", NULL, SWAPS, RELAXED),
    HARMLESS("bell, rung", "bell", "rs_ring_bell", NULL, SWAPS, ACQ_REL,
             "both are swaps of one word"),
    HARMLESS("wake, swap", "push_sleep", "rs_wait_wake", NULL, SWAPS, RELAXED,
             "who is woken looks at the cells"),
#ifdef WEAK_MUTANTS
#define MUTANT(name, scenario, number)                                                             \
    {name, scenario, NULL, NULL, WEAK_ALL, WEAK_RELAXED, NULL, number}
    MUTANT("take: no second look", "sweep_take", 1),
    MUTANT("push: no second look", "sweep_push", 2),
    MUTANT("drop-oldest: no second look", "drop_audit", 3),
    MUTANT("overflow: not set again", "overflow_walk", 4),
    MUTANT("overflow: cleared whoever came", "overflow_walk", 5),
    MUTANT("free check: downwards", "forward_free", 6),
    MUTANT("free check: readers not retired", "dead_reader_read", 7),
    MUTANT("wake: gives up", "wake_both", 8),
    MUTANT("forward: own word first", "forward_take", 9),
    MUTANT("take: no look at the state", "seal_audit", 10),
    MUTANT("arm: no swap", "push_sleep_armed", 11),
    MUTANT("summary: no second look", "release_loan_summary", 12),
    MUTANT("head: wake first", "room_sleep", 13),
    MUTANT("free: announced first", "release_sleep_off", 14),
#endif
    {NULL, NULL, NULL, NULL, WEAK_ALL, WEAK_RELAXED, NULL, 0},
};

/* SPDX-License-Identifier: Apache-2.0 */
/* The machine itself: small programs of which it is known what weak memory allows. */
#include "scenarios.h"

static rs_word x, y;

static void setup(void)
{
    x = y = 0;
    weak_name(&x, "x", 0);
    weak_name(&y, "y", 0);
}

static bool read_as(unsigned thread, uint64_t first, uint64_t second)
{
    return weak_noted(thread, 0) == first && weak_noted(thread, 1) == second;
}

static void outcome(bool seen)
{
    weak_require(!seen, "seen");
}

/* ---- store buffering: both threads write, then read the other's word as 0 ---- */

static void x_relaxed_then_y(void)
{
    rs_store_relaxed(&x, 1);
    weak_note(0, rs_load_relaxed(&y));
}

static void y_relaxed_then_x(void)
{
    rs_store_relaxed(&y, 1);
    weak_note(0, rs_load_relaxed(&x));
}

static void x_swap_then_y(void)
{
    rs_exchange_seq_cst(&x, 1);
    weak_note(0, rs_load_seq_cst(&y));
}

static void y_swap_then_x(void)
{
    rs_exchange_seq_cst(&y, 1);
    weak_note(0, rs_load_seq_cst(&x));
}

static void y_swap_then_x_acquire(void)
{
    rs_exchange_seq_cst(&y, 1);
    weak_note(0, rs_load_acquire(&x));
}

static void y_acq_rel_then_x(void)
{
    uint64_t zero = 0;

    rs_cas_acq_rel(&y, &zero, 1);
    weak_note(0, rs_load_seq_cst(&x));
}

/* It fails: no store, no fence. */
static void y_failed_swap_then_x(void)
{
    uint64_t wrong = 7;

    rs_store_relaxed(&y, 1);
    rs_cas_seq_cst(&y, &wrong, 2);
    weak_note(0, rs_load_seq_cst(&x));
}

static void both_read_0(void)
{
    outcome(weak_noted(0, 0) == 0 && weak_noted(1, 0) == 0);
}

/* ---- message passing: y is 1, x is still 0 ---- */

static void pass_release(void)
{
    rs_store_relaxed(&x, 1);
    rs_store_release(&y, 1);
}

static void pass_relaxed(void)
{
    rs_store_relaxed(&x, 1);
    rs_store_relaxed(&y, 1);
}

static void add_to_y(void)
{
    rs_fetch_add_relaxed(&y, 1);
}

static void get_acquire(void)
{
    weak_note(0, rs_load_acquire(&y));
    weak_note(1, rs_load_relaxed(&x));
}

static void get_relaxed(void)
{
    weak_note(0, rs_load_relaxed(&y));
    weak_note(1, rs_load_relaxed(&x));
}

static void passed_1(void)
{
    outcome(read_as(1, 1, 0));
}

/* By way of another's read-modify-write, which carries the release on. */
static void passed_2(void)
{
    outcome(read_as(1, 2, 0));
}

/* ---- coherence, atomicity, independent readers ---- */

static void set_x(void)
{
    rs_store_relaxed(&x, 1);
}

static void swap_x(void)
{
    rs_exchange_seq_cst(&x, 1);
}

static void release_x(void)
{
    rs_store_release(&x, 1);
}

static void release_y(void)
{
    rs_store_release(&y, 1);
}

static void swap_y(void)
{
    rs_exchange_seq_cst(&y, 1);
}

static void read_x_twice(void)
{
    weak_note(0, rs_load_relaxed(&x));
    weak_note(1, rs_load_relaxed(&x));
}

static void read_back(void)
{
    outcome(read_as(1, 1, 0));
}

static void win_x(void)
{
    uint64_t zero = 0;

    weak_note(0, rs_cas_relaxed(&x, &zero, 1));
}

static void both_won(void)
{
    outcome(weak_noted(0, 0) != 0 && weak_noted(1, 0) != 0);
}

static void x_then_y_acquire(void)
{
    weak_note(0, rs_load_acquire(&x));
    weak_note(1, rs_load_acquire(&y));
}

static void y_then_x_acquire(void)
{
    weak_note(0, rs_load_acquire(&y));
    weak_note(1, rs_load_acquire(&x));
}

static void x_then_y_seq_cst(void)
{
    weak_note(0, rs_load_seq_cst(&x));
    weak_note(1, rs_load_seq_cst(&y));
}

static void y_then_x_seq_cst(void)
{
    weak_note(0, rs_load_seq_cst(&y));
    weak_note(1, rs_load_seq_cst(&x));
}

static void disagree(void)
{
    outcome(read_as(2, 1, 0) && read_as(3, 1, 0));
}

/* A relaxed write seen by one seq_cst load is seen by all that come later in the one order: the
 * audit after a seal. */
static void look_then_y(void)
{
    weak_note(0, rs_load_seq_cst(&x));
    weak_note(1, rs_load_seq_cst(&y));
}

static void missed_by_both(void)
{
    outcome(read_as(1, 1, 0) && weak_noted(2, 0) == 0);
}

/* A row is one thing. */
/* clang-format off */
#define LITMUS(name, outcome, allowed, ...)                                                        \
    {{name, NULL, setup, {__VA_ARGS__}, outcome, false}, allowed}

const struct weak_litmus weak_litmus[] = {
    LITMUS("SB relaxed", both_read_0, true, x_relaxed_then_y, y_relaxed_then_x),
    LITMUS("SB seq_cst", both_read_0, false, x_swap_then_y, y_swap_then_x),
    LITMUS("SB acquire load", both_read_0, true, x_swap_then_y, y_swap_then_x_acquire),
    LITMUS("SB acq_rel swap", both_read_0, true, x_swap_then_y, y_acq_rel_then_x),
    LITMUS("SB failed swap", both_read_0, true, x_swap_then_y, y_failed_swap_then_x),
    LITMUS("MP", passed_1, false, pass_release, get_acquire),
    LITMUS("MP relaxed store", passed_1, true, pass_relaxed, get_acquire),
    LITMUS("MP relaxed load", passed_1, true, pass_release, get_relaxed),
    LITMUS("MP release sequence", passed_2, false, pass_release, get_acquire, add_to_y),
    LITMUS("CoRR", read_back, false, set_x, read_x_twice),
    LITMUS("swaps", both_won, false, win_x, win_x),
    LITMUS("IRIW acquire", disagree, true,
           release_x, release_y, x_then_y_acquire, y_then_x_acquire),
    LITMUS("IRIW seq_cst", disagree, false, swap_x, swap_y, x_then_y_seq_cst, y_then_x_seq_cst),
    LITMUS("C++20 order", missed_by_both, false, set_x, look_then_y, y_swap_then_x),
    {{NULL, NULL, NULL, {NULL}, NULL, false}, false},
};

# SPDX-License-Identifier: Apache-2.0
"""What became of the calls of a chaos run, by the ledger's entries of them (struct ledger_call)."""
import numpy

ROUTES = ("there", "here")  # of callers: to another stage, to their own
CALL = 4                    # the kind of an entry
NONE, OK, REFUSED, UNAVAILABLE, TIMED_OUT, CANCELLED, ABANDONED, STUCK, FAILED = range(9)
TRIED, ACCEPTED = 1, 2
KEYS = ("calls", "calls_ok", "calls_refused", "calls_unavailable", "calls_timed_out", "calls_cancelled",
        "calls_abandoned", "calls_unexplained", "replies")


def account(table, replies):
    """The figures of KEYS, how many were stuck, and in words what was unexplained."""
    sent, _, outcome, orphaned, executed, answered, near_death, _ = table[table[:, 1] == CALL].astype(int).T
    told = sent == ACCEPTED
    count = numpy.bincount(outcome[told], minlength=9).tolist()
    unexplained = {
        "without an end": told & (outcome == NONE),
        "executed more than once": executed > 1,
        "executed although refused or not sent": (executed > 0) & ~told & (sent != TRIED),
        "ended although refused or not sent": (outcome != NONE) & (outcome != ABANDONED) & ~told,
        "answered to the caller but not by a callee": ((outcome == OK) | (outcome == REFUSED)) &
                                                      ((executed != 1) | (answered != 1)),
        # Who began with it died with it; or who had taken it died before the note.
        "unavailable without a death": (outcome == UNAVAILABLE) & (orphaned == 0) &
                                       ((executed > 0) | (near_death == 0)),
    }
    numbers = {what: int(which.sum()) for what, which in unexplained.items()}
    words = ", ".join(f"{number} {what}" for what, number in numbers.items() if number)
    figures = (int(told.sum()), count[OK], count[REFUSED], count[UNAVAILABLE], count[TIMED_OUT], count[CANCELLED],
               count[ABANDONED], sum(numbers.values()), replies)
    return dict(zip(KEYS, figures)), count[STUCK], words

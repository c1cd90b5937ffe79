#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies sources of proto/ with faults in them that weak_mutant(NUMBER) switches on.

Usage: mutate.py OUTPUT_DIRECTORY SOURCE...

Each text must occur exactly once, so that a change of the sources cannot turn a fault into nothing.
"""
import pathlib
import sys

FAULTS = [
    # 1: take does not look again after it cleared a cell
    ("inbox.c", "    return taken || take_cell(", "    return taken || weak_mutant(1) ? taken : take_cell("),
    # 2, 3: neither does push, nor drop-oldest
    ("inbox.c", "now lacks a cell. */\n    if (", "now lacks a cell. */\n    if (!weak_mutant(2) && "),
    ("inbox.c", "position + 1);\n        if (", "position + 1);\n        if (!weak_mutant(3) && "),
    # 4: overflow is left alone when it is set already
    ("inbox.c", "    while (!rs_cas_seq_cst(overflow,",
     "    while (!(weak_mutant(4) && (value & RS_OVERFLOW_SET)) && !rs_cas_seq_cst(overflow,"),
    # 5: overflow is cleared whatever happened during the walk
    ("inbox.c", "    if (complete)\n",
     "    if (weak_mutant(5))\n        value = rs_load_seq_cst(&inbox->shared->overflow);\n"
     "    if (complete)\n"),
    # 6: the free check goes downwards
    ("ring.c", "uint64_t word = rs_load_seq_cst(&record->delivery[i]);",
     "uint64_t word = rs_load_seq_cst(&record->delivery[weak_mutant(6) ? 7 - i : i]);"),
    # 7: the free check does not retire the readers
    ("readers.c", "        if (rs_cas_seq_cst(&slot->readers, &readers, readers | RS_READERS_RETIRED",
     "        if (weak_mutant(7) ||\n"
     "            rs_cas_seq_cst(&slot->readers, &readers, readers | RS_READERS_RETIRED"),
    # 8: a waker that lost its swap goes away
    ("wait.c", "            return;\n        }\n",
     "            return;\n        }\n        if (weak_mutant(8))\n            return;\n"),
    # 9: forward gives up its own word first
    ("ring.c", "    for (unsigned i = 0; i + 1 < count; i++) {",
     "    if (weak_mutant(9) && leave_held(lease, lease_word(lease, destinations[count - 1], 0, "
     "RS_QUEUED)) < 0)\n        return -RINGSIDE_E_STATE;\n"
     "    for (unsigned i = 0; i + 1 < count; i++) {"),
    ("ring.c", "    int rc = leave_held(lease, lease_word(lease, destinations[count - 1]",
     "    int rc = weak_mutant(9) ? 0 : leave_held(lease, lease_word(lease, destinations[count - 1]"),
    # 10: a word is taken without a look at the state
    ("ring.c", "    return rs_state_phase(state) == RS_SEALED &&\n           rs_state_generation",
     "    return weak_mutant(10) ? true : rs_state_phase(state) == RS_SEALED &&\n"
     "           rs_state_generation"),
    # 11: a sleeper whose bit is on already does not swap
    ("wait.c", "    while (!rs_cas_seq_cst(word, &value, value | bits))",
     "    while (!(weak_mutant(11) && (value & bits) == bits) &&\n"
     "           !rs_cas_seq_cst(word, &value, value | bits))"),
    # 12: the summary's bit goes off without a second look at the word
    ("loan.c", "            if (rs_load_seq_cst(&words[index]) != 0)",
     "            if (!weak_mutant(12) && rs_load_seq_cst(&words[index]) != 0)"),
    # 13: who moves the head wakes before it does
    ("inbox.c", "    rs_cas_seq_cst(&inbox->shared->head, &position, next);\n",
     "    if (weak_mutant(13))\n        rs_wait_wake(&inbox->shared->not_full, -1);\n"
     "    rs_cas_seq_cst(&inbox->shared->head, &position, next);\n"
     "    if (weak_mutant(13))\n        return;\n"),
    # 14: a slot is announced before it is free
    ("ring.c", "    if (!rs_cas_seq_cst(&record->state, &state, rs_state(generation, 0, RS_FREE, 0)))",
     "    if (weak_mutant(14))\n        rs_ring_announce_free(ring, slot);\n"
     "    if (!rs_cas_seq_cst(&record->state, &state, rs_state(generation, 0, RS_FREE, 0)))"),
    ("ring.c", "    rs_ring_announce_free(ring, slot);\n    return true;",
     "    if (!weak_mutant(14))\n        rs_ring_announce_free(ring, slot);\n    return true;"),
    # 15: a caller looks into its cell before it looks whether the callee is gone
    ("box.c", "content != RS_BOX_STRAY ? RS_BOX_GONE",
     "content != RS_BOX_STRAY && (!weak_mutant(15) || rs_request_is_over(call->own, call->slot, "
     "call->generation)) ? RS_BOX_GONE"),
    ("box.c", "    bool over = rs_request_is_over(", "    bool over = weak_mutant(15) || rs_request_is_over("),
    # 16: a reply to the dead is taken back only by who wins the cell
    ("box.c", "    if (!won && !caller_is_gone)", "    if (!won && (weak_mutant(16) || !caller_is_gone))"),
    # 17: the sweep begins without a swap on the entry
    ("repair.c", "    if (*cursor == 0)\n", "    if (*cursor == 0 && !weak_mutant(17))\n"),
]


def main(arguments):
    """Write the copies; the exit status."""
    output = pathlib.Path(arguments[0])
    for argument in arguments[1:]:
        source = pathlib.Path(argument)
        text = source.read_text("utf-8")
        faults = [(old, new) for name, old, new in FAULTS if name == source.name]
        for old, _ in faults:
            if text.count(old) != 1:
                print(f"mutate.py: {source}: occurs {text.count(old)} times, not once: {old!r}",
                      file=sys.stderr)
                return 1
        for old, new in faults:
            text = text.replace(old, new)
        (output / f"mutant_{source.name}").write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""The limit of everything that copies once: glibc's memmove, called from Python, in one process."""

import ctypes
import statistics

from rivals import SIZES
from rivals.pair import ends, mark, new_array, pin, rounds, timed

COLD_BYTES = 256 << 20  # more than caches hold
STRIDE_BYTES = (64 << 10) + 64  # of small copies, so that none lands in a page or a cache set used just before


def copying(size, places):
    """A function that copies `size` bytes and reads the copy's ends: to the next of `places` offsets each time."""
    region = new_array(max(places) + size)
    targets = [region[place // 4:(place + size) // 4] for place in places]
    addresses = [target.ctypes.data for target in targets]
    turn = 0

    def copy(value, source):
        nonlocal turn
        turn = turn + 1 if turn + 1 < len(targets) else 0
        mark(source, value)
        ctypes.memmove(addresses[turn], source.ctypes.data, size)
        return ends(targets[turn])

    return copy


def measure(module, names, sockets, options):
    pin(options.cpus[0])
    for label in options.sizes:
        size = SIZES[label]
        places = {"memcpy": [0], "memcpy_cold": list(range(0, COLD_BYTES, max(size, STRIDE_BYTES)))}
        for name in names:
            copy, source = copying(size, places[name]), new_array(size)
            rounds(lambda value: timed(copy, value, source), options.seconds / 4, len(places[name]) + 1)
            taken = rounds(lambda value: timed(copy, value, source), options.seconds, 5)
            print(f"{name}_{label}_us_p50 {statistics.median(taken) / 1000:.6g}", flush=True)

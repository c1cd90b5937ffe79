# SPDX-License-Identifier: Apache-2.0
"""Context switches of processes, as the kernel counts them."""
from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class Switches(NamedTuple):
    """Counts, or rates per second, of a process with all its threads, or of several."""

    voluntary: float = 0    # it had nothing to do
    involuntary: float = 0  # another one wanted the CPU

    def plus(self, other: Switches, sign: int = 1) -> Switches:
        """Sum of two, or their difference if `sign` is -1."""
        return Switches(*(a + sign * b for a, b in zip(self, other)))

    def per(self, seconds: float) -> Switches:
        """As a rate."""
        return Switches(*(count / seconds for count in self))


def of(pid: int | None = None) -> Switches:
    """Those of a process, or of this one, so far; a thread that has ended no longer counts."""
    counts = {"voluntary_ctxt_switches": 0, "nonvoluntary_ctxt_switches": 0}
    for status in Path(f"/proc/{pid or os.getpid()}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            for line in status.read_text().splitlines():
                name, _, value = line.partition(":")
                if name in counts:
                    counts[name] += int(value)
    return Switches(*counts.values())

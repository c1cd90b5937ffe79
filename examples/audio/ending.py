# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment: it ends the program between its steps, never inside one."""
from __future__ import annotations

import contextlib
import signal
from typing import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_depth = 0    # of nested steps
_pending = 0  # a signal that has arrived and not been raised, or 0


def install() -> None:
    """From now on each of SIGNALS raises SystemExit(128 + number), once, outside of steps."""
    for number in SIGNALS:
        signal.signal(number, _handle)


@contextlib.contextmanager
def step() -> Iterator[None]:
    """Run what is within to its end; a signal that arrives meanwhile raises after it.

    A process between its fork and the name that it gets would otherwise be nobody's to end.
    """
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _pending and not _depth:
            _raise()


def _handle(number: int, _frame: object) -> None:
    global _pending
    _pending = _pending or number
    if not _depth:
        _raise()


def _raise() -> None:
    global _pending
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # once is enough; the rest is tearing down
    first, _pending = _pending, 0
    raise SystemExit(128 + first)

# SPDX-License-Identifier: Apache-2.0
"""The connection that a process uses when nobody names one: what unpickled messages are read through."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from ._core import Connection, Message

_lock = threading.Lock()
_last: Callable[[], Connection | None] = lambda: None  # a weak reference: who connected decides when it ends
_last_socket: str | None = None  # where that was, for a child that was forked off
_own: Connection | None = None  # made here; lasts as long as the process


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def remember(connection: Connection) -> None:
    """Make it the default from now on."""
    global _last, _last_socket
    with _lock:
        _last, _last_socket = weakref.ref(connection), connection.socket


def default_connection(socket: str | None = None) -> Connection:
    """The connection of this process that unpickled messages are read through.

    It is the one that ``connect()`` made last, while that is open. Without one, also in a child that was forked off,
    the process connects by itself: to where its parent had connected, to ``RINGSIDE_SOCKET``, or to `socket`.

    Parameters
    ----------
    socket : str, optional
        Where to connect when nothing else says so; a pickled message brings its sender's.

    Raises
    ------
    Unavailable, InvalidArgument and others
        As ``connect()``.
    """
    global _own
    from . import connect

    with _lock:
        for connection in (_last(), _own):
            if connection is not None and connection._usable:
                return connection
        where = _last_socket or os.environ.get("RINGSIDE_SOCKET") or socket
        _own = connect(where, _remember=False)
        return _own


def unpickle_message(text: str, socket: str) -> Message:
    """The message that a pickle names, read through the default connection."""
    return default_connection(socket)._read_added(text)

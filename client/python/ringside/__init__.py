# SPDX-License-Identifier: Apache-2.0
"""Move tensors between the workers of a pipeline through shared memory.

    import ringside

    with ringside.connect() as rs:                      # RINGSIDE_SOCKET
        with rs.loan((1, 80, 3000), "float32", timeout=0.05) as slot:
            slot.numpy()[...] = features                # written once, in place
            slot.send("embeddings", ttl=0.2)
        rs.send("embeddings", features, meta={"utterance": 7})  # or in one line, with a copy
        for message in rs.inbox():                      # acknowledged when the next one is asked for
            mel = message.numpy()                       # read-only, no copy; the lease lasts as long
        ticket = rs.put({"mel": mel, "id": 7})          # or by ticket, through whatever carries one
        batch = rs.get(ticket)                          # in any worker of any local stage
        with rs.call("denoiser.Denoise", mel, timeout=0.5) as reply:  # a method of the stage behind a route; see Stage
            clean = reply.numpy()

`timeout` is how long a call may block, in seconds (None: for ever); `ttl` is how long a message may live. Errors derive
from RingsideError; Timeout is also a TimeoutError. A lease lasts as long as its views (arrays, memoryviews, DLPack), and
close() with views alive is safe. A forked child must connect anew; the parent's views are not mapped there.
"""

from __future__ import annotations

import os
import sys

from . import _aio, _calls, _core, _support, _tree
from ._core import Connection, Message, Slot, Tensor
from ._default import default_connection, remember
from ._errors import (
    Cancelled,
    Corrupt,
    Denied,
    Draining,
    ExpiredTicket,
    ForeignTicket,
    Forked,
    InternalError,
    InUse,
    InvalidArgument,
    InvalidShape,
    InvalidState,
    LimitReached,
    MalformedTicket,
    NoRoute,
    ProtocolError,
    RingFull,
    RingsideError,
    StaleTicket,
    SystemCallError,
    Timeout,
    TooBig,
    Unavailable,
    Unimplemented,
    UnsupportedDtype,
    VersionMismatch,
)
from ._serve import Stage
from ._stats import Stats
from ._ticket import Ticket

_core.set_support(_support)
# Methods written in Python.
for _type, _name, _function in (
    (Connection, "put", _tree.put),
    (Connection, "get", _tree.get),
    (Connection, "put_async", _aio.put_async),
    (Connection, "loan_async", _aio.loan_async),
    (Connection, "send_async", _aio.send_async),
    (Connection, "receive_async", _aio.receive_async),
    (Connection, "inbox_async", _aio.inbox_async),
    (Connection, "call_async", _calls.call_async),
    (Connection, "call_stream", _calls.call_stream),
    (Connection, "call_stream_async", _calls.call_stream_async),
    (Slot, "send_async", _aio.slot_send_async),
    (Message, "forward_async", _aio.forward_async),
    (Message, "reply_async", _calls.reply_async),
    (Message, "tree", _tree.tree),
):
    setattr(_type, _name, _function)

__version__ = _core.VERSION

__all__ = [
    "Cancelled", "Connection", "Corrupt", "Denied", "Draining", "ExpiredTicket", "ForeignTicket", "Forked",
    "InUse", "InternalError", "InvalidArgument", "InvalidShape", "InvalidState", "LimitReached",
    "MalformedTicket", "Message", "NoRoute", "ProtocolError", "RingFull", "RingsideError", "Slot",
    "Stage", "StaleTicket", "Stats", "SystemCallError", "Tensor", "Ticket", "Timeout", "TooBig", "Unavailable",
    "Unimplemented", "UnsupportedDtype", "VersionMismatch", "connect", "default_connection",
]


def connect(
    socket: str | os.PathLike[str] | None = None,
    name: str | None = None,
    timeout: float | None = 5.0,
    *,
    _remember: bool = True,
) -> Connection:
    """Connect to a sidecar.

    Parameters
    ----------
    socket : path, optional
        The sidecar's socket; by default the environment's ``RINGSIDE_SOCKET``.
    name : str, optional
        Shown by ``ringside status``; by default the script's name.
    timeout : float, optional
        Seconds to reach the sidecar; None waits for ever.

    Returns
    -------
    Connection
        A context manager that closes it.

    Raises
    ------
    Unavailable, Timeout
        No sidecar answers there.
    Denied, VersionMismatch, LimitReached, Draining
        It does, and refuses.
    """
    if name is None:
        name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    connection = Connection(None if socket is None else os.path.abspath(socket), name, timeout)
    if _remember:
        remember(connection)
    return connection

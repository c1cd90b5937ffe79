# SPDX-License-Identifier: Apache-2.0
"""The rival: the same tensors through pickle (protocol 5) over a UNIX socket to another process.

Tensors are pickled in band, as `pickle.dumps` and `multiprocessing` do it; the receiver reads into
one buffer that it keeps. Only one message is under way at a time, as in the pipeline.
"""
from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

import fleet
import switches
from ending import step
from switches import Switches

_LENGTH = struct.Struct("<Q")
_TIMES = struct.Struct("<QQ")   # monotonic ns: all bytes here, tensors held
_SWITCHES = struct.Struct("<QQ")


@dataclass(frozen=True)
class Transfer:
    """One message, in ns; the parts follow each other without a gap."""

    body_bytes: int
    serialize_ns: int
    copy_ns: int
    deserialize_ns: int

    @property
    def hop_ns(self) -> int:
        """From the sender's first step to the receiver holding the tensors."""
        return self.serialize_ns + self.copy_ns + self.deserialize_ns


class Rival:
    """The sending side; `close` ends the receiving process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, step():
            self._receiver = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                start_new_session=True, preexec_fn=fleet.die_with_parent)

    def transfer(self, tensors: list[np.ndarray], meta: dict) -> Transfer:
        """Send one message and wait until the receiver has told its times."""
        begin = time.monotonic_ns()
        blob = pickle.dumps((tensors, meta), protocol=5)
        serialized = time.monotonic_ns()
        self._socket.sendall(_LENGTH.pack(len(blob)))
        self._socket.sendall(blob)
        arrived, held = _TIMES.unpack(_read(self._socket, bytearray(_TIMES.size)))
        return Transfer(sum(t.nbytes for t in tensors), serialized - begin, arrived - serialized,
                        held - arrived)

    def switches(self) -> Switches:
        """Context switches of both processes so far."""
        self._socket.sendall(_LENGTH.pack(0))
        theirs = _SWITCHES.unpack(_read(self._socket, bytearray(_SWITCHES.size)))
        return switches.of().plus(Switches(*theirs))

    def close(self) -> None:
        """End the receiver; it leaves when its socket ends."""
        self._socket.close()
        try:
            self._receiver.wait(2)
        except subprocess.TimeoutExpired:
            self._receiver.kill()
            self._receiver.wait()


def _read(source: socket.socket, buffer: bytearray, length: int | None = None) -> memoryview:
    """Fill the first `length` bytes of `buffer`; EOFError when the socket ends before."""
    view = memoryview(buffer)[:length]
    got = 0
    while got < len(view):
        count = source.recv_into(view[got:])
        if not count:
            raise EOFError("the other side of the socket is gone")
        got += count
    return view


def receive(source: socket.socket) -> None:
    """Receive messages; a length of 0 asks for the context switches. EOFError at the end."""
    buffer = bytearray()
    while True:
        length, = _LENGTH.unpack(_read(source, bytearray(_LENGTH.size)))
        if not length:
            source.sendall(_SWITCHES.pack(*switches.of()))
            continue
        if length > len(buffer):
            buffer = bytearray(length)
        blob = _read(source, buffer, length)
        arrived = time.monotonic_ns()
        message = pickle.loads(blob)
        held = time.monotonic_ns()
        del message
        source.sendall(_TIMES.pack(arrived, held))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as end, \
            contextlib.suppress(EOFError, ConnectionError):
        receive(end)

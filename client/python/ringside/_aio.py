# SPDX-License-Identifier: Apache-2.0
"""asyncio: the same calls, awaited. No thread: messages are waited for on the connection's descriptor.

A free slot and room in an inbox have no descriptor; they are looked for again after 0.2 ms, and then ever more seldom,
up to each 5 ms. A task that is cancelled while it waits has taken nothing.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ._errors import InvalidState, RingFull, Timeout

if TYPE_CHECKING:
    import asyncio

    from ._core import Connection, Message, Slot
    from ._ticket import Ticket

T = TypeVar("T")

FIRST_PAUSE, LAST_PAUSE = 0.0002, 0.005
A_MOMENT = 1e-6  # of waiting: what makes a route that blocks say Timeout instead of RingFull
TURN = 32  # messages that an inbox may give without letting other tasks run


class _Waiters:
    """The tasks of one event loop that wait for messages of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        global _latest
        if _latest() is not loop:
            _latest = weakref.ref(loop)
            for each in list(_waiters.values()):
                each.forget_if_over()
        self.loop, self.connection = loop, connection
        self.futures: set[asyncio.Future[None]] = set()
        self.fd = connection.fileno()
        connection._watch(self.wake_soon)
        try:
            loop.add_reader(self.fd, self.readable)
        except BaseException:
            connection._unwatch(self.wake_soon)
            raise

    def readable(self) -> None:
        # Whoever clears it wakes all who wait; other loops may have their own tasks.
        global _last_clear
        self.connection._clear()
        _last_clear = object()
        self.wake()
        for (loop, connection), others in list(_waiters.items()):
            if connection is self.connection and loop is not self.loop:
                others.wake_soon()

    def wake(self) -> None:
        # All of them: whoever is too late waits again, and one that was cancelled takes nobody's turn.
        for future in self.futures:
            if not future.done():
                future.set_result(None)

    def wake_soon(self) -> None:
        """In whatever thread; also called by close()."""
        try:
            self.loop.call_soon_threadsafe(self.wake)
        except RuntimeError:  # the loop is closed as well
            self.forget_if_over()

    def forget_if_over(self) -> None:
        """Tasks of a loop that was closed over them are never resumed: they go, and what they wait for with them."""
        if self.loop.is_closed() and _waiters.pop((self.loop, self.connection), None) is self:
            self.end()
            self.futures.clear()

    def end(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_reader(self.fd)
        self.connection._unwatch(self.wake_soon)


_waiters: dict[tuple[asyncio.AbstractEventLoop, Connection], _Waiters] = {}
_last_clear = object()
_latest: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None  # the loop that waited last


def _before_look() -> object:
    """What _readable() is given, so that it knows of what another loop cleared after a look."""
    return _last_clear


async def _readable(connection: Connection, deadline: float | None, before_look: object) -> None:
    """Until a message or a reply may be there, the deadline is over, or the connection is closed."""
    import asyncio

    loop = asyncio.get_running_loop()
    key = loop, connection
    waiters = _waiters.get(key)
    if waiters is None:
        waiters = _waiters[key] = _Waiters(loop, connection)
    future: asyncio.Future[None] = loop.create_future()
    waiters.futures.add(future)
    if _last_clear is not before_look:
        _set(future)
    timer = None
    if deadline is not None:
        timer = loop.call_later(max(0.0, deadline - time.monotonic()), _set, future)
    try:
        await future
    finally:
        if timer is not None:
            timer.cancel()
        waiters.futures.discard(future)
        if not waiters.futures and _waiters.get(key) is waiters:
            del _waiters[key]
            waiters.end()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout!r}; it is a number of seconds, 0 or more")
    return time.monotonic() + timeout


async def receive_async(self: Connection, timeout: float | None = None) -> Message:
    """As receive(): the next Message, or Timeout."""
    deadline = _deadline(timeout)
    while True:
        before = _before_look()
        message = self._receive_now()  # nothing is awaited between this and the return
        if message is not None:
            return message
        if deadline is not None and time.monotonic() >= deadline:
            raise Timeout("no message came within the timeout")
        await _readable(self, deadline, before)


class AsyncInbox:
    """What inbox_async() gives: messages, each acknowledged when the next one is asked for.

    The loop ends when none came within timeout, or at close(). After a break the last message is still held: release()
    it, or let it go back to the inbox. A cancelled ``anext()`` takes nothing; the next one goes on.
    """

    def __init__(self, connection: Connection, timeout: float | None) -> None:
        self._connection, self._timeout = connection, timeout
        self._current: Message | None = None
        self._given = 0  # without a pause

    def __aiter__(self) -> AsyncInbox:
        return self

    async def __anext__(self) -> Message:
        import asyncio

        last, self._current = self._current, None
        if last is not None and last._held:
            last.release()
        del last
        self._given += 1
        if self._given % TURN == 0:
            await asyncio.sleep(0)
        try:
            message = await receive_async(self._connection, self._timeout)
        except Timeout:
            raise StopAsyncIteration from None
        except InvalidState:
            if self._connection.closed:
                raise StopAsyncIteration from None
            raise
        self._current = message
        return message


def inbox_async(self: Connection, timeout: float | None = None) -> AsyncInbox:
    """``async for message in rs.inbox_async()``: as inbox()."""
    return AsyncInbox(self, timeout)


async def _again(attempt: Callable[[], T], refused: tuple[type[Exception], ...], timeout: float | None) -> T:
    """The attempt's result, as soon as it is not refused."""
    import asyncio

    deadline = _deadline(timeout)
    pause = FIRST_PAUSE
    while True:
        try:
            return attempt()
        except refused as error:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                if timeout == 0 or isinstance(error, Timeout):
                    raise
                raise Timeout(str(error)) from None
        await asyncio.sleep(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, LAST_PAUSE)


async def loan_async(self: Connection, shape: Any, dtype: Any = None, timeout: float | None = None,
                     meta_bytes: int = 0) -> Slot:
    """As loan(); a free slot is looked for again and again, at most every 5 ms."""
    return await _again(lambda: self.loan(shape, dtype, 0, meta_bytes), (RingFull,), timeout)


async def slot_send_async(self: Slot, route: str, ttl: float | None = None, meta: Any = None, timeout: float | None = None,
                          stream: int = 0, sequence: int = 0, trace: bytes | None = None) -> None:
    """As send(); on a route that blocks, room is looked for again and again, at most every 5 ms.

    Cancelled, the slot is still held.
    """
    moment = 0 if timeout == 0 else A_MOMENT
    await _again(lambda: self.send(route, ttl, meta, moment, stream, sequence, trace), (Timeout,), timeout)


async def send_async(self: Connection, route: str, data: Any, meta: Any = None, ttl: float | None = None,
                     timeout: float | None = None, stream: int = 0, sequence: int = 0, trace: bytes | None = None) -> None:
    """As send(): copy an array, or a list of them, and publish it."""
    from ._support import encode_metadata

    deadline = _deadline(timeout)
    meta_bytes = 0 if meta is None else len(encode_metadata(meta)) if isinstance(meta, dict) else memoryview(meta).nbytes
    with await _again(lambda: self._load(data, meta_bytes, 0), (RingFull,), timeout) as slot:
        if deadline is not None and timeout != 0:
            timeout = max(A_MOMENT, deadline - time.monotonic())
        await slot_send_async(slot, route, ttl, meta, timeout, stream, sequence, trace)


async def put_async(self: Connection, obj: Any, readers: int = 1, kept: bool = False, ttl: float | None = None,
                    timeout: float | None = None) -> Ticket:
    """As put(); a free slot is looked for again and again, at most every 5 ms."""
    from ._tree import encode

    arrays, structure = encode(obj)
    return await _again(lambda: self._put(arrays, structure, readers, kept, ttl, 0), (RingFull,), timeout)


async def forward_async(self: Message, route: str, ttl: float | None = None, meta: Any = None,
                        timeout: float | None = None, stream: int = 0, sequence: int = 0, trace: bytes | None = None) -> bool:
    """As forward(); room is looked for as by send_async()."""
    moment = 0 if timeout == 0 else A_MOMENT
    return await _again(lambda: self.forward(route, ttl, meta, moment, stream, sequence, trace), (Timeout,), timeout)

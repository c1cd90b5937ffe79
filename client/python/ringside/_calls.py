# SPDX-License-Identifier: Apache-2.0
"""Calls beyond the plain one, which is compiled: many replies, and both awaited."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ._aio import A_MOMENT, _again, _before_look, _deadline, _readable, _set
from ._errors import InvalidState, RingFull, Timeout

if TYPE_CHECKING:
    import asyncio

    from ._core import Call, Connection, Message

LOOK_AGAIN = 1.0  # seconds: after this long, whoever waits for a reply looks whether its callee lives


class Replies:
    """What call_stream() gives: replies in order, each released when the next one is asked for.

    After the last one, after a break, or when it is dropped, close() has happened or happens: the callee is told that
    nobody waits. The reply that came last is still held then: release() it, or drop it.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._current: Message | None = None

    def __iter__(self) -> Replies:
        return self

    def __next__(self) -> Message:
        _release(self)
        self._current = self._call._next()
        if self._current is None:
            raise StopIteration
        return self._current

    def close(self) -> None:
        """End the call: nothing more will come."""
        self._call.cancel()

    def __enter__(self) -> Replies:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncReplies:
    """What call_stream_async() gives: as Replies, for ``async for``. A cancelled ``anext()`` ends the call."""

    def __init__(self, connection: Connection, request: tuple[str, Any, Any, float | None, bytes | None, int]) -> None:
        self._connection, self._request = connection, request
        self._call: Call | None = None
        self._deadline: float | None = None
        self._current: Message | None = None
        self._closed = False

    def __aiter__(self) -> AsyncReplies:
        return self

    async def __anext__(self) -> Message:
        _release(self)
        if self._closed:
            raise StopAsyncIteration
        if self._call is None:
            self._deadline = _deadline(self._request[3])
            call = await _begin(self._connection, *self._request)
            if self._closed:  # by another task, meanwhile
                call.cancel()
                raise StopAsyncIteration
            self._call = call
        await _ready(self._connection, self._call, self._deadline)
        self._current = self._call._next()  # does not block
        if self._current is None:
            raise StopAsyncIteration
        return self._current

    async def aclose(self) -> None:
        """End the call: nothing more will come."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    async def __aenter__(self) -> AsyncReplies:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def _release(replies: Replies | AsyncReplies) -> None:
    last, replies._current = replies._current, None
    if last is not None and last._held:
        last.release()


class _Line:
    """Where the tasks of a loop wait for room for replies of one connection: only the first of them looks for it."""

    def __init__(self, key: tuple[asyncio.AbstractEventLoop, Connection]) -> None:
        self.key = key
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def join(self, deadline: float | None) -> asyncio.Future[None]:
        """Until it is the first, or the deadline is over. To be left."""
        loop = self.key[0]
        turn = loop.create_future()
        self.waiting.append(turn)
        if self.waiting[0] is turn:
            return turn
        timer = None if deadline is None else loop.call_later(max(0.0, deadline - time.monotonic()), _set, turn)
        try:
            await turn
        except BaseException:
            self.leave(turn)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return turn

    def leave(self, turn: asyncio.Future[None]) -> None:
        self.waiting.remove(turn)
        if self.waiting:
            _set(self.waiting[0])
        else:
            _lines.pop(self.key, None)


_lines: dict[tuple[asyncio.AbstractEventLoop, Connection], _Line] = {}


async def _begin(connection: Connection, target: str, data: Any, meta: Any, timeout: float | None, trace: bytes | None,
                 credits: int) -> Call:
    """The request; a slot, room in the inbox and room for replies are looked for again and again."""
    import asyncio

    deadline = _deadline(timeout)
    call = connection._call(target, data, meta, timeout, trace, credits)

    def left() -> float | None:
        return None if deadline is None else max(A_MOMENT, deadline - time.monotonic())

    key = asyncio.get_running_loop(), connection
    line = _lines.setdefault(key, _Line(key))
    turn = await line.join(deadline)
    try:
        await _again(lambda: call._reserve(0), (RingFull,), left())
    finally:
        line.leave(turn)
    await _again(lambda: call._load(0), (RingFull,), left())
    await _again(lambda: call._send(A_MOMENT), (Timeout,), left())
    return call


async def _ready(connection: Connection, call: Call, deadline: float | None) -> None:
    """Until there is a reply, or the call is over."""
    try:
        while True:
            before = _before_look()
            if call._poll():
                return
            look_again = time.monotonic() + LOOK_AGAIN
            await _readable(connection, look_again if deadline is None else min(look_again, deadline), before)
    except BaseException:
        call.cancel()
        raise


async def call_async(self: Connection, target: str, data: Any = None, meta: Any = None, timeout: float | None = None,
                     trace: bytes | None = None) -> Message:
    """As call(). A task that is cancelled while it waits cancels the call, and the callee sees it."""
    deadline = _deadline(timeout)
    call = await _begin(self, target, data, meta, timeout, trace, 1)
    await _ready(self, call, deadline)
    reply = call._reply()
    if call.open:
        call.cancel()
        raise InvalidState(f"{target!r} answers with a stream: use call_stream_async()")
    return reply


def call_stream(self: Connection, target: str, data: Any = None, meta: Any = None, timeout: float | None = None,
                credits: int = 4, trace: bytes | None = None) -> Replies:
    """Call a method that answers with many replies: ``for reply in rs.call_stream("stage.Method", array)``.

    Parameters
    ----------
    target : str
        "ROUTE.METHOD": a route of this stage, and a method of the stage that it leads to.
    data, meta, timeout, trace
        As of call(); the timeout is for the whole stream.
    credits : int
        How many replies the callee may be ahead, 1..64: then it waits.

    Returns
    -------
    Replies
        An iterator of messages; close() it, or drop it, to cancel the call.
    """
    call = self._call(target, data, meta, timeout, trace, credits)
    call._start()
    return Replies(call)


def call_stream_async(self: Connection, target: str, data: Any = None, meta: Any = None, timeout: float | None = None,
                      credits: int = 4, trace: bytes | None = None) -> AsyncReplies:
    """``async for reply in rs.call_stream_async("stage.Method", array)``: as call_stream(); the request goes out with the
    first ``anext()``."""
    return AsyncReplies(self, (target, data, meta, timeout, trace, credits))


async def reply_async(self: Message, data: Any = None, meta: Any = None, last: bool = True,
                      timeout: float | None = None) -> None:
    """As reply(); a slot, and room while the caller is slow, are looked for again and again, at most every 5 ms."""
    await _again(lambda: self.reply(data, meta, last, 0), (RingFull,), timeout)

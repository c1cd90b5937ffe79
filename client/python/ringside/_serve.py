# SPDX-License-Identifier: Apache-2.0
"""Serving: functions as the methods of a stage."""

from __future__ import annotations

import collections.abc
import inspect
import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, TypeVar, overload

from . import _core
from ._errors import Cancelled, InvalidState, RingsideError, Timeout, Unavailable, Unimplemented

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterator

    from ._core import Connection, Message

Function = TypeVar("Function", bound=Callable[..., Any])

METHOD_BYTES = 63
SLICE = 0.1  # seconds between two looks at stop()
WATCH = 0.02  # seconds between two looks at whether calls in asyncio are cancelled

_INTERNAL = 1018  # of enum ringside_error

_log = logging.getLogger("ringside")


class Stage:
    """Methods that other stages may call, and what becomes of messages that are no calls.

        stage = ringside.Stage()

        @stage.method
        def Denoise(request):                    # a Message: arrays, meta, cancelled, time_left
            return request.numpy() * 0.5         # an array, a list of them, a dict, a loaned Slot, or None

        @stage.method
        def Chunks(request):                     # a generator, or any iterator: a stream of replies
            for chunk in np.array_split(request.numpy(), 10):
                yield chunk

        stage.serve(rs)

    An exception becomes an error reply: a RingsideError is raised again at the caller, any other is INTERNAL there, with
    its type and text, and is logged here (logger "ringside"). A call is released when its method has returned; its views
    keep the lease as always.
    """

    def __init__(self) -> None:
        self._methods: dict[str, Callable[..., Any]] = {}
        self._on_message: Callable[..., Any] | None = None
        self._stopped = threading.Event()

    @overload
    def method(self, function: Function, *, name: str | None = None) -> Function: ...
    @overload
    def method(self, function: None = None, *, name: str | None = None) -> Callable[[Function], Function]: ...

    def method(self, function: Any = None, *, name: str | None = None) -> Any:
        """Make a function a method, under its own name or another one.

        For serve_async() it may be a coroutine function or an asynchronous generator as well.
        """
        if function is None:
            return lambda function: self._add(function, name)
        return self._add(function, name)

    def _add(self, function: Function, name: str | None) -> Function:
        name = function.__name__ if name is None else name
        if not 1 <= len(name.encode()) <= METHOD_BYTES or "." in name or "\0" in name:
            raise ValueError(f"{name!r} cannot be the name of a method: 1..{METHOD_BYTES} bytes without a dot")
        if name in self._methods:
            raise ValueError(f"there is a method {name!r} already")
        self._methods[name] = function
        return function

    def on_message(self, function: Function) -> Function:
        """Make a function what messages that are no calls are given to.

        The message is released when it returns, and goes back to the inbox when it raises. Without one they go back.
        """
        self._on_message = function
        return function

    def stop(self) -> None:
        """Let serve() and serve_async() return when the calls at hand are done; from any thread, or from a method."""
        self._stopped.set()

    def serve(self, rs: Connection, timeout: float | None = None, threads: int = 1) -> None:
        """Receive and answer, until stop(), until the connection is closed, or until nothing came for `timeout` seconds.

        Parameters
        ----------
        rs : Connection
        timeout : float, optional
            Seconds without a message after which it returns; None: never.
        threads : int
            How many calls are answered at a time; this thread is one of them. More processes do it as well.
        """
        self._stopped.clear()
        others = [threading.Thread(target=self._serve, args=(rs, timeout), daemon=True) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        try:
            self._serve(rs, timeout)
        except BaseException:
            self.stop()
            raise
        finally:
            for thread in others:
                thread.join()

    def _serve(self, rs: Connection, timeout: float | None) -> None:
        idle_since = time.monotonic()
        while not self._stopped.is_set():
            left = SLICE if timeout is None else idle_since + timeout - time.monotonic()
            try:
                message = rs.receive(max(0.0, min(SLICE, left)))
            except Timeout:
                if left <= 0:
                    return
                continue
            except InvalidState:
                if rs.closed:
                    return
                raise
            self._dispatch(rs, message)
            del message
            idle_since = time.monotonic()

    # ---- one message ----

    def _find(self, rs: Connection, name: str) -> Callable[..., Any]:
        function = self._methods.get(name)
        if function is None:
            known = ", ".join(self._methods) or "none"
            raise Unimplemented(f"stage {rs.stage!r} has no method {name!r}; it has: {known}")
        return function

    def _dispatch(self, rs: Connection, message: Message) -> None:
        name = message.method
        if name is None:
            self._hand_over(message)
            return
        try:
            result = self._find(rs, name)(message)
            if isinstance(result, collections.abc.Iterator):
                _send_all(message, result)
            elif inspect.iscoroutine(result) or isinstance(result, collections.abc.AsyncIterator):
                if inspect.iscoroutine(result):
                    result.close()
                raise TypeError(f"method {name!r} is asynchronous: serve it with serve_async()")
            elif not message._held or message._answered:
                _spare(name, result)
            else:
                message.reply(result)
        except Exception as error:
            _answer_failure(message, name, error)
        finally:
            _let_go(message)

    def _hand_over(self, message: Message) -> None:
        if self._on_message is None:
            message.nack()
            return
        try:
            with message:
                self._on_message(message)
        except Exception:
            _log.exception("the handler of messages failed; the message goes back")

    # ---- asyncio ----

    async def serve_async(self, rs: Connection, timeout: float | None = None, limit: int = 64) -> None:
        """As serve(), in tasks of the running loop: at most `limit` calls at a time.

        Methods may be coroutine functions and asynchronous generators, which are cancelled when their call is. A plain
        function runs in the loop and holds it up. When this task is cancelled, so are they, and their callers get
        Unavailable.
        """
        import asyncio

        self._stopped.clear()
        tasks: dict[asyncio.Task[None], Message] = {}
        watcher = asyncio.create_task(_watch(tasks))
        idle_since = time.monotonic()
        try:
            while not self._stopped.is_set():
                if len(tasks) >= limit:
                    await asyncio.wait(list(tasks), timeout=SLICE, return_when=asyncio.FIRST_COMPLETED)
                    continue
                if tasks:
                    idle_since = time.monotonic()
                left = SLICE if timeout is None else idle_since + timeout - time.monotonic()
                try:
                    message = await rs.receive_async(max(0.0, min(SLICE, left)))
                except Timeout:
                    if left <= 0 and not tasks:
                        return
                    continue
                task = asyncio.create_task(self._dispatch_async(rs, message))
                tasks[task] = message
                task.add_done_callback(lambda task: tasks.pop(task, None))
                del message, task
                idle_since = time.monotonic()
                await asyncio.sleep(0)
        except InvalidState:
            if not rs.closed:
                raise
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        finally:
            watcher.cancel()
            if tasks:
                await asyncio.wait(list(tasks))

    async def _dispatch_async(self, rs: Connection, message: Message) -> None:
        import asyncio

        name = message.method
        if name is None:
            await self._hand_over_async(message)
            return
        try:
            result = self._find(rs, name)(message)
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, collections.abc.AsyncIterator):
                await _send_all_async(message, result)
            elif isinstance(result, collections.abc.Iterator):
                await _send_all_async(message, _one_by_one(result))
            elif not message._held or message._answered:
                _spare(name, result)
            else:
                await message.reply_async(result)
        except asyncio.CancelledError:
            if not (message._held and message.cancelled):
                _answer_failure(message, name, Unavailable("the callee stopped serving"))
                raise
        except Exception as error:
            _answer_failure(message, name, error)
        finally:
            _let_go(message)

    async def _hand_over_async(self, message: Message) -> None:
        if self._on_message is None:
            message.nack()
            return
        try:
            with message:
                result = self._on_message(message)
                if inspect.isawaitable(result):
                    await result
        except Exception:
            _log.exception("the handler of messages failed; the message goes back")


def _let_go(message: Message) -> None:
    """Also when close() was first."""
    if message._held:
        with suppress(RingsideError):
            message.release()


def _spare(name: str, result: Any) -> None:
    if result is not None:
        raise TypeError(f"method {name!r} has replied or released its call, and returned something as well")


def _send_all(message: Message, items: Iterator[Any]) -> None:
    """Each at once, so that it is not known of any whether it is the last; then an empty one, which tells."""
    try:
        for item in items:
            message.reply(item, last=False)
        message.reply()
    finally:
        _close(items)


def _close(items: Iterator[Any]) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()


async def _one_by_one(items: Iterator[Any]) -> AsyncIterator[Any]:
    import asyncio

    try:
        for item in items:
            yield item
            await asyncio.sleep(0)
    finally:
        _close(items)


async def _send_all_async(message: Message, items: AsyncIterator[Any]) -> None:
    try:
        async for item in items:
            await message.reply_async(item, last=False)
        await message.reply_async()
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


async def _watch(tasks: dict[asyncio.Task[None], Message]) -> None:
    """Cancels the tasks of calls that nobody waits for."""
    import asyncio

    while True:
        await asyncio.sleep(WATCH)
        for task, message in list(tasks.items()):
            if message._held and message.cancelled:
                task.cancel()


def _answer_failure(message: Message, name: str, error: Exception) -> None:
    """The error that the caller gets: a RingsideError under its own name, so that it is that one there."""
    if isinstance(error, RingsideError):
        status, text = _core.error_status(error.code), f"{error.name}: {error}"
    else:
        status, text = _core.error_status(_INTERNAL), f"{type(error).__name__}: {error}"
    if isinstance(error, Cancelled) and message._held and message.cancelled:
        return  # that is how it learnt of it
    if not isinstance(error, RingsideError):
        _log.error("method %r failed", name, exc_info=error)
    with suppress(RingsideError):  # the caller may be gone
        if message._held and not message._answered:
            message.reply_error(status, text)

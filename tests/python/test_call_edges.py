# SPDX-License-Identifier: Apache-2.0
"""Calls and trees at their edges: iterators that are closed in the middle, numbers that do not fit, handlers that misbehave."""

import asyncio
import gc
import json
import threading
import time
import warnings
import weakref

import pytest
import ringside

LONG = 60  # seconds; never reached when all is well


def until(condition, seconds=20):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def put_raw(rs, item):
    """A message as put() makes it, with a structure that it would not make."""
    return rs._put([b""], json.dumps(item).encode(), 1, False, 60, 1)


@pytest.mark.parametrize("item", [
    {"$scalar": ["float64", {"$int": "1" + "0" * 400}]}, {"$scalar": ["int8", 300]}, {"$scalar": ["uint8", -1]},
    {"$complex": [{"$int": "1" + "0" * 400}, 0]}, {"$tensor": 1 << 70}, {"$tensor": -1}, {"$tensor": True},
    {"$torch": 1.5}, {"$bytes": "0"}, {"$int": "1" + "0" * 5000}, {"$dict": [[[1], 2]]}, {"$ticket": "rst1-"},
    {"$ticket": 5}, {"$float": []}, {"$scalar": 3}, {"$base64": "?"}], ids=lambda item: str(item)[:40])
def test_tree_with_nonsense_is_refused_or_read(rs, item):
    """Whatever is in it, nothing but our own errors comes out."""
    ticket = put_raw(rs, item)
    warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, of numbers that do not fit
    try:
        rs.get(ticket, copy=True)
    except ringside.RingsideError:
        pass
    assert not rs.stats()["held_messages"]


def test_stream_closed_by_another_task_while_it_begins(pair):
    """All room for replies is taken, so the request waits; aclose() comes first, and then nothing is sent."""
    front, back = pair

    async def scenario(caller, callee):
        first = caller.call_stream_async("next.first", b"1", credits=64)
        waiting = asyncio.ensure_future(first.__anext__())
        request = await callee.receive_async(LONG)
        second = caller.call_stream_async("next.second", b"2", timeout=LONG)
        too_late = asyncio.ensure_future(second.__anext__())
        await asyncio.sleep(0.05)
        await second.aclose()
        await request.reply_async(b"done")
        request.release()
        await waiting
        with pytest.raises((StopAsyncIteration, ringside.Cancelled)):
            await asyncio.wait_for(too_late, 20)
        with pytest.raises(ringside.Timeout):
            await callee.receive_async(0.2)

    with ringside.connect(front.socket) as caller, ringside.connect(back.socket) as callee:
        asyncio.run(scenario(caller, callee))


def test_stream_closed_by_another_task_while_it_waits(pair):
    front, back = pair

    async def scenario(caller, callee):
        stream = caller.call_stream_async("next.m", b"1", timeout=LONG)
        waiting = asyncio.ensure_future(stream.__anext__())
        request = await callee.receive_async(LONG)
        await stream.aclose()
        with pytest.raises((StopAsyncIteration, ringside.RingsideError)):
            await asyncio.wait_for(waiting, 20)
        assert request.cancelled
        request.release()

    with ringside.connect(front.socket) as caller, ringside.connect(back.socket) as callee:
        asyncio.run(scenario(caller, callee))


def test_stream_closed_by_another_thread_while_it_waits(pair):
    front, back = pair
    with ringside.connect(front.socket) as caller, ringside.connect(back.socket) as callee:
        stream = caller.call_stream("next.m", b"1", timeout=LONG)
        request = callee.receive(LONG)
        timer = threading.Timer(0.2, stream.close)
        timer.start()
        with pytest.raises(ringside.Cancelled):
            next(stream)
        timer.join()
        until(lambda: request.cancelled)
        with pytest.raises(StopIteration):
            next(stream)
        request.release()


class Base(BaseException):
    pass


@pytest.mark.parametrize("error", [Base, SystemExit, KeyboardInterrupt])
def test_handler_that_ends_the_server(pair, error):
    """What is no Exception goes through; the caller is told at once."""
    front, back = pair
    stage = ringside.Stage()

    @stage.method
    def m(request):
        raise error()

    def serve():
        with pytest.raises(error):
            stage.serve(callee, timeout=LONG)

    with ringside.connect(front.socket) as caller, ringside.connect(back.socket) as callee:
        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(ringside.InternalError):
            caller.call("next.m", b"1", timeout=LONG)
        server.join(20)
        assert not server.is_alive()


def test_handler_that_closes_its_connection(pair):
    front, back = pair
    stage = ringside.Stage()

    @stage.method
    def m(request):
        callee.close()
        return b"late"

    with ringside.connect(front.socket) as caller, ringside.connect(back.socket) as callee:
        server = threading.Thread(target=stage.serve, args=(callee, LONG))
        server.start()
        with pytest.raises(ringside.RingsideError):
            caller.call("next.m", b"1", timeout=LONG)
        server.join(20)
        assert not server.is_alive()


def test_generator_that_fails_in_its_close(pair):
    front, back = pair
    stage = ringside.Stage()

    @stage.method
    def m(request):
        try:
            while True:
                yield b"1"
        finally:
            stage.stop()
            raise ValueError("in its close")

    with ringside.connect(front.socket) as caller, ringside.connect(back.socket) as callee:
        server = threading.Thread(target=stage.serve, args=(callee, LONG))
        server.start()
        with caller.call_stream("next.m", timeout=LONG, credits=1) as replies:
            next(replies)
        server.join(20)
        assert not server.is_alive()
        with pytest.raises(ringside.Timeout):
            callee.receive(0)


def begin_and_close_the_loop(caller):
    """A task that waits for a reply is dropped with its loop, not awaited or cancelled."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(caller.call_async("next.m", b"1", timeout=LONG))
    loop.call_later(0.1, loop.stop)
    loop.run_forever()
    loop.close()
    task._log_destroy_pending = False


def test_event_loop_that_was_closed_over_a_call(pair):
    """The next one that waits on the connection lets it go, and its callee sees that nobody waits."""
    front, back = pair
    with ringside.connect(front.socket) as caller, ringside.connect(back.socket) as callee:
        begin_and_close_the_loop(caller)
        request = callee.receive(LONG)
        with pytest.raises(ringside.Timeout):
            asyncio.run(caller.receive_async(0.01))
        gc.collect()
        assert request.cancelled
        request.release()


def test_connection_closes_whose_event_loop_was_closed_over_a_call(pair):
    front, back = pair
    caller = ringside.connect(front.socket)
    with ringside.connect(back.socket) as callee:
        begin_and_close_the_loop(caller)
        request = callee.receive(LONG)
        caller.close()
        is_there = weakref.ref(caller)
        del caller
        gc.collect()
        assert is_there() is None
        until(lambda: request.cancelled)
        request.release()

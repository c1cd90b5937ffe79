# SPDX-License-Identifier: Apache-2.0
"""Calls that end before their reply: cancelled, over their time, their callee gone."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import ringside
from call_stages import LONG, Serving, callee, rs, run, stages, until  # noqa: F401


def test_a_stream_is_cancelled_by_leaving_it(rs, stages):  # noqa: F811
    stage, ends = ringside.Stage(), []

    @stage.method
    def Endless(request):
        try:
            i = 0
            while True:
                yield np.array([i])
                i += 1
        finally:
            ends.append(request.cancelled)

    with Serving(stages[1], stage):
        for reply in rs.call_stream("work.Endless", timeout=LONG):
            if reply.numpy()[0] == 3:
                break
        reply.release()
        until(lambda: ends == [True])
        replies = rs.call_stream("work.Endless", timeout=LONG)
        next(replies)
        replies.close()
        until(lambda: ends == [True, True])
        assert list(replies) == []
        with rs.call_stream("work.Endless", timeout=LONG) as replies:
            next(replies)
        until(lambda: len(ends) == 3)
        del replies


def test_the_timeout_travels(rs, callee):  # noqa: F811
    call = rs._call("work.M", None, None, 30, None, 1)
    call._start()
    request = callee.receive(LONG)
    assert 20 < request.time_left <= 30 and request.ttl <= 30 and not request.cancelled
    call.cancel()
    assert request.cancelled
    with pytest.raises(ringside.Cancelled):
        request.reply(b"late")
    request.release()
    with pytest.raises(ringside.InvalidState):
        request.cancelled  # noqa: B018 - raises

    with pytest.raises(ringside.Timeout):  # nobody takes it, and nobody gets it afterwards
        rs.call("work.M", timeout=0.05)
    with pytest.raises(ringside.Timeout):
        callee.receive(timeout=0.05)
    timeout, request = 0.05, None
    while request is None:  # more time for each, until the callee takes one in time
        timeout *= 2
        call = rs._call("work.M", None, None, timeout, None, 1)
        call._start()
        with contextlib.suppress(ringside.Timeout):
            request = callee.receive(timeout=0)
    with pytest.raises(ringside.Timeout):
        call._next()
    assert request.cancelled and request.time_left == 0
    request.release()
    with pytest.raises(ringside.Timeout):
        run(rs.call_async("work.M", timeout=0.05))


def test_a_cancelled_task_cancels_its_call(rs, callee):  # noqa: F811
    stage, seen = ringside.Stage(), []

    @stage.method
    async def Wait(request):
        seen.append("began")
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            seen.append(request.cancelled)
            raise

    async def main():
        server = asyncio.create_task(stage.serve_async(callee))
        for i in range(3):
            task = asyncio.create_task(rs.call_async("work.Wait", timeout=LONG))
            while len(seen) < 2 * i + 1:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while len(seen) < 2 * i + 2:
                await asyncio.sleep(0.001)
        stage.stop()
        await server

    run(main())
    assert seen == ["began", True] * 3


def test_a_server_that_is_cancelled(rs, callee):  # noqa: F811
    stage, began = ringside.Stage(), []

    @stage.method
    async def Wait(request):
        began.append(request.method)
        await asyncio.sleep(LONG)

    async def main():
        server = asyncio.create_task(stage.serve_async(callee))
        task = asyncio.create_task(rs.call_async("work.Wait", timeout=LONG))
        while not began:
            await asyncio.sleep(0.001)
        server.cancel()
        with pytest.raises(asyncio.CancelledError):
            await server
        with pytest.raises(ringside.Unavailable, match="stopped serving"):
            await task

    run(main())


def test_cancelled_from_another_thread(rs, callee):  # noqa: F811
    call = rs._call("work.M", None, None, LONG, None, 1)
    call._start()
    request = callee.receive(LONG)
    failures = []

    def wait():
        try:
            call._next()
        except ringside.Cancelled as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()

    def is_waited_for():
        try:
            call._poll()
        except ringside.InvalidState:
            return True
        return False

    until(is_waited_for)
    with pytest.raises(ringside.InvalidState, match="another thread"):
        call._next()
    call.cancel()
    thread.join(LONG)
    assert len(failures) == 1 and request.cancelled and not call.open
    request.release()


def test_close_ends_what_waits(stages, callee):  # noqa: F811
    rs = ringside.connect(stages[0].socket)  # noqa: F811
    failures = []

    def wait():
        try:
            rs.call("work.M", timeout=LONG)
        except ringside.InvalidState as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    request = callee.receive(LONG)
    rs.close()
    thread.join(LONG)
    assert len(failures) == 1
    until(lambda: request.cancelled)
    request.release()


def test_an_unanswered_call(rs, callee):  # noqa: F811
    call = rs._call("work.M", None, None, LONG, None, 1)
    call._start()
    callee.receive(LONG).release()
    with pytest.raises(ringside.InternalError, match="without a last reply"):
        call._next()
    call = rs._call("work.M", None, None, LONG, None, 1)
    call._start()
    with pytest.raises(KeyError), callee.receive(LONG):
        raise KeyError
    with pytest.raises(ringside.Unavailable):
        call._next()


def test_a_callee_that_is_killed(rs, stages):  # noqa: F811
    script = textwrap.dedent("""
        import sys, ringside
        stage = ringside.Stage()
        @stage.method
        def Hang(request):
            print("holds it", flush=True)
            sys.stdin.read()
        stage.serve(ringside.connect(sys.argv[1]))
    """)
    for use in ("call", "call_async"):
        with subprocess.Popen([sys.executable, "-c", script, stages[1].socket], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as process:
            killer = threading.Thread(target=lambda: (process.stdout.readline(), process.send_signal(signal.SIGKILL)))  # noqa: B023
            killer.start()
            before = time.monotonic()
            with pytest.raises(ringside.Unavailable, match="callee"):
                if use == "call":
                    rs.call("work.Hang", timeout=LONG)
                else:
                    run(rs.call_async("work.Hang", timeout=LONG))
            assert time.monotonic() - before < LONG / 2
            killer.join()

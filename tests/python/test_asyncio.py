# SPDX-License-Identifier: Apache-2.0
"""asyncio on the pollable descriptor: nothing is lost, nobody starves, no thread is made."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, free_slots


def run(coroutine):
    """With a limit on everything, and the proof that nothing stays behind."""
    async def limited():
        return await asyncio.wait_for(coroutine, 60)

    threads = threading.active_count()
    result = asyncio.run(limited())
    assert not ringside._aio._waiters and threading.active_count() <= threads
    return result


def test_receive_what_is_there_and_what_comes(rs):
    async def main():
        rs.send("loop", np.array([1]))
        with await rs.receive_async(timeout=5) as message:
            assert message.numpy()[0] == 1
        waiting = asyncio.create_task(rs.receive_async())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await rs.send_async("loop", np.array([2]), meta={"k": 1})
        with await waiting as message:
            assert message.numpy()[0] == 2 and message.meta == {"k": 1}
        for timeout in (0, 0.01):
            with pytest.raises(ringside.Timeout):
                await rs.receive_async(timeout)
        with pytest.raises(ValueError):
            await rs.receive_async(-1)

    run(main())
    assert free_slots(rs) == SLOTS


def test_many_tasks_of_one_loop(rs):
    count = 300

    async def consume(seen):
        async for message in rs.inbox_async(timeout=0.5):
            seen.append(int(message.numpy()[0]))
            await asyncio.sleep(0)

    async def main():
        seen = []
        consumers = [asyncio.create_task(consume(seen)) for _ in range(4)]
        for i in range(count):
            slot = await rs.loan_async(1, "i8", timeout=30)
            slot.numpy()[0] = i
            await slot.send_async("loop", timeout=30)
        await asyncio.gather(*consumers)
        return seen

    assert sorted(run(main())) == list(range(count))
    assert free_slots(rs) == SLOTS


def test_between_stages_in_two_loops(pair):
    """A producer's and a consumer's loop, each in a thread of its own, with a route that blocks."""
    with ringside.connect(pair[0].socket) as front, ringside.connect(pair[1].socket) as back:
        async def produce():
            for i in range(500):
                await front.send_async("next", np.full(100, i), timeout=30)

        async def consume():
            seen = []
            async for message in back.inbox_async(timeout=30):
                seen.append(int(message.numpy()[-1]))
                if len(seen) == 500:
                    message.release()
                    return seen

        producer = threading.Thread(target=asyncio.run, args=(produce(),))
        producer.start()
        assert run(consume()) == list(range(500))
        producer.join(30)
        assert free_slots(front) == SLOTS


def test_inbox_lets_others_run(rs):
    """A message that is always there must not keep the loop from its other tasks."""
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        rs.send("loop", np.array([0]))
        seen = 0
        async for message in rs.inbox_async():
            seen += 1
            if seen == 1000:
                break
            rs.send("loop", np.array([seen]))
        message.release()
        ticker.cancel()
        return ticks

    assert run(main()) >= 20
    assert free_slots(rs) == SLOTS


def test_inbox_ends_by_timeout_and_acknowledges(rs):
    async def main():
        for i in range(3):
            rs.send("loop", np.array([i]))
        views = []
        async for message in rs.inbox_async(timeout=0.05):
            views.append(message.numpy())
        assert [int(view[0]) for view in views] == [0, 1, 2]
        assert free_slots(rs) == SLOTS - 3  # acknowledged, and kept by the views
        views.clear()
        del message

    run(main())
    assert free_slots(rs) == SLOTS


def test_break_and_exception_give_the_last_one_back(rs):
    async def main():
        rs.send("loop", np.array([1]))
        async for message in rs.inbox_async():
            break
        del message
        with pytest.raises(KeyError):
            async for message in rs.inbox_async():
                assert message.attempts == 1
                raise KeyError
        del message
        gc.collect()
        with await rs.receive_async(5) as message:
            assert message.attempts == 2

    run(main())
    assert free_slots(rs) == SLOTS


def test_cancellation_loses_nothing(rs):
    """Tasks are cancelled at every moment around an arrival; each message is seen once, in the first delivery."""
    count = 200

    async def main():
        seen = []

        async def take():
            message = await rs.receive_async()
            assert message.attempts == 0
            seen.append(int(message.numpy()[0]))
            message.release()

        for i in range(count):
            takers = [asyncio.create_task(take()) for _ in range(3)]
            for _ in range(i % 4):
                await asyncio.sleep(0)
            rs.send("loop", np.array([i]), timeout=5)
            for _ in range(i // 4 % 4):
                await asyncio.sleep(0)
            for taker in takers[: i % 3 + 1]:
                taker.cancel()
            await asyncio.sleep(0)
            for taker in takers:
                taker.cancel()
            await asyncio.gather(*takers, return_exceptions=True)
        while len(seen) < count:
            await take()
        assert sorted(seen) == list(range(count))
        with pytest.raises(ringside.Timeout):
            await rs.receive_async(0)

    run(main())
    assert free_slots(rs) == SLOTS


def test_cancelled_anext_goes_on(rs):
    async def main():
        inbox = rs.inbox_async()
        for i in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(inbox.__anext__(), 0.01)
            rs.send("loop", np.array([i]))
            assert (await inbox.__anext__()).numpy()[0] == i
        inbox._current.release()

    run(main())
    assert free_slots(rs) == SLOTS


def test_loan_waits_for_a_slot(rs):
    async def main():
        held = [rs.loan(4, "u1") for _ in range(SLOTS)]
        with pytest.raises(ringside.RingFull):
            await rs.loan_async(4, "u1", timeout=0)
        with pytest.raises(ringside.Timeout):
            await rs.loan_async(4, "u1", timeout=0.02)
        for make in (lambda: rs.loan_async(4, "u1"), lambda: rs.put_async({"x": [1]}, kept=True), lambda: rs.send_async("loop", b"x")):
            waiting = asyncio.create_task(make())
            cancelled = asyncio.create_task(make())
            await asyncio.sleep(0.02)
            assert not waiting.done()
            cancelled.cancel()
            held.pop().abandon()
            got = await waiting
            if isinstance(got, ringside.Ticket):
                assert rs.get(got) == {"x": [1]}
                rs.free(got)
            elif got is not None:
                got.abandon()
            else:
                (await rs.receive_async(5)).release()
            held.append(rs.loan(4, "u1", timeout=0))
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        for slot in held:
            slot.abandon()
        with pytest.raises(ringside.TooBig):
            await rs.loan_async(1 << 30, "u1")

    run(main())
    assert free_slots(rs) == SLOTS


@pytest.fixture
def narrow(directory):
    """Workers of two stages; the second's inbox takes two messages, and of the routes to it one blocks."""
    from sidecars import Sidecar, to_itself, wait_for_route

    to = {"to": [f"unix:{directory}/narrow.sock"]}
    wide = Sidecar(directory, "wide", {"waits": {**to, "when_full": "block"}, "fails": {**to, "when_full": "error"},
                                       "here": to_itself(directory / "wide.sock")})
    narrow = Sidecar(directory, "narrow", {}, inbox={"cells": 32, "depth": 2})
    wait_for_route(wide, "waits", narrow)
    with ringside.connect(wide.socket) as producer, ringside.connect(narrow.socket) as consumer:
        yield producer, consumer
    narrow.stop()
    wide.stop()


def test_send_waits_for_room(narrow):
    producer, consumer = narrow

    async def take(count):
        seen = []
        for _ in range(count):
            with await consumer.receive_async(10) as message:
                seen.append(int(message.numpy()[0]))
        return seen

    async def main():
        for i in range(2):
            await producer.send_async("waits", np.array([i]), timeout=5)
        slot = await producer.loan_async(1, "i8")
        slot.numpy()[0] = 2
        with pytest.raises(ringside.RingFull):
            await slot.send_async("fails", timeout=5)
        with pytest.raises(ringside.RingFull):
            await slot.send_async("waits", timeout=0)
        with pytest.raises(ringside.Timeout):
            await slot.send_async("waits", timeout=0.02)
        cancelled = asyncio.create_task(slot.send_async("waits"))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        producer.send("here", np.array([4]))
        message = await producer.receive_async(5)
        with pytest.raises(ringside.NoRoute):
            await message.forward_async("nowhere")
        waiting = [asyncio.create_task(each) for each in (slot.send_async("waits"), message.forward_async("waits"),
                                                          producer.send_async("waits", np.array([3])))]
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in waiting)
        seen = await take(5)
        await asyncio.gather(*waiting)
        assert seen[:2] == [0, 1] and sorted(seen) == [0, 1, 2, 3, 4]

    run(main())
    assert free_slots(producer) == SLOTS


@pytest.mark.parametrize("from_thread", [False, True])
def test_close_ends_the_waiting(sidecar, from_thread):
    async def main():
        rs = ringside.connect(sidecar.socket)
        fd = rs.fileno()
        waiting = asyncio.create_task(rs.receive_async())

        async def loop():
            async for _ in rs.inbox_async():
                pass
            return "ended"

        looping = asyncio.create_task(loop())
        await asyncio.sleep(0.02)
        if from_thread:
            await asyncio.get_running_loop().run_in_executor(None, rs.close)
        else:
            rs.close()
        with pytest.raises(ringside.InvalidState, match="closed"):
            await waiting
        assert await looping == "ended"
        assert not os.path.exists(f"/proc/self/fd/{fd}") or "eventpoll" not in os.readlink(f"/proc/self/fd/{fd}")
        with ringside.connect(sidecar.socket) as again:  # its descriptor may have the same number
            await again.send_async("loop", b"x")
            (await again.receive_async(5)).release()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert not ringside._aio._waiters


def test_loop_that_ends_with_tasks_waiting(sidecar):
    rs = ringside.connect(sidecar.socket)

    async def main():
        task = asyncio.create_task(rs.receive_async())
        await asyncio.sleep(0.01)
        return task

    asyncio.run(main())
    assert not ringside._aio._waiters
    rs.close()


def test_ringside_itself_does_not_import_asyncio():
    """It costs tens of milliseconds, and most workers have no use for it."""
    script = "import json, sys, ringside; print(json.dumps([name in sys.modules for name in ('asyncio', 'numpy')]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [False, False]

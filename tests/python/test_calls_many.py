# SPDX-License-Identifier: Apache-2.0
"""Many calls at a time, from threads and from asyncio, and streams of replies."""

import asyncio
import threading
import time

import numpy as np
import ringside
from call_stages import LONG, Serving, callee, make_stage, rs, run, stages, until  # noqa: F401

# ---- many at a time ----

def test_out_of_order(rs, callee):  # noqa: F811
    calls = [rs._call("work.M", np.array([i]), None, LONG, None, 1) for i in range(4)]
    for call in calls:
        call._start()
    requests = [callee.receive(LONG) for _ in calls]
    for request in reversed(requests):
        assert request.method == "M" and request.call_id != 0
        request.reply(request.numpy() + 10)
        request.release()
    for i, call in enumerate(calls):
        assert call.open
        with call._next() as reply:
            assert reply.numpy()[0] == 10 + i
        assert not call.open and call._next() is None


def test_many_threads_call_at_once(rs, stages):  # noqa: F811
    """More than the 64 replies that a connection can await: the others take their turn."""
    each, count, failures = 10, 80, []

    def call(number):
        try:
            for i in range(each):
                with rs.call("work.Double", np.array([number, i]), timeout=LONG) as reply:
                    assert reply.numpy().tolist() == [2 * number, 2 * i]
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    with Serving(stages[1], make_stage(), threads=3):
        threads = [threading.Thread(target=call, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_many_tasks_call_at_once(rs, stages):  # noqa: F811
    async def main():
        async def call(i):
            with await rs.call_async("work.Double", np.array([i]), timeout=LONG) as reply:
                return int(reply.numpy()[0])

        return await asyncio.gather(*(call(i) for i in range(500)))

    with Serving(stages[1], make_stage()):
        assert run(main()) == [2 * i for i in range(500)]


def test_no_wake_is_lost(rs, stages):  # noqa: F811
    """Tasks of two loops on one connection, in few slots: each reply wakes who waits for it, at once."""
    counts, failures = {}, []

    async def main(number):
        async def call(i):
            with await rs.call_async("work.Double", np.array([i]), timeout=LONG) as reply:
                assert reply.numpy()[0] == 2 * i

        for _ in range(20):
            await asyncio.gather(*(call(i) for i in range(20)))
        counts[number] = 400

    def loop(number):
        try:
            asyncio.run(asyncio.wait_for(main(number), LONG))
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    again, ringside._calls.LOOK_AGAIN = ringside._calls.LOOK_AGAIN, LONG  # nothing but wakes
    try:
        with Serving(stages[1], make_stage()):
            threads = [threading.Thread(target=loop, args=(i,)) for i in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(2 * LONG)
    finally:
        ringside._calls.LOOK_AGAIN = again
    assert not failures and counts == {0: 400, 1: 400}


def test_one_loop_calls_and_serves(rs, callee):  # noqa: F811
    """Both sides in one loop, with coroutines that wait for each other: nothing blocks, and nobody spins meanwhile."""
    stage = ringside.Stage()
    gate = []

    @stage.method
    async def First(request):
        await gate[0].wait()
        return request.numpy() + 1

    @stage.method
    async def Second(request):
        gate[0].set()
        return {"first": 2}

    @stage.method
    async def Slowly(request):
        for i in range(5):
            await asyncio.sleep(0.001)
            yield np.array([i])

    @stage.on_message
    async def plain(message):
        gate.append(message.numpy()[0])

    async def main():
        gate.append(asyncio.Event())
        server = asyncio.create_task(stage.serve_async(callee))
        first = asyncio.create_task(rs.call_async("work.First", np.array([1]), timeout=LONG))
        await asyncio.sleep(0.2)
        before = time.process_time()
        await asyncio.sleep(0.5)
        used = time.process_time() - before
        assert not first.done()
        with await rs.call_async("work.Second", timeout=LONG) as reply:
            assert reply.tree() == {"first": 2}
        with await first as reply:
            assert reply.numpy()[0] == 2
        seen = [int(reply.numpy()[0]) async for reply in rs.call_stream_async("work.Slowly", timeout=LONG)]
        assert seen == list(range(5))
        await rs.send_async("work", np.array([77]), timeout=LONG)
        while len(gate) < 2:
            await asyncio.sleep(0.001)
        assert gate[1] == 77
        stage.stop()
        await server
        return used

    assert run(main()) < 0.3


# ---- streams ----

def test_stream(rs, stages):  # noqa: F811
    with Serving(stages[1], make_stage()):
        for count in (0, 1, 2, 50):
            for credits in (1, 3):
                replies = rs.call_stream("work.Count", np.array([count]), timeout=LONG, credits=credits)
                assert [int(reply.numpy()[0]) for reply in replies] == list(range(count))
        assert [int(reply.numpy()[0]) for reply in rs.call_stream("work.Range", timeout=LONG)] == [0, 1]
        with rs.call_stream("work.Double", np.array([4]), timeout=LONG) as replies:  # one reply is a stream as well
            assert [reply.numpy()[0] for reply in replies] == [8]


def test_a_slow_consumer_holds_up_the_callee(rs, stages):  # noqa: F811
    stage, made = ringside.Stage(), []

    @stage.method
    def Count(request):
        for i in range(12):
            made.append(i)
            yield np.array([i])

    with Serving(stages[1], stage):
        replies = rs.call_stream("work.Count", timeout=LONG, credits=3)
        until(lambda: len(made) == 4)  # three are out, the fourth waits
        time.sleep(0.3)
        assert len(made) == 4
        seen = []
        for reply in replies:
            seen.append(int(reply.numpy()[0]))
            until(lambda: len(made) == min(12, len(seen) + 4))  # noqa: B023 - used at once
            assert rs.stats()["held_messages"] == 1
        assert seen == list(range(12))


def test_asynchronous_stream_with_a_slow_consumer(rs, stages):  # noqa: F811
    async def main():
        seen = []
        async for reply in rs.call_stream_async("work.Count", np.array([20]), timeout=LONG, credits=2):
            seen.append(int(reply.numpy()[0]))
            await asyncio.sleep(0.001)
        async with rs.call_stream_async("work.Count", np.array([20]), timeout=LONG, credits=2) as replies:
            async for reply in replies:
                seen.append(int(reply.numpy()[0]))
                if len(seen) == 23:
                    break
        return seen

    with Serving(stages[1], make_stage()):
        assert run(main()) == [*range(20), *range(3)]

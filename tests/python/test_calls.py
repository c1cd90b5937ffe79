# SPDX-License-Identifier: Apache-2.0
"""Calls between two stages: from threads and from asyncio, streams, errors, cancellation, and callees that die."""

import asyncio
import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, Sidecar, drain, free_slots, wait_for_route

MANY = 100_000
LONG = 60  # seconds; never reached when all is well


@pytest.fixture(scope="module")
def stages(directory):
    """caller --work--> callee."""
    callee = Sidecar(directory, "callee", {})
    caller = Sidecar(directory, "caller", {"work": {"to": [f"unix:{callee.socket}"], "when_full": "block"},
                                           "work.strict": {"to": [f"unix:{callee.socket}"], "when_full": "error"}})
    wait_for_route(caller, "work", callee)
    yield caller, callee
    caller.stop()
    callee.stop()


@pytest.fixture
def rs(stages):
    """A caller; nothing of a test is left in either ring."""
    with ringside.connect(stages[0].socket, name="caller") as connection:
        yield connection
    for sidecar in stages:
        with ringside.connect(sidecar.socket, name="drain") as connection:
            drain(connection)
            until(lambda: free_slots(connection) == SLOTS)  # noqa: B023 - used at once


@pytest.fixture
def callee(stages):
    """A worker that answers by hand."""
    with ringside.connect(stages[1].socket, name="callee") as connection:
        yield connection


def until(condition, seconds=20):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


class Serving:
    """A Stage that is served in a thread, on a connection of its own."""

    def __init__(self, sidecar, stage, **how):
        self.stage, self.failure = stage, None
        self.rs = ringside.connect(sidecar.socket, name="server")
        self.thread = threading.Thread(target=self.run, kwargs=how)

    def run(self, **how):
        try:
            self.stage.serve(self.rs, **how)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failure = error

    def __enter__(self):
        self.thread.start()
        return self.rs

    def __exit__(self, *exception):
        self.stage.stop()
        self.thread.join(LONG)
        assert not self.thread.is_alive() and self.failure is None
        assert self.rs.stats()["held_messages"] == self.rs.stats()["held_slots"] == 0
        self.rs.close()


def make_stage():
    stage = ringside.Stage()

    @stage.method
    def Double(request):
        return request.numpy() * 2

    @stage.method
    def Echo(request):
        return request.arrays()

    @stage.method(name="Count")
    def count(request):
        for i in range(int(request.numpy()[0])):
            yield np.array([i])

    @stage.method
    def Range(request):
        return map(np.array, [[0], [1]])

    @stage.method
    def Tree(request):
        return {"got": request.tree(), "method": request.method}

    @stage.method
    def Nothing(request):
        pass

    return stage


# ---- one reply ----

def test_call_and_reply(rs, stages):
    with Serving(stages[1], make_stage()) as server:
        with rs.call("work.Double", np.arange(5), timeout=LONG) as reply:
            assert reply.numpy().tolist() == [0, 2, 4, 6, 8] and reply.method is None and reply.call_id != 0
            with pytest.raises(ValueError):
                reply.numpy()[0] = 1
        with rs.call("work.Echo", [np.zeros((2, 3), "f4"), b"abc", np.float64(2.5)], timeout=LONG) as reply:
            assert [(tensor.dtype, tensor.shape) for tensor in reply.tensors] == [
                ("float32", (2, 3)), ("uint8", (3,)), ("float64", ())]
            assert bytes(reply.buffer(1)) == b"abc"
        with rs.call("work.strict.Double", np.array([4]), timeout=LONG) as reply:  # a route with a dot
            assert reply.numpy()[0] == 8
        with rs.call("work.Nothing", timeout=LONG) as reply:
            assert reply.nbytes == 0 and reply.meta == b""
        sent = {"a": [1, (2, None)], "x": np.arange(3)}
        with rs.call("work.Tree", sent, timeout=LONG) as reply:
            tree = reply.tree()
            assert tree["method"] == "Tree" and tree["got"]["a"] == [1, (2, None)] and tree["got"]["x"].tolist() == [0, 1, 2]
            del tree
        assert server.stats()["received"] == 5


def test_slots_go_as_they_are(rs, callee):
    slot = rs.loan(1000, "f4", timeout=LONG, meta_bytes=64)
    slot.numpy()[...] = 7
    ticket = slot.ticket
    call = rs._call("work.Take", slot, {"k": 1}, LONG, None, 1)
    call._start()
    with pytest.raises(ringside.InvalidState):
        slot.send("work")
    request = callee.receive(LONG)
    assert request.ticket == ticket and request.meta == {"k": 1} and request.method == "Take"
    answer = callee.loan(3, "i8", timeout=LONG)
    answer.numpy()[...] = [1, 2, 3]
    request.reply(answer, meta={"done": True})
    with pytest.raises(ringside.InvalidState):
        answer.send("work")
    with pytest.raises(ringside.InvalidState, match="had its last reply"):
        request.reply(b"again")
    request.release()
    with call._next() as reply:
        assert reply.numpy().tolist() == [1, 2, 3] and reply.meta == {"done": True}


def test_what_cannot_be_called(rs, callee):
    for target in ("work", ".x", "work.", "work." + "m" * 64, "w" * 64 + ".x", ""):
        with pytest.raises(ringside.InvalidArgument, match="ROUTE.METHOD"):
            rs.call(target, timeout=1)
    with pytest.raises(ringside.NoRoute):
        rs.call("nowhere.Double", timeout=1)
    with pytest.raises(ringside.InvalidArgument, match="timeout is 0"):
        rs.call("work.Double", timeout=0)
    with pytest.raises(ringside.InvalidArgument, match="dict"):
        rs.call("work.Double", {"a": 1}, meta={"b": 2}, timeout=1)
    with pytest.raises(ringside.InvalidArgument, match="credits"):
        rs.call_stream("work.Count", credits=0)
    with pytest.raises(ValueError, match="credits"):
        rs.call_stream("work.Count", credits=65)
    with rs.loan(1, "u1", timeout=1) as slot:
        with pytest.raises(ringside.NoRoute):
            rs.call("nowhere.Double", slot, timeout=1)
        slot.numpy()[0] = 1  # still held
    with callee.loan(1, "u1", timeout=1) as slot, pytest.raises(ringside.InvalidArgument, match="another connection"):
        rs.call("work.Double", slot, timeout=1)
    rs.send("work", b"x", timeout=LONG)
    with callee.receive(LONG) as message:
        assert message.method is None and message.cancelled is False and message.time_left is None
        with pytest.raises(ringside.InvalidState, match="no call"):
            message.reply(b"y")
        with pytest.raises(ringside.InvalidState, match="no call"):
            message.reply_error(5)


# ---- errors ----

def test_errors_keep_their_kind(rs, stages, caplog):
    stage = make_stage()

    @stage.method
    def Raise(request):
        raise getattr(ringside, request.meta["kind"])(request.meta["text"])

    @stage.method
    def Break(request):
        return request.numpy()[10]

    @stage.method
    def Half(request):
        yield np.array([1])
        raise ringside.TooBig("after one")

    @stage.method
    def Plain(request):
        request.reply_error(99, "nobody knows")

    @stage.method
    def Twice(request):
        request.reply(b"1")
        return b"2"

    with Serving(stages[1], stage):
        for kind in ringside.__all__:
            kind = getattr(ringside, kind)
            if isinstance(kind, type) and issubclass(kind, ringside.RingsideError) and kind.code:
                with pytest.raises(kind, match="^w\N{LATIN SMALL LETTER U WITH DIAERESIS}: on purpose$") as caught:
                    rs.call("work.Raise", meta={"kind": kind.__name__, "text": "w\u00fc: on purpose"}, timeout=LONG)
                assert type(caught.value) is kind and caught.value.status in range(1, 17)
        with pytest.raises(ringside.Unimplemented, match="stage 'callee' has no method 'Trouble'; it has: Double, Echo, Count"):
            rs.call("work.Trouble", timeout=LONG)
        assert not caplog.records
        with pytest.raises(ringside.InternalError, match="^IndexError: .*10") as caught:
            rs.call("work.Break", np.arange(3), timeout=LONG)
        assert caught.value.status == 13 and "'Break'" in caplog.text and "Traceback" in caplog.text
        with pytest.raises(ringside.InternalError, match="nobody knows") as caught:
            rs.call("work.Plain", timeout=LONG)
        assert caught.value.status == 99
        replies = rs.call_stream("work.Half", timeout=LONG)
        assert next(replies).numpy()[0] == 1
        with pytest.raises(ringside.TooBig, match="after one"):
            next(replies)
        assert list(replies) == []
        with rs.call("work.Twice", timeout=LONG) as reply:
            assert bytes(reply.buffer()) == b"1"
        with pytest.raises(ringside.InvalidState, match="call_stream"):
            rs.call("work.Count", np.array([2]), timeout=LONG)
        with pytest.raises(ringside.Timeout):
            rs.receive(timeout=0)
        assert rs.call("work.Nothing", timeout=LONG).release() is None


def test_methods_are_named_once():
    stage = make_stage()
    for name in ("Double", "", "a.b", "m" * 64):
        with pytest.raises(ValueError, match="method"):
            stage.method(name=name)(print)


# ---- many at a time ----

def test_out_of_order(rs, callee):
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


def test_many_threads_call_at_once(rs, stages):
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


def run(coroutine):
    """Within a time, and leaving nothing behind."""
    async def limited():
        return await asyncio.wait_for(coroutine, LONG)

    threads = threading.active_count()
    result = asyncio.run(limited())
    assert not ringside._aio._waiters and not ringside._calls._lines and threading.active_count() <= threads
    return result


def test_many_tasks_call_at_once(rs, stages):
    async def main():
        async def call(i):
            with await rs.call_async("work.Double", np.array([i]), timeout=LONG) as reply:
                return int(reply.numpy()[0])

        return await asyncio.gather(*(call(i) for i in range(500)))

    with Serving(stages[1], make_stage()):
        assert run(main()) == [2 * i for i in range(500)]


def test_no_wake_is_lost(rs, stages):
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


def test_one_loop_calls_and_serves(rs, callee):
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

def test_stream(rs, stages):
    with Serving(stages[1], make_stage()):
        for count in (0, 1, 2, 50):
            for credits in (1, 3):
                replies = rs.call_stream("work.Count", np.array([count]), timeout=LONG, credits=credits)
                assert [int(reply.numpy()[0]) for reply in replies] == list(range(count))
        assert [int(reply.numpy()[0]) for reply in rs.call_stream("work.Range", timeout=LONG)] == [0, 1]
        with rs.call_stream("work.Double", np.array([4]), timeout=LONG) as replies:  # one reply is a stream as well
            assert [reply.numpy()[0] for reply in replies] == [8]


def test_a_slow_consumer_holds_up_the_callee(rs, stages):
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


def test_asynchronous_stream_with_a_slow_consumer(rs, stages):
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


# ---- the end of a call before its reply ----

def test_a_stream_is_cancelled_by_leaving_it(rs, stages):
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


def test_the_timeout_travels(rs, callee):
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
    call = rs._call("work.M", None, None, 0.1, None, 1)
    call._start()
    request = callee.receive(LONG)
    with pytest.raises(ringside.Timeout):
        call._next()
    assert request.cancelled and request.time_left == 0
    request.release()
    with pytest.raises(ringside.Timeout):
        run(rs.call_async("work.M", timeout=0.05))


def test_a_cancelled_task_cancels_its_call(rs, callee):
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


def test_a_server_that_is_cancelled(rs, callee):
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


def test_cancelled_from_another_thread(rs, callee):
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
    time.sleep(0.1)
    with pytest.raises(ringside.InvalidState, match="another thread"):
        call._next()
    call.cancel()
    thread.join(LONG)
    assert len(failures) == 1 and request.cancelled and not call.open
    request.release()


def test_close_ends_what_waits(stages, callee):
    rs = ringside.connect(stages[0].socket)
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


def test_an_unanswered_call(rs, callee):
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


def test_a_callee_that_is_killed(rs, stages):
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


# ---- what must not be done ----

def test_nothing_of_a_call_is_pickled(rs, callee):
    call = rs._call("work.M", np.arange(3), None, LONG, None, 1)
    with pytest.raises(TypeError, match="call in flight"):
        pickle.dumps(call)
    call._start()
    with callee.receive(LONG) as request:
        with pytest.raises(TypeError, match="came by a route"):
            pickle.dumps(request)
        request.reply(request.numpy())
    reply = call._next()
    with pytest.raises(TypeError, match="reply to a call"):
        pickle.dumps(reply)
    with pytest.raises(ringside.InvalidState, match="reply to a call"):
        reply.nack()
    del reply  # is released, not given back
    assert callee.stats()["requeued"] == rs.stats()["nacked"] == 0


def test_views_keep_reply_and_request(rs, callee):
    call = rs._call("work.M", np.arange(3), None, LONG, None, 1)
    call._start()
    request = callee.receive(LONG)
    kept = request.numpy()
    request.reply(kept * 3)
    request.release()
    assert free_slots(rs) == SLOTS - 1
    reply = call._next()
    view = reply.numpy()
    reply.release()
    del reply, call
    assert free_slots(callee) == SLOTS - 1
    assert view.tolist() == [0, 3, 6] and kept.tolist() == [0, 1, 2]
    del view, kept
    gc.collect()
    assert free_slots(callee) == free_slots(rs) == SLOTS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_cannot_call(rs):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rs.call("work.Double", timeout=1)
        except ringside.Forked:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_many_calls_leak_nothing(rs, callee):
    """Both sides in one thread, by hand: the calls cost what they cost, and no time is lost in waiting."""
    data = np.arange(8)

    def some(count):
        for i in range(count):
            call = rs._call("work.M", data, None, LONG, None, 1)
            call._start()
            request = callee.receive(LONG)
            if i % 16 == 1:
                request.reply_error(9, "STATE: no")
            elif i % 16 == 2:
                call.cancel()
            else:
                request.reply(data, meta=b"x")
            request.release()
            try:
                reply = call._next()
            except ringside.InvalidState:
                continue
            if reply is not None:
                reply.release()

    some(2000)
    gc.collect()
    before, blocks, received = resident_bytes(), sys.getallocatedblocks(), callee.stats()["received"]
    some(MANY)
    gc.collect()
    assert callee.stats()["received"] == received + MANY
    assert resident_bytes() - before < 4 << 20 and sys.getallocatedblocks() - blocks < 1000
    assert free_slots(rs) == free_slots(callee) == SLOTS

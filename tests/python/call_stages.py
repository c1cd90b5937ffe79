# SPDX-License-Identifier: Apache-2.0
"""A caller and a callee on two stages, for the tests of calls."""

import asyncio
import threading
import time

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, Sidecar, drain, free_slots, wait_for_route

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


def run(coroutine):
    """Within a time, and leaving nothing behind."""
    async def limited():
        return await asyncio.wait_for(coroutine, LONG)

    threads = threading.active_count()
    result = asyncio.run(limited())
    assert not ringside._aio._waiters and not ringside._calls._lines and threading.active_count() <= threads
    return result

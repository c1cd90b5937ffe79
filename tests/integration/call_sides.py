# SPDX-License-Identifier: Apache-2.0
"""Callers and callees of both kinds, in one stage or two, for the tests of calls over the socket."""
import contextlib
import multiprocessing
import signal

import pytest

from daemon import wait_for
from messages import refused
from ttrpc_client import Refused
from worker import Failed, Worker

DEEP = {"inbox": {"cells": 256, "depth": 200}, "ring": {"classes": [{"slot_bytes": "64Ki", "slots": 64}]}}


class Stages:
    """`front`, whose route leads to `back`; with one stage, both are it."""

    def __init__(self, start, place, count):
        route = {"there": {"to": [f"unix:{place}/back.sock"], "when_full": "error"}}
        self.back = start("back", routes={**route}, **DEEP)
        self.front = self.back if count == 1 else start("front", routes={**route}, **DEEP)
        self.all = {self.front, self.back}
        self.wait_linked()

    def wait_linked(self):
        if self.front is not self.back:
            wait_for(lambda: self.state("front", "downstream") and self.state("back", "upstream"), 20)

    def state(self, stage, direction):
        with getattr(self, stage).client() as client:
            return "connected" in [p.state for p in client.status().peers if p.direction == direction]

    def slots(self):
        found = []
        for daemon in self.all:
            with daemon.client() as client:
                found += client.slots()
        return found

    def clients(self):
        found = []
        for daemon in self.all:
            with daemon.client() as client:
                found += [c for c in client.status().clients if not c.name.endswith("sidecar")]
        return found

    def wait_empty(self):
        wait_for(lambda: not self.slots(), 10, lambda: f"{self.slots()}")


@pytest.fixture(params=[1, 2], ids=["own_stage", "next_stage"])
def stages(start, place, request):
    return Stages(start, place, request.param)


@pytest.fixture
def two(start, place):
    return Stages(start, place, 2)


@pytest.fixture
def caller(stages):
    with stages.front.client() as client:
        client.attach("caller")
        yield client


@pytest.fixture
def callee(stages):
    with stages.back.client() as client:
        client.attach("callee")
        yield client


@contextlib.contextmanager
def worker_of(daemon, name):
    worker = Worker(daemon.socket, name)
    try:
        yield worker
    finally:
        worker.kill()


def call(client, method="scale", data=b"\2" * 16, **options):
    return client.begin_call(method, data, route="there", **options)


def call_in_time(client, take, timeout=0.1, options=lambda timeout: {"timeout": timeout}):
    """A call that `take` takes before its time is over, what it gave, and that time: more for each until one is taken."""
    while True:
        pending = call(client, **options(timeout))
        try:
            return pending, take(), timeout
        except (Failed, Refused) as error:
            assert error.name == "TIMEOUT" and timeout < 10
            with refused("TIMEOUT"):
                client.end_call(pending)
            timeout *= 2


def call_and_stay(socket, pipe):
    import ttrpc_client
    client = ttrpc_client.Client(socket)
    client.attach("dies")
    call(client, timeout=100)
    pipe.send(1)
    signal.pause()


def take_and_stay(socket, pipe):
    import ttrpc_client
    client = ttrpc_client.Client(socket)
    client.attach("dies")
    pipe.send(client.receive(timeout=20).method)
    signal.pause()


@contextlib.contextmanager
def process(target, socket):
    here, there = multiprocessing.Pipe()
    one = multiprocessing.Process(target=target, args=(socket, there))
    one.start()
    try:
        yield one, here
    finally:
        one.kill()
        one.join()

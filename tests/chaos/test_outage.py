# SPDX-License-Identifier: Apache-2.0
"""The sidecars die; the workers go on, and the next sidecars take over what there is."""
import contextlib
import os
import struct
import subprocess
import tempfile

import pytest

from harness import FREE, SEALED, Ledger, Sidecar, kill_and_reap, until

ACTOR = os.environ["RINGSIDE_ACTOR"]
SLOTS, CELLS = 8, 8
VERSION_AT, EPOCH_AT = 8, 64


class Worker:
    """An actor that is told what to do."""

    def __init__(self, pair, stage):
        self.process = subprocess.Popen(
            [ACTOR, str(pair.sidecars[stage].socket), str(pair.ledger.path), str("ab".index(stage)), f"worker {stage}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self("sleep 0") == 0  # it is attached

    def __call__(self, command):
        self.process.stdin.write(command + "\n")
        number, self.text = self.process.stdout.readline().split(" ", 1)
        return int(number)

    def close(self):
        kill_and_reap(self.process)
        for end in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                end.close()


class Pair:
    """Stage a sends to stage b."""

    def __init__(self, directory):
        self.ledger = Ledger(f"{directory}/ledger", 10000)
        routes = {"a": {"b": ("b", {"when_full": "block", "attempts": 3})}, "b": {}}
        self.sidecars = {stage: Sidecar(directory, stage, routes[stage], SLOTS, CELLS) for stage in "ab"}
        self.workers = []

    def start(self):
        for sidecar in self.sidecars.values():
            sidecar.start()
        self.rings = {stage: sidecar.ring() for stage, sidecar in self.sidecars.items()}
        until(lambda: self.rings["a"].connected() == (1, 1), "a leads to b", 10)

    def worker(self, stage):
        self.workers.append(Worker(self, stage))
        return self.workers[-1]

    def workers_that_met(self):
        """A source and a sink that has the source's ring open."""
        source, sink = self.worker("a"), self.worker("b")
        assert source("send b 1") == 1 and sink("take 1 2000") == 1
        return source, sink

    def epoch(self, stage):
        return struct.unpack_from("<I", self.rings[stage].memory, EPOCH_AT)[0]

    def close(self):
        for worker in self.workers:
            worker.close()
        for sidecar in self.sidecars.values():
            if sidecar.running():
                sidecar.kill()


@pytest.fixture
def pair():
    with tempfile.TemporaryDirectory(prefix="ringside-outage-", dir="/dev/shm") as directory:
        pair = Pair(directory)
        try:
            pair.start()
            yield pair
            assert pair.ledger[Ledger.CORRUPT] == 0
        finally:
            pair.close()


def test_workers_exchange_while_all_sidecars_are_away(pair):
    source, sink = pair.workers_that_met()
    before = {stage: [(number, pid) for number, _, pid, name in pair.rings[stage].clients() if "worker" in name]
              for stage in "ab"}
    for sidecar in pair.sidecars.values():
        sidecar.kill()
    for _ in range(50):
        assert source("send b 8") == 8
        assert sink("take 8 1000") == 8
    for sidecar in pair.sidecars.values():
        sidecar.start()
    until(lambda: pair.rings["a"].connected() == (1, 1), "a leads to b again", 10)
    assert [pair.epoch(stage) for stage in "ab"] == [1, 1]
    # The same sessions: who sleeps for something finds the way back.
    def attached(stage, worker):
        worker("take 1 50")
        return [client["state"] for client in pair.sidecars[stage].status()["clients"]
                if client["name"] == f"worker {stage}"] == ["attached"]
    until(lambda: attached("a", source) and attached("b", sink), "both are attached again", 5)
    assert {stage: [(number, pid) for number, _, pid, name in pair.rings[stage].clients() if "worker" in name]
            for stage in "ab"} == before
    assert source("send b 8") == 8 and sink("take 8 1000") == 8


def test_tickets_from_before_are_read_after(pair):
    owner = pair.worker("a")
    assert owner("share 0 0") == 0
    pair.sidecars["a"].kill()
    assert owner("read 0") == 0 and owner("unread") == 0
    pair.sidecars["a"].start()
    late = pair.worker("a")
    assert late("read 0") == 0 and late("unread") == 0
    assert late("free 0") == 0 and owner("read 0") < 0
    until(lambda: pair.rings["a"].phases()[FREE] == SLOTS, "freed", 5)


def test_what_the_dead_held_comes_back_with_the_next_sidecar(pair):
    """Nobody saw the worker die; its lock byte tells."""
    (source, sink), dying = pair.workers_that_met(), pair.worker("b")
    assert source("send b 4") == 4 and dying("hold 2 1000") == 2
    pair.sidecars["a"].kill()
    kill_and_reap(dying.process)
    assert sink("take 4 300") == 2 and pair.rings["a"].phases()[SEALED] == 2
    pair.sidecars["a"].start()
    assert sink("take 2 3000") == 2
    until(lambda: pair.rings["a"].phases()[FREE] == SLOTS, "all is free", 5)


def test_wrong_hints_are_rebuilt(pair):
    source, sink = pair.worker("a"), pair.worker("b")
    assert source("send b 5") == 5
    pair.sidecars["b"].kill()
    ring = pair.rings["b"]
    ring.store(ring.inbox_at, 1000 * CELLS)
    ring.store(ring.inbox_at + 64, 999 * CELLS)
    pair.sidecars["b"].start()
    assert sink("take 5 2000") == 5
    assert source("send b 8") == 8 and sink("take 8 2000") == 8


def version(pair):
    return struct.unpack_from("<I", pair.rings["a"].memory, VERSION_AT)[0]


def test_another_minor_version_is_adopted(pair):
    source, sink = pair.worker("a"), pair.worker("b")
    assert source("send b 3") == 3
    pair.sidecars["a"].kill()
    struct.pack_into("<I", pair.rings["a"].memory, VERSION_AT, version(pair) + 3)
    pair.sidecars["a"].start()
    assert pair.epoch("a") == 1
    assert sink("take 3 2000") == 3 and source("send b 8") == 8 and sink("take 8 2000") == 8


def test_another_major_version_is_refused_and_left_alone(pair):
    source, sink = pair.workers_that_met()
    assert source("send b 3") == 3
    pair.sidecars["a"].kill()
    right = version(pair)
    struct.pack_into("<I", pair.rings["a"].memory, VERSION_AT, right + (1 << 16))
    before = bytes(pair.rings["a"].memory)
    pair.sidecars["a"].start(wait=False)
    assert pair.sidecars["a"].process.wait(10) == 1
    words = pair.sidecars["a"].tail(3)
    for word in ("layout version", "a.control", "remove"):  # the reason, the file, the way out
        assert word in words
    assert bytes(pair.rings["a"].memory) == before
    # The workers that have it mapped go on, and the release that made it has it again.
    assert sink("take 3 1000") == 3 and source("send b 2") == 2
    struct.pack_into("<I", pair.rings["a"].memory, VERSION_AT, right)
    pair.sidecars["a"].start()
    assert sink("take 2 2000") == 2

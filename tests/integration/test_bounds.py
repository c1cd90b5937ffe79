# SPDX-License-Identifier: Apache-2.0
"""What must not reach beyond its end: a path cut to the length of a socket address, a message that leaves its slot."""
import os
import pathlib
import subprocess

import pytest

import control_pb2 as pb
from machine import sidecar  # noqa: F401
from ttrpc_client import Refused
from worker import Failed, Worker

CLI = os.environ["RINGSIDE_CLI"]
KI = 1 << 10


@pytest.fixture
def workers():
    running = []

    def start(*arguments):
        running.append(Worker(*arguments))
        return running[-1]

    yield start
    for worker in running:
        worker.kill()


# ---- paths ----

def test_path_that_begins_with_another_sidecars_path(sidecar, place, workers):  # noqa: F811
    """A living sidecar has the first 107 bytes of it: nobody may end up there, nor take its place."""
    path = str(place / ("s" * (107 - len(str(place)) - 1)))
    living = sidecar(socket={"path": path}, routes={"self": {"to": [f"unix:{path}"], "when_full": "error"}}).start()
    workers(path).send("self", 1)
    for longer in (path + "x", path + "xy"):
        with pytest.raises(Failed) as error:
            workers(longer)
        assert error.value.name in ("ENAMETOOLONG", "INVALID") and "107" in str(error.value)
        done = subprocess.run([CLI, "--socket", longer, "ping", "--count", "1"], capture_output=True, text=True)
        assert done.returncode != 0 and "107" in done.stderr
        other = sidecar("other", socket={"path": longer}, routes={}).start(wait=False)
        assert other.wait() == 1 and "107" in other.log()
        routed = sidecar("routed", routes={"next": {"to": [f"unix:{longer}"]}}).start(wait=False)
        assert routed.wait() == 1 and "107" in routed.log()
    assert living.process.poll() is None
    assert sorted(p.name for p in place.iterdir() if p.is_socket()) == [pathlib.Path(path).name]


def test_long_directories_are_used_whole(sidecar, place, workers):  # noqa: F811
    """Only a socket's path is short; the ring may lie where it likes, and nothing needs a name in a temporary directory."""
    deep = place.joinpath(*["d" * 200] * 4)
    daemon = sidecar(ring={"control_dir": str(deep), "body_dir": str(deep)})
    daemon.start(env={**os.environ, "TMPDIR": str(place.joinpath(*["t" * 200] * 3))})
    worker = workers(daemon.socket)
    worker.send("self", 1)
    assert worker.receive() == 1
    assert sorted(p.name for p in deep.iterdir())[:2] == ["stage.body", "stage.control"]
    worker("release")
    assert worker.close() == 0
    assert daemon.stop() == 0 and list(deep.iterdir()) == []


# ---- slots ----

CLASSES = [{"slot_bytes": "4Ki", "slots": 5}, {"slot_bytes": "12Ki", "slots": 3}, {"slot_bytes": "64Ki", "slots": 2}]
SLOTS = [(4 * KI, i * 4 * KI) for i in range(5)] + [(12 * KI, (20 + i * 12) * KI) for i in range(3)] + [
    (64 * KI, (56 + i * 64) * KI) for i in range(2)]


@pytest.mark.parametrize("less", [0, 1, 4 * KI - 1])
def test_neighbours_of_a_slot_are_not_touched(sidecar, workers, less):  # noqa: F811
    """Every slot in turn, filled to its last byte or nearly, between canaries that must live."""
    daemon = sidecar(ring={"classes": CLASSES}, inbox={"cells": 32, "depth": 16}).start()
    body = daemon.ring / "stage.body"
    canaries = bytes(range(1, 251)) * (body.stat().st_size // 250 + 1)
    canaries = canaries[:body.stat().st_size]
    worker = workers(daemon.socket)
    seen = set()
    for size in (4 * KI, 12 * KI, 64 * KI):
        count = sum(slot_bytes == size for slot_bytes, _ in SLOTS)
        for _ in range(count):
            with open(body, "r+b", buffering=0) as file:
                file.write(canaries)
            worker(f"loan {size - less} 0")
            worker("send self 251")
            after = body.read_bytes()
            begin = after.index(251)
            end = begin + size - less
            assert (size, begin) in SLOTS and (size, begin) not in seen
            seen.add((size, begin))
            assert after[begin:end] == bytes([251]) * (size - less)
            assert after[:begin] == canaries[:begin] and after[end:] == canaries[end:]
    assert seen == set(SLOTS)
    with pytest.raises(Failed) as error:
        worker("loan 1 0")
    assert error.value.name == "FULL"


def test_what_does_not_fit_is_refused_before_it_is_written(start):
    daemon = start(ring={"classes": CLASSES})
    with daemon.client() as client:
        client.attach()
        for size in (64 * KI + 1, 2 ** 31, 2 ** 63 - 1):
            with pytest.raises(Refused) as error:
                client.loan((size,))
            assert error.value.name == "TOO_BIG" and "65536" in error.value.message
        for shape in ((2 ** 62, 4), (2 ** 32, 2 ** 32), (2 ** 63 - 1, 2 ** 63 - 1)):
            with pytest.raises(Refused) as error:
                client.loan(shape, dtype=pb.COMPLEX128)
            assert error.value.name in ("SHAPE", "TOO_BIG")
        for shape in ((0,), (), (0, 2 ** 40), (1, 8, 0, 128)):
            loan = client.loan(shape)
            assert loan.tensors[0].bytes == (1 if shape == () else 0)
            assert loan.tensors[0].offset + loan.tensors[0].bytes <= loan.slot_bytes
            client.call("Abandon", pb.LeaseRequest(lease=loan.lease))
        assert client.slots() == []

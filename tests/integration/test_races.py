# SPDX-License-Identifier: Apache-2.0
"""Sidecars that start at the same time, and children that inherit what keeps a process alive."""
import contextlib
import os
import signal

import pytest

from daemon import PROXY, wait_for
from machine import is_sanitized, sidecar  # noqa: F401
from worker import Worker

ROUNDS = 30 if is_sanitized(PROXY) else 100  # of each kind; sanitized programs start slowly


@pytest.fixture
def workers():
    running = []

    def start(*arguments):
        running.append(Worker(*arguments))
        return running[-1]

    yield start
    for worker in running:
        worker.kill()


@pytest.mark.parametrize("shared", ["all", "ring", "socket"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_of_two_at_once_exactly_one_wins(sidecar, place, workers, how, shared):  # noqa: F811
    """Each round ends in another way than it began: with clean names, with a dead sidecar's, with a ring in use."""
    pair = [sidecar(), sidecar()]
    pair[1].directory = place / "other"  # of its config
    pair[1].directory.mkdir()
    if shared == "ring":
        pair[1].socket = pair[1].config["socket"]["path"] = str(place / "other.sock")
    if shared == "socket":
        pair[1].config["stage"] = "other"
    worker = first = None
    won = [0, 0]
    for i in range(ROUNDS):
        for one in pair if i % 2 else pair[::-1]:
            one.start(wait=False)
        codes = lambda: [one.process.poll() for one in pair]
        wait_for(lambda: codes().count(None) == 1)
        winner = codes().index(None)
        won[winner] += 1
        assert codes()[1 - winner] == 3, pair[1 - winner].log()
        pair[winner].wait_ready()
        with pair[winner].client() as client:
            status = client.status()
            if how == signal.SIGKILL and shared == "all":
                if worker is None:  # lives through all of it, with a slot in its hands
                    worker, first = workers(pair[0].socket, "survivor"), status
                    worker.send("self", 1)
                    assert worker.receive() == 1
                    worker("loan 100 0")
                assert status.incarnation == first.incarnation and status.epoch == i
                assert [s.state for s in client.slots()] == ["sealed", "loaned"]
        pair[winner].signal(how)
        pair[winner].wait()
        assert how == signal.SIGKILL or pair[winner].process.returncode == 0
        assert how == signal.SIGKILL or pair[winner].files() == []
        pair[winner].log_path.unlink()
    assert min(won) > 0, "the same one won every time: this was no race"
    if worker is not None:
        pair[0].start()
        worker("abandon")
        worker("release")
        worker.send("self", 2)
        assert worker.receive() == 2


# ---- forked children ----

def test_child_does_not_stand_in_for_its_dead_parent(sidecar, workers):  # noqa: F811
    """A child has its parent's descriptors until it lets them go; the parent counts as dead all the same."""
    daemon = sidecar().start()
    with daemon.client() as client:
        parent = workers(daemon.socket, "parent")
        parent("loan 100 0")
        child = parent.fork()
        parent.process.kill()
        parent.process.wait()
        wait_for(lambda: not client.status().clients and not client.slots())
        os.kill(child, 0)


def test_child_of_a_worker_that_died_while_no_sidecar_ran(sidecar, workers):  # noqa: F811
    """Then nothing but the lock speaks for the worker, and a child that kept it would speak for ever."""
    daemon = sidecar().start()
    parent = workers(daemon.socket, "parent")
    parent.send("self", 9)
    assert parent.receive() == 9
    child = parent.fork()
    daemon.kill()
    parent.process.kill()
    parent.process.wait()
    daemon.start()
    os.kill(child, 0)
    heir = workers(daemon.socket, "heir")
    value, attempts, _ = heir("receive 5000")
    assert (value, attempts) == ("9", "1")
    with daemon.client() as client:
        wait_for(lambda: [c.name for c in client.status().clients] == ["heir"])


def test_child_does_not_keep_the_files_of_a_sidecar_that_ended(sidecar, place, workers):  # noqa: F811
    daemon = sidecar().start()
    parent = workers(daemon.socket, "parent")
    parent.send("self", 9)
    child = parent.fork()

    def kept():
        names = []
        for fd in os.listdir(f"/proc/{child}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed since
                names.append(os.readlink(f"/proc/{child}/fd/{fd}"))
        return [name for name in names if str(place) in name or "socket" in name or "event" in name]

    wait_for(lambda: not kept())
    assert str(daemon.ring) not in open(f"/proc/{child}/maps").read()
    assert parent.receive() == 9
    parent("release")
    assert parent.close() == 0
    assert daemon.stop() == 0 and daemon.files() == []
    os.kill(child, 0)

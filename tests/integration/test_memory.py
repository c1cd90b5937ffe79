# SPDX-License-Identifier: Apache-2.0
"""Memory that is not there, must not be had, or is taken away: errors with figures at the start, and no SIGBUS later."""
import os
import pathlib
import resource
import subprocess

import pytest

from daemon import PROXY, wait_for
from machine import (HUGE, drop_lock_capability, hugetlb_group, huge_pages, is_sanitized, mount, own_mounts,  # noqa: F401
                     sidecar)
from ttrpc_client import Refused
from worker import Failed, Worker

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
RING = 8 * 64 * KI  # bytes of the default body


def everything(daemon, slots=8, size=64 * KI):
    """Every byte of every slot is written, sent, received and compared, by a worker that a SIGBUS would end."""
    worker = Worker(daemon.socket)
    try:
        for _ in range(slots):
            worker(f"loan {size} 1000")
        for i in range(slots):
            worker(f"send self {i + 1}")
        assert [worker.receive() for _ in range(slots)] == list(range(1, slots + 1))
        for _ in range(slots):
            worker("release")
        assert worker.close() == 0
    finally:
        worker.kill()
    with daemon.client() as client:
        status = client.status()
        assert (status.state, status.quarantined) == ("serving", 0)


ROOMY = {"inbox": {"cells": 32, "depth": 16}}


# ---- a tmpfs that is full ----

def test_room_that_somebody_else_took_is_told_at_the_start(mount, sidecar):
    bodies = mount("bodies", "tmpfs", "size=1m")
    with open(bodies / "filler", "wb") as filler:
        filler.write(bytes(MI - RING + 4 * KI))  # the ring fits but for one page
    daemon = sidecar(ring={"body_dir": str(bodies)}).start(wait=False)
    assert daemon.wait() == 1
    assert f"needs {RING} bytes" in daemon.log() and f"{RING - 4 * KI} are available" in daemon.log()
    assert daemon.files() == [] and os.listdir(bodies) == ["filler"]
    os.truncate(bodies / "filler", MI - RING)
    assert daemon.start().stop() == 0


def test_ring_is_whole_when_others_fill_the_rest(mount, sidecar):
    bodies = mount("bodies", "tmpfs", "size=1m")
    daemon = sidecar(ring={"body_dir": str(bodies)}, **ROOMY).start()
    with open(bodies / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4 * KI))
    assert os.statvfs(bodies).f_bavail == 0
    everything(daemon)
    daemon.kill()
    daemon.start()  # whoever takes the ring over needs no page either
    everything(daemon)
    assert daemon.stop() == 0


# ---- huge pages that a control group forbids ----

SIZES = [pytest.param("2MB", 2 * MI, "2Mi", id="2MiB"), pytest.param("1GB", GI, "1Gi", id="1GiB")]


@pytest.mark.parametrize("limit", ["max", "rsvd.max"])
@pytest.mark.parametrize("name, size, word", SIZES)
def test_forbidden_huge_page_is_an_error_that_names_the_controller(mount, huge_pages, hugetlb_group, sidecar, name,
                                                                   size, word, limit):
    huge_pages(size, 1)
    bodies = mount("huge", "hugetlbfs", f"pagesize={word[:2]}")
    hugetlb_group.limit(f"{name}.{limit}", 0)
    daemon = sidecar(ring={"pages": word})
    daemon.start(wait=False, preexec_fn=hugetlb_group.enter)
    assert daemon.wait() == 1
    assert f"needs {size} bytes" in daemon.log() and "hugetlb cgroup controller" in daemon.log()
    assert daemon.files() == [] and os.listdir(bodies) == []
    daemon.config["ring"]["pages"] = "auto"
    daemon.start(preexec_fn=hugetlb_group.enter)
    with daemon.client() as client:
        pages = client.status().pages
    assert pages.startswith("4 KiB pages; ") and "cgroup" in pages
    assert daemon.stop() == 0


def test_limit_that_is_lowered_later_does_no_harm(mount, huge_pages, hugetlb_group, sidecar):
    huge_pages(2 * MI, 2)
    mount("huge", "hugetlbfs", "pagesize=2M")
    daemon = sidecar(ring={"pages": "2Mi", "classes": [{"slot_bytes": "512Ki", "slots": 8}]}, **ROOMY)
    daemon.start(preexec_fn=hugetlb_group.enter)
    for name in ("2MB.max", "2MB.rsvd.max"):
        hugetlb_group.limit(name, 4 * MI)  # what is in use: the kernel refuses less
    everything(daemon, size=512 * KI)
    daemon.kill()
    daemon.start(preexec_fn=hugetlb_group.enter)
    with daemon.client() as client:
        assert client.status().epoch == 1 and client.status().page_bytes == 2 * MI
    everything(daemon, size=512 * KI)
    assert daemon.stop() == 0


def test_kills_give_back_every_huge_page(mount, huge_pages, sidecar):
    """A page that nobody can name any more is lost until the machine is started again."""
    huge_pages(2 * MI, 4)
    bodies = mount("huge", "hugetlbfs", "pagesize=2M")
    free = lambda: int((HUGE / "hugepages-2048kB/free_hugepages").read_text())
    before = free()
    daemon = sidecar(ring={"pages": "2Mi", "classes": [{"slot_bytes": "512Ki", "slots": 8}]}, **ROOMY)
    for i in range(40):
        daemon.start()
        worker = Worker(daemon.socket)
        worker("loan 100 1000")
        for one in (worker, daemon) if i % 2 else (daemon, worker):
            one.kill()
        assert len(os.listdir(bodies)) == 1 and before - free() == 2
    daemon.start()
    with daemon.client() as client:
        wait_for(lambda: not client.status().clients)
    assert daemon.stop() == 0
    assert os.listdir(bodies) == [] and free() == before


# ---- a small memlock limit ----

@pytest.fixture
def few_locks(sidecar):
    """Starts a sidecar that may lock 8 MiB, without the capability that would lift the limit."""
    if os.geteuid() != 0:
        pytest.skip("needs root to have the capability that is dropped")
    if is_sanitized(PROXY):
        pytest.skip("sanitizers turn mlock into nothing")

    def start(lock, slots, limit=8 * MI, wait=True, **ring):
        def prepare():
            drop_lock_capability()
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))

        daemon = sidecar(ring={"lock": lock, "classes": [{"slot_bytes": "1Mi", "slots": slots}], **ring})
        return daemon.start(wait=wait, preexec_fn=prepare)

    return start


def locked_bytes(daemon):
    lines = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmLck:")) * KI


def test_memlock_too_small_is_told_with_limit_and_need(few_locks):
    daemon = few_locks("require", 64, wait=False)
    assert daemon.wait() == 1
    assert "67108864" in daemon.log() and "8388608" in daemon.log() and "CAP_IPC_LOCK" in daemon.log()
    assert "cannot allocate memory" not in daemon.log().lower()
    assert daemon.files() == []


def test_memlock_too_small_is_one_warning_when_the_lock_is_optional(few_locks):
    daemon = few_locks("auto", 64)
    assert daemon.log().count("needs 67108864 bytes, the memlock limit is 8388608") == 1
    with daemon.client() as client:
        assert client.status().lock.startswith("not locked")
    assert locked_bytes(daemon) == 0
    assert daemon.stop() == 0


def test_memlock_of_exactly_the_need_is_enough(few_locks):
    daemon = few_locks("require", 8)
    assert locked_bytes(daemon) == 8 * MI
    with daemon.client() as client:
        assert client.status().lock == f"locked in memory: {8 * MI} bytes"
    assert daemon.stop() == 0


def test_huge_pages_need_no_memlock(mount, huge_pages, few_locks):
    huge_pages(2 * MI, 4)
    mount("huge", "hugetlbfs", "pagesize=2M")
    daemon = few_locks("require", 8, limit=0, pages="2Mi")
    with daemon.client() as client:
        assert client.status().lock.startswith("not needed")
    assert daemon.stop() == 0


# ---- files that a worker cuts or empties ----

def truncate(path):
    os.truncate(path, 0)


def punch(path):
    subprocess.run(["fallocate", "--punch-hole", "--offset", "0", "--length", str(path.stat().st_size), path],
                   check=True)


@pytest.mark.parametrize("harm", [truncate, punch])
@pytest.mark.parametrize("kind", ["body", "control"])
def test_harm_to_a_ring_stays_in_that_ring(start, place, harm, kind):
    """Whoever may write a ring may cut its files: two sidecars and their workers have it mapped."""
    to_b = {"next": {"to": [f"unix:{place}/b.sock"], "when_full": "error"}}
    b = start("b", **ROOMY)
    bad, good = start("bad", routes=to_b, **ROOMY), start("good", routes=to_b, **ROOMY)
    workers = [Worker(stage.socket) for stage in (bad, good, b)]
    culprit, bystander, receiver = workers
    try:
        for sender in (culprit, bystander):
            wait_for(lambda: connected(bad) and connected(good))
            sender.send("next", 7)
            assert receiver.receive() == 7  # both rings are mapped by b and by its worker now
            receiver("release")
        culprit.send("next", 8)
        assert receiver.receive() == 8
        culprit.send("next", 9)
        harm(place / "ring" / f"bad.{kind}")
        assert int(receiver("look")[0]) in (8, 0)  # what was received: as it was, or gone, but no crash
        wait_for(lambda: state(bad) == "damaged", 15)
        with bad.client() as client, pytest.raises(Refused) as refusal:
            client.attach()
            client.loan()
        assert refusal.value.name in ("CORRUPT", "DRAINING"), refusal.value
        with pytest.raises(Failed):
            for _ in range(3):
                culprit("loan 100 0")
                culprit("send next 9")
        for i in range(20):
            bystander.send("next", 100 + i)
            assert next_of(receiver, {0, 9}) == 100 + i
            receiver("release")
        assert state(good) == state(b) == "serving"
        assert [w.process.poll() for w in workers] == [None] * 3
    finally:
        for worker in workers:
            worker.kill()


def connected(daemon):
    with daemon.client() as client:
        return [p.state for p in client.status().peers if p.direction == "downstream"] == ["connected"]


def state(daemon):
    with daemon.client() as client:
        return client.status().state


def next_of(receiver, spoiled):
    """The next value that is none of the spoiled ring's; its messages may come as zeroes or be refused."""
    for _ in range(10):
        try:
            value = receiver.receive()
        except Failed as error:
            assert error.name == "CORRUPT", error
            continue
        if value not in spoiled:
            return value
        receiver.begin("release")  # may say that the message is gone
        try:
            receiver.end()
        except Failed as error:
            assert error.name in ("CORRUPT", "STATE"), error
    raise AssertionError("nothing but messages of the spoiled ring")

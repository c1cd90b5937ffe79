# SPDX-License-Identifier: Apache-2.0
"""Rings and programs of another version, and rings whose first words were spoiled: refused by name, harmed by nobody."""
import os
import struct

import pytest

import control_pb2 as pb
from daemon import PROXY, wait_for
from machine import is_sanitized, sidecar  # noqa: F401
from ttrpc_client import Refused
from worker import Failed, Worker

VERSION, LAYOUT_HASH, MEANINGFUL = 8, 16, 488  # offsets in the superblock; how many of its bytes say anything
# What a reader cannot know better: the minor version, the ring's own name and number, what is counted or set anew.
ANOTHER_RELEASE = [*range(10, 24), *range(152, 160)]  # major version, byte order, layout hash, features
HARMLESS = [range(8, 10), range(48, 64), range(64, 70), range(88, 92), range(160, 224)]


@pytest.fixture
def workers():
    running = []

    def start(*arguments):
        running.append(Worker(*arguments))
        return running[-1]

    yield start
    for worker in running:
        worker.kill()


class Superblock:
    """The first words of a ring's control file, under the hands of whoever has it mapped."""

    def __init__(self, daemon):
        self.path = daemon.ring / "stage.control"

    def read(self, at, size):
        with open(self.path, "rb") as file:
            file.seek(at)
            return file.read(size)

    def write(self, at, data):
        before = self.read(at, len(data))
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(at)
            file.write(data)
        return before

    def flip(self, at):
        return self.write(at, bytes([self.read(at, 1)[0] ^ 0x55]))


def harmless(at):
    return any(at in part for part in HARMLESS)


def attach_once(daemon):
    """What a worker that attaches now says, or None when it is let in."""
    try:
        Worker(daemon.socket, "late").kill()
    except Failed as error:
        return error
    return None


def test_every_flipped_byte_is_noticed_by_who_attaches(sidecar, workers):  # noqa: F811
    daemon = sidecar().start()
    block = Superblock(daemon)
    one, other = workers(daemon.socket, "one"), workers(daemon.socket, "other")
    for at in range(MEANINGFUL):
        before = block.read(at, 1)
        while not harmless(at):  # again when the sidecar has put the byte back before we looked
            block.flip(at)
            error = attach_once(daemon)
            if error is not None or block.read(at, 1) != before:
                assert error is not None, f"byte {at} was not looked at"
                assert error.name == ("VERSION" if at in ANOTHER_RELEASE else "CORRUPT"), (at, error)
                break
        block.write(at, before)
        if at % 40 == 0:  # whoever was there before works with what it read then
            one.send("self", 7)
            assert other.receive() == 7
            other("release")
    with daemon.client() as client:
        wait_for(lambda: len(client.status().clients) == 2)
        assert client.status().state == "serving" and client.slots() == []


def test_every_flipped_byte_is_noticed_by_who_takes_the_ring_over(sidecar, workers):  # noqa: F811
    """A worker lives: its ring is taken over or left alone, never made anew, and is whole when the byte is right again."""
    daemon = sidecar().start()
    block = Superblock(daemon)
    worker = workers(daemon.socket, "survivor")
    worker.send("self", 3)
    worker.send("self", 4)
    assert worker.receive() == 3
    worker("loan 100 0")
    with daemon.client() as client:
        incarnation = client.status().incarnation
    daemon.kill()
    inode = os.stat(block.path).st_ino
    sessions = daemon.ring / "stage.sessions"
    tokens = sessions.read_bytes()
    for at in range(0, MEANINGFUL, 5 if is_sanitized(PROXY) else 1):
        before = block.flip(at)
        daemon.log_path.unlink()
        daemon.start(wait=False)
        wait_for(lambda: daemon.process.poll() is not None or " serves " in daemon.log())
        if daemon.process.poll() is None:
            assert harmless(at), f"byte {at} was not looked at"
            daemon.kill()
        else:
            assert daemon.process.returncode == 1, daemon.log()
            assert "cannot be taken over" in daemon.log() or "left alone" in daemon.log(), (at, daemon.log())
        assert os.stat(block.path).st_ino == inode, f"byte {at}: the ring was made anew"
        block.write(at, before)
    sessions.write_bytes(tokens)  # whoever found another incarnation began anew with them
    daemon.start()
    with daemon.client() as client:
        assert client.status().incarnation == incarnation
        assert sorted(h.state for s in client.slots() for h in s.holders) == ["held", "loaned", "queued"]
    worker("release")
    assert worker.receive() == 4
    worker("release")
    worker("send self 5")
    assert worker.receive() == 5


def test_ring_that_forgot_its_version_is_not_made_anew_under_a_worker(sidecar, workers):  # noqa: F811
    """The version is stored last: without one a ring was never finished. Unless somebody uses it."""
    daemon = sidecar().start()
    block = Superblock(daemon)
    worker = workers(daemon.socket, "survivor")
    worker.send("self", 3)
    daemon.kill()
    before = block.write(VERSION, bytes(4))
    daemon.start(wait=False)
    assert daemon.wait() == 1 and "living workers use it" in daemon.log()
    block.write(VERSION, before)
    daemon.start()
    assert worker.receive() == 3


@pytest.mark.parametrize("what, at, form", [("version", VERSION, "<I"), ("layout", LAYOUT_HASH, "<Q")])
def test_ring_of_another_release_is_left_to_its_workers(sidecar, workers, what, at, form):  # noqa: F811
    """The newer sidecar waits; the workers go on; and when nobody needs the ring any more it is made anew."""
    daemon = sidecar().start()
    block = Superblock(daemon)
    one, other = workers(daemon.socket, "one"), workers(daemon.socket, "other")
    one.send("self", 1)
    assert other.receive() == 1
    other("release")
    daemon.kill()
    mine, = struct.unpack(form, block.read(at, struct.calcsize(form)))
    block.write(at, struct.pack(form, mine + (1 << 16)))
    for _ in range(2):
        daemon.start(wait=False)
        assert daemon.wait() == 1
        assert "cannot be taken over" in daemon.log() and "living workers use it" in daemon.log()
        one("loan 100 0")
        one("send self 2")
        assert other.receive() == 2
        other("release")
    one.kill()
    other.kill()
    daemon.start()
    assert "ring made anew" in daemon.log()
    with daemon.client() as client:
        assert client.status().epoch == 0
    late = workers(daemon.socket, "late")
    late.send("self", 3)
    assert late.receive() == 3


def test_newer_minor_version_is_taken_over(sidecar, workers):  # noqa: F811
    daemon = sidecar().start()
    block = Superblock(daemon)
    worker = workers(daemon.socket, "worker")
    worker.send("self", 1)
    daemon.kill()
    version, = struct.unpack("<I", block.read(VERSION, 4))
    block.write(VERSION, struct.pack("<I", version + 1))
    daemon.start()
    assert worker.receive() == 1
    worker("release")
    late = workers(daemon.socket, "late")
    late.send("self", 2)
    assert worker.receive() == 2


def test_client_with_another_layout_gets_no_descriptor(sidecar):  # noqa: F811
    daemon = sidecar().start()
    block = Superblock(daemon)
    version, = struct.unpack("<I", block.read(VERSION, 4))
    layout_hash, = struct.unpack("<Q", block.read(LAYOUT_HASH, 8))
    for wrong in ((version + (1 << 16), layout_hash), (version, layout_hash ^ 1), (0, 0)):
        with daemon.client() as client:
            with pytest.raises(Refused) as error:
                client.attach(want_descriptors=True, layout_version=wrong[0], layout_hash=wrong[1])
            assert error.value.name == "VERSION" and f"{layout_hash:016x}" in error.value.message
            assert client.descriptors == [] and not client.status().clients
    for right in (version, version + 1):  # another minor version is no other layout
        with daemon.client() as client:
            answer = client.attach(want_descriptors=True, layout_version=right, layout_hash=layout_hash)
            assert list(answer.descriptors)[:2] == [pb.CONTROL_FILE, pb.BODY_FILE]
            for fd in client.descriptors:
                os.close(fd)

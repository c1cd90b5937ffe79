# SPDX-License-Identifier: Apache-2.0
"""Sidecars of one node: links, introductions, and what outlives whom."""
import mmap
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import pytest

from peer_stages import (clients, directory, free_slots, hello_of, hidden_layout_of, layout_of, locked, pair, stages)  # noqa: F401
from peer_tools import PEER, Connection, Failed, Stage, Worker, control, peer, until


def test_message_crosses(stages):  # noqa: F811
    a, b = pair(stages)
    sender, receiver = Worker(a), Worker(b)
    for i in range(50):  # more than there are slots
        sender.send("next", b"%d times" % i)
        message, data = receiver.receive()
        assert data == b"%d times" % i
        assert message.body_path == str(a.files / "a.body")  # read where it was written
        receiver.release(message)
    until(lambda: free_slots(a) == 16, "every slot is free again")


def test_start_order_does_not_matter(stages):  # noqa: F811
    a = stages("a", {"next": "b"})
    worker = Worker(a, descriptors=True, layout=layout_of(a))
    with pytest.raises(Failed) as error:
        worker("Open", control.OpenRequest(destination=0))
    assert error.value.name == "UNAVAILABLE" and "b.sock" in str(error.value)
    stages("b")
    until(lambda: a.connected_to("b"), "a finds b when it comes")
    assert worker("Open", control.OpenRequest(destination=0)).ring.stage == "b"


def test_open_destination(stages):  # noqa: F811
    a, b = pair(stages)
    worker = Worker(a, descriptors=True, layout=layout_of(a))
    worker.take_fds()
    answer = worker("Open", control.OpenRequest(destination=0))
    assert list(answer.descriptors) == [control.CONTROL_FILE, control.INBOX_EVENT]
    files = worker.take_fds()
    assert len(files) == 2
    assert os.fstat(files[0]).st_ino == os.stat(b.files / "b.control").st_ino
    assert answer.ring.control_bytes == os.fstat(files[0]).st_size
    assert answer.ring_number == 1
    for fd in files:
        os.close(fd)
    with pytest.raises(Failed) as error:
        worker("Open", control.OpenRequest(destination=7))
    assert error.value.name == "NO_ROUTE"


def test_open_ring(stages):  # noqa: F811
    a, b = pair(stages)
    worker = Worker(b, "mapper", descriptors=True, layout=layout_of(b))
    worker.take_fds()
    answer = worker("Open", control.OpenRequest(ring=1))
    assert list(answer.descriptors) == [control.CONTROL_FILE, control.BODY_FILE, control.BELL_EVENT, control.INBOX_EVENT]
    files = worker.take_fds()
    assert os.fstat(files[0]).st_ino == os.stat(a.files / "a.control").st_ino
    with pytest.raises(OSError):
        os.ftruncate(files[1], 0)  # read-only
    assert answer.ring.client > 0 and answer.ring.destination == 0
    with mmap.mmap(files[0], 0) as ring:
        clients_offset, = struct.unpack_from("<Q", ring, 96)
        nonce, = struct.unpack_from("<Q", ring, clients_offset + answer.ring.client * 256 + 8)
    assert nonce == answer.ring.nonce
    assert locked(a.files / "a.control", answer.ring.client)
    assert "mapper" in clients(a)
    for fd in files:
        os.close(fd)
    # The description was the worker's alone: neither sidecar kept it.
    assert not locked(a.files / "a.control", answer.ring.client)
    until(lambda: "mapper" not in clients(a), "its number is given back")
    with pytest.raises(Failed) as error:
        worker("Open", control.OpenRequest(ring=9))
    assert error.value.name == "INVALID"


def test_killed_worker_is_swept_by_the_ring_that_it_read(stages):  # noqa: F811
    a, b = pair(stages)
    Worker(a).send("next", b"precious")
    code = (f"import sys; sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}]\n"
            "from peer_tools import Worker\nimport time\n"
            f"class B: socket = {str(b.socket)!r}\n"
            "w = Worker(B, 'victim'); print(w.receive()[1].decode(), flush=True); time.sleep(600)")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "precious\n"
        assert "victim" in clients(a)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    message, data = Worker(b, "heir").receive()
    assert data == b"precious" and message.attempts == 1
    until(lambda: "victim" not in clients(a), "the dead worker's number is free")


def test_session_over_gives_its_place_back(stages):  # noqa: F811
    a, b = pair(stages)
    before = set(clients(a))
    sender = Worker(a)
    for _ in range(40):  # more than a has numbers
        worker = Worker(b, "guest")
        sender.send("next", b"x")
        message, _ = worker.receive()
        worker.release(message)
        worker.close()
        until(lambda: "guest" not in clients(a), "its place is given back", b.log)
    sender.close()
    until(lambda: set(clients(a)) == before, "nothing is left")


def test_downstream_killed(stages):  # noqa: F811
    a, b = pair(stages)
    sender = Worker(a)
    sender.send("next", b"before")
    b.kill()
    sender.send("next", b"while it is away")  # its inbox takes messages without it
    b.start()
    receiver = Worker(b)
    assert [receiver.receive()[1] for _ in range(2)] == [b"before", b"while it is away"]
    until(lambda: a.connected_to("b"), "a connects again")
    sender.send("next", b"after")
    assert receiver.receive()[1] == b"after"
    assert len(b.peers("upstream")) == 1


def test_upstream_killed(stages):  # noqa: F811
    a, b = pair(stages)
    sender, receiver = Worker(a), Worker(b)
    sender.send("next", b"held")
    sender.send("next", b"queued")
    held, _ = receiver.receive()
    a.kill()
    queued, data = receiver.receive()  # taken without its sidecar
    assert data == b"queued"
    receiver.release(queued)
    a.start()
    until(lambda: "a" in b.peers("upstream") and b.peers("upstream")["a"].state == "connected", "a is back", a.log)
    receiver.release(held)
    until(lambda: free_slots(a) == 16, "all of a's slots are free", a.log)
    Worker(a).send("next", b"again")
    until(lambda: a.connected_to("b"), "a connects again")
    message, data = receiver.receive()
    assert data == b"again" and message.attempts == 0
    receiver.release(message)
    receiver.close()
    until(lambda: "worker" not in clients(a) or clients(a)["worker"].home != "b", "its place is given back")


def test_upstream_killed_while_a_session_ends(stages):  # noqa: F811
    a, b = pair(stages)
    receiver = Worker(b, "leaver")
    Worker(a).send("next", b"x")
    receiver.release(receiver.receive()[0])
    a.kill()
    receiver.close()
    until(lambda: "leaver" not in clients(b), "b's session is over")
    a.start()
    until(lambda: "leaver" not in clients(a), "a learns it when it is back", a.log)


def test_downstream_made_anew(stages):  # noqa: F811
    a, b = pair(stages)
    sender = Worker(a)
    sender.send("next", b"first")
    old = a.peers("downstream")["b"].incarnation
    b.kill()
    for name in ("b.control", "b.body", "b.sessions"):
        (b.files / name).unlink(missing_ok=True)
    sender.send("next", b"second")  # into an inbox that nobody will ever look at
    b.start()
    until(lambda: a.connected_to("b") and a.peers("downstream")["b"].incarnation != old, "a maps the new inbox")
    receiver = Worker(b)
    got = {receiver.receive()[1] for _ in range(2)}
    assert got == {b"first", b"second"}


def test_upstream_gone_for_good(stages):  # noqa: F811
    a, b = pair(stages)
    receiver = Worker(b)
    sender = Worker(a, "sender")
    sender.send("next", b"x")
    receiver.release(receiver.receive()[0])
    sender.close()
    until(lambda: free_slots(a) == 16 and "sender" not in clients(a), "a is idle")
    assert a.stop() == 0
    assert not (a.files / "a.control").exists()
    until(lambda: not b.peers("upstream"), "b forgets the ring", b.log)
    maps = pathlib.Path(f"/proc/{b.process.pid}/maps").read_text()
    assert "a.body" not in maps and "a.control" not in maps
    a.start()
    until(lambda: a.connected_to("b"), "a new ring is known")
    Worker(a).send("next", b"fresh")
    assert receiver.receive()[1] == b"fresh"


def test_upstream_gone_while_its_message_is_read(stages):  # noqa: F811
    a, b = pair(stages)
    receiver, sender = Worker(b), Worker(a)
    sender.send("next", b"x")
    message, _ = receiver.receive()
    a.kill()
    for name in ("a.control", "a.body", "a.sessions"):
        (a.files / name).unlink(missing_ok=True)
    until(lambda: "away" in b.log.read_text(), "b sees it")
    time.sleep(2.5)  # longer than b takes to look: the mapping must stay
    assert "a.body" in pathlib.Path(f"/proc/{b.process.pid}/maps").read_text()
    receiver.release(message)
    until(lambda: "a.body" not in pathlib.Path(f"/proc/{b.process.pid}/maps").read_text(), "now it goes", b.log)


def test_forward_in_place_by_introduction(stages):  # noqa: F811
    a = stages("a", {"next": "b"})
    b = stages("b", {"next": "c"})
    c = stages("c", {"next": "d"})
    d = stages("d")
    until(lambda: a.connected_to("b", "c", "d") and b.connected_to("c", "d") and c.connected_to("d"),
          "everybody knows everybody downstream", a.log)
    assert set(c.peers("upstream")) == {"a", "b"} and set(d.peers("upstream")) == {"a", "b", "c"}
    Worker(a).send("next", b"through")
    at_b, at_c = Worker(b), Worker(c)
    message, _ = at_b.receive()
    assert at_b("Forward", control.ForwardRequest(lease=message.lease, route="next")).in_place
    message, data = at_c.receive()
    assert data == b"through" and message.body_path == str(a.files / "a.body")
    assert at_c("Forward", control.ForwardRequest(lease=message.lease, route="next")).in_place
    at_d = Worker(d)
    message, data = at_d.receive()
    assert data == b"through" and message.body_path == str(a.files / "a.body")
    at_d.release(message)
    until(lambda: free_slots(a) == 16, "the slot is free")


def test_open_reply(stages):  # noqa: F811
    """A worker of a that calls b gets a number in b's ring, under which it holds the replies; b sees its death."""
    a, b = pair(stages)
    worker = Worker(a, "caller", descriptors=True, layout=layout_of(a))
    worker.take_fds()
    answer = worker("Open", control.OpenRequest(reply=0))
    assert list(answer.descriptors)[:3] == [control.CONTROL_FILE, control.BODY_FILE, control.BELL_EVENT]
    files = worker.take_fds()
    assert os.fstat(files[0]).st_ino == os.stat(b.files / "b.control").st_ino
    with pytest.raises(OSError):
        os.ftruncate(files[1], 0)  # read-only
    ring = answer.ring
    assert (ring.stage, ring.reader, ring.destination) == ("b", 255, 4095)
    with mmap.mmap(files[0], 0) as memory:
        clients_offset, = struct.unpack_from("<Q", memory, 96)
        nonce, = struct.unpack_from("<Q", memory, clients_offset + ring.client * 256 + 8)
    assert nonce == ring.nonce
    assert locked(b.files / "b.control", ring.client)
    there = lambda: [client.name for client in b.status().clients if client.number == ring.client]
    assert there() == ["caller"]
    worker.close()
    for fd in files:
        os.close(fd)
    until(lambda: not there(), "its number is given back", b.log)


@pytest.mark.parametrize("destination, name", [(7, "NO_ROUTE"), (256, "INVALID"), (0, "UNAVAILABLE")])
def test_open_reply_refused(stages, destination, name):  # noqa: F811
    a, b = pair(stages)
    worker = Worker(a, "caller", descriptors=True, layout=layout_of(a))
    if name == "UNAVAILABLE":
        b.kill()
        until(lambda: not a.connected_to("b"), "a notices", a.log)
    with pytest.raises(Failed) as error:
        worker("Open", control.OpenRequest(reply=destination))
    assert error.value.name == name


def test_places_for_replies_take_a_hello(stages):  # noqa: F811
    b = stages("b")
    stranger = Connection(b.socket)
    with pytest.raises(Failed) as error:
        stranger.call(PEER, "Admit", peer.AdmitRequest(name="x", wants_lock=True, for_replies=True), peer.AdmitResponse)
    assert error.value.name == "STATE"
    stranger.serves["Admit"] = lambda data: (peer.AdmitResponse(), ())
    stranger.call(PEER, "Hello", hello_of(b), peer.HelloResponse)
    place = stranger.call(PEER, "Admit", peer.AdmitRequest(name="x", wants_lock=True, for_replies=True), peer.AdmitResponse)
    with pytest.raises(Failed) as error:
        stranger.call(PEER, "Leave", peer.LeaveRequest(client=place.client + 1), peer.LeaveResponse)
    assert error.value.name == "INVALID"
    stranger.call(PEER, "Leave", peer.LeaveRequest(client=place.client, nonce=place.nonce), peer.LeaveResponse)
    for fd in stranger.take_fds():
        os.close(fd)
    until(lambda: not b.status().clients, "the number is free again", b.log)


def test_circle(stages):  # noqa: F811
    a = stages("a", {"next": "b"})
    b = stages("b", {"next": "a"})
    until(lambda: a.connected_to("b") and b.connected_to("a"), "both ways", a.log)
    at_a, at_b = Worker(a), Worker(b)
    at_a.send("next", b"there")
    message, _ = at_b.receive()
    at_b.release(message)
    at_b.send("next", b"back")
    assert at_a.receive()[1] == b"back"
    assert len(a.status().peers) == 2 and len(b.status().peers) == 2


def test_own_shm_each(stages):  # noqa: F811
    """Each sidecar in a mount namespace with a /dev/shm of its own: what is passed is memory, not names."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("mount namespaces are not permitted here")
    outside = pathlib.Path(tempfile.mkdtemp(prefix="ringside-"))
    prefix = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m none /dev/shm && exec "$0" "$@"']
    a = b = None
    try:
        a = Stage(outside, "a", {"next": "b"}, prefix=prefix, shm=pathlib.Path("/dev/shm/ringside"))
        b = Stage(outside, "b", prefix=prefix, shm=pathlib.Path("/dev/shm/ringside"))
        until(lambda: a.connected_to("b") and "a" in b.peers("upstream"), "a and b are linked", a.log)
        assert not pathlib.Path("/dev/shm/ringside/a.control").exists()
        worker = Worker(b, "mapper", descriptors=True, layout=hidden_layout_of(a))
        worker.take_fds()
        answer = worker("Open", control.OpenRequest(ring=1))
        files = worker.take_fds()
        assert os.fstat(files[0]).st_size == answer.ring.control_bytes
        for fd in files:
            os.close(fd)
        worker.close()
    finally:
        for stage in (a, b):
            if stage:
                stage.kill()
        shutil.rmtree(outside)


def test_truncated_files_end_one_ring(stages):  # noqa: F811
    """A worker that cuts the files it was given ends that stage's ring, not the sidecars beside it."""
    a, b = pair(stages)
    c = stages("c", {"next": "b"})
    until(lambda: c.connected_to("b") and "c" in b.peers("upstream"), "c is linked")
    receiver = Worker(b)
    Worker(a).send("next", b"x")
    receiver.release(receiver.receive()[0])
    os.truncate(a.files / "a.body", 0)
    os.truncate(a.files / "a.control", 0)
    Worker(c).send("next", b"alive")
    assert receiver.receive()[1] == b"alive"
    assert b.process.poll() is None
    until(lambda: "lost pages" in b.log.read_text(), "b says so", b.log)
    assert b.status().state == "serving" and c.status().state == "serving"


def test_stop_with_links(stages):  # noqa: F811
    """A clean end on both sides, whoever goes first, and nothing left behind."""
    a, b = pair(stages)
    assert b.stop() == 0 and a.stop() == 0
    assert sorted(os.listdir(a.files)) == []


def test_reconnects_forever(stages):  # noqa: F811
    a, b = pair(stages)
    number = a.process.pid
    fds = len(os.listdir(f"/proc/{number}/fd"))
    for _ in range(8):
        b.kill()
        b.start()
        until(lambda: a.connected_to("b") and b.peers("upstream")["a"].state == "connected", "linked again", a.log)
    until(lambda: len(os.listdir(f"/proc/{number}/fd")) <= fds, "no descriptor leaks")
    assert len(clients(a)) <= 2


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, *sys.argv[1:]]))

# SPDX-License-Identifier: Apache-2.0
"""What peers say of themselves: memory that is not shared, nonsense, numbers and names that are others'."""
import os
import shutil
import threading

import pytest

from peer_stages import FakeDownstream, directory, hello_of, layout_of, stages  # noqa: F401
from peer_tools import PEER, Connection, Failed, Worker, control, peer, until


def test_memory_that_is_not_shared(stages, directory):  # noqa: F811
    """A control file of the right shape in which the told number does not stand: refused, by name."""
    model = stages("model")
    copy = directory / "copy.control"
    shutil.copy(model.files / "model.control", copy)
    version, layout_hash = layout_of(model)

    def answer(hello):
        fd = os.open(copy, os.O_RDWR)
        event = os.eventfd(0) if hasattr(os, "eventfd") else os.open("/dev/null", os.O_RDWR)
        with open(copy, "rb") as file:
            incarnation = file.read(64)[48:]
        return peer.HelloResponse(stage="fake", sidecar_id=9, incarnation=incarnation, layout_version=version,
                                  layout_hash=layout_hash, ring_number=5, nonce=12345), (fd, event)

    fake = FakeDownstream(directory / "fake.sock", answer)
    a = stages("a", {"next": "fake"})
    until(lambda: [p for p in a.status().peers if p.state == "refused"], "a refuses it", a.log)
    row = a.status().peers[0]
    assert "not the memory" in row.last_error
    with pytest.raises(Failed) as error:
        Worker(a, descriptors=True, layout=layout_of(a))("Open", control.OpenRequest(destination=0))
    assert error.value.name == "UNAVAILABLE" and "not the memory" in str(error.value)
    fake.listener.close()


def test_nonsense_from_downstream(stages, directory):  # noqa: F811
    answers = iter([
        peer.HelloResponse(),
        peer.HelloResponse(stage="x" * 5000, incarnation=b"short", layout_version=1 << 16),
        peer.HelloResponse(incarnation=b"\1" * 16, ring_number=1 << 20),
    ])
    last = peer.HelloResponse(incarnation=b"\2" * 16)
    fake = FakeDownstream(directory / "fake.sock", lambda hello: (next(answers, last), (os.dup(0),)))
    a = stages("a", {"next": "fake"})
    until(lambda: a.log.read_text().count("refused") >= 1, "a refuses it", a.log)
    until(lambda: next(answers, None) is None, "it tries again", a.log)
    assert a.process.poll() is None and a.status().state == "serving"
    fake.listener.close()


@pytest.mark.parametrize("changes, name", [
    (dict(layout_version=3 << 16), "VERSION"), (dict(layout_hash=1), "VERSION"), (dict(features=1), "VERSION"),
    (dict(incarnation=b"123"), "INVALID"), (dict(incarnation=bytes(16)), "INVALID"),
    (dict(sidecar_id=0), "INVALID"), (dict(sidecar_id=1 << 16), "INVALID"),
])
def test_hello_refused(stages, changes, name):  # noqa: F811
    b = stages("b")
    stranger = Connection(b.socket)
    with pytest.raises(Failed) as error:
        stranger.call(PEER, "Hello", hello_of(b, **changes), peer.HelloResponse)
    assert error.value.name == name
    assert not stranger.fds and not b.peers("upstream")
    # The same connection may still do it right; and only once.
    stranger.serves["Admit"] = lambda data: (peer.AdmitResponse(), ())
    answer = stranger.call(PEER, "Hello", hello_of(b), peer.HelloResponse)
    assert answer.ring_number == 1
    with pytest.raises(Failed):
        stranger.call(PEER, "Hello", hello_of(b), peer.HelloResponse)
    stranger.close()


def test_same_incarnation_keeps_its_number(stages):  # noqa: F811
    b = stages("b")
    mine, other = os.urandom(16), os.urandom(16)
    for incarnation, number in [(mine, 1), (other, 2), (mine, 1)]:
        stranger = Connection(b.socket)
        stranger.serves["Admit"] = lambda data: (peer.AdmitResponse(), ())
        assert stranger.call(PEER, "Hello", hello_of(b, incarnation=incarnation),
                             peer.HelloResponse).ring_number == number
        stranger.close()
    b.kill()
    b.start()
    stranger = Connection(b.socket)
    stranger.serves["Admit"] = lambda data: (peer.AdmitResponse(), ())
    assert stranger.call(PEER, "Hello", hello_of(b, incarnation=other), peer.HelloResponse).ring_number == 2
    stranger.close()


def test_numbers_do_not_run_out(stages):  # noqa: F811
    """Sidecars that say Hello and vanish: their numbers come round again, and nothing is left open."""
    b = stages("b")
    fds = len(os.listdir(f"/proc/{b.process.pid}/fd"))
    for _ in range(600):
        stranger = Connection(b.socket)
        stranger.serves["Admit"] = lambda data: (peer.AdmitResponse(), ())
        assert 0 < stranger.call(PEER, "Hello", hello_of(b), peer.HelloResponse).ring_number < 256
        stranger.close()
    until(lambda: len(os.listdir(f"/proc/{b.process.pid}/fd")) <= fds + 1, "no descriptor leaks")


def test_nonsense_from_upstream(stages):  # noqa: F811
    """Places that are none: bad numbers, foreign files, no descriptors."""
    b = stages("b")
    for answer, fds in [
        (peer.AdmitResponse(), 0), (peer.AdmitResponse(client=1 << 30), 3), (peer.AdmitResponse(client=1, nonce=4), 3),
        (peer.AdmitResponse(client=1), 16),
    ]:
        stranger = Connection(b.socket)
        asked = threading.Event()

        def admit(data, answer=answer, fds=fds):
            asked.set()
            return answer, tuple(os.open("/dev/zero", os.O_RDWR) for _ in range(fds))

        stranger.serves["Admit"] = admit
        stranger.call(PEER, "Hello", hello_of(b), peer.HelloResponse)
        while not asked.is_set():
            stranger.frame()
        stranger.call(PEER, "Ping", peer.PingRequest(), peer.PingResponse)
        stranger.close()
    assert b.status().state == "serving"


def test_only_links_may_ask_for_places(stages):  # noqa: F811
    b = stages("b")
    stranger = Connection(b.socket)
    for method, request, answer in [
        ("Admit", peer.AdmitRequest(name="x", wants_lock=True), peer.AdmitResponse),
        ("Leave", peer.LeaveRequest(client=1), peer.LeaveResponse),
        ("Introduce", peer.IntroduceRequest(address="unix:/x"), peer.IntroduceResponse),
    ]:
        with pytest.raises(Failed) as error:
            stranger.call(PEER, method, request, answer)
        assert error.value.name == "STATE"
    stranger.call(PEER, "Ping", peer.PingRequest(), peer.PingResponse)
    with pytest.raises(Failed) as error:
        stranger.call(PEER, "Gossip", peer.PingRequest(), peer.PingResponse)
    assert error.value.name == "UNIMPLEMENTED"
    stranger.close()


def test_route_to_itself_by_another_name(stages, directory):  # noqa: F811
    (directory / "alias.sock").symlink_to(directory / "a.sock")
    a = stages("a", {"next": "alias"})
    until(lambda: [p for p in a.status().peers if p.state == "refused"], "refused", a.log)
    assert "stage itself" in a.status().peers[0].last_error


def test_equal_ids_are_told(stages):  # noqa: F811
    a = stages("a", {"next": "b"}, id=7)
    b = stages("b", id=7)
    until(lambda: a.connected_to("b"), "linked all the same")
    assert "same sidecar id 7" in a.log.read_text() and "same sidecar id 7" in b.log.read_text()

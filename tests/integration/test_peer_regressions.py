# SPDX-License-Identifier: Apache-2.0
"""What was once wrong between sidecars: places in other rings, and peers that lie."""
import os
import pathlib
import signal
import struct
import threading
import time

import pytest

import control_pb2 as pb
from children import children, told  # noqa: F401
from control_words import DELIVERIES, Control
from peer_stages import clients, directory, layout_of, pair, stages  # noqa: F401
from peer_tools import Connection, Failed, Worker, control, peer, until
from ttrpc_client import Client


class Downstream:
    """A downstream sidecar in the test's hands: its memory is a copy of `model`'s control file."""

    def __init__(self, path, model, event=None):
        import socket

        self.copy = pathlib.Path(path).with_suffix(".control")
        self.copy.write_bytes((model.files / f"{model.name}.control").read_bytes())
        self.words = Control(self.copy)
        self.incarnation = self.copy.read_bytes()[48:64]
        self.layout = layout_of(model)
        self.event = os.eventfd(0, os.EFD_NONBLOCK) if event is None else event
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.link, self.ready = None, threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                link = Connection(self.listener.accept()[0])
                link.serves["Hello"] = self.hello
                link.serves["Ping"] = lambda data: (peer.PingResponse(), ())
                self.link = link
                link.frame()
                self.ready.set()
        except (OSError, ConnectionError):
            pass

    def hello(self, data):
        hello = peer.HelloRequest.FromString(data)
        entry = self.words.table + 5 * 64
        for i, value in enumerate(struct.unpack("<2Q", hello.incarnation)):
            self.words.write(entry + 8 + 8 * i, value)
        self.words.write(entry + 24, 4711)
        self.words.write(entry, 1 << 32 | 9 << 16 | 1)
        return peer.HelloResponse(stage="fake", sidecar_id=9, incarnation=self.incarnation,
                                  layout_version=self.layout[0], layout_hash=self.layout[1], ring_number=5,
                                  nonce=4711), (os.open(self.copy, os.O_RDWR), os.dup(self.event))

    def call(self, method, request, answer, fds=()):
        assert self.ready.wait(10)
        return self.link.call("ringside.peer.v1.Peer", method, request, answer, fds=fds)

    def admit(self, name, pidfd):
        answer = self.call("Admit", peer.AdmitRequest(name=name), peer.AdmitResponse, fds=[pidfd])
        for fd in self.link.take_fds():
            os.close(fd)
        return answer

    def close(self):
        self.listener.close()
        if self.link:
            self.link.close()
        self.words.close()


def test_message_of_another_ring_is_still_held_after_a_return(stages):  # noqa: F811
    """The session's count of what it holds left out the peers' rings: its end looked like a goodbye."""
    a, b = pair(stages)
    worker = Worker(b, "wanderer")
    Worker(a).send("next", b"precious")
    message, _ = worker.receive()
    token = worker.attached.session_token
    again = Worker(b, token=token)
    assert again.attached.resumed
    assert [(lease.ticket, lease.delivery, bytes(lease.ring)) for lease in again.attached.held] == [
        (message.lease.ticket, 0, bytes(message.lease.ring))]
    again.close()
    until(lambda: clients(b)["wanderer"].state == "detached", "it is detached")
    last = Worker(b, token=token)
    assert last.attached.resumed
    last.release(message)
    until(lambda: a.status().classes[0].free == 16, "its slot is free", a.log)


# ---- places in other rings ----

def opens(pipe, path, layout_is):
    """Has ring 1 of its stage's inbox opened, as a worker that maps it does."""
    from peer_tools import Connection, CONTROL, control

    connection = Connection(path)
    version, layout_hash = layout_is
    request = control.AttachRequest(name="mapper", want_descriptors=True, layout_version=version, layout_hash=layout_hash)
    connection.call(CONTROL, "Attach", request, control.AttachResponse)
    pipe.send(connection.call(CONTROL, "Open", control.OpenRequest(ring=1), control.OpenResponse).ring.client)
    signal.pause()


def test_number_of_a_dead_mapper_is_safe_with_who_gets_it_next(stages, children):  # noqa: F811
    """The next one had no lock, but was still judged by the lock of the one before."""
    a, b = pair(stages)
    mapper, pipe = children(opens, str(b.socket), layout_of(b))
    number = told(pipe)
    Worker(a).send("next", b"precious")
    mapper.kill()
    until(lambda: "mapper" not in clients(a) and "mapper" not in clients(b), "it is swept", a.log)
    worker = Worker(b, "reader")
    message, data = worker.receive()
    assert data == b"precious" and clients(a)["reader"].number == number
    time.sleep(1.5)  # the sidecar looks at locks every second
    assert "reader" in clients(a)
    worker.release(message)


def idles(pipe):
    pipe.send(None)
    signal.pause()


def test_late_leave_does_not_end_the_next_owner_of_the_number(stages, directory, children):  # noqa: F811
    """The downstream sidecar tells of a dead worker when the number may be somebody else's already."""
    model = stages("model")
    fake = Downstream(directory / "fake.sock", model)
    a = stages("a", {"next": "fake"})
    until(lambda: a.connected_to("fake"), "linked", a.log)
    admissions = []
    for name in ("one", "two"):
        process, pipe = children(idles)
        told(pipe)
        pidfd = os.pidfd_open(process.pid)
        admissions.append(fake.admit(name, pidfd))
        os.close(pidfd)
        if name == "one":
            process.kill()
            until(lambda: "one" not in clients(a), "swept", a.log)
    one, two = admissions
    assert one.client == two.client and one.nonce != two.nonce
    with pytest.raises(Failed) as error:
        fake.call("Leave", peer.LeaveRequest(client=one.client, nonce=one.nonce), peer.LeaveResponse)
    assert error.value.name == "INVALID"
    assert "two" in clients(a)
    fake.call("Leave", peer.LeaveRequest(client=two.client, nonce=two.nonce), peer.LeaveResponse)
    until(lambda: "two" not in clients(a), "given back", a.log)
    fake.close()


# ---- peers that lie ----

def test_event_descriptor_that_blocks_is_refused(stages, directory):  # noqa: F811
    """A write to a full pipe would have stopped the sidecar for ever."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while os.write(writer, bytes(65536)):
            pass
    except BlockingIOError:
        os.set_blocking(writer, True)
    model = stages("model")
    fake = Downstream(directory / "fake.sock", model, event=writer)
    fake.words.write(fake.words.inbox + 128, 2)  # somebody waits for the event
    a = stages("a", {"next": "fake"})
    until(lambda: [p for p in a.status().peers if p.state != "connecting"], "a has seen it", a.log)
    try:
        worker = Worker(a)
        with pytest.raises(Failed) as error:
            tensor = control.Tensor(dtype=control.UINT8, shape=[8])
            loan = worker("Loan", control.LoanRequest(tensors=[tensor]))
            worker("Send", control.SendRequest(lease=loan.lease, route="next"), timeout=0.3)
        assert error.value.name == "TIMEOUT"
        assert "eventfd" in a.status().peers[0].last_error
    finally:
        os.close(reader)
        os.close(writer)
        fake.close()


def test_names_that_are_cut_stay_utf8(stages):  # noqa: F811
    """Half a character in a name made the whole Status unreadable for clients that are strict."""
    b = stages("b")
    stranger = Connection(b.socket)
    stranger.serves["Admit"] = lambda data: (peer.AdmitResponse(), ())
    version, layout_hash = layout_of(b)
    hello = peer.HelloRequest(stage="é" * 60, sidecar_id=77, incarnation=os.urandom(16), layout_version=version,
                              layout_hash=layout_hash)
    stranger.call("ringside.peer.v1.Peer", "Hello", hello, peer.HelloResponse)
    assert [p.stage for p in b.status().peers] == ["é" * 31 + "?"]
    b.kill()
    b.start()  # the table in memory has room for 31 bytes
    assert [p.stage for p in b.status().peers] == ["é" * 15 + "?"]
    stranger.close()


def test_answer_that_waits_for_a_slow_client_outlives_the_ring_it_speaks_of(stages, directory):  # noqa: F811
    """Undoing it touched the ring of an upstream stage that was unmapped by then."""
    a, b = pair(stages)
    producer = Worker(a)
    tensor = control.Tensor(dtype=control.UINT8, shape=[8])
    for _ in range(15):
        loan = producer("Loan", control.LoanRequest(tensors=[tensor], metadata_bytes=48 << 10))
        options = control.Options(metadata=bytes(48 << 10))
        producer("Send", control.SendRequest(lease=loan.lease, route="next", options=options))
    slow = Client(b.socket)
    slow.attach(name="slow")
    for _ in range(15):
        slow.begin("Receive", pb.ReceiveRequest().SerializeToString(), timeout=30)
    until(lambda: clients(a).get("slow") and clients(a)["slow"].leases == 15, "it holds all", a.log)
    a.kill()
    words = Control(a.files / "a.control")
    for slot in range(16):
        for delivery in range(8):  # a hostile upstream: nothing is held any more
            words.write(words.record(slot, DELIVERIES + 8 * delivery), 0)
    words.close()
    (a.files / "a.control").unlink()
    until(lambda: not b.peers("upstream"), "its ring is unmapped", b.log)
    slow.close()
    assert b.status().state == "serving"


def test_ring_that_lost_pages_gives_no_messages_to_sessions_either(stages):  # noqa: F811
    a, b = pair(stages)
    worker, producer = Worker(b, "reader"), Worker(a)
    producer.send("next", b"one")
    worker.release(worker.receive()[0])
    producer.send("next", b"two")
    a.process.send_signal(signal.SIGSTOP)  # it would notice as well
    try:
        os.truncate(a.files / "a.body", 0)
        until(lambda: "lost pages" in b.peers("upstream")["a"].last_error, "b notices", b.log)
        with pytest.raises(Failed) as error:
            worker("Receive", timeout=0.5)
        assert error.value.name == "TIMEOUT"
    finally:
        a.process.send_signal(signal.SIGCONT)


def number_of(text):
    """The 64 bits of a ticket in its text form."""
    sidecar, slot, generation = int(text[5:9], 16), int(text[9:14], 16), int(text[14:22], 16)
    return sidecar << 48 | slot << 28 | generation & (1 << 28) - 1


def test_tickets_of_rings_with_one_id_are_told_apart_by_their_generation(stages):  # noqa: F811
    """The own ring answered for both, so that a ticket of the other one was stale at once."""
    import worker

    a = stages("a", {"next": "b"}, id=7)
    b = stages("b", id=7)
    until(lambda: a.connected_to("b") and "a" in b.peers("upstream"), "a and b are linked", a.log)
    producer, consumer = worker.Worker(a.socket), worker.Worker(b.socket)
    try:
        producer.send("next", 1)
        assert consumer.receive() == 1  # the ring is mapped from now on
        producer("loan 100 0")
        consumer("loan 100 0")
        theirs, own = producer("share 2")[0], consumer("share 3")[0]
        assert consumer(f"bare {number_of(theirs)}")[0] == "2" and consumer(f"bare {number_of(own)}")[0] == "3"
    finally:
        producer.kill()
        consumer.kill()

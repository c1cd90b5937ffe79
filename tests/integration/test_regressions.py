# SPDX-License-Identifier: Apache-2.0
"""What was once wrong in the sidecar, each by the way it was noticed."""
import multiprocessing
import os
import pathlib
import signal
import struct
import subprocess
import threading
import time

import pytest

import control_pb2 as pb
from daemon import PROXY, Daemon, wait_for
from machine import is_sanitized
from peer_tools import Connection, Failed, Worker, control, peer, until
from peer_stages import FakeDownstream, clients, directory, layout_of, pair, stages  # noqa: F401
from ttrpc_client import Client, Refused

KI, MI = 1 << 10, 1 << 20
DELIVERIES, HEADER = 16, 80  # offsets in a slot's record


class Control:
    """The words of a ring's control file, as a worker that may write them sees them."""

    def __init__(self, path):
        self.file = open(path, "r+b", buffering=0)
        self.clients, self.destinations, self.shared, self.inbox, self.table, self.cells, self.slots = struct.unpack(
            "<7Q", os.pread(self.file.fileno(), 56, 96))

    def close(self):
        self.file.close()

    def read(self, offset):
        return struct.unpack("<Q", os.pread(self.file.fileno(), 8, offset))[0]

    def write(self, offset, value):
        os.pwrite(self.file.fileno(), struct.pack("<Q", value), offset)

    def record(self, slot, offset=0):
        return self.slots + slot * 256 + offset


@pytest.fixture
def children():
    """children(target, *arguments) runs target(pipe, *arguments) in a process of its own and gives (process, pipe)."""
    started = []

    def begin(target, *arguments):
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=target, args=(there, *arguments))
        process.start()
        started.append(process)
        return process, here

    yield begin
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


def told(pipe):
    assert pipe.poll(20)
    return pipe.recv()


# ---- forward ----

def both(place, when_full="error"):
    """A route to the own inbox and to that of stage c."""
    return {"both": {"to": [f"unix:{place}/b.sock", f"unix:{place}/c.sock"], "when_full": when_full}}


def linked(daemon):
    with daemon.client() as client:
        return [p.state for p in client.status().peers if p.direction == "downstream"] == ["connected"]


def test_message_whose_header_changes_while_it_is_copied(start, place):
    """The copy is made in slices: a header that shrank in between led it past its slot and the ring's end."""
    start("c")
    b = start("b", routes=both(place), ring={"classes": [{"slot_bytes": "32Mi", "slots": 3}]})
    wait_for(lambda: linked(b))
    with b.client() as client:
        client.attach()
        client.send(client.loan(shape=(32 * MI,)).lease, route="both")
        message = client.receive()
        words = Control(b.ring / "b.control")
        shape = words.record(message.lease.ticket >> 28 & 0xFFFFF, HEADER + 4 * 8)
        assert words.read(shape) == 32 * MI
        request = pb.ForwardRequest(lease=message.lease, route="both")  # the second route has its word already
        call = client.begin("Forward", request.SerializeToString(), timeout=5)
        wait_for(lambda: b.client().slots() and "loaned" in [s.state for s in b.client().slots()])
        words.write(shape, MI)
        words.close()
        with pytest.raises(Refused) as error:
            client.end(call, pb.ForwardResponse)
        assert error.value.name == "CORRUPT"
        assert client.status().state == "serving"


def test_many_descriptors_in_a_header_do_not_write_over_the_next_slot(start, place):
    """A header with 64 tensors of no bytes at offset 0 claims no room, but its descriptors take 5,040 bytes."""
    start("c")
    b = start("b", routes=both(place), ring={"classes": [{"slot_bytes": "4Ki", "slots": 8},
                                                         {"slot_bytes": "64Ki", "slots": 2}]})
    wait_for(lambda: linked(b))
    with b.client() as client:
        client.attach()
        neighbours = sorted((client.loan() for _ in range(8)), key=lambda loan: loan.slot_offset)
        paths = neighbours[0].body_path
        client.send(client.loan(shape=(40 * KI,)).lease, route="both")
        message = client.receive()
        client.call("Abandon", pb.LeaseRequest(lease=neighbours[3].lease))  # the only one that is free
        slot = message.lease.ticket >> 28 & 0xFFFFF
        words = Control(b.ring / "b.control")
        words.write(words.record(slot, HEADER), 64 << 56 | 2 << 48 | 1 << 40)  # 64 x uint8, rank 1
        words.write(words.record(slot, HEADER + 4 * 8), 0)
        words.close()
        with open(paths, "r+b") as body:
            body.seek(message.slot_offset)
            body.write(struct.pack("<10Q", 2 | 1 << 8, *[0] * 9) * 63)
            body.seek(neighbours[4].slot_offset)
            body.write(b"\xee" * 4096)
        client.call("Forward", pb.ForwardRequest(lease=message.lease, route="both"), pb.ForwardResponse, timeout=5)
        with open(paths, "rb") as body:
            body.seek(neighbours[4].slot_offset)
            assert body.read(4096) == b"\xee" * 4096


def test_forward_that_waits_for_a_slot_drops_nothing(start, place):
    """It looked for room in the inbox at each try, and each look dropped the oldest message."""
    start("c")
    b = start("b", routes=both(place, when_full="drop-oldest"), inbox={"cells": 16, "depth": 4},
              ring={"classes": [{"slot_bytes": "4Ki", "slots": 8}, {"slot_bytes": "1Mi", "slots": 2}]})
    wait_for(lambda: linked(b))
    with b.client() as client:
        client.attach()
        client.send(client.loan(shape=(MI,)).lease, route="both")
        message = client.receive()
        client.loan(shape=(MI,))
        for _ in range(4):
            client.send(client.loan().lease)
        request = pb.ForwardRequest(lease=message.lease, route="both")
        with pytest.raises(Refused) as error:
            client.call("Forward", request, pb.ForwardResponse, timeout=0.3)
        assert error.value.name == "TIMEOUT"
        assert client.status().totals.dropped == 0
        assert client.status().inbox_depth == 4


def test_copy_that_its_client_gives_back_is_not_written_on(start, place):
    """Its slot has a ticket as any other loan has: after Abandon it belongs to somebody else."""
    start("c")
    b = start("b", routes=both(place), ring={"classes": [{"slot_bytes": "32Mi", "slots": 3}]})
    wait_for(lambda: linked(b))
    with b.client() as client, b.client() as other:
        client.attach()
        other.attach()
        client.send(client.loan(shape=(32 * MI,)).lease, route="both")
        message = client.receive()
        request = pb.ForwardRequest(lease=message.lease, route="both")
        call = client.begin("Forward", request.SerializeToString(), timeout=5)
        copy = wait_for(lambda: [s for s in other.slots() if s.state == "loaned"])[0]
        client.call("Abandon", pb.LeaseRequest(lease=pb.Lease(ticket=copy.ticket, delivery=-1)))
        with pytest.raises(Refused) as error:
            client.end(call, pb.ForwardResponse)
        assert error.value.name == "STATE"


# ---- receive ----

def test_many_large_answers_at_once_wait_for_their_reader(start):
    """More than the output queue holds was taken for a client that does not read, and ended its connection."""
    daemon = start(inbox={"cells": 16, "depth": 16}, ring={"classes": [{"slot_bytes": "2Mi", "slots": 8}]})
    with daemon.client() as client, daemon.client() as reader:
        client.attach()
        reader.attach()
        words = Control(daemon.ring / "stage.control")
        leases = []
        for _ in range(8):
            client.send(client.loan(metadata_bytes=MI).lease, metadata=b"x")
            leases.append(client.receive().lease)
            summary = words.record(leases[-1].ticket >> 28 & 0xFFFFF, HEADER)
            words.write(summary, words.read(summary) - 1 + MI)  # as libringside would send it
        words.close()
        calls = [reader.begin("Receive", pb.ReceiveRequest().SerializeToString(), timeout=20) for _ in leases]
        wait_for(lambda: len(client.slots()) == 8)
        for lease in leases:
            client.call("Nack", pb.LeaseRequest(lease=lease))
        got = [reader.end(call, pb.ReceiveResponse).message for call in calls]
        assert sorted(m.lease.ticket for m in got) == sorted(lease.ticket for lease in leases)
        assert {len(m.metadata) for m in got} == {MI}


# ---- drain ----

def test_cells_that_expired_messages_left_do_not_hold_up_a_drain(start):
    daemon = start()
    with daemon.client() as client:
        with daemon.client() as other:
            other.attach()
            other.send(other.loan().lease, ttl_ns=1)
        wait_for(lambda: client.slots() == [])  # the sweep's audit ended it; its cell stays until a consumer comes by
        assert client.status().inbox_depth == 1
        client.call("Drain", pb.DrainRequest(timeout_ns=10 ** 9))


def test_session_comes_back_during_a_drain(start):
    """What it holds can only be given back by it."""
    daemon = start(drain_timeout_ms=20000)
    client = daemon.client()
    token = client.attach().session_token
    client.loan()
    daemon.signal(signal.SIGTERM)
    wait_for(lambda: client.status().state == "draining")
    client.close()
    with daemon.client() as back:
        answer = back.attach(session_token=token)
        assert answer.resumed
        back.call("Abandon", pb.LeaseRequest(lease=answer.held[0]))
        assert daemon.wait() == 0


def test_term_does_not_wait_for_messages_that_nobody_can_take(start):
    daemon = start(drain_timeout_ms=600000)
    with daemon.client() as client:
        client.attach()
        client.send(client.loan().lease)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(10) == 0
    assert "nobody" in daemon.log() and "stage.control" in daemon.files()


def test_term_waits_for_a_next_stage_that_may_take_what_is_left(start, place):
    b = start("b")
    a = start("a", routes={"next": {"to": [f"unix:{b.socket}"]}}, drain_timeout_ms=600000)
    wait_for(lambda: linked(a))
    with b.client() as consumer:
        consumer.attach()
        with a.client() as client:
            client.attach()
            client.send(client.loan().lease, route="next")
        a.signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            a.wait(1)
        consumer.release(consumer.receive().lease)
        assert a.wait() == 0 and "a.control" not in a.files()


# ---- sessions ----

def resumes(pipe, path):
    """Takes over the session whose token it is told, and keeps it."""
    import ttrpc_client

    client = ttrpc_client.Client(path)
    answer = client.attach(session_token=pipe.recv())
    pipe.send([lease.SerializeToString() for lease in answer.held])
    signal.pause()


def begins(pipe, path, loan=True):
    import ttrpc_client

    client = ttrpc_client.Client(path)
    token = client.attach(name="first").session_token
    if loan:
        client.loan()
    pipe.send(token)
    signal.pause()


def test_session_that_another_process_took_over_outlives_the_first(start, children):
    """The table still named the first process: after a restart the second one's loan was taken from it."""
    daemon = start()
    first, pipe = children(begins, daemon.socket)
    token = told(pipe)
    second, pipe = children(resumes, daemon.socket)
    pipe.send(token)
    assert len(told(pipe)) == 1
    time.sleep(1.2)  # the sidecar looks every second whether its tables are as it wrote them
    first.kill()
    first.join()
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        assert [c.pid for c in client.status().clients] == [second.pid]
        assert [s.state for s in client.slots()] == ["loaned"]
        second.kill()
        wait_for(lambda: not client.slots())


def locks(pipe, path, layout, token):
    """Attaches with descriptors, so that a byte of the ring is locked for it."""
    import ttrpc_client

    client = ttrpc_client.Client(path)
    version, layout_hash = layout
    answer = client.attach(name="locks", session_token=token, want_descriptors=True, layout_version=version,
                           layout_hash=layout_hash)
    loan = b"" if token else client.loan().lease.SerializeToString()
    pipe.send((answer.session_token, loan))
    signal.pause()


def layout(daemon):
    head = (daemon.ring / "stage.control").read_bytes()[:24]
    return struct.unpack_from("<I", head, 8)[0], struct.unpack_from("<Q", head, 16)[0]


def test_process_whose_lock_lives_loses_nothing_when_another_used_its_token(start, children):
    daemon = start()
    first, pipe = children(locks, daemon.socket, layout(daemon), b"")
    token, _ = told(pipe)
    second, pipe = children(locks, daemon.socket, layout(daemon), token)
    told(pipe)
    second.kill()
    second.join()
    with daemon.client() as client:
        wait_for(lambda: [c.state for c in client.status().clients] == ["detached"])
        assert [s.state for s in client.slots()] == ["loaned"]
        first.kill()
        wait_for(lambda: not client.slots() and not client.status().clients)


def test_process_whose_lock_lives_loses_nothing_when_another_used_its_token_before_a_restart(start, children):
    daemon = start()
    first, pipe = children(locks, daemon.socket, layout(daemon), b"")
    token, _ = told(pipe)
    second, pipe = children(locks, daemon.socket, layout(daemon), token)
    told(pipe)
    daemon.kill()
    daemon.start()
    second.kill()
    second.join()
    time.sleep(1.2)
    with daemon.client() as client:
        assert [s.state for s in client.slots()] == ["loaned"]
        first.kill()
        wait_for(lambda: not client.slots() and not client.status().clients)


def test_process_that_took_over_keeps_what_it_has_when_the_locks_owner_ends(start, children):
    daemon = start()
    first, pipe = children(locks, daemon.socket, layout(daemon), b"")
    token, _ = told(pipe)
    second, pipe = children(locks, daemon.socket, layout(daemon), token)
    told(pipe)
    first.kill()
    first.join()
    time.sleep(0.1)
    with daemon.client() as client:
        assert [s.state for s in client.slots()] == ["loaned"]
    daemon.kill()
    daemon.start()
    time.sleep(0.3)
    with daemon.client() as client:
        assert [s.state for s in client.slots()] == ["loaned"]
        second.kill()
        wait_for(lambda: not client.slots() and not client.status().clients)


def test_session_does_not_change_between_socket_and_memory(start):
    """Who judges its life is decided at the first attach."""
    daemon = start()
    version, layout_hash = layout(daemon)
    with daemon.client() as client, daemon.client() as again:
        token = client.attach().session_token
        with pytest.raises(Refused) as error:
            again.attach(session_token=token, want_descriptors=True, layout_version=version, layout_hash=layout_hash)
        assert error.value.name == "INVALID" and "descriptors" in error.value.message
        client.loan()


def test_reading_survives_the_sidecar_and_can_be_ended(start):
    daemon = start()
    client = daemon.client()
    token = client.attach().session_token
    shared = client.call("Share", pb.ShareRequest(lease=client.loan().lease, readers=1), pb.ShareResponse)
    client.call("Read", pb.ReadRequest(text=shared.text), pb.ReadResponse)
    daemon.kill()
    client.close()
    daemon.start()
    with daemon.client() as back:
        held = back.attach(session_token=token).held
        assert [(lease.ticket, lease.delivery) for lease in held] == [(shared.ticket, -1)]
        back.release(held[0])
        assert back.slots() == []


def reads(pipe, path, text):
    """Reads by ticket, and goes on reading."""
    import ttrpc_client

    client = ttrpc_client.Client(path)
    reader = client.attach(name="reader").ring.reader
    client.call("Read", pb.ReadRequest(text=text), pb.ReadResponse)
    pipe.send(reader)
    signal.pause()


def test_reading_without_a_number_survives_the_sidecar(start, children):
    """The next sidecar took the bit that they share off at once, and the slot from under the reader."""
    daemon = start()
    crowd = [daemon.client() for _ in range(36)]
    for client in crowd:
        client.attach()
    shared = crowd[0].call("Share", pb.ShareRequest(lease=crowd[0].loan().lease, kept=True), pb.ShareResponse)
    reader, pipe = children(reads, daemon.socket, shared.text)
    assert told(pipe) == 255
    crowd[0].call("Free", pb.FreeRequest(text=shared.text))
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        wait_for(lambda: client.status().audits >= 1)
        assert [s.ticket for s in client.slots()] == [shared.ticket]
        reader.kill()
        wait_for(lambda: client.slots() == [])
    for client in crowd:
        client.close()


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
        loan = producer("Loan", control.LoanRequest(tensors=[tensor], metadata_bytes=48 * KI))
        options = control.Options(metadata=bytes(48 * KI))
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


# ---- sends ----

def test_send_on_a_route_that_blocks_waits_for_its_stage(start, place):
    socket = place / "b.sock"
    a = start("a", routes={"next": {"to": [f"unix:{socket}"], "when_full": "block"},
                           "fails": {"to": [f"unix:{socket}"], "when_full": "error"}})
    with a.client() as client:
        client.attach()
        lease = client.loan().lease
        with pytest.raises(Refused) as error:
            client.send(lease, route="fails")
        assert error.value.name == "UNAVAILABLE"
        with pytest.raises(Refused) as error:
            client.send(lease, route="next", timeout=0.2)
        assert error.value.name == "TIMEOUT"
        request = pb.SendRequest(lease=lease, route="next")
        call = client.begin("Send", request.SerializeToString(), timeout=20)
        b = start("b")
        client.end(call, pb.SendResponse)
        with b.client() as consumer:
            consumer.attach()
            consumer.release(consumer.receive(timeout=10).lease)


# ---- reports ----

def test_shared_and_kept_are_told_apart(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        for how in ({"readers": 3}, {"kept": True}):
            client.call("Share", pb.ShareRequest(lease=client.loan().lease, **how), pb.ShareResponse)
        assert [([h.state for h in s.holders], s.readers_left) for s in client.slots()] == [
            (["shared"], 3), (["kept"], 0)]


def test_status_of_a_large_ring_is_counted_in_slices(start):
    """It looked at all slots in one turn of the loop; now calls come and go while it counts."""
    slots = 1 << 17
    daemon = start(ring={"classes": [{"slot_bytes": "4Ki", "slots": slots}]})
    crowd = [daemon.client() for _ in range(8)]
    with daemon.client() as client:
        client.attach()
        client.loan()
        for _ in range(3):
            calls = [other.begin("Status", timeout=None if i % 3 else 0.001) for i, other in enumerate(crowd)]
            crowd.pop(1).close()
            calls.pop(1)
            for call, other in zip(calls, crowd):
                try:
                    counts = other.end(call, pb.StatusResponse)
                    assert counts.classes[0].free == slots - 1 and counts.clients[0].loans == 1
                except Refused as error:
                    assert error.name == "TIMEOUT"
        call = crowd[0].begin("Drain", pb.DrainRequest(timeout_ns=10 ** 10).SerializeToString())
        client.call("Abandon", pb.LeaseRequest(lease=pb.Lease(ticket=client.slots()[0].ticket, delivery=-1)))
        crowd[0].end(call, pb.Empty)
    for other in crowd:
        other.close()


# ---- process ----

def test_closed_standard_descriptors_are_not_the_rings(place):
    """With stderr closed its number went to the next file that was opened, and the log was written there."""
    daemon = Daemon(place)
    closed = [0, 1, 2]
    daemon.start(wait=False, preexec_fn=lambda: [os.close(fd) for fd in closed])
    daemon.wait_ready()
    links = [os.readlink(f"/proc/{daemon.process.pid}/fd/{fd}") for fd in closed]
    assert links == ["/dev/null"] * 3
    assert daemon.stop() == 0

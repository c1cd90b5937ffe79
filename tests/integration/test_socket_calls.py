# SPDX-License-Identifier: Apache-2.0
"""Call, CallStream and Reply over the socket alone, with callers and callees of both kinds, and every end of a call."""
import contextlib
import multiprocessing
import os
import signal
import threading
import time

import pytest

import control_pb2 as pb
from daemon import wait_for
from test_control import data_of, refused
from ttrpc_client import DATA, HEADER, NO_DATA, REMOTE_CLOSED, REMOTE_OPEN, Refused
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


def test_reply_comes_to_its_caller(stages, caller, callee):
    pending = call(caller, metadata=b"about it", sequence=9, trace_id=b"0123456789abcdef")
    request = callee.receive()
    assert (request.method, request.metadata, request.sequence) == ("scale", b"about it", 9)
    assert request.call_id != 0 and request.credits == 1 and request.ttl_ns <= 10 * 10 ** 9
    assert not callee.cancelled(request.lease)
    callee.reply(request.lease, b"\4" * 16, options=pb.Options(metadata=b"done", metadata_kind=pb.JSON))
    reply = caller.end_call(pending)
    assert data_of(reply) == b"\4" * 16 and reply.metadata == b"done" and reply.metadata_kind == pb.JSON
    assert reply.call_id == request.call_id and reply.method == ""
    assert [h.destination for s in stages.slots() for h in s.holders if s.ticket == reply.lease.ticket] == ["reply"]
    callee.release(request.lease)
    assert len(stages.slots()) == 1
    caller.release(reply.lease)
    assert stages.slots() == []
    with refused("STATE"):
        caller.release(reply.lease)
    totals = [d.client() for d in stages.all]
    counts = [c.status().totals for c in totals]
    assert sum(t.calls for t in counts) == sum(t.replies for t in counts) == 1
    assert sum(t.received for t in counts) == sum(t.released for t in counts) == 2


@pytest.mark.parametrize("status, text, told", [
    (3, "shape (4, 4) is not square", "CALLEE: shape (4, 4) is not square"), (99, "", "CALLEE: the callee gave no reason"),
    (2, "ä" * 1000, "CALLEE: " + "ä" * 400), (255, "x", "CALLEE: x")])
def test_error_of_the_callee(stages, caller, callee, status, text, told):
    pending = call(caller)
    request = callee.receive()
    callee.reply(request.lease, status=status, text=text)
    with pytest.raises(Refused) as error:
        caller.end_call(pending)
    assert error.value.code == status and error.value.message.startswith(told)
    with refused("STATE"):
        callee.reply(request.lease, status=5, text="again")
    callee.release(request.lease)
    assert stages.slots() == []


def test_release_and_nack_without_an_answer(stages, caller, callee):
    pending = call(caller)
    callee.release(callee.receive().lease)
    with pytest.raises(Refused) as error:
        caller.end_call(pending)
    assert error.value.code == 13 and "without a last reply" in error.value.message
    pending = call(caller)
    began = time.monotonic()
    callee.call("Nack", pb.LeaseRequest(lease=callee.receive().lease))
    with refused("UNAVAILABLE"):
        caller.end_call(pending)
    assert time.monotonic() - began < 0.9  # woken, not found by the look of each second
    with refused("TIMEOUT"):
        callee.receive(timeout=0.01)
    assert stages.slots() == []


@pytest.mark.parametrize("taken", [True, False])
def test_request_let_go_for_its_age_is_a_timeout(stages, caller, callee, taken):
    """Whoever ends it: the sidecar's own timer may come after that."""
    pending = call(caller, timeout=20, ttl_ns=30_000_000)
    request = callee.receive() if taken else None
    time.sleep(0.04)
    if taken:
        callee.release(request.lease)
    else:
        with refused("TIMEOUT"):
            callee.receive(timeout=0.01)
    with refused("TIMEOUT"):
        caller.end_call(pending)
    stages.wait_empty()


def test_timeout_travels_and_is_seen(stages, caller, callee):
    pending = call(caller, timeout=0.2)
    request = callee.receive()
    assert 0 < request.ttl_ns <= 0.2e9
    with refused("TIMEOUT"):
        caller.end_call(pending)
    assert callee.cancelled(request.lease)
    with refused("CANCELLED"):
        callee.reply(request.lease, b"late")
    callee.release(request.lease)
    stages.wait_empty()
    with refused("TIMEOUT"):  # nobody took it: it is not delivered later
        caller.end_call(call(caller, timeout=0.01))
    with refused("TIMEOUT"):
        callee.receive(timeout=0.01)
    stages.wait_empty()
    pending = call(caller, timeout=5, ttl_ns=20_000_000)  # its own time to live is the shorter one
    assert callee.receive().ttl_ns == 20_000_000
    caller.close()


def test_connection_that_closes_cancels(stages, caller, callee):
    with stages.front.client() as other:
        other.attach("other")
        call(other)
        request = callee.receive()
        assert not callee.cancelled(request.lease)
        loan = callee.loan()
    wait_for(lambda: callee.cancelled(request.lease))
    with refused("CANCELLED"):
        callee.call("Reply", pb.ReplyRequest(request=request.lease, reply=loan.lease))
    with refused("STATE"):  # the loan was given back
        callee.call("Abandon", pb.LeaseRequest(lease=loan.lease))
    callee.release(request.lease)
    stages.wait_empty()
    wait_for(lambda: "other" not in [c.name for c in stages.clients()])


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


def test_caller_that_dies(stages, callee):
    with process(call_and_stay, stages.front.socket) as (one, pipe):
        assert pipe.poll(20)
        request = callee.receive()
        one.kill()
        one.join()
        wait_for(lambda: callee.cancelled(request.lease))
        with refused("CANCELLED"):
            callee.reply(request.lease, b"late")
    callee.release(request.lease)
    stages.wait_empty()


def test_callee_that_dies(stages, caller):
    with process(take_and_stay, stages.back.socket) as (one, pipe):
        pending = call(caller, timeout=20)
        assert pipe.poll(20) and pipe.recv() == "scale"
        one.kill()
        one.join()
        began = time.monotonic()
        with refused("UNAVAILABLE") as error:
            caller.end_call(pending)
        assert time.monotonic() - began < 5 and "died" in error.value.message
    stages.wait_empty()


def test_many_in_progress_are_answered_in_any_order(stages, caller, callee):
    for _ in range(5):
        pending = {call(caller, f"m{i}", bytes([i])): i for i in range(20)}
        requests = [callee.receive() for _ in pending]
        for request in requests[::-1]:
            callee.reply(request.lease, data_of(request) * 2 + request.method.encode())
            callee.release(request.lease)
        for stream, i in pending.items():
            reply = caller.end_call(stream)
            assert data_of(reply) == bytes([i, i]) + f"m{i}".encode()
            caller.release(reply.lease)
    assert stages.slots() == []


def test_boxes_are_limited(stages, caller, callee):
    with refused("LIMIT"):
        caller.next(call(caller, credits=65, request_id=1))
    with refused("TIMEOUT"):  # its place in the next stage's ring is there now, so that calls are made in turn
        caller.end_call(call(caller, timeout=0.2))
    with refused("TIMEOUT"):
        callee.receive(timeout=0.01)
    stream = call(caller, credits=60, request_id=1)
    pending = [call(caller) for _ in range(4)]
    with refused("LIMIT") as error:
        caller.end_call(call(caller))
    assert "64" in error.value.message
    for _ in range(5):
        request = callee.receive()
        callee.reply(request.lease, b"x")
        callee.release(request.lease)
    assert caller.next(stream) is not None and caller.next(stream) is None
    replies = [caller.end_call(p) for p in pending]
    assert len(replies) == 4
    pending = call(caller, credits=64, request_id=2)  # every cell is free again
    request = callee.receive()
    assert request.credits == 64
    callee.reply(request.lease, status=1)
    with pytest.raises(Refused):
        caller.next(pending)


def test_retry_gives_the_reply_again_while_it_is_held(stages, caller, callee):
    request = pb.CallRequest(request_id=77, lease=caller.loan(metadata_bytes=64).lease, route="there", method="m")
    pending = caller.begin("Call", request.SerializeToString(), 5)
    held = callee.receive()
    callee.reply(held.lease, b"once")
    callee.release(held.lease)
    reply = caller.end_call(pending)
    again = caller.end_call(caller.begin("Call", request.SerializeToString(), 5))
    assert again.lease == reply.lease and data_of(again) == b"once"
    caller.release(reply.lease)
    with refused("STATE"):
        caller.end_call(caller.begin("Call", request.SerializeToString(), 5))
    with refused("TIMEOUT"):
        callee.receive(timeout=0.01)
    assert stages.slots() == []


def test_wrong_requests(start, place):
    route = {"self": {"to": [f"unix:{place}/stage.sock"], "when_full": "error"},
             "both": {"to": [f"unix:{place}/stage.sock", f"unix:{place}/other.sock"], "when_full": "error"},
             "away": {"to": [f"unix:{place}/other.sock"], "when_full": "error"}}
    with start(routes=route).client() as client:
        client.attach()
        loan = client.loan(metadata_bytes=64)

        def made(method="m", name="self", lease=loan.lease, call="Call", flags=0, **fields):
            request = pb.CallRequest(lease=lease, route=name, method=method, **fields)
            return client.end(client.begin(call, request.SerializeToString(), 1, flags=flags), pb.CallResponse)

        for error, arguments in (("INVALID", {"method": ""}), ("INVALID", {"method": "x" * 64}), ("NO_ROUTE", {"name": "no"}),
                                 ("INVALID", {"name": "both"}), ("UNAVAILABLE", {"name": "away"}),
                                 ("INVALID", {"credits": 1}), ("STATE", {"lease": pb.Lease(ticket=loan.lease.ticket + 1, delivery=-1)}),
                                 ("INVALID", {"lease": None}), ("INVALID", {"options": pb.Options(trace_id=b"x")}),
                                 ("INVALID", {"call": "CallStream", "credits": 1, "flags": REMOTE_CLOSED}),
                                 ("LIMIT", {"call": "CallStream", "request_id": 5, "flags": REMOTE_CLOSED}),
                                 ("UNIMPLEMENTED", {"flags": REMOTE_CLOSED})):
            with refused(error):
                made(**arguments)
        client.send(loan.lease, route="self")
        message = client.receive()
        with refused("STATE") as error:
            client.reply(message.lease, status=3)
        assert "not a call" in error.value.message
        with refused("STATE"):
            client.cancelled(message.lease)
        with refused("INVALID"):
            client.call("Cancelled", pb.LeaseRequest())
        client.release(message.lease)
        pending = client.begin_call("m", b"x")
        request = client.receive()
        for error, fields in (("INVALID", {}), ("INVALID", {"status": 256}), ("INVALID", {"status": 2, "more": True}),
                              ("STATE", {"reply": request.lease})):
            with refused(error):
                client.reply(request.lease, **fields)
        with refused("INVALID"):
            client.reply(request.lease, b"x", status=2)
        with refused("STATE") as error:
            client.call("Forward", pb.ForwardRequest(lease=request.lease, route="self"), pb.ForwardResponse)
        client.reply(request.lease, b"y")
        with refused("STATE"):
            client.reply(request.lease, b"z")
        client.end_call(pending)


def test_session_with_descriptors_calls_in_memory(start):
    from test_agree import Memory  # noqa: F401
    import struct
    daemon = start()
    with daemon.client() as client:
        with open(daemon.ring / "stage.control", "rb") as file:
            version, layout_hash = struct.unpack_from("=I4xQ", file.read(24), 8)
        client.attach(want_descriptors=True, layout_version=version, layout_hash=layout_hash)
        with refused("UNIMPLEMENTED") as error:
            client.end_call(client.begin_call("m"))
        assert "in memory" in error.value.message
        for fd in client.descriptors:
            os.close(fd)


# ---- streams ----

def test_stream_of_replies(stages, caller, callee):
    stream = call(caller, credits=4, request_id=5)
    request = callee.receive()
    assert request.credits == 4
    got = []
    for i in range(20):
        callee.reply(request.lease, bytes([i]), more=i < 19)
        reply = caller.next(stream)
        got.append(data_of(reply))
        caller.release(reply.lease)
        if i < 19:
            caller.credit(5, 1)
    assert caller.next(stream) is None and got == [bytes([i]) for i in range(20)]
    with refused("STATE"):
        callee.reply(request.lease, status=3)
    callee.release(request.lease)
    assert stages.slots() == []


def test_callee_waits_for_credit(stages, caller, callee):
    stream = call(caller, credits=2, request_id=5)
    request = callee.receive()
    for i in range(4):  # two are sent on, two wait in the box
        callee.reply(request.lease, bytes([i]), more=True)
    loan = callee.loan(metadata_bytes=64)
    waiting = callee.begin("Reply", pb.ReplyRequest(request=request.lease, reply=loan.lease, more=True).SerializeToString(), 10)
    callee.status()
    assert waiting not in callee.answers
    assert [data_of(caller.next(stream)) for _ in range(2)] == [b"\0", b"\1"]
    caller.credit(5, 1)
    callee.end(waiting, pb.Empty)
    caller.credit(5, 10)
    callee.reply(request.lease, status=9, text="enough")
    leases = [caller.next(stream).lease for _ in range(3)]
    with pytest.raises(Refused) as error:
        caller.next(stream)
    assert (error.value.code, error.value.message) == (9, "CALLEE: enough")
    callee.release(request.lease)
    assert len(leases) == 3 and len(stages.slots()) == 5


@pytest.mark.parametrize("how", ["credit", "timeout", "half_close", "connection"])
def test_stream_that_ends_early_cancels(stages, callee, how):
    with stages.front.client() as caller:
        caller.attach()
        loan = caller.loan(metadata_bytes=64)
        message = pb.CallRequest(request_id=5, lease=loan.lease, route="there", method="m", credits=1)
        stream = caller.begin("CallStream", message.SerializeToString(), 0.5 if how == "timeout" else 10,
                              flags=REMOTE_OPEN if how == "half_close" else REMOTE_CLOSED)
        request = callee.receive()
        callee.reply(request.lease, b"first", more=True)
        reply = caller.next(stream)
        callee.reply(request.lease, b"not wanted", more=True)
        if how == "credit":
            caller.credit(5, end=True)
            assert caller.next(stream) is None
        elif how == "timeout":
            with refused("TIMEOUT"):
                caller.next(stream)
        elif how == "half_close":
            caller.socket.sendall(HEADER.pack(0, stream, DATA, REMOTE_CLOSED | NO_DATA))
            assert caller.next(stream) is None
        else:
            caller.release(reply.lease)
            caller.close()
        wait_for(lambda: callee.cancelled(request.lease))
        with refused("CANCELLED"):
            callee.reply(request.lease, b"late", more=True)
        callee.release(request.lease)
        if how != "connection":
            assert data_of(reply) == b"first" and len(stages.slots()) == 1  # what was delivered stays held
            caller.release(reply.lease)
        stages.wait_empty()


def test_call_takes_the_first_reply_of_many(stages, caller, callee):
    pending = call(caller)
    request = callee.receive()
    callee.reply(request.lease, b"first", more=True)
    reply = caller.end_call(pending)
    assert data_of(reply) == b"first"
    with refused("CANCELLED"):
        callee.reply(request.lease, b"second")
    callee.release(request.lease)
    caller.release(reply.lease)
    stages.wait_empty()


# ---- workers on libringside ----

def test_socket_calls_a_worker_in_memory(stages, caller):
    with worker_of(stages.back, "callee") as callee:
        for value in range(1, 6):
            pending = call(caller, "add.one", bytes([value]) * 16)
            assert callee.receive() == value and callee("method") == ["add.one"]
            callee(f"reply {value + 1}")
            callee("release")
            reply = caller.end_call(pending)
            assert data_of(reply) == bytes([value + 1]) * 16
            caller.release(reply.lease)
        pending = call(caller)
        callee.receive()
        callee("error 5 no such thing")
        with pytest.raises(Refused) as error:
            caller.end_call(pending)
        assert (error.value.code, error.value.message) == (5, "CALLEE: no such thing")
        callee("release")
        pending = call(caller)
        callee.receive()
        callee("release")
        with pytest.raises(Refused) as error:
            caller.end_call(pending)
        assert error.value.code == 13
        pending = call(caller, timeout=0.1)
        callee.receive()
        with refused("TIMEOUT"):
            caller.end_call(pending)
        assert callee("cancelled") == ["1"]
        with pytest.raises(Failed) as failed:
            callee("reply 1")
        assert failed.value.name == "CANCELLED"
        callee("release")
        stages.wait_empty()
        stream = call(caller, credits=3, request_id=9)
        callee.receive()
        for i in range(3):
            callee(f"reply {i} {i // 2}")
            assert data_of(caller.next(stream)) == bytes([i]) * 16
        assert caller.next(stream) is None
        pending = call(caller, timeout=20)
        callee.receive()
        callee.kill()
        with refused("UNAVAILABLE"):
            caller.end_call(pending)


def test_worker_in_memory_calls_a_socket(stages, callee):
    with worker_of(stages.front, "caller") as caller:
        for value in range(1, 6):
            caller(f"call there double {value} 5000")
            request = callee.receive()
            assert request.method == "double" and data_of(request) == bytes([value]) * 16
            callee.reply(request.lease, bytes([2 * value]) * 16)
            callee.release(request.lease)
            assert caller("wait 5000")[0] == str(2 * value)
            caller("release")
        caller("call there double 1 5000 2")
        request = callee.receive()
        for i in range(4):
            callee.reply(request.lease, bytes([i]), more=i < 3)
            assert caller("wait 5000")[0] == str(i)
        for _ in range(4):
            caller("release")
        callee.release(request.lease)
        for release, name in ((False, "TOO_BIG"), (True, "INTERNAL")):
            caller("call there double 1 5000")
            request = callee.receive()
            if not release:
                callee.reply(request.lease, status=11, text="out of range")
            callee.release(request.lease)
            with pytest.raises(Failed) as failed:
                caller("wait 5000")
            assert failed.value.name == name
        caller("call there double 1 5000")
        request = callee.receive()
        callee.call("Nack", pb.LeaseRequest(lease=request.lease))
        with pytest.raises(Failed) as failed:
            caller("wait 5000")
        assert failed.value.name == "UNAVAILABLE"
        caller("call there double 1 5000")
        request = callee.receive()
        caller("cancel")
        assert callee.cancelled(request.lease)
        with refused("CANCELLED"):
            callee.reply(request.lease, b"late")
        callee.release(request.lease)
        stages.wait_empty()


def test_handler_threads_of_one_session(stages, caller):
    """A callee that works on several connections, each waiting while others answer."""
    done = threading.Event()

    def serve():
        with stages.back.client() as client:
            client.attach("server")
            while not done.is_set():
                try:
                    request = client.receive(timeout=0.05)
                except Refused:
                    continue
                client.reply(request.lease, data_of(request)[::-1])
                client.release(request.lease)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(10):
            pending = [call(caller, data=bytes([round_, i])) for i in range(16)]
            for i, one in enumerate(pending):
                reply = caller.end_call(one)
                assert data_of(reply) == bytes([i, round_])
                caller.release(reply.lease)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert stages.slots() == []


# ---- sidecars that end ----

def serve_until_told(socket, pipe):
    """Answers calls; over a restart of its sidecar it comes back with its token."""
    import ttrpc_client
    token = b""
    while not pipe.poll():
        try:
            with ttrpc_client.Client(socket) as client:
                token = client.attach("server", session_token=token).session_token
                while not pipe.poll():
                    try:
                        request = client.receive(timeout=0.05)
                    except Refused:
                        continue
                    client.reply(request.lease, data_of(request) * 2)
                    client.release(request.lease)
        except (OSError, Refused):
            time.sleep(0.01)


def eventually(client, **options):
    """A reply, once the stages found each other again."""
    end = time.monotonic() + 20
    while True:
        try:
            return caller_reply(client, **options)
        except Refused:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def caller_reply(client, **options):
    reply = client.end_call(call(client, data=b"ab", timeout=1, **options))
    data = data_of(reply)
    client.release(reply.lease)
    return data


@pytest.mark.parametrize("which", ["front", "back"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_restart_of_a_sidecar(two, which, number):
    with process(serve_until_told, two.back.socket) as (server, pipe):
        with process(call_and_wait, two.front.socket) as (one, calls):
            assert calls.poll(20) and calls.recv() == b"abab"
            daemon = getattr(two, which)
            daemon.signal(number)
            daemon.wait()
            daemon.start()
            two.wait_linked()
            calls.send("again")
            assert calls.poll(30) and calls.recv() == b"abab"
        pipe.send(0)
        server.join(10)
    two.wait_empty()
    wait_for(lambda: not two.clients(), 10, lambda: f"{two.clients()}")


def call_and_wait(socket, pipe):
    """One call, and when it is told another, in the same session as far as its sidecar lets it."""
    import ttrpc_client
    client = ttrpc_client.Client(socket)
    token = client.attach("caller").session_token
    pipe.send(eventually(client))
    pipe.recv()
    end = time.monotonic() + 20
    while True:
        try:
            pipe.send(eventually(client))
            break
        except OSError:
            assert time.monotonic() < end
            with contextlib.suppress(OSError, Refused):
                client = ttrpc_client.Client(socket)
                client.attach("caller", session_token=token)
    signal.pause()


def test_call_in_progress_over_a_restart_of_the_callers_sidecar(two):
    """The connection ends, so the call does: its callee sees that, and its late reply goes."""
    with process(call_and_stay, two.front.socket) as (one, pipe), two.back.client() as callee:
        callee.attach()
        assert pipe.poll(20)
        request = callee.receive()
        two.front.kill()
        two.front.start()
        two.wait_linked()
        wait_for(lambda: callee.cancelled(request.lease))
        with refused("CANCELLED"):
            callee.reply(request.lease, b"late")
        callee.release(request.lease)
        two.wait_empty()


def test_call_in_progress_over_a_restart_of_the_callees_sidecar(two):
    """The next sidecar knows nothing of what its sessions hold in other rings; it is theirs until they are gone."""
    with two.front.client() as caller:
        caller.attach()
        with process(take_and_stay, two.back.socket) as (one, pipe):
            pending = call(caller, timeout=30)
            assert pipe.poll(20)
            two.back.kill()
            two.back.start()
            two.wait_linked()
            assert [s.holders[0].state for s in two.slots()] == ["held"]
            one.kill()
            one.join()
            with refused("UNAVAILABLE"):
                caller.end_call(pending)
        two.wait_empty()


def test_worker_in_memory_answers_over_a_restart_of_its_sidecar(two):
    with two.front.client() as caller, worker_of(two.back, "callee") as callee:
        caller.attach()
        pending = call(caller, timeout=30)
        callee.receive()
        two.back.kill()
        two.back.start()
        two.wait_linked()
        callee("reply 3")
        reply = caller.end_call(pending)
        assert data_of(reply) == b"\3" * 16
        caller.release(reply.lease)
        callee("release")
        two.wait_empty()


def test_new_ring_of_the_callees_stage(two):
    """The old ring stays mapped for what is held in it, the new one takes the next calls."""
    with two.front.client() as caller:
        caller.attach()
        with process(serve_until_told, two.back.socket) as (server, _):
            old = caller.end_call(call(caller, data=b"old"))
            assert data_of(old) == b"oldold"
            server.kill()
            server.join()
        wait_for(lambda: len(two.clients()) == 2)
        two.back.kill()
        for file in two.back.ring.glob("back.*"):
            file.unlink()
        two.back.start()
        two.wait_linked()
        with process(serve_until_told, two.back.socket):
            assert eventually(caller) == b"abab"
            caller.release(old.lease)
            with refused("STATE"):
                caller.release(old.lease)
            maps = f"/proc/{two.front.process.pid}/maps"
            wait_for(lambda: "back.body (deleted)" not in open(maps).read(), 10)
            assert eventually(caller) == b"abab"

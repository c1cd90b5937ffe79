# SPDX-License-Identifier: Apache-2.0
"""Call and Reply over the socket alone, with every end of a call."""
import os
import struct
import time

import pytest

import control_pb2 as pb
from call_sides import call, call_and_stay, call_in_time, callee, caller, process, stages, take_and_stay  # noqa: F401
from daemon import wait_for
from messages import data_of, refused
from ttrpc_client import REMOTE_CLOSED, Refused


def test_reply_comes_to_its_caller(stages, caller, callee):  # noqa: F811
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
def test_error_of_the_callee(stages, caller, callee, status, text, told):  # noqa: F811
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


def test_release_and_nack_without_an_answer(stages, caller, callee):  # noqa: F811
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
def test_request_let_go_for_its_age_is_a_timeout(stages, caller, callee, taken):  # noqa: F811
    """Whoever ends it: the sidecar's own timer may come after that."""
    ttl_s = 0.03

    def take():
        return callee.receive(timeout=0.01)

    if taken:
        pending, request, ttl_s = call_in_time(caller, take, ttl_s, lambda s: {"timeout": 20, "ttl_ns": int(s * 1e9)})
        time.sleep(ttl_s + 0.01)
        callee.release(request.lease)
    else:
        pending = call(caller, timeout=20, ttl_ns=int(ttl_s * 1e9))
        time.sleep(ttl_s + 0.01)
        with refused("TIMEOUT"):
            take()
    with refused("TIMEOUT"):
        caller.end_call(pending)
    stages.wait_empty()


def test_timeout_travels_and_is_seen(stages, caller, callee):  # noqa: F811
    pending, request, timeout = call_in_time(caller, lambda: callee.receive(timeout=0.1))
    assert 0 < request.ttl_ns <= timeout * 1e9
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
    pending = call(caller, timeout=5, ttl_ns=2_000_000_000)  # its own time to live is the shorter one
    assert callee.receive().ttl_ns == 2_000_000_000
    caller.close()


def test_connection_that_closes_cancels(stages, caller, callee):  # noqa: F811
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


def test_caller_that_dies(stages, callee):  # noqa: F811
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


def test_callee_that_dies(stages, caller):  # noqa: F811
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


def test_many_in_progress_are_answered_in_any_order(stages, caller, callee):  # noqa: F811
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


def test_boxes_are_limited(stages, caller, callee):  # noqa: F811
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


def test_retry_gives_the_reply_again_while_it_is_held(stages, caller, callee):  # noqa: F811
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

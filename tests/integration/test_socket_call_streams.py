# SPDX-License-Identifier: Apache-2.0
"""CallStream over the socket alone: credits, and streams that end early."""
import pytest

import control_pb2 as pb
from call_sides import call, callee, caller, stages, two  # noqa: F401
from daemon import wait_for
from messages import data_of, refused
from ttrpc_client import DATA, HEADER, NO_DATA, REMOTE_CLOSED, REMOTE_OPEN, Refused


def test_stream_of_replies(stages, caller, callee):  # noqa: F811
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


def test_callee_waits_for_credit(stages, caller, callee):  # noqa: F811
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
def test_stream_that_ends_early_cancels(stages, callee, how):  # noqa: F811
    with stages.front.client() as caller:  # noqa: F811
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


def test_call_takes_the_first_reply_of_many(stages, caller, callee):  # noqa: F811
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

# SPDX-License-Identifier: Apache-2.0
"""A session that works in memory leaves some cells of its reply box to its sidecar: calls over the socket use those alone."""
import contextlib
import os
import struct

import pytest

import control_pb2 as pb
from call_sides import DEEP, Stages, call, stages, worker_of  # noqa: F401
from messages import data_of, refused
from test_agree import Memory
from worker import Failed

CELLS, LEFT = 64, 4  # of a box; to the sidecar
MINE = 0x0001_0000_0000_0001  # a ticket of nobody's, where the client keeps cells for itself


class Box:
    """A client with descriptors, and the words of its reply box."""

    def __init__(self, daemon, client, **fields):
        with open(daemon.ring / f"{daemon.config['stage']}.control", "rb") as file:
            version, layout_hash = struct.unpack_from("=I4xQ", file.read(24), 8)
        attached = client.attach("both", want_descriptors=True, layout_version=version, layout_hash=layout_hash, **fields)
        self.token, self.descriptors = attached.session_token, client.descriptors[:]
        self.memory = Memory(client.descriptors[0])
        self.at = self.memory.load(480) + 576 * attached.ring.client + 64

    def cells(self):
        return [self.memory.load(self.at + 8 * i) for i in range(CELLS)]

    def keep(self):
        """Its own cells are in use: who posts into one of them finds it full, who takes it, changes it."""
        for i in range(CELLS - LEFT):
            self.memory.store(self.at + 8 * i, MINE)

    def kept(self):
        return self.cells()[:CELLS - LEFT] == [MINE] * (CELLS - LEFT)

    def close(self):
        self.memory.bytes.close()
        for fd in self.descriptors:
            os.close(fd)


@contextlib.contextmanager
def both(daemon, **fields):
    with daemon.client() as client, contextlib.closing(Box(daemon, client, **fields)) as box:
        yield client, box


def answered(client, callee):
    pending = call(client)
    request = callee.receive()
    callee.reply(request.lease, b"new")
    callee.release(request.lease)
    return client.end_call(pending)


def lease_of(slot):
    return pb.LeaseRequest(lease=pb.Lease(ticket=slot.ticket, delivery=-1))


def test_calls_use_the_sidecars_cells(stages):  # noqa: F811
    with both(stages.front, call_cells=LEFT) as (client, box), stages.back.client() as callee:
        callee.attach("callee")
        box.keep()
        client.release(answered(client, callee).lease)  # has a place in the other ring now: calls are made in their order
        for _ in range(3):
            pending = [call(client, data=bytes([i])) for i in range(LEFT)]
            with refused("LIMIT") as error:
                client.end_call(call(client))
            assert "up to 4" in error.value.message
            for _ in range(LEFT):
                request = callee.receive()
                callee.reply(request.lease, data_of(request) * 2)
                callee.release(request.lease)
            for i, each in enumerate(pending):
                reply = client.end_call(each)
                assert data_of(reply) == bytes([i, i])
                client.release(reply.lease)
            for slot in client.slots():
                client.call("Abandon", lease_of(slot))
            assert box.kept() and box.cells()[CELLS - LEFT:] == [0] * LEFT
        stages.wait_empty()


def test_stream_of_replies(stages):  # noqa: F811
    with both(stages.front, call_cells=LEFT) as (client, box), stages.back.client() as callee:
        callee.attach("callee")
        box.keep()
        stream = call(client, credits=LEFT, request_id=1)
        request = callee.receive()
        for i in range(2 * LEFT):
            callee.reply(request.lease, bytes([i]), more=i < 2 * LEFT - 1)
            message = client.next(stream)
            assert data_of(message) == bytes([i]) and box.kept()
            client.release(message.lease)
            if i < LEFT:
                client.call("Credit", pb.CreditRequest(request_id=1, credits=1))
        callee.release(request.lease)
        stages.wait_empty()


def test_cells_are_left_only_when_asked_for(start):
    daemon = start()
    with both(daemon) as (client, _), refused("UNIMPLEMENTED") as error:
        client.end_call(client.begin_call("m"))
    assert "call_cells" in error.value.message
    with daemon.client() as client, refused("INVALID"):
        Box(daemon, client, call_cells=CELLS + 1)


@pytest.mark.parametrize("again", [LEFT, 0])
def test_a_call_over_a_restart_of_the_sidecar(start, place, again):
    """Of the calls of a session that comes back the next sidecar cancels its predecessor's, not those made in memory."""
    stages = Stages(start, place, 2)  # noqa: F811
    client = stages.front.client()
    with contextlib.closing(Box(stages.front, client, call_cells=LEFT)) as box, stages.back.client() as callee:
        callee.attach("callee")
        call(client, timeout=30)
        request = callee.receive()
        stages.front.kill()
        stages.front.start()
        stages.wait_linked()
        client.close()
        with both(stages.front, call_cells=again, session_token=box.token) as (client, _):
            assert callee.cancelled(request.lease) == (again == LEFT)
            if again:
                assert data_of(answered(client, callee)) == b"new"
        callee.release(request.lease)


def test_stream_that_is_answered_here_over_a_restart(start, place):
    """As that of a session without descriptors: the next sidecar does not know how many replies there were."""
    stage = start("back", routes={"there": {"to": [f"unix:{place}/back.sock"], "when_full": "error"}}, **DEEP)
    client = stage.client()
    with worker_of(stage, "caller") as caller, contextlib.closing(Box(stage, client)) as box:
        caller("call there m 1 30000 4")
        request = client.receive()
        client.reply(request.lease, b"0" * 16, more=True)
        assert caller("wait 5000")[0] == str(ord("0"))
        stage.kill()
        stage.start()
        client.close()
        with both(stage, session_token=box.token) as (client, _):
            with refused("UNAVAILABLE"):
                client.reply(request.lease, b"1" * 16, more=True)
            client.release(request.lease)
            with pytest.raises(Failed, match="UNAVAILABLE"):
                caller("wait 10000")

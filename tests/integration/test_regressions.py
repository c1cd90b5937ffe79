# SPDX-License-Identifier: Apache-2.0
"""What was once wrong in the sidecar, each by the way it was noticed."""
import os
import signal
import struct
import subprocess

import pytest

import control_pb2 as pb
from control_words import HEADER, Control
from daemon import Daemon, wait_for
from ttrpc_client import Refused

KI, MI = 1 << 10, 1 << 20


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

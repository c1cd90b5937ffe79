# SPDX-License-Identifier: Apache-2.0
"""The control service as a client sees it that has only a socket and the body file."""
import contextlib
import mmap
import os
import struct

import pytest

import control_pb2 as pb
from daemon import wait_for
from messages import data_of, put, read, refused, share
from ttrpc_client import Refused


# ---- messages ----

def test_message_travels_whole(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        trace = os.urandom(16)
        put(client, b"payload", metadata=b'{"a":1}', metadata_kind=pb.JSON, stream_id=7, sequence=9,
            trace_id=trace, ttl_ns=10 ** 10)
        message = client.receive()
        assert data_of(message) == b"payload"
        assert (message.metadata, message.metadata_kind) == (b'{"a":1}', pb.JSON)
        assert (message.stream_id, message.sequence, message.trace_id) == (7, 9, trace)
        assert message.ttl_ns == 10 ** 10 and message.publish_ns > 0
        client.release(message.lease)
        assert client.slots() == []
        with refused("STATE"):
            client.release(message.lease)


def test_many_tensors_of_every_rank(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        tensors = [pb.Tensor(dtype=pb.FLOAT32, shape=[2] * rank) for rank in range(9)]
        tensors += [pb.Tensor(dtype=pb.BOOL, shape=[1, 8, 0, 128]), pb.Tensor(dtype=pb.BFLOAT16)]
        loan = client.call("Loan", pb.LoanRequest(tensors=tensors, metadata_bytes=5), pb.LoanResponse)
        assert all(t.offset % 256 == 0 for t in loan.tensors)
        client.send(loan.lease, metadata=b"12345")
        got = client.receive().tensors
        assert [(t.dtype, list(t.shape), t.bytes) for t in got] == [
            (t.dtype, list(t.shape), t.bytes) for t in loan.tensors]


@pytest.mark.parametrize("tensors, error", [
    ([], "SHAPE"),
    ([pb.Tensor(dtype=pb.UINT8)] * 65, "SHAPE"),
    ([pb.Tensor(dtype=pb.UINT8, shape=[1] * 9)], "SHAPE"),
    ([pb.Tensor(dtype=pb.UINT8, shape=[-1])], "SHAPE"),
    ([pb.Tensor(dtype=pb.UINT8, shape=[2 ** 32, 2 ** 32])], "SHAPE"),
    ([pb.Tensor(dtype=pb.DTYPE_UNSPECIFIED, shape=[1])], "DTYPE"),
    ([pb.Tensor(dtype=99, shape=[1])], "DTYPE"),
    ([pb.Tensor(dtype=pb.UINT8, shape=[65537])], "TOO_BIG"),
])
def test_impossible_loans_are_refused(start, tensors, error):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        with refused(error):
            client.call("Loan", pb.LoanRequest(tensors=tensors), pb.LoanResponse)
        assert client.slots() == []


def test_largest_size_is_available_and_all_slots_are_too(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        loans = [client.loan((65536,)) for _ in range(8)]
        assert len({l.slot_offset for l in loans}) == 8
        with refused("TIMEOUT"):
            client.loan(timeout=0.05)
        for loan in loans:
            client.call("Abandon", pb.LeaseRequest(lease=loan.lease))
        client.loan()


def test_waiting_loan_gets_the_slot_that_becomes_free(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as waiting:
        client.attach()
        waiting.attach()
        loans = [client.loan() for _ in range(8)]
        request = pb.LoanRequest(tensors=[pb.Tensor(dtype=pb.UINT8, shape=[1])])
        call = waiting.begin("Loan", request.SerializeToString(), 10)
        client.call("Abandon", pb.LeaseRequest(lease=loans[3].lease))
        assert waiting.end(call, pb.LoanResponse).slot_offset == loans[3].slot_offset


def test_waiting_receive_gets_the_message_and_others_do_not(start):
    daemon = start()
    with daemon.client() as sender, daemon.client() as one, daemon.client() as two:
        for client in (sender, one, two):
            client.attach()
        calls = [(c, c.begin("Receive", pb.ReceiveRequest().SerializeToString(), 10))
                 for c in (one, two)]
        put(sender, b"first")
        put(sender, b"second")
        got = {data_of(c.end(call, pb.ReceiveResponse).message) for c, call in calls}
        assert got == {b"first", b"second"}


def test_full_inbox_is_an_error_or_waits_or_drops(start, place):
    own = f"unix:{place}/stage.sock"
    daemon = start(routes={"self": {"to": [own], "when_full": "error"},
                           "newest": {"to": [own], "when_full": "drop-oldest"}})
    with daemon.client() as client:
        client.attach()
        for i in range(4):
            put(client, b"%d" % i)
        loan = client.loan()
        with refused("FULL"):
            client.send(loan.lease)
        client.call("Abandon", pb.LeaseRequest(lease=loan.lease))
        put(client, b"4", "newest")
        got = [data_of(client.receive()) for _ in range(4)]
        assert got == [b"1", b"2", b"3", b"4"]
        assert client.status().totals.dropped == 1


def test_expired_messages_are_skipped_and_counted(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        put(client, b"old", ttl_ns=1)
        put(client, b"new")
        assert data_of(client.receive()) == b"new"
        assert client.status().totals.expired == 1


def test_nack_comes_again_until_the_limit(start, place):
    daemon = start(routes={"self": {"to": [f"unix:{place}/stage.sock"], "when_full": "error",
                                    "attempts": 3}})
    with daemon.client() as client:
        client.attach()
        put(client, b"bad")
        for attempts in range(3):
            message = client.receive()
            assert message.attempts == attempts
            client.call("Nack", pb.LeaseRequest(lease=message.lease))
        with refused("TIMEOUT"):
            client.receive(timeout=0.05)
        totals = client.status().totals
        assert (totals.nacked, totals.dead_lettered) == (2, 1)
        assert client.slots() == []


def test_forward_to_the_own_inbox_is_in_place(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        put(client, b"again")
        first = client.receive()
        answer = client.call("Forward", pb.ForwardRequest(lease=first.lease, route="self"),
                             pb.ForwardResponse)
        assert answer.in_place
        second = client.receive()
        assert second.lease.ticket == first.lease.ticket and data_of(second) == b"again"
        client.release(second.lease)
        assert client.slots() == []


def test_wrong_names_and_leases_are_told_apart(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        client.attach()
        other.attach()
        loan = client.loan()
        with refused("NO_ROUTE"):
            client.send(loan.lease, "nowhere")
        with refused("INVALID"):
            client.call("Send", pb.SendRequest(route="self"), pb.SendResponse)
        with refused("MALFORMED_TICKET"):
            client.send(pb.Lease(ticket=0, delivery=-1))
        with refused("FOREIGN_TICKET"):
            client.send(pb.Lease(ticket=loan.lease.ticket ^ 1 << 48, delivery=-1))
        with refused("STATE"):
            other.send(loan.lease)
        with refused("INVALID"):
            client.release(pb.Lease(ticket=loan.lease.ticket, delivery=8))
        with refused("INVALID"):
            client.send(loan.lease, trace_id=b"short")
        with refused("LIMIT"):
            client.send(loan.lease, metadata=bytes(49153))
        client.send(loan.lease, metadata=bytes(49152))


# ---- by ticket ----

def test_ticket_is_read_as_often_as_said(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        client.attach()
        other.attach()
        shared = share(client, readers=2)
        one, two = read(client, ticket=shared.ticket), read(other, text=shared.text)
        client.release(one.lease)
        other.release(two.lease)
        with refused("STALE_TICKET"):
            read(client, ticket=shared.ticket)
        assert client.slots() == []


def test_kept_ticket_lives_until_freed_and_its_memory_until_released(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        shared = share(client, kept=True)
        for _ in range(3):
            client.release(read(client, text=shared.text).lease)
        message = read(client, text=shared.text)
        client.call("Free", pb.FreeRequest(text=shared.text))
        with refused("STALE_TICKET"):
            read(client, text=shared.text)
        assert [h.state for h in client.slots()[0].holders] == ["reading"]
        client.release(message.lease)
        assert client.slots() == []


def test_bad_tickets_have_an_error_each(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        shared = share(client, kept=True)
        short = share(client, kept=True, options=pb.Options(ttl_ns=1))
        with refused("MALFORMED_TICKET"):
            read(client, text=shared.text[:-1])
        with refused("MALFORMED_TICKET"):
            read(client, ticket=0)
        with refused("FOREIGN_TICKET"):
            read(client, ticket=shared.ticket ^ 1 << 48)
        with refused("STALE_TICKET"):
            read(client, ticket=shared.ticket ^ 1)
        with refused("EXPIRED_TICKET"):
            read(client, ticket=short.ticket)
        with refused("INVALID"):
            share(client, kept=True, readers=1)
        with refused("INVALID"):
            share(client, readers=256)
        with refused("INVALID"):
            share(client, kept=True, options=pb.Options(ttl_ns=2 ** 63))
        described = client.call("Describe", pb.DescribeRequest(text=shared.text),
                                pb.DescribeResponse).slot
        assert described.ticket == shared.ticket and described.state == "sealed"


def test_readers_beyond_the_reader_numbers_read_too(start):
    daemon = start(clients={"max": 64})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.client()) for _ in range(40)]
        for client in clients:
            client.attach()
        shared = share(clients[0], kept=True)
        messages = [(c, read(c, ticket=shared.ticket)) for c in clients]
        clients[0].call("Free", pb.FreeRequest(ticket=shared.ticket))
        for client, message in messages[:-1]:
            client.release(message.lease)
        assert len(clients[0].slots()) == 1
        clients[-1].release(messages[-1][1].lease)
        assert clients[0].slots() == []


# ---- sessions ----

def test_retry_with_the_same_request_id_gives_the_same_lease(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        loans = [client.loan(request_id=5) for _ in range(3)]
        assert len({l.lease.ticket for l in loans}) == 1
        client.send(loans[0].lease)
        with refused("STATE"):
            client.loan(request_id=5)
        got = [client.receive(request_id=6) for _ in range(3)]
        assert len({m.lease.ticket for m in got}) == 1
        client.release(got[0].lease)
        with refused("STATE"):
            client.receive(request_id=6)


def test_answer_that_cannot_be_delivered_is_undone(start):
    daemon = start()
    with daemon.client() as sender:
        sender.attach()
        put(sender, b"precious")
        with daemon.client() as client:
            client.attach()
            call = client.begin("Receive", pb.ReceiveRequest().SerializeToString())
            client.end(call, pb.ReceiveResponse)
            # Waits for a second message that comes after the client went.
            client.begin("Receive", pb.ReceiveRequest().SerializeToString())
        put(sender, b"more")
        assert data_of(sender.receive()) == b"more"


def test_number_of_clients_is_limited_and_comes_back(start):
    daemon = start(clients={"max": 3})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.client()) for _ in range(4)]
        for client in clients[:3]:
            client.attach()
        with refused("LIMIT") as error:
            clients[3].attach()
        assert "clients.max" in error.value.message
        clients[0].close()

        def again():
            try:
                return clients[3].attach()
            except Refused:
                return None
        assert wait_for(again).ring.client == 1


def test_calls_before_attach(start):
    daemon = start()
    with daemon.client() as client:
        with refused("STATE"):
            client.loan()
        assert client.status().clients_max > 0
        assert client.slots() == []
        with refused("MALFORMED_TICKET"):
            client.call("Describe", pb.DescribeRequest())
        client.attach()
        with refused("STATE"):
            client.attach()


def test_wrong_layout_is_refused_with_both_versions(start):
    daemon = start()
    with daemon.client() as client:
        with refused("VERSION") as error:
            client.attach(layout_version=3 << 16, layout_hash=1)
        assert "3.0" in error.value.message and "2.0" in error.value.message
        with refused("VERSION"):
            client.attach(want_descriptors=True)


def test_descriptors_are_the_ring_and_prove_it(start):
    daemon = start()
    with daemon.client() as client:
        with open(daemon.ring / "stage.control", "rb") as file:
            layout_hash = struct.unpack_from("=Q", file.read(24), 16)[0]
        answer = client.attach(want_descriptors=True, layout_version=2 << 16,
                               layout_hash=layout_hash)
        assert list(answer.descriptors) == [pb.CONTROL_FILE, pb.BODY_FILE, pb.INBOX_EVENT,
                                            pb.BELL_EVENT]
        control, body_fd = client.descriptors[:2]
        assert len(client.descriptors) == 4
        assert os.fstat(control).st_ino == os.stat(answer.ring.control_path).st_ino
        assert os.fstat(body_fd).st_size == answer.ring.body_bytes
        with mmap.mmap(control, 0) as memory:
            assert struct.pack("=Q", answer.ring.nonce) in memory[:]
        opened = client.call("Open", pb.OpenRequest(destination=0), pb.OpenResponse)
        assert opened.ring.incarnation == answer.ring.incarnation
        for fd in client.descriptors:
            os.close(fd)

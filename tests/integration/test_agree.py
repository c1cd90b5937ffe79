# SPDX-License-Identifier: Apache-2.0
"""The socket and the shared memory are two doors to one room: each sees at once what the other did."""
import contextlib
import mmap
import struct

import pytest

import control_pb2 as pb
from messages import data_of, put, read, refused, share
from worker import Worker

SLOT_BYTES = 256
FREE, LOANED, SEALED = 0, 1, 2
NONE, QUEUED, HELD, DONE = 0, 1, 2, 3


class Memory:
    """The words of a mapped control file. Plain stores will do where nobody else works."""

    def __init__(self, fd):
        self.bytes = mmap.mmap(fd, 0)
        self.slots, = struct.unpack_from("<Q", self.bytes, 144)

    def at(self, ticket):
        return self.slots + (ticket >> 28 & 0xFFFFF) * SLOT_BYTES

    def load(self, at):
        return struct.unpack_from("<Q", self.bytes, at)[0]

    def store(self, at, word):
        struct.pack_into("<Q", self.bytes, at, word)

    def state(self, ticket):
        """Generation, owner, phase."""
        word = self.load(self.at(ticket))
        return word >> 32, word >> 16 & 0xFFFF, word >> 8 & 0xFF

    def delivery(self, ticket, number=0):
        """Holder, attempts, phase."""
        word = self.load(self.at(ticket) + 16 + 8 * number)
        return word >> 20 & 0xFFF, word >> 4 & 0xF, word & 0xF


@pytest.fixture
def both(start):
    """A session with a socket and the mapped ring."""
    daemon = start()
    with daemon.client() as client:
        with open(daemon.ring / "stage.control", "rb") as file:
            version, layout_hash = struct.unpack_from("=I4xQ", file.read(24), 8)
        attached = client.attach(want_descriptors=True, layout_version=version, layout_hash=layout_hash)
        memory = Memory(client.descriptors[0])
        yield client, memory, attached.ring.client
        memory.bytes.close()


def test_steps_of_the_socket_are_in_the_words(both):
    client, memory, me = both
    loan = client.loan()
    ticket = loan.lease.ticket
    generation = ticket & 0xFFFFFFF
    assert memory.state(ticket)[1:] == (me, LOANED)
    assert memory.state(ticket)[0] & 0xFFFFFFF == generation
    client.send(loan.lease)
    assert memory.state(ticket)[1:] == (0, SEALED) and memory.delivery(ticket)[1:] == (0, QUEUED)
    message = client.receive()
    assert memory.delivery(ticket) == (me, 0, HELD)
    client.call("Nack", pb.LeaseRequest(lease=message.lease))
    assert memory.delivery(ticket)[1:] == (1, QUEUED)
    message = client.next(client.receive_stream(5, 1))
    assert memory.delivery(ticket) == (me, 1, HELD) and message.attempts == 1
    client.release(message.lease)
    assert memory.state(ticket)[2] == FREE and memory.delivery(ticket)[2] == DONE


def test_steps_in_the_words_are_seen_by_the_socket(both):
    client, memory, me = both
    loan = client.loan()
    at = memory.at(loan.lease.ticket)
    word = memory.load(at)
    client.call("Abandon", pb.LeaseRequest(lease=loan.lease))
    # The next loan of that slot, made in the memory, is sent over the socket.
    generation = (word >> 32) + 1
    assert memory.load(at) >> 32 == generation - 1 and memory.state(loan.lease.ticket)[2] == FREE
    memory.store(at, generation << 32 | me << 16 | LOANED << 8)
    lease = pb.Lease(ticket=loan.lease.ticket & ~0xFFFFFFF | generation & 0xFFFFFFF, delivery=-1)
    assert client.slots()[0].ticket == lease.ticket and client.slots()[0].holders[0].client == "test"
    client.send(lease)
    message = client.receive(request_id=3)
    assert message.lease.ticket == lease.ticket
    # Given back in the memory: over the socket nothing is held any more.
    word = memory.load(at + 16)
    memory.store(at + 16, word & ~0xF | DONE)
    with refused("STATE"):
        client.release(message.lease)
    with refused("STATE"):
        client.call("Nack", pb.LeaseRequest(lease=message.lease))
    with refused("STATE"):
        client.receive(request_id=3)


@contextlib.contextmanager
def worker_of(daemon):
    worker = Worker(daemon.socket, "in memory")
    try:
        yield worker
    finally:
        worker.kill()


def test_one_inbox_in_one_order(start):
    daemon = start(inbox={"cells": 64, "depth": 32})
    with daemon.client() as client, worker_of(daemon) as worker:
        client.attach()
        for number in range(6):
            if number % 2:
                put(client, bytes([number]))
            else:
                worker.send("self", number, 1)
        assert data_of(client.receive()) == b"\0"
        assert worker.receive() == 1
        stream = client.receive_stream(1, 1)
        message = client.next(stream)
        assert data_of(message) == b"\2"
        assert worker.receive() == 3
        worker("nack")
        got = [client.receive() for _ in range(3)]
        assert [(data_of(m), m.attempts) for m in got] == [(b"\4", 0), (b"\5", 0), (b"\3", 1)]
        totals = client.status().totals
        assert (totals.sent, totals.received, totals.nacked) == (6, 7, 1)


def test_one_message_is_read_through_both(start):
    daemon = start()
    with daemon.client() as client, worker_of(daemon) as worker:
        client.attach()
        worker("loan 4 1000")
        text, = worker("share 7")
        assert worker(f"read {text}")[0] == "7"
        message = read(client, text=text)
        assert data_of(message) == b"\7" * 4
        client.call("Free", pb.FreeRequest(text=text))
        assert sorted(h.client for h in client.slots()[0].holders) == ["in memory", "test"]
        client.release(message.lease)
        assert [h.client for h in client.slots()[0].holders] == ["in memory"]
        worker("release")
        assert client.slots() == []
        shared = share(client, kept=True)
        assert worker(f"bare {shared.ticket}") and worker(f"free {shared.text}") is not None
        with refused("STALE_TICKET"):
            read(client, ticket=shared.ticket)
        worker("release")
        assert client.slots() == []

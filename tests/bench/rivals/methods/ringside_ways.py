# SPDX-License-Identifier: Apache-2.0
"""Ringside: two stages; in place, copied in, put and get, and by ticket through multiprocessing.Queue."""

import socket

import ringside

from rivals.methods.pickle_uds import receive_exactly
from rivals.pair import Way, context, ends, mark

NEEDS_STAGES = True


def connect(sockets, side):
    """A connection of the side's stage, when both stages know each other."""
    rs = ringside.connect(sockets[side], timeout=20)
    rs.send("other", b"hello", timeout=20)
    rs.receive(20).release()
    return rs


class InPlace(Way):
    def open(self, side):
        self.rs = connect(self.sockets, side)

    def close(self):
        self.rs.close()

    def send(self, value, array):
        slot = self.rs.loan(array.size, "float32")
        mark(slot.numpy(), value)
        slot.send("other")

    def receive(self):
        message = self.rs.receive()
        got = ends(message.numpy())
        message.release()
        return got


class CopiedIn(InPlace):
    def send(self, value, array):
        mark(array, value)
        self.rs.send("other", array)


class PutAndGet(InPlace):
    """The ticket, 8 bytes, goes over a UNIX socket."""

    def __init__(self, size, sockets):
        super().__init__(size, sockets)
        self.pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.buffer = memoryview(bytearray(8))

    def open(self, side):
        super().open(side)
        self.socket = self.pair[side]

    def send(self, value, array):
        mark(array, value)
        self.socket.sendall(int(self.rs.put(array)).to_bytes(8, "little"))

    def receive(self):
        receive_exactly(self.socket, self.buffer)
        return ends(self.rs.get(int.from_bytes(self.buffer, "little")))


class QueueTicket(InPlace):
    def __init__(self, size, sockets):
        super().__init__(size, sockets)
        self.queues = context.Queue(), context.Queue()

    def open(self, side):
        super().open(side)
        self.outgoing, self.incoming = self.queues[side], self.queues[1 - side]

    def send(self, value, array):
        self.outgoing.put(share(self.rs, array.size, value))

    def receive(self):
        return read(self.rs, self.incoming.get())


def share(rs, count, value):
    """An array written in place, by ticket."""
    slot = rs.loan(count, "float32")
    mark(slot.numpy(), value)
    return slot.share()


def read(rs, ticket):
    """The ends of an array by its ticket."""
    message = rs.read(ticket)
    got = ends(message.numpy())
    message.release()
    return got


WAYS = {"ringside_inplace": InPlace, "ringside_copy": CopiedIn, "ringside_put": PutAndGet,
        "ringside_queue_ticket": QueueTicket}

# SPDX-License-Identifier: Apache-2.0
"""pickle, protocol 5, in band, over a UNIX socket; the buffer to receive into is made once, as a careful user would."""

import pickle
import socket

from rivals.pair import Way, ends, mark


class PickleSocket(Way):
    def __init__(self, size, sockets):
        super().__init__(size, sockets)
        self.sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.buffer = memoryview(bytearray(size + 4096))

    def open(self, side):
        self.socket = self.sockets[side]
        self.sockets[1 - side].close()

    def close(self):
        self.socket.close()

    def send(self, value, array):
        mark(array, value)
        data = pickle.dumps(array, protocol=5)
        self.socket.sendall(len(data).to_bytes(8, "little"))
        self.socket.sendall(data)

    def receive(self):
        receive_exactly(self.socket, self.buffer[:8])
        data = self.buffer[:int.from_bytes(self.buffer[:8], "little")]
        receive_exactly(self.socket, data)
        return ends(pickle.loads(data))


def receive_exactly(connection, view):
    """Fill `view` from the socket. Raises EOFError when the peer is gone."""
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError("the peer closed the socket")
        view = view[count:]


WAYS = {"pickle_uds": PickleSocket}

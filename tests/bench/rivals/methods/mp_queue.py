# SPDX-License-Identifier: Apache-2.0
"""multiprocessing.Queue, one in each direction."""

from rivals.pair import Way, context, ends, mark


class Queue(Way):
    def __init__(self, size, sockets):
        super().__init__(size, sockets)
        self.queues = context.Queue(), context.Queue()

    def open(self, side):
        self.outgoing, self.incoming = self.queues[side], self.queues[1 - side]

    def send(self, value, array):
        mark(array, value)
        self.outgoing.put(array)

    def receive(self):
        return ends(self.incoming.get())


WAYS = {"mp_queue": Queue}

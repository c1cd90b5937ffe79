# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing.Queue: a tensor's storage is moved into shared memory when it is put, its descriptor travels."""

import torch
import torch.multiprocessing

from rivals.pair import Way, mark


class TensorQueue(Way):
    def __init__(self, size, sockets):
        super().__init__(size, sockets)
        fork = torch.multiprocessing.get_context("fork")
        self.queues = fork.Queue(), fork.Queue()

    def open(self, side):
        torch.set_num_threads(1)  # one core; and OpenMP's threads do not survive a fork
        self.outgoing, self.incoming = self.queues[side], self.queues[1 - side]

    def send(self, value, array):
        mark(array, value)
        self.outgoing.put(torch.from_numpy(array))  # a new tensor: one that was put before is shared already

    def receive(self):
        tensor = self.incoming.get()
        return tensor[0].item(), tensor[-1].item()


WAYS = {"torch_mp": TensorQueue}

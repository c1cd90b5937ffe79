# SPDX-License-Identifier: Apache-2.0
"""Ray: one actor calls another with an array, with a plain int, and with a ticket of Ringside."""

import os
import shutil
import statistics
import tempfile

import ray

from rivals import SIZES
from rivals.methods.ringside_ways import connect, read, share
from rivals.pair import SMALL_BYTES, ends, mark, new_array, pin, time_way

NEEDS_STAGES = True
TURNS = 4  # the ways of a size are measured in turns: what is compared is measured at the same time


@ray.remote(num_cpus=0)
class Worker:
    """Side 1 answers by return values; side 0 calls it and keeps the time."""

    def __init__(self, side, sockets, cpu):
        self.side, self.sockets, self.cpu = side, sockets, cpu
        self.small = new_array(SMALL_BYTES)

    def open(self):
        self.rs = connect(self.sockets, self.side)
        pin(self.cpu)
        return os.getpid()

    def resize(self, size):
        self.array = new_array(size)

    def take_ray(self, array):
        mark(self.small, ends(array)[1])
        return self.small

    def take_ray_int(self, value):
        return value

    def take_ringside_ray_ticket(self, ticket):
        return int(share(self.rs, self.small.size, read(self.rs, ticket)[1]))

    def exchange_ray(self, value, array):
        mark(array, value)
        return ends(ray.get(self.other.take_ray.remote(array)))

    def exchange_ray_int(self, value, array):
        got = ray.get(self.other.take_ray_int.remote(int(value)))
        return got, got

    def exchange_ringside_ray_ticket(self, value, array):
        ticket = int(share(self.rs, array.size, value))  # a Ticket object would go through Ray's pickler
        return read(self.rs, ray.get(self.other.take_ringside_ray_ticket.remote(ticket)))

    def time(self, name, other, seconds):
        self.other = other
        return time_way(getattr(self, f"exchange_{name}"), self.array, self.small, seconds)


def measure(module, names, sockets, options):
    directory = tempfile.mkdtemp(prefix="ray-")  # a short path: Ray's sockets are deep below it
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error", _temp_dir=directory)
    try:
        workers = [Worker.remote(side, sockets, options.cpus[side % len(options.cpus)]) for side in (0, 1)]
        ray.get([worker.open.remote() for worker in workers], timeout=60)
        for label in options.sizes:
            ray.get([worker.resize.remote(SIZES[label]) for worker in workers])
            taken = {name: [] for name in names}
            for _ in range(TURNS):
                for name in names:
                    timed = workers[0].time.remote(name, workers[1], options.seconds / TURNS)
                    taken[name] += ray.get(timed, timeout=60)
            for name in names:
                print(f"{name}_{label}_us_p50 {statistics.median(taken[name]):.6g}", flush=True)
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)

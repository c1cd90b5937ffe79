# SPDX-License-Identifier: Apache-2.0
"""The measurements that are Python's; prints what ringside-bench prints: `NAME VALUE`, or why not.

Two processes, pinned to different cores, made by fork before anything else is set up.
"""

import argparse
import os
import pickle
import signal
import socket
import statistics
import sys
import time

import numpy

MIB = 1 << 20
DEADLINE_S = 60


class Skip(Exception):
    """A measurement that is not possible here; its text says why."""


class Pair:
    """Two pinned processes: side 1 runs `peer(connection)` in a child, side 0 is the caller."""

    def __init__(self, cpus, peer):
        if len(cpus) < 2:
            raise Skip("needs 2 cores")
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.child = os.fork()
        if self.child == 0:
            status = 1
            try:
                self.connection.close()
                os.sched_setaffinity(0, cpus[1:2])
                peer(other)
                status = 0
            except EOFError:
                status = 0
            except BaseException as error:  # a forked child must not return into its parent's code
                print(f"bench_python: side 1: {error!r}", file=sys.stderr)
            finally:
                os._exit(status)
        other.close()
        os.sched_setaffinity(0, cpus[:1])

    def __enter__(self):
        return self.connection

    def __exit__(self, *exception):
        self.connection.close()
        os.waitpid(self.child, 0)


def receive_exactly(connection, view):
    """Fill `view` from the socket. Raises EOFError when the peer is gone."""
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError("the peer closed the socket")
        view = view[count:]


def samples(options, count):
    """How many samples to take: fewer with --quick."""
    return max(3, count // 10) if options.quick else count


def pickle_socket(options):
    """One way of a float32 array of 16 MiB: dumps, send, recv_into, loads. Milliseconds.

    Both ends read the same monotonic clock: side 0 stamps before dumps, side 1 after it read an
    element of the array. The receive buffer is made once, as a careful user would.
    """
    array = numpy.arange(16 * MIB // 4, dtype=numpy.float32)

    def peer(connection):
        buffer = memoryview(bytearray(17 * MIB))
        while True:
            receive_exactly(connection, buffer[:8])
            size = int.from_bytes(buffer[:8], "little")
            receive_exactly(connection, buffer[:size])
            got = pickle.loads(buffer[:size])
            last = got[-1]
            stamp = time.monotonic_ns()
            if last != array[-1]:
                raise ValueError(f"wrong array: {last}")
            connection.sendall(stamp.to_bytes(8, "little"))

    taken = []
    with Pair(options.cpus, peer) as connection:
        stamp = memoryview(bytearray(8))
        for _ in range(samples(options, 40) + 3):
            start = time.monotonic_ns()
            data = pickle.dumps(array, protocol=5)
            connection.sendall(len(data).to_bytes(8, "little"))
            connection.sendall(data)
            receive_exactly(connection, stamp)
            taken.append((int.from_bytes(stamp, "little") - start) / 1e6)
    return statistics.median(taken[3:])


MEASUREMENTS = {
    "pickle_socket_16MiB_ms_p50": pickle_socket,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="NAME,...")
    parser.add_argument("--cpus", default="0,1", type=lambda s: [int(c) for c in s.split(",")])
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--build", default="build", help="the meson build directory")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    failed = False
    for name, measure in MEASUREMENTS.items():
        if options.list:
            print(name)
        elif not only or name in only:
            signal.alarm(DEADLINE_S)
            try:
                print(f"{name} {measure(options):.6g}", flush=True)
            except Skip as why:
                print(f"{name} skip {why}", flush=True)
            except Exception as error:  # one measurement's fault must not hide the others
                print(f"{name} fail {error!r}", flush=True)
                failed = True
            signal.alarm(0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

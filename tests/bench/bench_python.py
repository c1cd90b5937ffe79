# SPDX-License-Identifier: Apache-2.0
"""The measurements that are Python's; prints what ringside-bench prints: `NAME VALUE`, or why not.

Two processes, pinned to different cores, made by fork before anything else is set up.
"""

import argparse
import contextlib
import ctypes
import os
import pathlib
import pickle
import signal
import socket
import statistics
import subprocess
import sys
import time

import numpy

MIB = 1 << 20
DEADLINE_S = 60
WARM_UP = 3  # sends before the first that counts
PR_SET_PDEATHSIG = 1


class Skip(Exception):
    """A measurement that is not possible here; its text says why."""


class Pair:
    """Two pinned processes: side 1 runs `peer(connection)` in a child, side 0 is the caller."""

    def __init__(self, cpus, peer):
        if len(cpus) < 2:
            raise Skip("needs 2 cores")
        self.allowed = os.sched_getaffinity(0)
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.child = os.fork()
        if self.child == 0:
            status = 1
            try:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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

    def __exit__(self, kind, *exception):
        self.connection.close()
        if kind is not None:  # it may wait for what will never come
            os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        os.sched_setaffinity(0, self.allowed)


@contextlib.contextmanager
def two_stages(options):
    """Two sidecars, default config, each the other's route "other". Yields their sockets."""
    sys.path.insert(0, str(pathlib.Path(options.build).resolve() / "client/python"))
    try:
        import ringside  # noqa: F401  # before the fork, connected after it
    except ImportError as error:
        raise Skip(f"the Python package is not there: {error}") from None
    command = [str(pathlib.Path(options.build) / "tests/bench/ringside-bench"), "--stages"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        try:
            sockets = process.stdout.readline().split()
            if len(sockets) != 2:
                why = process.stderr.read().strip()
                raise (Skip if process.wait(15) == 77 else RuntimeError)(why)
            yield sockets
        finally:  # the end of its input ends it, also when we fall over
            process.stdin.close()
            process.wait(15)


def greet(rs):
    """Send and receive one message: from here on the stages know each other."""
    rs.send("other", b"hello", timeout=20)
    rs.receive(20).release()


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


def timed_by_receiver(connection, count, send):
    """Median of the milliseconds from before `send()` to the stamp that side 1 answers with.

    Both sides read the same monotonic clock.
    """
    stamp, taken = memoryview(bytearray(8)), []
    for _ in range(count + WARM_UP):
        start = time.monotonic_ns()
        send()
        receive_exactly(connection, stamp)
        taken.append((int.from_bytes(stamp, "little") - start) / 1e6)
    return statistics.median(taken[WARM_UP:])


def pickle_socket(options):
    """One way of a float32 array of 16 MiB: dumps, send, recv_into, loads. Milliseconds.

    Side 0 stamps before dumps, side 1 after it read an element of the array. The receive buffer is
    made once, as a careful user would.
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

    with Pair(options.cpus, peer) as connection:
        def send():
            data = pickle.dumps(array, protocol=5)
            connection.sendall(len(data).to_bytes(8, "little"))
            connection.sendall(data)

        return timed_by_receiver(connection, samples(options, 40), send)


def ringside_send(options):
    """The same array and the same two stamps, through rs.send() and rs.receive(). Milliseconds.

    In the time: the loan, the copy into the slot, the publish, the wake-up of the consumer, its
    receive, its numpy() and the reading of one element. The slot is released before the next send.
    """
    array = numpy.arange(16 * MIB // 4, dtype=numpy.float32)
    count = samples(options, 200)

    with two_stages(options) as sockets:
        import ringside

        def peer(connection):
            with ringside.connect(sockets[1], timeout=20) as rs:
                greet(rs)
                for _ in range(count + WARM_UP):
                    message = rs.receive()
                    last = message.numpy()[-1]
                    stamp = time.monotonic_ns()
                    message.release()
                    if last != array[-1]:
                        raise ValueError(f"wrong array: {last}")
                    connection.sendall(stamp.to_bytes(8, "little"))

        with Pair(options.cpus, peer) as connection, ringside.connect(sockets[0], timeout=20) as rs:
            greet(rs)
            return timed_by_receiver(connection, count, lambda: rs.send("other", array))


def one_way(options):
    """Half a round trip of 64 B, both sides spinning. Nanoseconds.

    Each side does: loan, write one element through numpy(), send, receive, read one element through
    numpy(), release. The median of batches, as in C.
    """
    batches, per_batch = samples(options, 500), 200

    def ping(rs, value):
        slot = rs.loan(16, "float32")
        slot.numpy()[0] = value
        slot.send("other")

    def pong(rs):
        message = rs.receive()
        value = message.numpy()[0]
        message.release()
        return value

    with two_stages(options) as sockets:
        import ringside

        def peer(connection):
            with ringside.connect(sockets[1], timeout=20) as rs:
                greet(rs)
                for _ in range((batches + 20) * per_batch):
                    ping(rs, pong(rs))

        taken = []
        with Pair(options.cpus, peer) as connection, ringside.connect(sockets[0], timeout=20) as rs:
            greet(rs)
            for batch in range(batches + 20):  # the first ones are warm-up
                start = time.perf_counter_ns()
                for i in range(per_batch):
                    ping(rs, i)
                    value = pong(rs)
                taken.append((time.perf_counter_ns() - start) / per_batch / 2)
                if value != per_batch - 1:
                    raise ValueError(f"wrong element in batch {batch}: {value}")
        return statistics.median(taken[20:])


# bench.py runs these just before ringside-bench, whose first figures they are held against.
MEASUREMENTS = {
    "pickle_socket_16MiB_ms_p50": pickle_socket,
    "python_send_16MiB_ms_p50": ringside_send,
    "python_one_way_ns_p50": one_way,
}


def on_alarm(number, frame):
    raise TimeoutError(f"took longer than {DEADLINE_S} s")


def on_interrupt(number, frame):
    """The first one ends it; while what was started is ended, more of them change nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="NAME,...")
    parser.add_argument("--cpus", default="0,1", type=lambda s: [int(c) for c in s.split(",")])
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--build", default="build", help="the meson build directory")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_interrupt)
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
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

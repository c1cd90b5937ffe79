# SPDX-License-Identifier: Apache-2.0
"""The harness: two pinned processes, the rounds between them, and what every way has in common."""

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import statistics
import sys
import threading
import time

import numpy

DEADLINE_S = 60  # for one way and size, with everything around it
SMALL_BYTES = 64  # of the answer
WARM_UP, LEAST = 2, 5  # rounds at least: before what counts, and of what counts
STOP = -1.0  # as an element: the last message
PR_SET_PDEATHSIG = 1
RATE_HZ, RATE_S = 60, 1.5  # of the arrays beside which a thread counts: so often at most, for so long

context = multiprocessing.get_context("fork")
reads_all = False  # in the process of a side: a receiver reads every element, and not the ends alone


class Skip(Exception):
    """A measurement that is not possible here; its text says why."""


class Way:
    """One way to move an array of `size` bytes: made before the fork, then open() and close() in each process.

    A subclass has send() and receive(). What is shaped like a call has exchange(), serve() and stop() instead.
    """

    def __init__(self, size, sockets):
        self.array, self.small = new_array(size), new_array(SMALL_BYTES)
        self.size, self.sockets = size, sockets

    def open(self, side):
        """Connect; side 1 opens at the same time."""

    def close(self):
        """Give back what open() took; the other side is through as well."""

    def send(self, value, array):
        """Write `value` into the first and the last element of `array`, or of what is sent in its place, and send."""
        raise NotImplementedError

    def receive(self):
        """Wait for an array, read its first and its last element, give it back, return the two."""
        raise NotImplementedError

    def exchange(self, value, array):
        """Side 0: a round trip; what came back."""
        self.send(value, array)
        return self.receive()

    def serve(self):
        """Side 1: answer each array by a small one with the same elements, until the last message."""
        while True:
            first, last = self.receive()
            if first == STOP:
                return
            self.send(last, self.small)

    def stop(self):
        """Side 0: make serve() return."""
        self.send(STOP, self.small)


def new_array(size):
    return numpy.ones(size // 4, numpy.float32)


def mark(array, value):
    array[0] = array[-1] = value


def ends(array):
    """What a receiver reads of what it got: the first and the last element, and all between them where `reads_all`."""
    if reads_all:
        array.max()
    return array[0], array[-1]


def pin(cpu):
    """All threads of this process; later ones inherit it."""
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), [cpu])


def timed(exchange, value, array):
    """The nanoseconds of one round trip."""
    start = time.perf_counter_ns()
    first, last = exchange(value, array)
    stop = time.perf_counter_ns()
    if first != value or last != value:
        raise ValueError(f"sent {value}, got {first} and {last}")
    return stop - start


def rounds(one, seconds, least):
    """What `one(value)` returns, as often as fits the time and at least so often."""
    taken, end = [], time.perf_counter_ns() + int(seconds * 1e9)
    while len(taken) < least or time.perf_counter_ns() < end:
        taken.append(one(float(len(taken) % 1000 + 1)))
    return taken


def time_way(exchange, array, small, seconds):
    """Microseconds that one way of `array` takes, a figure for each round; warms up first.

    A round trip less the way back of the small answer, which is half of the small round trip right after.
    """
    def half(value):
        return timed(exchange, value, array) / 2000

    def there(value):
        return (timed(exchange, value, array) - timed(exchange, value, small) / 2) / 1000

    one = half if array.nbytes == small.nbytes else there
    rounds(one, seconds / 4, WARM_UP)
    return rounds(one, seconds, LEAST)


def count_beside(way, side, barrier, count):
    """What a thread of side 1 that counts keeps of its own speed while side 0 sends arrays and awaits the answers.

    Side 0 returns the share and how many arrays a second there were.
    """
    arrived = 0

    def counting():
        while True:
            for _ in range(1000):
                pass
            count.value += 1

    def speed(during):
        before, start = count.value, time.monotonic()
        during()
        return (count.value - before) / (time.monotonic() - start)

    def paced():
        nonlocal arrived
        due = time.monotonic()
        end = due + RATE_S
        while arrived < LEAST or due < end:
            way.exchange(float(arrived), way.array)
            arrived += 1
            due = max(due + 1 / RATE_HZ, time.monotonic())
            time.sleep(max(0, due - time.monotonic()))

    def alone():
        return speed(lambda: time.sleep(RATE_S / 2))

    if side == 1:
        threading.Thread(target=counting, daemon=True).start()
        barrier.wait(DEADLINE_S)
        way.serve()
        return None
    before = alone()
    barrier.wait(DEADLINE_S)
    start = time.monotonic()
    beside = speed(paced)
    rate = arrived / (time.monotonic() - start)
    way.stop()
    return beside * 2 / (before + alone()), rate


def run_side(way, side, cpus, seconds, whole, barrier, count, pipe):
    """What each of the two processes does. Who has the figure sends it into the pipe, and so does who fails."""
    global reads_all
    reads_all = whole
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    try:
        pin(cpus[side])
        way.open(side)
        barrier.wait(DEADLINE_S)
        figure = None
        if seconds is None:
            figure = count_beside(way, side, barrier, count)
        elif side == 0:
            figure = [statistics.median(time_way(way.exchange, way.array, way.small, seconds))]
            way.stop()
        else:
            way.serve()
        barrier.wait(DEADLINE_S)
        way.close()
        if figure is not None:
            pipe.send([f"{number:.6g}" for number in figure])
    except Skip as why:
        pipe.send([f"skip {why}"])
    except Exception as error:  # the parent reports it; nobody is left to raise it to
        pipe.send([f"fail side {side}: {type(error).__name__}: {error}".replace("\n", " ")])
    pipe.close()
    sys.stderr.flush()
    os._exit(0)  # libraries' threads and exit handlers have nothing to say any more


def await_figure(pipe, sides):
    """What a side says, or how it ended without a word."""
    end, running = time.monotonic() + DEADLINE_S, {side.sentinel: side for side in sides}
    while True:
        ready = multiprocessing.connection.wait([pipe, *running], max(0, end - time.monotonic()))
        if pipe in ready:
            return pipe.recv()
        for each in ready:
            running[each].join()  # its descriptors close a moment before it can be waited for
            if running[each].exitcode != 0:
                return [f"fail side {sides.index(running[each])} ended with {running[each].exitcode}"]
            del running[each]
        if not ready or not running:
            return [f"fail took longer than {DEADLINE_S} s" if running else "fail both sides ended without a figure"]


def measure_pair(kind, size, sockets, cpus, seconds, whole=False):
    """The figures of one way, as text: microseconds (without `seconds`: share and rate), or the reason for none.

    With `whole` the receiver reads every element.
    """
    if len(cpus) < 2:
        return ["skip needs 2 cores"]
    try:
        way = kind(size, sockets)
    except Skip as why:
        return [f"skip {why}"]
    barrier, (ours, theirs) = context.Barrier(2), context.Pipe(duplex=False)
    count = context.RawValue("Q", 0)
    sides = [context.Process(target=run_side, args=(way, side, cpus, seconds, whole, barrier, count, theirs))
             for side in (0, 1)]
    try:
        for side in sides:
            side.start()
        return await_figure(ours, sides)
    finally:
        for side in sides:
            side.join(1)
            if side.is_alive():
                side.kill()
                side.join()

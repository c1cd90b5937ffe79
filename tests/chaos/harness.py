# SPDX-License-Identifier: Apache-2.0
"""Sidecars that are killed and started again, rings as their memory says they are, and the ledger of the messages."""
import json
import mmap
import os
import pathlib
import signal
import socket
import struct
import subprocess
import time

PROXY, CLI = os.environ.get("RINGSIDE_PROXY", ""), os.environ.get("RINGSIDE_CLI", "")
FREE, LOANED, SEALED, QUARANTINED = range(4)
UNUSED, ALIVE, DEAD = range(3)
COUNTERS = ("sent received released forwarded forward_copies nacked shared reads expired dropped dead_lettered "
            "requeued sent_bytes overflows calls replies").split()
ACCOUNTED = ("expired", "dropped", "dead_lettered")


def until(condition, what, seconds):
    """Waits for condition() and returns the seconds it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.001)
    return time.monotonic() - start


class Ring:
    """A look into a control file that trusts its superblock."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.slot_count, _, self.client_count = struct.unpack_from("<III", self.memory, 72)
        self.cells, = struct.unpack_from("<I", self.memory, 84)
        (self.clients_at, self.destinations_at, _, self.inbox_at, _, self.cells_at,
         self.slots_at) = struct.unpack_from("<7Q", self.memory, 96)
        self.boxes_at = self.word(480)

    def word(self, offset):
        return struct.unpack_from("<Q", self.memory, offset)[0]

    def store(self, offset, value):
        struct.pack_into("<Q", self.memory, offset, value & (1 << 64) - 1)

    def state(self, slot):
        return self.word(self.slots_at + slot * 256)

    def is_read(self):
        """Whether a reader's bit is on anywhere."""
        return any(self.word(self.slots_at + slot * 256 + 8) & (1 << 38) - 1 for slot in range(self.slot_count))

    def phases(self):
        """How many slots are in each phase."""
        count = [0, 0, 0, 0]
        for slot in range(self.slot_count):
            count[self.state(slot) >> 8 & 3] += 1
        return count

    def clients(self):
        """(number, phase, pid, name) of each entry in use, but the sidecar's."""
        for number in range(1, self.client_count):
            at = self.clients_at + number * 256
            if phase := self.word(at) & 0xff:
                name = self.memory[at + 64:at + 128].split(b"\0")[0].decode()
                yield number, phase, self.word(at + 16), name

    def connected(self):
        """How many destinations lead somewhere, and how many of them are connected."""
        states = [self.word(self.destinations_at + i * 128) for i in range(256)]
        inboxes = [state for state in states if state >> 8 & 0xff]
        return len(inboxes), sum(state & 1 for state in inboxes)

    def total(self, counter):
        at = 128 + COUNTERS.index(counter) * 8
        return sum(self.word(self.clients_at + i * 256 + at) for i in range(self.client_count))

    def accounted(self):
        """Deliveries that ended otherwise than by a consumer that wanted them."""
        return sum(map(self.total, ACCOUNTED))

    def queued(self):
        """The stage that each waiting word is for."""
        for slot in range(self.slot_count):
            state = self.state(slot)
            for i in range(8):
                word = self.word(self.slots_at + slot * 256 + (16 + 8 * i if i < 6 else 64 + 8 * (i - 6)))
                if word & 0xf == 1 and word >> 32 == state >> 32 and state >> 8 & 3 == SEALED:
                    at = self.destinations_at + (word >> 8 & 0xfff) * 128 + 64
                    yield self.memory[at:at + 64].split(b"\0")[0].decode()

    def depth(self):
        """Of the inbox, by its hints."""
        return self.word(self.inbox_at + 64) - self.word(self.inbox_at)

    def dump(self):
        """Slots that are not free, and who is there: for a message about a failure."""
        slots = []
        for slot in range(self.slot_count):
            state = self.state(slot)
            if state >> 8 & 3 != FREE or state & 0xff:
                at = self.slots_at + slot * 256
                words = [f"{self.word(at + 8 * i):016x}" for i in range(8)]
                slots.append(f"slot {slot}: state {words[0]} readers {words[1]} words {' '.join(words[2:])}")
        for number, *_ in self.clients():
            at = self.boxes_at + number * 576
            cells = [f"{cell}: {word:016x}" for cell in range(64) if (word := self.word(at + 64 + 8 * cell))]
            if cells:
                slots.append(f"box of {number}: wait words {self.word(at):016x} cells {', '.join(cells)}")
        hints = f"head {self.word(self.inbox_at)} tail {self.word(self.inbox_at + 64)} " \
                f"overflow {self.word(self.inbox_at + 136) & 0xffffffff:#x}"
        return "\n".join([hints, f"clients {list(self.clients())}", *slots])


class Sidecar:
    """A stage's sidecar, its config and its ring."""

    def __init__(self, directory, stage, routes, slots, cells, depth=None, **settings):
        self.stage, self.directory = stage, pathlib.Path(directory)
        self.socket = self.directory / f"{stage}.sock"
        self.control = self.directory / "ring" / f"{stage}.control"
        self.log = self.directory / f"{stage}.log"
        self.failpoints = self.directory / f"{stage}.failpoints"
        self.config = {
            "stage": stage, "socket": {"path": str(self.socket)},
            "ring": {"control_dir": str(self.control.parent), "body_dir": str(self.control.parent),
                     "pages": "4Ki", "lock": "off", "classes": [{"slot_bytes": "4Ki", "slots": slots}]},
            "inbox": {"cells": cells, "depth": depth or cells},
            "routes": {name: {"to": [f"unix:{self.directory}/{to}.sock" for to in targets], **options}
                       for name, (targets, options) in routes.items()},
            "drain_timeout_ms": 200, "stall_report_ms": 0, **settings}
        self.process = None

    def start(self, wait=True):
        path = self.directory / f"{self.stage}.json"
        path.write_text(json.dumps(self.config))
        environment = {**os.environ, "RINGSIDE_FAILPOINT_LOG": str(self.failpoints)}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([PROXY, str(path)], stderr=log, stdin=subprocess.DEVNULL, env=environment)
        if wait:
            self.wait_ready()

    def answers(self):
        assert self.process.poll() is None, f"{self.stage} ended with {self.process.returncode}: {self.tail()}"
        return self.listens()

    def listens(self):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
                return True
            except OSError:
                return False

    def wait_ready(self, seconds=20):
        until(self.answers, lambda: f"stage {self.stage} serves: {self.tail()}", seconds)

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Ends it in an orderly way; the exit status."""
        self.process.terminate()
        return self.process.wait(20)

    def ring(self):
        return Ring(self.control)

    def tail(self, lines=30):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def status(self):
        """What `ringside status` tells."""
        output = subprocess.run([CLI, "status", "--json", "-s", str(self.socket)], capture_output=True, text=True,
                                check=True).stdout
        return json.loads(output)


class Ledger:
    """The file that tests/chaos/ledger.h describes."""

    HEAD, NEXT, CORRUPT, FAILED, STOP, LIMIT, REPLIES, OK, DEATHS = 16384, 0, 1, 2, 3, 4, 5, 6, 8
    SOCKET_NEXT, SOCKET_LIMIT, SOCKET_OK, SOCKET_REPLIES, SOCKET_FAULTS = 10, 11, 12, 13, 14
    WORKERS_AT, WORKER_BYTES, WORKERS, HELD = 128 + 32 * 32, 128, 64, 8
    TRIED, ACCEPTED, REFUSED = 1, 2, 3
    SENT, KIND, OUTCOME, ORPHANED, EXECUTED, ANSWERED, NEAR_DEATH = range(7)  # of a call's entry
    ABANDONED = 6

    def __init__(self, path, messages):
        self.path = pathlib.Path(path)
        with open(path, "w+b") as file:
            file.truncate(self.HEAD + 8 * messages)
            self.map(file)
        self[self.NEXT], self[self.LIMIT] = 1, messages

    @classmethod
    def existing(cls, path):
        ledger = cls.__new__(cls)
        with open(path, "r+b") as file:
            ledger.map(file)
        return ledger

    def map(self, file):
        self.memory = mmap.mmap(file.fileno(), 0)
        self.words = memoryview(self.memory).cast("Q")  # whole at a time: what struct packs is 0 on the way

    def __getitem__(self, word):
        return self.words[word]

    def __setitem__(self, word, value):
        self.words[word] = value

    def message(self, number):
        """sent, kind, wanted, turned, and arrivals of 4 stages."""
        return struct.unpack_from("8B", self.memory, self.HEAD + 8 * number)

    def worker(self, index):
        """pid, beat_ns, sent, received, and the ids that it holds."""
        return struct.unpack_from("<12Q", self.memory, self.WORKERS_AT + index * self.WORKER_BYTES)

    def beat(self, index, now_ns):
        self.words[(self.WORKERS_AT + index * self.WORKER_BYTES) // 8 + 1] = now_ns

    def take_held(self, index):
        """The ids that a dead worker had, which are nobody's now."""
        at = self.WORKERS_AT + index * self.WORKER_BYTES + 32
        held = [number for number in struct.unpack_from(f"<{self.HELD}Q", self.memory, at) if number]
        struct.pack_into(f"<{self.HELD}Q", self.memory, at, *[0] * self.HELD)
        return held

    def hold(self, index, place, number):
        self.words[(self.WORKERS_AT + index * self.WORKER_BYTES) // 8 + 4 + place] = number

    def note(self, number, field, value):
        self.memory[self.HEAD + 8 * number + field] = value

    def count(self, number, field):
        at = self.HEAD + 8 * number + field
        self.memory[at] = min(255, self.memory[at] + 1)

    def orphan(self, number):
        self.count(number, self.ORPHANED)  # in the entry of a message at the same place

    def abandon(self, number):
        """A call whose caller is dead and did not see its end."""
        if self.memory[self.HEAD + 8 * number + self.OUTCOME] == 0:
            self.note(number, self.OUTCOME, self.ABANDONED)


class Failpoints:
    """The counters of one process or, one after the other, of several."""

    def __init__(self, path, names):
        self.names = names
        with open(path, "a+b") as file:
            file.truncate(8 * (1 + len(names)))
            self.memory = mmap.mmap(file.fileno(), 0)

    def arm(self, name, nth=1, action=1):
        struct.pack_into("<Q", self.memory, 0,
                         action << 48 | (self.names.index(name) + 1) << 32 | nth if name else 0)

    def armed(self):
        return struct.unpack_from("<Q", self.memory, 0)[0] != 0

    def hits(self):
        return dict(zip(self.names, struct.unpack_from(f"<{len(self.names)}Q", self.memory, 8)))


def kill_and_reap(process, number=signal.SIGKILL):
    if process.poll() is None:
        process.send_signal(number)
    process.wait(20)

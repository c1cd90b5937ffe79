#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A caller or a callee of the chaos run for which its sidecar takes every step: it speaks to the socket alone.

Usage: socket_worker.py ROLE SOCKET LEDGER INDEX SEED, as worker.c; notes what callers and callees note there.
Its session ends with its sidecar, and the process with it: status LOST.
"""
import mmap
import random
import select
import sys
import time

import numpy

import calls
import control_pb2 as pb
from harness import Ledger
from ttrpc_client import NO_DATA, REMOTE_CLOSED, Client, Refused

LOST = 75
TIMEOUT_S = 0.1
HASTY_S, STUCK_S = 0.01, 10
FLIGHTS, CREDITS, LOOKS = 6, 4, 16
REPLIES_MAX = 6
REFUSAL = "call {} is refused"
GOLDEN = 0x9e3779b97f4a7c15
WAITS = ("TIMEOUT", "FULL")


def mix(value):
    with numpy.errstate(over="ignore"):
        value = (value ^ value >> numpy.uint64(30)) * numpy.uint64(0xbf58476d1ce4e5b9)
        value = (value ^ value >> numpy.uint64(27)) * numpy.uint64(0x94d049bb133111eb)
        return value ^ value >> numpy.uint64(31)


def body_of(number, ticket, size):
    """What ledger_fill() writes."""
    seed = mix(numpy.array([number], numpy.uint64)) ^ numpy.uint64(ticket)
    with numpy.errstate(over="ignore"):
        words = mix(seed + numpy.arange(size // 8, dtype=numpy.uint64) * numpy.uint64(GOLDEN))
    words[:3] = number, ticket, size
    return words.tobytes()


class SocketWorker:
    def __init__(self, path, index, name, seed):
        self.ledger, self.index, self.name = Ledger.existing(path), index, name
        self.dice, self.files = random.Random(seed), {}

    # ---- what worker.c has ----

    def tell(self, what):
        print(f"{self.name}: {what}", file=sys.stderr, flush=True)

    def corrupt(self, what):
        self.tell(what)
        self.ledger[Ledger.SOCKET_FAULTS] += 1

    def beat(self):
        self.ledger.beat(self.index, time.monotonic_ns())

    def goes_on(self):
        return not select.select([sys.stdin], [], [], 0)[0]

    def linger(self):
        if self.dice.random() < 1 / 64:
            time.sleep(self.dice.random() * 0.003)

    def connect(self, path):
        while self.goes_on():
            self.beat()
            try:
                self.client = Client(path)
                self.client.attach(self.name)
                return True
            except (OSError, Refused):
                time.sleep(0.01)
        return False

    # ---- bodies ----

    def memory(self, path, write):
        if (path, write) not in self.files:
            with open(path, "r+b" if write else "rb") as file:
                access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
                self.files[path, write] = mmap.mmap(file.fileno(), 0, access=access)
        return self.files[path, write]

    def loan(self, number):
        """A slot with a body of that number, or None."""
        size = 64 + 8 * self.dice.randrange(400)
        try:
            loan = self.client.loan((size,), timeout=TIMEOUT_S, metadata_bytes=64)
        except Refused as error:
            if error.name not in WAITS:
                self.corrupt(f"loan: {error}")
            return None
        memory = self.memory(loan.body_path, True)
        memory[loan.slot_offset:loan.slot_offset + size] = body_of(number, loan.lease.ticket, size)
        return loan.lease

    def is_right(self, message, number):
        tensor = message.tensors[0]
        at = message.slot_offset + tensor.offset
        return self.memory(message.body_path, False)[at:at + tensor.bytes] == \
            body_of(number, message.lease.ticket, tensor.bytes)

    def release(self, lease):
        try:
            self.client.release(lease)
        except Refused as error:
            self.corrupt(f"release: {error}")


class Callee(SocketWorker):
    def step(self):
        try:
            message = self.client.receive(TIMEOUT_S)
        except Refused as error:
            if error.name not in WAITS:
                self.corrupt(f"receive: {error}")
            return
        number = message.sequence
        self.ledger.hold(self.index, 0, number)
        if not message.method or not self.is_right(message, number):
            self.corrupt("call: it is none, or its body is another's")
        else:
            self.ledger.count(number, Ledger.EXECUTED)
            self.linger()
            if not self.is_right(message, number):
                self.corrupt("held call: it changed")
            self.execute(message, number)
            self.linger()
        self.release(message.lease)
        self.ledger.hold(self.index, 0, 0)

    def execute(self, message, number):
        if message.method == "refuse":
            self.ledger.count(number, Ledger.ANSWERED)
            self.reply(message, status=10, text=REFUSAL.format(number))
            return
        replies = 1 + number % REPLIES_MAX if message.method == "many" else 1
        for i in range(replies):
            while (loan := self.loan(number | i << 48)) is None:
                self.beat()
                if self.client.cancelled(message.lease) or not self.goes_on():
                    return
            if i + 1 == replies:
                self.ledger.count(number, Ledger.ANSWERED)
            if not self.reply(message, reply=loan, more=i + 1 < replies, options=pb.Options(sequence=i)):
                return
            self.linger()

    def reply(self, message, **fields):
        """Waits for room as long as somebody waits for the reply."""
        while self.goes_on():
            self.beat()
            try:
                self.client.reply(message.lease, timeout=TIMEOUT_S, **fields)
                return True
            except Refused as error:
                if error.name == "CANCELLED":
                    return False
                if error.name not in WAITS:
                    self.corrupt(f"reply: {error}")
                    return False
        return False


class Flight:
    def __init__(self, number, dice, deaths):
        roll = dice.randrange(4)
        self.number, self.deaths = number, deaths
        self.route, self.method = int(dice.random() < 0.25), dice.choice(("one", "many", "many", "refuse"))
        self.replies = 1 + number % REPLIES_MAX if self.method == "many" else 1
        self.timeout = 1e-6 + dice.random() * HASTY_S if roll == 0 else None
        self.looks = 1 + dice.randrange(LOOKS) if roll == 1 and self.method == "many" else 0
        self.next, self.ended, self.began = 0, False, time.monotonic()


class Caller(SocketWorker):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.flights = [None] * FLIGHTS

    def step(self):
        place = self.dice.randrange(FLIGHTS)
        if self.flights[place] is not None:
            self.look(place)
        elif not self.ledger[Ledger.STOP]:
            self.begin(place)
        # A frame that came with another one makes the socket readable no more.
        if self.client.buffer or select.select([self.client.socket], [], [], 0.002)[0]:
            self.client.frame()
        time.sleep(0.001)

    def deaths(self, route):
        return self.ledger[Ledger.DEATHS + route]

    # ---- the beginning ----

    def begin(self, place):
        ledger = self.ledger
        number = ledger[Ledger.SOCKET_NEXT] + 1
        if number >= ledger[Ledger.SOCKET_LIMIT] or (lease := self.loan(number)) is None:
            return
        ledger[Ledger.SOCKET_NEXT] = number
        flight = Flight(number, self.dice, None)
        flight.deaths = self.deaths(flight.route)
        ledger.note(number, Ledger.KIND, calls.CALL)
        ledger.hold(self.index, place, number)
        ledger.note(number, Ledger.SENT, Ledger.ACCEPTED)
        many = flight.method == "many"
        request = pb.CallRequest(request_id=number, lease=lease, route=calls.ROUTES[flight.route],
                                 method=flight.method, credits=1 + self.dice.randrange(CREDITS) if many else 0,
                                 options=pb.Options(sequence=number))
        flight.lease, flight.began = lease, time.monotonic()
        flight.stream = self.client.begin("CallStream" if many else "Call", request.SerializeToString(),
                                          flight.timeout, flags=REMOTE_CLOSED if many else 0)
        self.flights[place] = flight

    # ---- replies, and the end ----

    def look(self, place):
        flight, client = self.flights[place], self.client
        if frames := client.data.get(flight.stream):
            flags, body = frames.pop(0)
            if flags & NO_DATA:
                self.close(place, calls.OK)
            else:
                self.take(flight, pb.CallResponse.FromString(body).message)
        elif flight.stream in client.answers:
            self.answer(place, flight)
        elif flight.ended:
            pass  # cancelled: until its stream ends
        elif flight.looks > 0:
            flight.looks -= 1
            if flight.looks == 0:
                self.cancel(place, calls.CANCELLED)
        elif time.monotonic() - flight.began > STUCK_S:
            self.tell(f"call {flight.number} does not end")
            self.end(place, calls.STUCK)

    def cancel(self, place, outcome):
        try:
            self.client.credit(self.flights[place].number, end=True)
        except Refused:  # it has ended: that is yet to be read
            return
        self.end(place, outcome)

    def take(self, flight, message):
        number = flight.number | flight.next << 48
        if not self.is_right(message, number):
            self.corrupt("reply: it is one of another call, or another one of this call")
        if message.sequence != flight.next:
            self.corrupt("reply header: it is that of another reply")
        self.linger()
        self.release(message.lease)
        self.ledger[Ledger.SOCKET_REPLIES] += 1
        flight.next += 1
        if flight.next < flight.replies and not flight.ended:
            try:
                self.client.credit(flight.number, 1)
            except Refused:  # it has ended
                pass

    def answer(self, place, flight):
        try:
            self.take(flight, self.client.end(flight.stream, pb.CallResponse).message)
            self.close(place, calls.OK)
        except Refused as error:
            self.close(place, self.outcome_of(flight, error))

    def outcome_of(self, flight, error):
        late = flight.timeout is not None and time.monotonic() - flight.began >= flight.timeout
        if error.name == "UNAVAILABLE" and "no reply will come" in error.message:
            return calls.UNAVAILABLE
        if error.name == "TIMEOUT" and late:
            return calls.TIMED_OUT
        if flight.method == "refuse" and error.code == 10 and \
                error.message == "CALLEE: " + REFUSAL.format(flight.number):
            return calls.REFUSED
        if error.name in ("UNAVAILABLE", "FULL", "LIMIT"):  # not connected, no room
            return None
        self.corrupt(f"call: {error}")
        return calls.FAILED

    def close(self, place, outcome):
        """After the last that comes of a call. None: it was not sent."""
        flight = self.flights[place]
        if outcome == calls.OK and not flight.ended and flight.next != flight.replies:
            self.corrupt(f"call: {flight.next} replies of {flight.replies}")
        if not flight.ended:
            self.end(place, outcome)
        if flight.next == 0:
            self.abandon(flight.lease, outcome)
        self.flights[place] = None

    def abandon(self, lease, outcome):
        """A call that waited for room when it ended was not sent: its loan is still the caller's."""
        try:
            self.client.call("Abandon", pb.LeaseRequest(lease=lease))
        except Refused as error:
            if outcome is None or error.name != "STATE":
                self.corrupt(f"abandon: {error}")

    def end(self, place, outcome):
        """Notes it. What comes afterwards is dropped."""
        flight, ledger = self.flights[place], self.ledger
        deaths = self.deaths(flight.route)
        ledger.note(flight.number, Ledger.NEAR_DEATH, deaths != flight.deaths or deaths % 2)
        if outcome is None:
            ledger.note(flight.number, Ledger.SENT, Ledger.REFUSED)
        else:
            ledger.note(flight.number, Ledger.OUTCOME, outcome)
        ledger[Ledger.SOCKET_OK] += outcome == calls.OK
        flight.ended = True
        ledger.hold(self.index, place, 0)


def main():
    role, path, ledger, index, seed = sys.argv[1:]
    worker = (Caller if role == "caller" else Callee)(ledger, int(index), f"socket {role}", int(seed))
    if not worker.connect(path):
        return 0
    try:
        while worker.goes_on():
            worker.beat()
            worker.step()
        worker.client.close()
        return 0
    except ConnectionError:
        return LOST


if __name__ == "__main__":
    sys.exit(main())

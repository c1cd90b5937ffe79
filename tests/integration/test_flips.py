# SPDX-License-Identifier: Apache-2.0
"""A worker gone mad writes anything into the control file of a running sidecar, as whoever has it mapped may."""
import contextlib
import mmap
import multiprocessing
import os
import random
import struct
import time

import control_pb2 as pb
from daemon import wait_for
from machine import sidecar  # noqa: F401 (a fixture)
from ttrpc_client import Refused
from worker import Failed, Worker

SECONDS = float(os.environ.get("RINGSIDE_FLIPS_SECONDS", "10"))
SLOTS, SPARED = 32, 16  # the first of these slots, whose records are left alone: they must work on
SLOT_BYTES, CLIENT_BYTES = 256, 256
TTL_MS = 1000


def places(control):
    """Parts of the control file as (offset, bytes): the more there are of a part, the more often it is hit."""
    at = dict(zip(("clients", "destinations", "shared", "inbox", "table", "cells", "slots"),
                  struct.unpack_from("<7Q", control, 96)))
    bitmap, = struct.unpack_from("<Q", control, 224 + 24)
    slots = (at["slots"] + SPARED * SLOT_BYTES, (SLOTS - SPARED) * SLOT_BYTES)
    words = [(at["inbox"], 144), (at["cells"], 16 * 8), (at["shared"], 8), (bitmap, 16)]
    tables = [(at["clients"], 8 * CLIENT_BYTES), (at["destinations"], 4 * 128), (at["table"], 4 * 64), (0, 512)]
    return 6 * [slots] + 2 * words + tables


def go_mad(path, seconds, seed):
    """In a process of its own: random bits and words, and a little while for the others after each few."""
    chance = random.Random(seed)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as control:
        parts = places(control)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(chance.randrange(40)):
                start, size = chance.choice(parts)
                offset = start + chance.randrange(size // 8) * 8
                word, = struct.unpack_from("<Q", control, offset)
                word = chance.choice([word ^ 1 << chance.randrange(64), chance.getrandbits(64), 0,
                                      word & 0xFFFFFFFF | chance.getrandbits(32) << 32])
                struct.pack_into("<Q", control, offset, word)
            time.sleep(chance.random() / 200)


def work(daemon):
    """Calls of all kinds. Refusals are expected, and lost messages; silence and nonsense in an answer are not."""
    while True:
        with contextlib.suppress(Refused, ConnectionError), daemon.client() as client:
            client.attach(name="sane")
            for _ in range(20):
                with contextlib.suppress(Refused):
                    client.send(client.loan(timeout=0.01).lease, timeout=0.01, metadata=b"m" * 100)
                with contextlib.suppress(Refused):
                    message = client.receive(timeout=0.01)
                    client.call("Describe", pb.DescribeRequest(ticket=message.lease.ticket), pb.DescribeResponse)
                    client.release(message.lease)
                with contextlib.suppress(Refused):
                    client.call("Share", pb.ShareRequest(lease=client.loan(timeout=0.01).lease, readers=1),
                                pb.ShareResponse)
            client.slots()
            client.status()


def work_in_memory(daemon):
    """A worker on libringside, which meets the same nonsense in its own mapping; it may give up, but not crash or hang."""
    while True:
        try:
            worker = Worker(daemon.socket, "mapped")
        except Failed:
            continue
        for _ in range(50):
            for command in ("loan 100 10", "send self 7", "receive 10", "release"):
                with contextlib.suppress(Failed):
                    worker(command)
        worker.kill()


def test_flipped_words_end_nothing(sidecar):  # noqa: F811
    daemon = sidecar(ring={"classes": [{"slot_bytes": "4Ki", "slots": SLOTS}]}, log={"level": "info"},
                     stall_report_ms=0, tickets={"ttl_ms": TTL_MS}).start()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    new = multiprocessing.get_context("fork").Process
    workers = [new(target=target, args=(daemon,)) for target in (work, work, work_in_memory)]
    madman = new(target=go_mad, args=(daemon.ring / "stage.control", SECONDS, seed))
    for process in (madman, *workers):
        process.start()
    madman.join()
    assert [process.is_alive() for process in workers] == [True] * 3  # none met what it may not
    for process in workers:
        process.kill()
        process.join()
    assert daemon.process.poll() is None, daemon.log()
    assert "hold nonsense and were set aside" in daemon.log()

    # What is nonsense is set aside, and the sound slots work on.
    with daemon.client() as client:
        wait_for(lambda: client.status().quarantined > 0)
        client.attach(name="later")
        # Tables are put back within a second, and audits are up to 10 s apart; 200 messages are many laps of the inbox.
        wait_for(lambda: all(passes(client) for _ in range(200)), 40)
        states = {slot.slot: slot.state for slot in client.slots()}
        assert not [slot for slot in range(SPARED) if states.get(slot) == "quarantined"], states
        # What words say of numbers that nobody has, and tickets that would live for ever, come back.
        wait_for(lambda: passes(client) and not still_in_use(client), 40, lambda: still_in_use(client))
    assert daemon.stop() == 0, daemon.log()


def still_in_use(client):
    """Slots, but for those that are set aside and those to which a stray write gave a longer life: it ends then. Of a
    ticket whose header a stray write spoiled as well, the list does not tell how long."""
    return [slot for slot in client.slots() if slot.state != "quarantined" and slot.ttl_ns <= TTL_MS * 1_000_000
            and not (slot.state == "sealed" and not slot.tensors
                     and all(holder.state in ("shared", "kept") for holder in slot.holders))]


def passes(client):
    """Whether a message goes through; others that waited are taken before and on the way."""
    with contextlib.suppress(Refused):
        while True:
            client.release(client.receive(timeout=0.01).lease)
    loan = None
    try:
        loan = client.loan(timeout=0.05)
        ticket = client.send(loan.lease, timeout=0.05).ticket
        loan = None
        while True:
            lease = client.receive(timeout=0.2).lease
            client.release(lease)
            if lease.ticket == ticket:
                return True
    except Refused as error:
        print(error)
        if loan is not None:
            client.call("Abandon", pb.LeaseRequest(lease=loan.lease))
        return False

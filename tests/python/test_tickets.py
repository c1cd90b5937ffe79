# SPDX-License-Identifier: Apache-2.0
"""Tickets: their forms, and that an old, foreign, broken or expired one is an error of its own and never wrong data."""

import binascii
import json
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, free_slots


def share(rs, value, **options):
    with rs.loan(4, "u8") as slot:
        slot.numpy()[:] = value
        return slot.share(**options)


def text_of(sidecar, slot, generation, incarnation):
    """The text form as proto/README.md defines it."""
    body = f"rst1-{sidecar:04x}{slot:05x}{generation:08x}-{incarnation:08x}"
    return f"{body}-{binascii.crc_hqx(body.encode(), 0xffff):04x}"


def fields_of(text):
    return int(text[5:9], 16), int(text[9:14], 16), int(text[14:22], 16), int(text[23:31], 16)


def test_ticket_is_a_number_with_a_text(rs):
    ticket = share(rs, 7, readers=3)
    assert isinstance(ticket, int) and type(ticket) is ringside.Ticket
    text = str(ticket)
    assert text == f"{ticket}" == rs.ticket_text(int(ticket)) == rs.ticket_text(ticket) and text.startswith("rst1-")
    assert text == text_of(*fields_of(text))
    assert repr(ticket) == f"Ticket('{text}')" and f"{ticket:#018x}" == hex(ticket).replace("0x", "0x" + "0" * (18 - len(hex(ticket))))
    assert ticket == int(ticket) == ringside.Ticket(text) == ringside.Ticket(ticket)
    assert hash(ticket) == hash(int(ticket)) and {ticket: 1}[int(ticket)] == 1
    assert type(int(ticket)) is int and type(ticket + 0) is int
    assert json.loads(json.dumps(str(ticket))) == text and json.loads(json.dumps(ticket)) == ticket
    for form in (ticket, text, int(ticket)):
        with rs.read(form) as message:
            assert message.numpy().tolist() == [7] * 4 and message.ticket == ticket
    for form in (ticket, text, int(ticket)):
        with pytest.raises(ringside.StaleTicket):
            rs.read(form)
        with pytest.raises(ringside.StaleTicket):
            rs.free(form)
    assert free_slots(rs) == SLOTS


def test_a_reader_may_be_done_before_share_returns(rs, sidecar):
    """The ticket's text is known before anybody can read: a fast reader cannot make share() fail."""
    tickets, reads = [], []
    done = threading.Event()

    def consume():
        with ringside.connect(sidecar.socket) as reader:
            while not done.is_set():
                if tickets:
                    try:
                        reader.read(tickets[-1]).release()  # known from the loan; stale until it is shared
                        reads.append(1)
                    except ringside.StaleTicket:
                        pass

    thread = threading.Thread(target=consume)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    give_up = time.monotonic() + 60
    while len(reads) < 20 and time.monotonic() < give_up:
        with rs.loan(4, "u1", timeout=10) as slot:
            tickets.append(slot.ticket)
            assert slot.share(readers=1) == tickets[-1]
        try:
            rs.free(tickets[-1])
        except ringside.StaleTicket:
            pass
    sys.setswitchinterval(interval)
    done.set()
    thread.join()
    assert len(reads) >= 20
    assert free_slots(rs) == SLOTS


MALFORMED = ["", "nonsense", "rst1-", "rst1-00070000312345678-9abcdef0-5efd", "rst1-00070000312345678-9abcdef0-5efc\0",
             "rst1-00070000312345678-9abcdef0-5efc\0x", "RST1-00070000312345678-9ABCDEF0-5EFC", "\udc80", "0x1", "7" * 36]


def test_malformed(rs):
    for text in MALFORMED:
        for use in (rs.read, rs.get, rs.free, ringside.Ticket):
            with pytest.raises(ringside.MalformedTicket):
                use(text)
    for number in (0, -1, 2**64, 2**200, -2**200, 1 << 47, True):
        for use in (rs.read, rs.get, rs.free, rs.ticket_text):
            with pytest.raises(ringside.MalformedTicket, match="ticket"):
                use(number)
    for wrong in (1.5, None, b"rst1-", [], object()):
        for use in (rs.read, rs.get, rs.free, ringside.Ticket):
            with pytest.raises(TypeError, match="[Tt]icket"):
                use(wrong)
    with pytest.raises(TypeError, match="ticket_text"):
        ringside.Ticket(7)


def test_foreign_and_expired(rs):
    sidecar, slot, generation, incarnation = fields_of(str(share(rs, 1)))
    for text in (text_of(sidecar ^ 1, slot, generation, incarnation), text_of(sidecar, slot, generation, incarnation ^ 1)):
        with pytest.raises(ringside.ForeignTicket, match="sidecar"):
            rs.read(text)
    with pytest.raises(ringside.StaleTicket):
        rs.read(text_of(sidecar, 0xfffff, generation, incarnation))
    rs.read(text_of(sidecar, slot, generation, incarnation)).release()
    ticket = share(rs, 1, kept=True, ttl=1e-6)
    time.sleep(0.001)
    with pytest.raises((ringside.ExpiredTicket, ringside.StaleTicket)):
        rs.read(ticket)
    kinds = [ringside.StaleTicket, ringside.ForeignTicket, ringside.MalformedTicket, ringside.ExpiredTicket]
    assert len({kind.code for kind in kinds}) == 4
    for one in kinds:
        assert not any(issubclass(one, other) for other in kinds if other is not one)


def some_form(random_, ticket):
    return random_.choice([ticket, str(ticket), int(ticket), np.uint64(int(ticket))])


def test_no_wrong_data_over_recycled_generations(rs):
    """Thousands of tickets on a few slots: each reads its own value while it lives, and afterwards nothing."""
    random_ = random.Random(5)
    live, over, reads = {}, [], 0
    for value in range(4000):
        if len(live) == SLOTS - 1 or (live and random_.random() < 0.4):
            ticket = random_.choice(list(live))
            _, left = live.pop(ticket)
            if left is None:
                rs.free(some_form(random_, ticket))
            else:
                for _ in range(left):
                    rs.read(some_form(random_, ticket)).release()
            over.append(ticket)
        left = random_.choice([None, 1, 2, 5])
        live[share(rs, value, **({"kept": True} if left is None else {"readers": left}))] = value, left
        for ticket in random_.sample(over, min(len(over), 3)) + over[-2:]:
            with pytest.raises(ringside.StaleTicket):
                rs.read(some_form(random_, ticket))
        ticket = random_.choice(list(live))
        value, left = live[ticket]
        if left != 1:
            with rs.read(some_form(random_, ticket)) as message:
                assert message.numpy().tolist() == [value] * 4
            live[ticket] = value, left and left - 1
            reads += 1
    assert reads > 1000 and len({int(ticket) >> 28 for ticket in over}) <= SLOTS
    for ticket, (_, left) in live.items():
        rs.free(ticket)
    assert free_slots(rs) == SLOTS


def test_random_tickets_read_nothing_or_the_truth(rs):
    random_ = random.Random(6)
    values = {share(rs, value, kept=True): value for value in range(SLOTS - 2)}
    texts = {str(ticket): value for ticket, value in values.items()}
    numbers = {int(ticket): value for ticket, value in values.items()}
    seen = {}
    for _ in range(6000):
        ticket = random_.choice(list(values))
        sidecar, slot, generation, incarnation = fields_of(str(ticket))
        form = random_.randrange(4)
        if form == 0:
            name = random_.getrandbits(64)
        elif form == 1:
            name = int(ticket) ^ 1 << random_.randrange(64)
        elif form == 2:
            at = random_.randrange(36)
            name = str(ticket)[:at] + random_.choice("0123456789abcdef-r") + str(ticket)[at + 1:]
        else:
            name = text_of(sidecar, slot ^ random_.getrandbits(2), generation ^ 1 << random_.randrange(32),
                           incarnation ^ random_.getrandbits(1))
        try:
            with rs.read(name) as message:
                assert message.numpy().tolist() == [(texts if isinstance(name, str) else numbers)[name]] * 4
                outcome = "read"
        except (ringside.StaleTicket, ringside.ForeignTicket, ringside.MalformedTicket) as error:
            assert (texts if isinstance(name, str) else numbers).get(name) is None
            outcome = type(error).__name__
        seen[outcome] = seen.get(outcome, 0) + 1
    assert set(seen) == {"read", "StaleTicket", "ForeignTicket", "MalformedTicket"}
    for ticket in values:
        rs.free(ticket)
    assert free_slots(rs) == SLOTS


def test_readers_of_many_connections_are_counted(rs, sidecar):
    ticket = share(rs, 3, readers=4)
    others = [ringside.connect(sidecar.socket) for _ in range(4)]
    messages = [other.read(ticket) for other in others]
    assert all(message.numpy()[0] == 3 for message in messages)
    for message in messages:
        assert free_slots(rs) == SLOTS - 1
        message.release()
    assert free_slots(rs) == SLOTS
    for other in others:
        other.close()


def test_a_reader_that_dies_leaves_its_read_to_others(rs, sidecar):
    ticket = share(rs, 3, readers=1)
    script = ("import os, sys, ringside\n"
              "message = ringside.connect(sys.argv[1]).read(sys.argv[2])\n"
              "assert message.numpy()[0] == 3\n"
              "os._exit(0)\n")
    subprocess.run([sys.executable, "-c", script, sidecar.socket, str(ticket)], check=True, timeout=60)
    with rs.read(ticket) as message:
        assert message.numpy()[0] == 3
    give_up = time.monotonic() + 20
    while free_slots(rs) < SLOTS:  # when the sidecar has seen the death
        assert time.monotonic() < give_up
        time.sleep(0.01)

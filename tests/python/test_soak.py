# SPDX-License-Identifier: Apache-2.0
"""Threads that share one connection, a million messages without a leak, and what stats() counts."""

import gc
import resource
import threading

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, drain, free_slots

MESSAGES = 1_000_000


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_threads_share_a_connection(pair):
    """Three producers and four consumers in threads of one process, one connection for each side."""
    each, producers, consumers = 2000, 3, 4
    with ringside.connect(pair[0].socket) as front, ringside.connect(pair[1].socket) as back:
        seen = [[] for _ in range(consumers)]
        failures = []

        def guarded(function, *arguments):
            try:
                function(*arguments)
            except BaseException as error:  # noqa: BLE001 - shown by the test
                failures.append(error)

        def produce(number):
            for i in range(each):
                front.send("next", np.array([number, i, number * i]), sequence=i, stream=number, timeout=30)

        def consume(mine):
            for message in back.inbox(timeout=30):
                number, i, product = message.numpy().tolist()
                if number < 0:
                    message.release()
                    return
                assert (message.stream, message.sequence, product) == (number, i, number * i)
                mine.append((number, i))

        threads = [threading.Thread(target=guarded, args=(produce, i)) for i in range(producers)]
        takers = [threading.Thread(target=guarded, args=(consume, mine)) for mine in seen]
        for thread in threads + takers:
            thread.start()
        for thread in threads:
            thread.join(120)
        for _ in takers:
            front.send("next", np.array([-1, 0, 0]), timeout=30)
        for thread in takers:
            thread.join(120)
        assert not failures and not any(thread.is_alive() for thread in threads + takers)
        assert sorted(sum(seen, [])) == [(number, i) for number in range(producers) for i in range(each)]
        assert free_slots(front) == SLOTS
        assert back.stats()["held_messages"] == front.stats()["held_slots"] == 0


def test_threads_read_and_pickle_one_ticket(rs):
    """One process has one reader's bit: its threads share a reading, begin it and end it at the same time."""
    import pickle

    ticket = rs.put({"x": np.arange(1000)}, readers=1, ttl=60)
    first = rs.read(ticket)
    failures = []

    def work():
        try:
            for _ in range(300):
                with rs.read(ticket) as message, pickle.loads(pickle.dumps(message)) as again:
                    assert message.tree()["x"][-1] == again.tree()["x"][-1] == 999
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    first.release()
    with pytest.raises(ringside.StaleTicket):
        rs.read(ticket)
    assert free_slots(rs) == SLOTS


def one_round(rs, count):
    """Messages, small, in every way that leaves something behind if anything does."""
    array = np.arange(4, dtype="i4")
    for i in range(count // 10):
        for _ in range(7):
            rs.send("loop", array, sequence=i)
            message = rs.receive(timeout=5)
            message.numpy()
            message.release()
        rs.send("loop", array, meta={"i": i}, trace=bytes(16))
        with rs.receive(timeout=5) as message:
            assert message.meta["i"] == i
            memoryview(message).release()
        with rs.loan(4, "i4") as slot:
            slot.numpy()[...] = i
            ticket = slot.share(readers=2)
        rs.read(ticket).release()
        with rs.read(str(ticket)) as message:
            message.__dlpack__()
        rs.get(rs.put({"a": [array, i]}))
        try:
            rs.read(ticket)
        except ringside.StaleTicket:
            pass


def test_a_million_messages_leave_nothing_behind(rs):
    one_round(rs, MESSAGES // 10)  # whatever grows once has grown
    gc.collect()
    before = resident_bytes()
    objects = len(gc.get_objects())
    one_round(rs, MESSAGES - MESSAGES // 10)
    gc.collect()
    grown = resident_bytes() - before
    assert grown < 2 << 20, f"{grown} bytes more"  # a byte for each message is half of that
    assert len(gc.get_objects()) - objects < 1000
    assert free_slots(rs) == SLOTS
    stats = rs.stats()
    assert stats["held_slots"] == stats["held_messages"] == stats["views"] == 0


def test_stats(rs):
    drain(rs)
    before = rs.stats()
    for _ in range(3):
        rs.send("loop", np.arange(10, dtype="u1"))
    held = [rs.receive(timeout=1) for _ in range(3)]
    view = held[0].numpy()
    slot = rs.loan(4, "u1")
    stats = rs.stats()
    assert {name: stats[name] - before[name] for name in stats if stats[name] != before[name]} == {
        "sent": 3, "received": 3, "sent_bytes": 30, "held_messages": 3, "held_slots": 1, "views": 1}
    del view
    held[0].release()
    held[1].nack()
    held[2].forward("again")
    slot.abandon()
    rs.get(rs.put([1]))
    rs.send("loop", np.arange(2), ttl=1e-9)
    drain(rs)
    after = rs.stats()
    assert {name: after[name] - stats[name] for name in after if after[name] != stats[name]} == {
        "sent": 1, "sent_bytes": 16 + 3, "received": 2, "released": 3, "nacked": 1, "forwarded": 1, "shared": 1, "reads": 1,
        "expired": 1, "held_messages": -3, "held_slots": -1, "views": -1}
    assert all(type(value) is int for value in after.values())
    rs.close()
    with pytest.raises(ringside.InvalidState):
        rs.stats()

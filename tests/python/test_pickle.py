# SPDX-License-Identifier: Apache-2.0
"""Tickets and readings in pickles: the ticket travels, the tensor stays, and the count of reads stays right."""

import concurrent.futures
import copy
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, free_slots

METHODS = ["spawn", "fork"]


def share(rs, value, **options):
    with rs.loan((1000, 8), "f8") as slot:
        slot.numpy()[...] = value
        return slot.share(**options)


def wait_for_free_slots(rs, count=SLOTS):
    give_up = time.monotonic() + 30
    while free_slots(rs) < count:
        assert time.monotonic() < give_up, free_slots(rs)
        time.sleep(0.01)


def test_ticket_pickles_as_its_text(rs):
    ticket = share(rs, 7, readers=2)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(ticket, protocol)
        again = pickle.loads(data)
        assert type(again) is ringside.Ticket and again == ticket and str(again) == str(ticket) and len(data) < 150
    assert str(copy.deepcopy(ticket)) == str(ticket)
    for form in (again, copy.copy(ticket)):
        rs.read(form).release()
    assert free_slots(rs) == SLOTS


def test_message_pickles_as_its_ticket(rs, sidecar):
    message = rs.read(share(rs, 7, readers=1))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps({"m": message}, protocol)
        assert len(data) < 300
        again = pickle.loads(data)["m"]
        assert type(again) is ringside.Message and again.ticket == message.ticket
        assert np.array_equal(again.numpy(), message.numpy())
        again.release()
    message.release()
    assert free_slots(rs) == SLOTS


@pytest.mark.parametrize("same_connection", [True, False])
@pytest.mark.parametrize("first", ["original", "copies"])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("kept", [True, False])
def test_reads_are_carried_across(rs, sidecar, same_connection, first, copies, kept):
    """One read is added for each pickle, whoever ends first, within one process and between two."""
    other = None if same_connection else ringside.connect(sidecar.socket)
    if same_connection:
        ringside._default.remember(rs)
    ticket = share(rs, 3, **({"kept": True} if kept else {"readers": 1}))
    message = rs.read(ticket)
    pickles = [pickle.dumps(message) for _ in range(copies)]
    if first == "original":
        message.release()
    read = [pickle.loads(data) for data in pickles]
    if first == "copies":
        for each in read:
            assert each.numpy()[0, 0] == 3
            each.release()
        assert free_slots(rs) == SLOTS - 1
        message.release()
    else:
        for each in read:
            assert each.numpy()[0, 0] == 3
            assert free_slots(rs) == SLOTS - 1
            each.release()
    if kept:
        rs.read(ticket).release()
        rs.free(ticket)
    with pytest.raises(ringside.StaleTicket):
        rs.read(ticket)
    assert free_slots(rs) == SLOTS
    if other:
        other.close()


def test_a_pickle_is_good_once(rs):
    message = rs.read(share(rs, 3, readers=1))
    data = pickle.dumps(message)
    message.release()
    pickle.loads(data).release()
    with pytest.raises(ringside.StaleTicket):
        pickle.loads(data)
    assert free_slots(rs) == SLOTS


def test_a_pickle_that_nobody_reads_ends_by_its_time_to_live(rs, sidecar):
    message = rs.read(share(rs, 3, readers=1, ttl=0.2))
    data = pickle.dumps(message)
    message.release()
    assert free_slots(rs) == SLOTS - 1
    time.sleep(0.25)
    with pytest.raises((ringside.ExpiredTicket, ringside.StaleTicket)):
        pickle.loads(data)
    script = "import os, sys, ringside; rs = ringside.connect(sys.argv[1]); os._exit(0)"
    subprocess.run([sys.executable, "-c", script, sidecar.socket], check=True, timeout=60)
    wait_for_free_slots(rs)  # at the sidecar's next audit: after a death, or within 10 s


def test_limit_of_reads(rs):
    message = rs.read(share(rs, 3, readers=254))
    pickle.dumps(message)
    with pytest.raises(ringside.LimitReached, match="255"):
        pickle.dumps(message)
    ticket = message.ticket
    message.release()
    rs.free(ticket)
    assert free_slots(rs) == SLOTS


def test_what_is_kept_has_no_limit_of_reads(rs):
    with rs.read(share(rs, 3, kept=True)) as message:
        for _ in range(300):
            data = pickle.dumps(message)
    pickle.loads(data).release()
    rs.free(message.ticket)
    assert free_slots(rs) == SLOTS


def test_what_is_not_pickled(rs):
    rs.send("loop", np.arange(3))
    with rs.receive(timeout=1) as message:
        with pytest.raises(TypeError, match=r"route.*put\(\)"):
            pickle.dumps(message)
    with rs.loan(4, "u1") as slot, pytest.raises(TypeError, match=r"share\(\)"):
        pickle.dumps(slot)
    with pytest.raises(TypeError, match="connect"):
        pickle.dumps(rs)
    reading = rs.read(share(rs, 3, readers=1))
    reading.release()
    with pytest.raises(ringside.InvalidState):
        pickle.dumps(reading)
    reading = rs.read(ticket := share(rs, 3, readers=2))
    rs.free(ticket)
    with pytest.raises(ringside.StaleTicket):  # there are no new readers any more
        pickle.dumps(reading)
    reading.release()
    assert free_slots(rs) == SLOTS


def test_default_connection(sidecar, pair, monkeypatch):
    monkeypatch.setenv("RINGSIDE_SOCKET", sidecar.socket)
    first = ringside.connect(sidecar.socket)
    second = ringside.connect(pair[0].socket)
    assert ringside.default_connection() is second
    third = ringside.Connection(sidecar.socket)
    assert ringside.default_connection() is second
    second.close()
    own = ringside.default_connection()
    assert own not in (first, second, third) and own.stage == "front"  # where it was connected last
    assert ringside.default_connection() is own
    del first
    gc.collect()
    assert ringside.default_connection() is own
    own.close()
    assert ringside.default_connection() is not own
    ringside.default_connection().close()
    third.close()


def test_default_connection_of_a_process_that_never_connected(rs, sidecar, pair):
    script = ("import os, pickle, sys, ringside\n"
              "message = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
              "assert message.numpy()[0, 0] == 3\n"
              "print(ringside.default_connection().stage)\n")
    for variables, stage in (({}, "loop"), ({"RINGSIDE_SOCKET": sidecar.socket}, "loop")):
        message = rs.read(share(rs, 3, readers=1))
        done = subprocess.run([sys.executable, "-c", script, pickle.dumps(message).hex()], capture_output=True, text=True,
                              timeout=60, env={k: v for k, v in os.environ.items() if k != "RINGSIDE_SOCKET"} | variables)
        message.release()
        assert (done.stdout, done.stderr) == (stage + "\n", "")
    wait_for_free_slots(rs)


def echo(inbox, outbox):
    """Child: the sum of whatever comes, a ticket, a message, or an object with some in it."""
    for item in iter(inbox.get, None):
        if isinstance(item, ringside.Ticket):
            outbox.put(float(ringside.default_connection().get(item)["x"].sum()))
        else:
            outbox.put(float(item["message"].numpy().sum()))
            item["message"].release()


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_queue(rs, method):
    context = multiprocessing.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=echo, args=(inbox, outbox))
    child.start()
    for i in range(20):
        message = rs.read(share(rs, i, readers=1))
        inbox.put({"message": message})  # pickled by a thread of the queue, later
        assert outbox.get(timeout=60) == 8000 * i
        message.release()
        inbox.put(rs.put({"x": np.full((10, 10), i)}))
        assert outbox.get(timeout=60) == 100 * i
    inbox.put(None)
    child.join(60)
    assert child.exitcode == 0
    assert free_slots(rs) == SLOTS


def total(item):
    return float(item.numpy().sum())


def total_of_tree(ticket):
    return float(ringside.default_connection().get(ticket).sum())


def make(value):
    """Child: puts into the ring and hands the reading back."""
    rs = ringside.default_connection()
    return os.getpid(), rs.read(share(rs, value, readers=1))


@pytest.mark.parametrize("method", METHODS)
def test_process_pool(rs, method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        for i in range(10):
            message = rs.read(share(rs, i, readers=1))
            sums = [pool.submit(total, message) for _ in range(3)]
            assert [each.result(60) for each in sums] == [8000 * i] * 3
            message.release()
            assert pool.submit(total_of_tree, rs.put(np.full((4, 4), i))).result(60) == 16 * i
        pids = set()
        for i in range(10):
            pid, message = pool.submit(make, i).result(60)
            assert message.numpy()[-1, -1] == i
            message.release()
            pids.add(pid)
        assert os.getpid() not in pids
        wait_for_free_slots(rs)  # while the children live: nothing is left to their end


@pytest.mark.parametrize("method", METHODS)
def test_a_failed_unpickling_shows_in_the_caller(rs, sidecar, method, monkeypatch):
    """A message that was given back before its queue pickled it, and a ticket that is over."""
    monkeypatch.setenv("RINGSIDE_SOCKET", sidecar.socket)
    ticket = rs.put(np.arange(3))
    rs.get(ticket)
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(ringside.StaleTicket):
            pool.submit(total_of_tree, ticket).result(60)
        message = rs.read(share(rs, 1, readers=1))
        message.release()
        with pytest.raises(ringside.InvalidState, match="released"):
            pool.submit(total, message).result(60)
    assert free_slots(rs) == SLOTS


def test_forked_child_reads_through_a_connection_of_its_own(rs, sidecar):
    message = rs.read(share(rs, 5, readers=1))
    data = pickle.dumps(message)
    with ringside.connect(sidecar.socket):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with pickle.loads(data) as read:
                    assert read.numpy()[0, 0] == 5
                    assert ringside.default_connection().stage == "loop"
                    assert ringside.default_connection() is ringside.default_connection()
                try:
                    pickle.dumps(message)
                except ringside.Forked:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert message.numpy()[0, 0] == 5
    message.release()
    wait_for_free_slots(rs)


def test_errors_of_the_package_travel(rs):
    for kind in (ringside.StaleTicket, ringside.RingFull, ringside.SystemCallError):
        error = pickle.loads(pickle.dumps(kind("text")))
        assert type(error) is kind and error.code == kind.code and str(error) == "text"

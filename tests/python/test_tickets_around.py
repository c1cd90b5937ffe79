# SPDX-License-Identifier: Apache-2.0
"""Tickets of the stages before and behind a worker's own, which no message has passed between."""

import pickle
import signal
import time

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, Sidecar, free_slots

LONG = 60  # seconds; never reached when all is well


@pytest.fixture
def chain(directory):
    """before --next--> middle --next--> behind: a worker of each; nothing was sent yet."""
    behind = Sidecar(directory, "behind", {})
    middle = Sidecar(directory, "middle", {"next": {"to": [f"unix:{behind.socket}"], "when_full": "block"}})
    before = Sidecar(directory, "before", {"next": {"to": [f"unix:{middle.socket}"], "when_full": "block"}})
    sidecars = before, middle, behind
    workers = [ringside.connect(sidecar.socket) for sidecar in sidecars]
    wait_for_links(workers)
    yield sidecars, workers
    for each in (*workers, *sidecars):
        getattr(each, "close", None) and each.close()
        getattr(each, "stop", None) and each.stop()


def until(attempt):
    give_up = time.monotonic() + 20
    while True:
        try:
            return attempt()
        except ringside.RingsideError:
            assert time.monotonic() < give_up
            time.sleep(0.01)


def wait_for_links(workers):
    """Both sides know each other; other workers than those under test look."""
    for reader, writer in ((0, 1), (1, 2), (1, 0), (2, 1)):
        ticket = workers[writer].put(1, kept=True)

        def read(reader=reader, ticket=ticket):
            with ringside.connect(workers[reader].socket) as rs:
                rs.get(ticket)

        until(read)
        workers[writer].free(ticket)


@pytest.mark.parametrize("form", [str, int, lambda ticket: ticket], ids=["text", "number", "ticket"])
@pytest.mark.parametrize("reader, writer", [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_read_by_a_neighbour(chain, form, reader, writer):
    workers = chain[1]
    ticket = workers[writer].put(np.arange(1000), readers=2)
    for _ in range(2):
        assert np.array_equal(workers[reader].get(form(ticket)), np.arange(1000))
    assert free_slots(workers[writer]) == SLOTS
    with pytest.raises(ringside.StaleTicket):
        workers[reader].read(form(ticket))


@pytest.mark.parametrize("reader, writer", [(0, 1), (1, 0)])
def test_freed_by_a_neighbour(chain, reader, writer):
    """Also while that reads it."""
    workers = chain[1]
    ticket = workers[writer].put(np.arange(1000), kept=True)
    message = workers[reader].read(ticket)
    workers[reader].free(ticket)
    for rs in (workers[reader], workers[writer]):
        with pytest.raises(ringside.StaleTicket):
            rs.read(ticket)
    assert np.array_equal(message.tree(), np.arange(1000))
    assert free_slots(workers[writer]) == SLOTS - 1
    message.release()
    assert free_slots(workers[writer]) == SLOTS
    again = workers[writer].put(1, kept=True)
    workers[reader].free(again)
    assert free_slots(workers[writer]) == SLOTS


def test_not_beyond_a_neighbour(chain):
    workers = chain[1]
    ticket = workers[2].put(1)
    for form in (ticket, str(ticket), int(ticket)):
        with pytest.raises(ringside.ForeignTicket, match="next to"):
            workers[0].read(form)
    workers[1].get(ticket)


def test_message_of_a_stage_behind_is_pickled(chain):
    workers = chain[1]
    message = workers[0].read(workers[1].put(np.arange(10)))
    ringside._default.remember(workers[1])
    data = pickle.dumps(message)
    message.release()
    with pickle.loads(data) as again:
        assert np.array_equal(again.tree(), np.arange(10))
    assert free_slots(workers[1]) == SLOTS


@pytest.mark.parametrize("restarted", [0, 1])
def test_over_a_restart(chain, restarted):
    sidecars, workers = chain
    ticket = workers[1].put(np.arange(10), kept=True)
    workers[0].get(ticket)
    sidecars[restarted].stop(signal.SIGKILL)
    workers[0].get(ticket)  # no sidecar is in the way
    sidecars[restarted].start()
    assert np.array_equal(workers[0].get(ticket), np.arange(10))
    workers[0].free(ticket)


def test_a_stage_that_is_away_is_told(chain):
    sidecars, workers = chain
    ticket = workers[1].put(1, kept=True)
    sidecars[1].stop(signal.SIGKILL)
    with ringside.connect(sidecars[0].socket) as rs:
        for form in (str(ticket), int(ticket)):
            with pytest.raises(ringside.Unavailable):
                until_told(rs, form)
    sidecars[1].start()
    assert until(lambda: workers[0].get(ticket)) == 1


def until_told(rs, ticket):
    """Until its sidecar has seen that the other one is gone."""
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        rs.read(ticket).release()

# SPDX-License-Identifier: Apache-2.0
"""Readings in pickles where the ring has more workers than reader numbers: their sidecar reads for them."""

import contextlib
import pickle

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, Sidecar, free_slots, to_itself

NUMBERS = 36  # of a ring, for those who attach first


@pytest.fixture(scope="module")
def crowd(directory):
    """A connection with a reader number, and two that came when there was none left."""
    sidecar = Sidecar(directory, "crowd", {"loop": to_itself(directory / "crowd.sock")})
    with contextlib.ExitStack() as stack:
        stack.callback(sidecar.stop)
        connections = [stack.enter_context(ringside.connect(sidecar.socket)) for _ in range(NUMBERS + 2)]
        yield connections[0], connections[-2], connections[-1]


def share(rs, **options):
    with rs.loan(1000, "f8") as slot:
        slot.numpy()[...] = 3
        return slot.share(**options)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("first", ["original", "copies"])
@pytest.mark.parametrize("writer, reader", [(1, 0), (0, 1), (1, 1), (1, 2)])
def test_reads_are_carried_across(crowd, writer, reader, first, kept):
    """Also between two whose readings are one of their sidecar's: the read that was added is given back then."""
    ringside._default.remember(crowd[reader])
    ticket = share(crowd[0], **({"kept": True} if kept else {"readers": 1}))
    message = crowd[writer].read(ticket)
    pickles = [pickle.dumps(message) for _ in range(2)]
    if first == "original":
        message.release()
    for data in pickles:
        with pickle.loads(data) as read:
            assert np.all(read.numpy() == 3)
            assert free_slots(crowd[0]) == SLOTS - 1
    if first == "copies":
        assert free_slots(crowd[0]) == SLOTS - 1
        message.release()
    if kept:
        crowd[0].free(ticket)
    assert free_slots(crowd[0]) == SLOTS
    with pytest.raises(ringside.StaleTicket):
        crowd[0].read(ticket)


def test_limit_of_reads(crowd):
    message = crowd[1].read(share(crowd[0], readers=254))
    pickle.dumps(message)
    with pytest.raises(ringside.LimitReached, match="255"):
        pickle.dumps(message)
    crowd[0].free(message.ticket)
    with pytest.raises(ringside.StaleTicket):  # there are no new readers any more
        pickle.dumps(message)
    message.release()
    with pytest.raises(ringside.InvalidState):
        pickle.dumps(message)
    assert free_slots(crowd[0]) == SLOTS

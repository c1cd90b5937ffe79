# SPDX-License-Identifier: Apache-2.0
"""From one stage to the next: another sidecar's ring, read in place."""

import subprocess
import sys

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, free_slots


@pytest.fixture
def workers(pair):
    with ringside.connect(pair[0].socket, name="front") as front, ringside.connect(pair[1].socket, name="back") as back:
        yield front, back


def test_routed_between_stages(workers):
    front, back = workers
    for i in range(3 * SLOTS):
        front.send("next", np.full((3, 4), i, "i4"), meta={"i": i}, timeout=10)
        with back.receive(timeout=10) as message:
            assert message.numpy().tolist() == [[i] * 4] * 3 and message.meta == {"i": i}
    assert free_slots(front) == SLOTS


def test_there_and_back_in_place(workers):
    front, back = workers
    front.send("next", np.arange(5), timeout=10)
    back.receive(timeout=10).forward("home")
    with front.receive(timeout=10) as message:
        assert message.numpy().tolist() == [0, 1, 2, 3, 4]
    assert free_slots(front) == SLOTS and free_slots(back) == SLOTS


def test_ticket_of_another_stage(workers):
    front, back = workers
    front.send("next", b"so that the rings meet", timeout=10)
    back.receive(timeout=10).release()
    with front.loan(4, "u1") as slot:
        slot.numpy()[:] = [1, 2, 3, 4]
        text = front.ticket_text(slot.share(readers=1, ttl=30))
    with back.read(text) as message:
        assert message.numpy().tolist() == [1, 2, 3, 4]
    with pytest.raises(ringside.StaleTicket):
        back.read(text)


def test_blocking_route_waits_for_room(pair, workers):
    """With every slot held by the consumer, the producer waits until one comes back."""
    front, back = workers
    for i in range(SLOTS):
        front.send("next", np.array([i]), timeout=10)
    held = [back.receive(timeout=10) for _ in range(SLOTS)]
    with pytest.raises(ringside.Timeout):
        front.send("next", np.array([9]), timeout=0.05)
    held.pop().release()
    front.send("next", np.array([10]), timeout=10)
    for message in held + [back.receive(timeout=10)]:
        message.release()
    assert free_slots(front) == SLOTS


def test_writing_to_a_received_tensor_is_refused_or_ends_the_writer(pair, workers):
    front, back = workers
    front.send("next", np.arange(4), timeout=10)
    with back.receive(timeout=10) as message:
        array = message.numpy()
        with pytest.raises(ValueError):
            array[0] = 1
        with pytest.raises(ValueError):
            array.setflags(write=True)
        with pytest.raises(TypeError):
            memoryview(message)[0] = 1
        del array
    script = ("import sys, ctypes, ringside, numpy as np\n"
              "rs = ringside.connect(sys.argv[1])\n"
              "print('ready', flush=True)\n"
              "message = rs.receive(timeout=10)\n"
              "ctypes.memset(message.numpy().ctypes.data, 1, 1)\n")
    process = subprocess.Popen([sys.executable, "-c", script, pair[1].socket], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    front.send("next", np.arange(4), timeout=10)
    assert process.wait(20) < 0
    process.stdout.close()
    with back.receive(timeout=20) as message:
        assert message.attempts == 1 and message.numpy().tolist() == [0, 1, 2, 3]

# SPDX-License-Identifier: Apache-2.0
"""Views keep their lease and the mapping: past release, close, the sidecar, and the interpreter's end."""

import gc
import subprocess
import sys
import textwrap
import tracemalloc
import weakref

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, Sidecar, free_slots, to_itself


@pytest.fixture
def other(sidecar):
    """A second worker, to see what the first one gave back."""
    with ringside.connect(sidecar.socket, name="other") as connection:
        yield connection


VIEWS = [lambda lease: lease.numpy(), lambda lease: memoryview(lease), lambda lease: lease.buffer(0),
         lambda lease: lease.numpy()[1:].reshape(-1, 1).T, lambda lease: np.asarray(memoryview(lease))]


@pytest.mark.parametrize("view_of", VIEWS)
def test_view_outlives_release(rs, other, view_of):
    rs.send("loop", np.arange(4))
    message = rs.receive(timeout=1)
    view = view_of(message)
    expected = np.asarray(view).tobytes()
    message.release()
    del message
    gc.collect()
    assert free_slots(other) == SLOTS - 1
    assert np.asarray(view).tobytes() == expected
    del view
    gc.collect()
    assert free_slots(other) == SLOTS


def test_view_outlives_a_dropped_message(rs, other):
    rs.send("loop", np.arange(4))
    view = rs.receive(timeout=1).numpy()
    with pytest.raises(ringside.Timeout):
        other.receive(timeout=0)
    assert view.tolist() == [0, 1, 2, 3]
    del view
    with other.receive(timeout=1) as message:
        assert message.attempts == 1


def test_nack_waits_for_the_last_view(rs, other):
    rs.send("loop", np.arange(4))
    with pytest.raises(KeyError), rs.receive(timeout=1) as message:
        view = message.numpy()
        raise KeyError
    with pytest.raises(ringside.Timeout):
        other.receive(timeout=0)
    del view
    with other.receive(timeout=1) as message:
        assert message.attempts == 1


def test_abandon_waits_for_the_last_view(rs, other):
    with rs.loan(4, "u1") as slot:
        view = slot.numpy()
    assert free_slots(other) == SLOTS - 1
    view[:] = 1
    del view
    assert free_slots(other) == SLOTS


@pytest.mark.parametrize("view_of", VIEWS)
def test_view_outlives_close(sidecar, other, view_of):
    connection = ringside.connect(sidecar.socket)
    connection.send("loop", np.arange(4))
    message = connection.receive(timeout=1)
    view = view_of(message)
    expected = np.asarray(view).tobytes()
    connection.close()
    assert connection.closed
    with pytest.raises(ringside.InvalidState, match="closed"):
        message.numpy()
    del connection, message
    gc.collect()
    assert np.asarray(view).tobytes() == expected
    assert free_slots(other) == SLOTS - 1
    del view
    gc.collect()
    with other.receive(timeout=5) as message:
        assert message.attempts == 1
    assert free_slots(other) == SLOTS


def test_view_of_a_sent_slot_outlives_close(sidecar, other):
    connection = ringside.connect(sidecar.socket)
    slot = connection.loan(4, "u1")
    view = slot.numpy()
    view[:] = 7
    slot.send("loop")
    connection.close()
    del connection, slot
    gc.collect()
    assert view.tolist() == [7] * 4
    del view
    with other.receive(timeout=1) as message:
        assert message.numpy().tolist() == [7] * 4


def test_close_gives_back_what_has_no_views(sidecar, other):
    connection = ringside.connect(sidecar.socket)
    connection.send("loop", np.arange(4))
    message, slot = connection.receive(timeout=1), connection.loan(4, "u1")
    connection.close()
    with other.receive(timeout=1) as again:
        assert again.attempts == 1
    assert free_slots(other) == SLOTS
    with pytest.raises(ringside.InvalidState, match="closed"):
        message.release()
    with pytest.raises(ringside.InvalidState, match="closed"):
        slot.send("loop")


def test_dropped_connection_with_views(sidecar, other):
    connection = ringside.connect(sidecar.socket)
    connection.send("loop", np.arange(4))
    view = connection.receive(timeout=1).numpy()
    del connection
    gc.collect()
    assert view.tolist() == [0, 1, 2, 3]
    del view
    with other.receive(timeout=5) as message:
        message.release()
    assert free_slots(other) == SLOTS


def test_view_outlives_the_sidecar(directory):
    socket = directory / "mortal.sock"
    mortal = Sidecar(directory, "mortal", {"loop": to_itself(socket)})
    try:
        connection = ringside.connect(mortal.socket)
        connection.send("loop", np.arange(4))
        message = connection.receive(timeout=1)
        view = message.numpy()
        mortal.process.kill()
        mortal.process.wait()
        assert view.tolist() == [0, 1, 2, 3]
        mortal.start()
        assert view.tolist() == [0, 1, 2, 3]
        message.release()
        connection.close()
        assert view.tolist() == [0, 1, 2, 3]
        del view
    finally:
        mortal.stop()


@pytest.mark.parametrize("ending", [
    "", "rs.close()", "del rs", "del message", "sys.exit(0)", "message.release(); rs.close()",
    "import threading; threading.Thread(target=rs.receive, daemon=True).start()",
    "import atexit; atexit.register(lambda: print(view.sum(), copy.sum()))",
    "sys.modules['kept'] = [view, memoryview(message), iter(rs.inbox()), message.__dlpack__()]",
    "class Late:\n    def __init__(self, *a): self.a = a\n    def __del__(self): self.a[0].numpy()\nlate = Late(message, rs)",
])
def test_interpreter_exit_with_views(sidecar, other, ending):
    script = textwrap.dedent("""
        import sys, numpy as np, ringside
        rs = ringside.connect(sys.argv[1])
        rs.send("loop", np.arange(4))
        message = rs.receive(timeout=1)
        view = message.numpy()
        slot = rs.loan(4, "u1")
        writable = slot.numpy()
        copy = np.from_dlpack(type("P", (), {"__dlpack__": lambda self, **o: message.__dlpack__(),
                                             "__dlpack_device__": lambda self: (1, 0)})())
    """) + ending + "\n"
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script, sidecar.socket],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Fatal" not in done.stderr
    with other.receive(timeout=10) as message:
        assert message.attempts == 1
    for _ in range(200):
        if free_slots(other) == SLOTS:
            break
    else:
        pytest.fail("a slot of the process that ended stayed taken")


def test_no_leaks_over_many_messages(rs):
    array = np.arange(64, dtype="f4")

    def work(times):
        for i in range(times):
            rs.send("loop", array, meta={"i": i})
            with rs.loan((2, 2), "f8", timeout=1) as slot:
                slot.numpy()[0, 0] = i
                slot.send("again")
            for _ in range(2):
                with rs.receive(timeout=1) as message:
                    message.numpy(), memoryview(message), message.meta, message.tensors, message.__dlpack__()
            with pytest.raises(ringside.Timeout):
                rs.receive(timeout=0)

    work(50)
    gc.collect()
    tracemalloc.start()
    try:
        work(300)
        gc.collect()
        before, objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects())
        none = sys.getrefcount(None)
        work(1000)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        assert after - before < 20_000  # one object of a round would be 32,000 or more
        assert len(gc.get_objects()) - objects < 100
        assert abs(sys.getrefcount(None) - none) < 100
    finally:
        tracemalloc.stop()
    assert free_slots(rs) == SLOTS


def test_array_dies_with_its_last_reference(rs):
    rs.send("loop", np.arange(3))
    message = rs.receive(timeout=1)
    array = message.numpy()
    gone = weakref.ref(array)
    del array
    assert gone() is None
    message.release()

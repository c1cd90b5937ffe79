# SPDX-License-Identifier: Apache-2.0
"""What needs the sidecar, right after it restarted or lost a connection; replies that are polled for over a restart."""

import contextlib
import multiprocessing
import pickle
import select
import signal
import socket
import threading
import time

import numpy as np
import pytest
import ringside
from sidecars import Sidecar, to_itself, wait_for_route

LONG = 60  # seconds; never reached when all is well
NUMBERS = 36  # readers of a ring, for those who attach first


@pytest.fixture
def pair(directory):
    """asking --work--> answering, and to itself."""
    answering = Sidecar(directory, "answering", {})
    path = directory / "asking.sock"
    asking = Sidecar(directory, "asking", {"work": {"to": [f"unix:{answering.socket}"], "when_full": "block"},
                                           "loop": to_itself(path)})
    wait_for_route(asking, "work", answering)
    yield asking, answering
    asking.stop()
    answering.stop()


def restart(sidecar, rs, noticed):
    """`noticed`: the connection has seen it, and its next attempt to come back by itself is far."""
    sidecar.stop(signal.SIGKILL)
    give_up = time.monotonic() + (2 if noticed else 0)
    while time.monotonic() < give_up:
        with pytest.raises(ringside.Timeout):
            rs.receive(timeout=0.1)
    sidecar.start()


def serve(sidecar):
    stage = ringside.Stage()

    @stage.method
    def Twice(request):
        stage.stop()
        return request.numpy() * 2

    def run():
        with ringside.connect(sidecar.socket) as rs:
            stage.serve(rs, timeout=LONG)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("noticed", [True, False])
def test_first_message_and_first_call_after_a_restart(pair, noticed):
    asking, answering = pair
    with ringside.connect(asking.socket) as rs:
        restart(asking, rs, noticed)
        rs.send("loop", np.arange(3))  # its inbox is opened through the sidecar
        with rs.receive(timeout=LONG) as message:
            assert list(message.numpy()) == [0, 1, 2]
    with ringside.connect(asking.socket) as rs:
        restart(asking, rs, noticed)
        thread = serve(answering)
        with rs.call("work.Twice", np.arange(3), timeout=LONG) as reply:  # also while the stages are not linked again
            assert list(reply.numpy()) == [0, 2, 4]
        thread.join()


def test_first_read_through_the_sidecar_after_a_restart(directory):
    sidecar = Sidecar(directory, "crowded", {})
    with contextlib.ExitStack() as stack:
        stack.callback(sidecar.stop)
        crowd = [stack.enter_context(ringside.connect(sidecar.socket)) for _ in range(NUMBERS + 1)]
        ticket = crowd[0].put(np.arange(3), kept=True)
        for noticed in (True, False):
            restart(sidecar, crowd[-1], noticed)
            assert list(crowd[-1].get(ticket)) == [0, 1, 2]
        restart(sidecar, crowd[-1], False)
        crowd[-1].free(ticket)
        with pytest.raises(ringside.StaleTicket):
            crowd[-1].get(ticket)


def test_a_sidecar_that_is_away_is_told(pair):
    with ringside.connect(pair[0].socket) as rs:
        pair[0].stop(signal.SIGKILL)
        with pytest.raises(ringside.Unavailable, match="is it running"):
            rs.send("loop", np.arange(3))
        pair[0].start()
        rs.send("loop", np.arange(3))
        rs.receive(timeout=LONG).release()


def poll_until(rs, condition):
    """As an event loop: looks only when the descriptor says so."""
    poll = select.poll()
    poll.register(rs.fileno(), select.POLLIN)
    wakes = 0
    while not condition():
        assert poll.poll(LONG / 4 * 1000), "nothing woke the poller"
        rs._clear()
        wakes += 1
    return wakes


def test_replies_are_polled_for_over_a_restart(pair):
    """The callee writes the event of the sidecar that is no more."""
    asking, answering = pair
    with ringside.connect(asking.socket) as rs, ringside.connect(answering.socket) as callee:
        for _ in range(2):
            call = rs._call("work.Any", np.arange(3), None, LONG, None, 1)
            call._start()
            with callee.receive(timeout=LONG) as request:
                assert not call._poll()
                asking.stop(signal.SIGKILL)
                asking.start()
                back = time.monotonic() + 1.5  # by then it has attached again, and waits
                poll_until(rs, lambda: call._poll() or time.monotonic() > back)  # noqa: B023 - used at once
                request.reply(np.arange(4))
            assert poll_until(rs, call._poll) < 5  # noqa: B023
            with call._reply() as reply:
                assert list(reply.numpy()) == [0, 1, 2, 3]
        with pytest.raises(ringside.Timeout):
            rs.receive(timeout=0)
        poll = select.poll()
        poll.register(rs.fileno(), select.POLLIN)
        rs._clear()
        assert not poll.poll(1500)  # where nobody waits for replies nothing wakes


def test_descriptor_rests_after_who_needed_the_sidecar_came_back_early(pair):
    """The attempt that had been set for later is not waited for any more."""
    asking, _ = pair
    with ringside.connect(asking.socket) as rs:
        poll = select.poll()
        poll.register(rs.fileno(), select.POLLIN)
        restart(asking, rs, noticed=True)
        rs.send("loop", np.arange(3))
        rs.receive(timeout=LONG).release()
        with pytest.raises(ringside.Timeout):
            rs.receive(timeout=0)
        time.sleep(1.1)  # no attempt is set for a later moment
        rs._clear()
        assert not poll.poll(0)


class Cut:
    """Stands before a sidecar's socket and cuts a connection when the sidecar has answered the next call of `method`.

    In a process of its own: reading a ticket keeps the interpreter to itself.
    """

    def __init__(self, sidecar, directory):
        context = multiprocessing.get_context("fork")
        self.path, self.sidecar = directory / "cut.sock", sidecar
        self.method, self.cut = context.Array("c", 16), context.Value("i", 0)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.process = context.Process(target=self.accept, daemon=True)
        self.process.start()

    def end(self):
        self.process.kill()
        self.process.join()
        self.listener.close()

    def accept(self):
        while True:
            worker, _ = self.listener.accept()
            sidecar = socket.socket(socket.AF_UNIX)
            sidecar.connect(self.sidecar.socket)
            threading.Thread(target=self.pump, args=(worker, sidecar), daemon=True).start()

    def pump(self, worker, sidecar):
        cutting = False
        with worker, sidecar, contextlib.suppress(OSError):
            while True:
                source = select.select([worker, sidecar], [], [])[0][0]
                data, fds, _, _ = socket.recv_fds(source, 1 << 16, 16)
                try:
                    if not data or (cutting and source is sidecar):
                        return
                    if self.method.value and self.method.value in data:
                        self.method.value = b""
                        self.cut.value += 1
                        cutting = True
                    socket.send_fds(sidecar if source is worker else worker, [data], fds)
                finally:
                    for fd in fds:
                        socket.close(fd)


def test_an_answer_that_was_lost(directory):
    """What may be done twice is asked again in a new connection."""
    sidecar = Sidecar(directory, "lossy", {"loop": to_itself(directory / "lossy.sock")})
    cut = Cut(sidecar, directory)
    with contextlib.ExitStack() as stack:
        stack.callback(sidecar.stop)
        stack.callback(cut.end)
        crowd = [stack.enter_context(ringside.connect(sidecar.socket)) for _ in range(NUMBERS)]
        rs = stack.enter_context(ringside.connect(str(cut.path)))
        cut.method.value = b"Open"
        rs.send("loop", np.arange(3))
        rs.receive(timeout=LONG).release()
        ticket = crowd[0].put(np.arange(3), kept=True)
        cut.method.value = b"Read"
        message = rs.read(ticket)
        cut.method.value = b"AddReaders"
        with pytest.raises(ringside.Unavailable, match="AddReaders"):
            pickle.dumps(message)  # not this: a read too many would keep the message
        pickle.dumps(message)
        message.release()
        cut.method.value = b"Free"
        with pytest.raises(ringside.StaleTicket):  # the first time it was freed
            rs.free(ticket)
        assert cut.cut.value == 4

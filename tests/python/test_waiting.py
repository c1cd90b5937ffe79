# SPDX-License-Identifier: Apache-2.0
"""Waiting leaves the interpreter to others: the GIL, Ctrl-C, close() elsewhere, forks."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ringside
from sidecars import SLOTS, free_slots


def test_receive_releases_the_gil(rs):
    """The message can only come if another thread runs while this one waits."""
    sender = threading.Thread(target=lambda: rs.send("loop", np.array([3])))
    waiter = threading.Timer(0.05, sender.start)
    waiter.start()
    with rs.receive(timeout=10) as message:
        assert message.numpy()[0] == 3
    waiter.join()
    sender.join()


def test_loan_releases_the_gil(rs):
    slots = [rs.loan(4, "u1") for _ in range(SLOTS)]
    waiter = threading.Timer(0.05, slots.pop().abandon)
    waiter.start()
    rs.loan(4, "u1", timeout=10).abandon()
    waiter.join()


def test_many_threads_one_connection(rs):
    sums, lock = [], threading.Lock()
    rounds, threads = 200, 4

    def work(number):
        total = 0
        for i in range(rounds):
            rs.send("loop", np.full(8, number * rounds + i), timeout=20)
            with rs.receive(timeout=20) as message:
                values = message.numpy()
                assert (values == values[0]).all()
                total += int(values[0])
                del values
        with lock:
            sums.append(total)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(sums) == sum(range(threads * rounds))
    assert free_slots(rs) == SLOTS


@pytest.mark.parametrize("call", ["rs.receive()", "next(rs.inbox())", "[rs.loan(4, 'u1') for _ in range(99)]"])
def test_ctrl_c_while_waiting(sidecar, call):
    script = ("import sys, ringside\n"
              "rs = ringside.connect(sys.argv[1])\n"
              "try:\n"
              "    print('ready', flush=True)\n"
              f"    {call}\n"
              "except KeyboardInterrupt:\n"
              "    print('interrupted', flush=True)\n")
    process = subprocess.Popen([sys.executable, "-c", script, sidecar.socket], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # so that it most likely waits; it must hold in either case
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        assert process.wait(20) == 0
        assert time.monotonic() - begin < 5
        assert process.stdout.read() == "interrupted\n"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_close_ends_another_threads_wait(sidecar):
    connection = ringside.connect(sidecar.socket)
    outcome = []
    waiting = threading.Event()

    def wait():
        waiting.set()
        try:
            connection.receive()
        except ringside.InvalidState as error:
            outcome.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    connection.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "closed" in outcome[0]


def test_close_ends_another_threads_loop(sidecar):
    connection = ringside.connect(sidecar.socket)
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(connection.inbox()))
    thread.start()
    connection.close()
    thread.join(10)
    assert not thread.is_alive()


def test_forked_child_must_connect_anew(rs, sidecar):
    rs.send("loop", np.arange(3))
    message = rs.receive(timeout=1)
    slot = rs.loan(4, "u1")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for use in (lambda: rs.receive(timeout=0), lambda: rs.loan(1, "u1"), rs.fileno, message.numpy, slot.numpy,
                        lambda: slot.send("loop"), lambda: rs.send("loop", b"x"), message.release,
                        lambda: memoryview(message), lambda: rs.ticket_text(1)):
                try:
                    use()
                    os._exit(2)
                except (ringside.Forked, BufferError):
                    pass
            with ringside.connect(sidecar.socket, name="child") as anew:
                anew.send("again", np.array([42]))
            rs.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert message.numpy().tolist() == [0, 1, 2]
    message.release()
    slot.send("loop")
    got = [rs.receive(timeout=5) for _ in range(2)]
    assert {got[0].shape, got[1].shape} == {(1,), (4,)}
    for each in got:
        each.release()
    assert free_slots(rs) == SLOTS


def test_forked_child_that_exits_normally(rs, sidecar):
    """A child that tears down the interpreter with the parent's leases alive leaves them alone."""
    script = ("import os, sys, numpy as np, ringside\n"
              "rs = ringside.connect(sys.argv[1])\n"
              "rs.send('loop', np.arange(3))\n"
              "message = rs.receive(timeout=1)\n"
              "view = message.numpy()\n"
              "slot = rs.loan(4, 'u1')\n"
              "child = os.fork()\n"
              "if child:\n"
              "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
              "    assert view.tolist() == [0, 1, 2]\n"
              "    del view\n"
              "    message.release()\n"
              "    slot.abandon()\n")
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script, sidecar.socket],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

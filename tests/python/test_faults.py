# SPDX-License-Identifier: Apache-2.0
"""A write into a received tensor, or the use of a view in a forked child: explained before the process dies of it."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import ringside

SETUP = ("import ctypes, faulthandler, os, signal, sys, ringside\n"
         "rs = ringside.connect(sys.argv[1], timeout=20)\n"
         "message = rs.receive(timeout=20)\n"
         "print(rs.ticket_text(message.ticket), flush=True)\n")
WRITE = "ctypes.memset(message.numpy(1).ctypes.data, 1, 1)\n"


@pytest.fixture
def victim(pair):
    """Runs a script in a worker that has received a message of another stage; the message comes back to the inbox."""
    front = ringside.connect(pair[0].socket)

    def run(script, **variables):
        front.send("next", [np.zeros(3), np.arange(6, dtype="f4").reshape(2, 3)], timeout=10)
        done = subprocess.run([sys.executable, "-c", SETUP + script, pair[1].socket], capture_output=True, text=True,
                              timeout=120, check=False, env={**os.environ, **variables})
        with ringside.connect(pair[1].socket) as back, back.receive(timeout=20) as message:
            assert message.numpy(1).tolist() == [[0, 1, 2], [3, 4, 5]]
        return done

    yield run
    front.close()


def explained(done):
    return f"write into tensor 1 (float32 [2, 3]) of message {done.stdout.split()[0]}" in done.stderr and \
        "message.torch(copy=True)" in done.stderr


def test_a_write_is_explained(victim):
    done = victim(WRITE)
    assert done.returncode == -signal.SIGSEGV and explained(done), done.stderr
    assert done.stderr.count("ringside:") == 1


def test_a_write_through_torch(victim):
    pytest.importorskip("torch", reason="torch is not installed: a write to message.torch() is NOT tested")
    done = victim("tensor = message.torch(1)\ncopy = message.torch(1, copy=True)\ncopy[0, 0] = 9\ntensor[0, 0] = 1\n")
    assert done.returncode == -signal.SIGSEGV and explained(done), done.stderr
    done = victim("message.torch(i=1, copy=True).add_(1)\nmessage.nack()\n")
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize("order", ["before", "after"])
def test_an_earlier_handler_has_its_turn(victim, order):
    """faulthandler's, set before the connection; or after, and then the next export of a tensor sets ours again."""
    if order == "before":
        script = WRITE
        variables = {"PYTHONFAULTHANDLER": "1"}
    else:
        script = "faulthandler.enable()\nmessage.__dlpack__()\n" + WRITE
        variables = {}
    done = victim(script, **variables)
    assert done.returncode == -signal.SIGSEGV and explained(done)
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_it_can_be_turned_off(victim):
    done = victim(WRITE, RINGSIDE_EXPLAIN_FAULTS="0")
    assert done.returncode == -signal.SIGSEGV and not done.stderr


def test_other_faults_are_not_ours(victim):
    for script in ("ctypes.memset(8, 1, 1)\n", "os.kill(os.getpid(), signal.SIGSEGV)\n", "signal.raise_signal(signal.SIGSEGV)\n"):
        done = victim(script)
        assert done.returncode == -signal.SIGSEGV and not done.stderr, script
        done = victim("faulthandler.enable()\nmessage.__dlpack__()\n" + script)  # each has put the other's back
        assert done.returncode == -signal.SIGSEGV and "Fatal Python error" in done.stderr, script
        assert "ringside:" not in done.stderr


def test_views_in_a_forked_child(victim):
    done = victim("view = message.numpy(1)\n"
                  "child = os.fork()\n"
                  "if child == 0:\n"
                  "    view.sum()\n"
                  "    os._exit(0)\n"
                  "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
                  "del view\n"
                  "message.nack()\n")
    assert done.returncode == 0 and done.stdout.split()[1] == str(-signal.SIGSEGV)
    assert "forked child" in done.stderr and "float32 [2, 3]" in done.stderr and "read it there" in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""A worker that hangs with slots in its hands: the log and the tool name slot, ticket, holder, age and route."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from daemon import wait_for
from worker import Worker

CLI = os.environ["RINGSIDE_CLI"]
STALL = re.compile(r" warn stall slot (?P<slot>\d+) \(ticket (?P<ticket>[0-9a-f]{16})\) is (?P<what>held|read|loaned)"
                   r" (?:by|to) client (?P<number>\d+) \((?P<name>[^)]*)\) for (?P<ms>\d+) ms(?P<rest>.*)")


@pytest.fixture
def workers():
    running = []

    def start(*arguments):
        running.append(Worker(*arguments))
        return running[-1]

    yield start
    for worker in running:
        worker.signal(signal.SIGCONT)
        worker.kill()


def stalls(daemon):
    return [match for match in map(STALL.search, daemon.log().splitlines()) if match]


def held(daemon):
    done = subprocess.run([CLI, "--socket", daemon.socket, "ls", "--held", "--json"], capture_output=True, text=True,
                          check=True)
    return json.loads(done.stdout)["slots"]


def test_stopped_workers_are_named_within_5_s(start, workers):
    daemon = start()  # with the stall_report_ms that everybody has
    good = workers(daemon.socket, "good")
    receiver, reader, loaner = (workers(daemon.socket, name) for name in ("receiver", "reader", "loaner"))
    good.send("self", 1)
    good("loan 100 0")
    tickets = {"receiver": receiver("receive 1000")[2], "reader": reader("read " + good("share 1")[0])[2]}
    loaner("loan 100 0")
    states = {"receiver": ("held", "held"), "reader": ("read", "reading"), "loaner": ("loaned", "loaned")}
    for worker in (receiver, reader, loaner):
        worker.signal(signal.SIGSTOP)
    wait_for(lambda: len(stalls(daemon)) == 3, 5)
    lines = {line["name"]: line for line in stalls(daemon)}
    assert lines.keys() == states.keys()
    slots = {int(slot["ticket"], 16): slot for slot in held(daemon)}
    text = subprocess.run([CLI, "--socket", daemon.socket, "ls", "--held"], capture_output=True, text=True).stdout
    for name, (what, state) in states.items():
        line = lines[name]
        assert (line["what"], line["ticket"]) == (what, tickets.get(name, line["ticket"]))
        assert 2000 <= int(line["ms"]) < 5000
        slot = slots[int(line["ticket"], 16)]
        assert slot["slot"] == int(line["slot"])
        holder = next(h for h in slot["holders"] if h["state"] == state)
        assert (holder["client"], holder["client_number"]) == (name, int(line["number"]))
        assert holder["age_ns"] >= 2e9
        assert line["ticket"] in text and re.search(rf"{state} +{name} +[2-4](\.\d)?s", text), text
    assert lines["receiver"]["rest"].endswith(f"route to {daemon.socket}")
    good.send("self", 2)  # nobody else is held up
    assert good.receive() == 2
    for worker, end in ((receiver, "release"), (reader, "release"), (loaner, "abandon")):
        worker.signal(signal.SIGCONT)
        worker(end)


def test_nothing_is_taken_from_a_stopped_worker(start, workers):
    """However long it sleeps: it goes on with what it had."""
    daemon = start(stall_report_ms=100)
    bad, good = workers(daemon.socket, "bad"), workers(daemon.socket, "good")
    bad("loan 100 0")
    good.send("self", 5)
    assert bad.receive() == 5
    bad.signal(signal.SIGSTOP)
    wait_for(lambda: len(stalls(daemon)) == 2)
    time.sleep(2.1)  # two more looks: it is told once, not every second
    assert len(stalls(daemon)) == 2
    for i in range(40):  # every other slot, several times over
        good.send("self", 100 + i)
        assert good.receive() == 100 + i
        good("release")
    bad.signal(signal.SIGCONT)
    assert bad("look")[0] == "5"
    bad("release")
    bad("send self 6")
    assert good.receive() == 6

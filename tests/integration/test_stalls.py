# SPDX-License-Identifier: Apache-2.0
"""A worker that hangs with slots in its hands: the log and the tool name slot, ticket, holder, age and route."""
import json
import os
import re
import signal
import subprocess

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


@pytest.mark.parametrize("what, state", [("held", "held"), ("loaned", "loaned"), ("read", "reading")])
def test_stopped_worker_is_named_within_5_s(start, workers, what, state):
    daemon = start()  # with the stall_report_ms that everybody has
    good, bad = workers(daemon.socket, "good"), workers(daemon.socket, "bad")
    if what == "held":
        good.send("self", 1)
        ticket = bad("receive 1000")[2]
    elif what == "read":
        good("loan 100 0")
        ticket = bad("read " + good("share 1")[0])[2]
    else:
        bad("loan 100 0")
        ticket = None
    bad.signal(signal.SIGSTOP)
    found = wait_for(lambda: stalls(daemon), 5)
    assert len(found) == 1
    line = found[0]
    assert (line["what"], line["name"]) == (what, "bad") and line["ticket"] == (ticket or line["ticket"])
    assert 2000 <= int(line["ms"]) < 5000
    if what == "held":
        assert line["rest"].endswith(daemon.socket)  # where the route leads
    slots = held(daemon)
    assert len(slots) == 1
    slot, holder = slots[0], slots[0]["holders"][0]
    assert f"{int(slot['ticket'], 16):016x}" == line["ticket"] and slot["slot"] == int(line["slot"])
    assert (holder["client"], holder["client_number"], holder["state"]) == ("bad", int(line["number"]), state)
    assert holder["age_ns"] >= 2e9
    text = subprocess.run([CLI, "--socket", daemon.socket, "ls", "--held"], capture_output=True, text=True).stdout
    assert re.search(rf"0x{line['ticket']} +{state} +bad .* [2-9](\.\d+)? s ", text), text
    good.send("self", 2)  # nobody else is held up
    assert good.receive() == 2
    bad.signal(signal.SIGCONT)
    bad({"held": "release", "read": "release", "loaned": "abandon"}[what])
    assert len(stalls(daemon)) == 1  # told once, not every second

# SPDX-License-Identifier: Apache-2.0
"""A worker that hangs with slots in its hands: the log and the tool name slot, ticket, holder, age and route."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

import control_pb2 as pb
from daemon import wait_for
from machine import cpu_group  # noqa: F401
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


def test_stopped_worker_of_the_next_stage_is_named_by_the_ring_that_it_reads(start, workers, place):
    """Once, with the stage that the message was for."""
    b = start("b")
    a = start("a", stall_report_ms=100, routes={"next": {"to": [f"unix:{place}/b.sock"], "when_full": "block"}})
    source, middle = workers(a.socket, "source"), workers(b.socket, "middle")
    source.send("next", 1)
    assert middle.receive() == 1
    middle.signal(signal.SIGSTOP)
    wait_for(lambda: [line["name"] for line in stalls(a)] == ["middle"])
    assert stalls(a)[0]["what"] == "held" and stalls(a)[0]["rest"].endswith(f"route to {place}/b.sock")
    slot, = held(a)
    holder, = (h for h in slot["holders"] if h["state"] == "held")
    assert (holder["client"], holder["destination"]) == ("middle", "b") and int(slot["ticket"], 16) == \
        int(stalls(a)[0]["ticket"], 16)
    time.sleep(2.1)
    assert len(stalls(a)) == 1
    middle.signal(signal.SIGCONT)
    middle("release")


def test_message_that_was_forwarded_is_named_with_where_it_went(start, workers, place):
    """It lies in the first ring still, which has no such route."""
    c = start("c")
    b = start("b", routes={"on": {"to": [f"unix:{place}/c.sock"], "when_full": "block"}})
    a = start("a", stall_report_ms=100, routes={"next": {"to": [f"unix:{place}/b.sock"], "when_full": "block"}})
    source, sink = workers(a.socket, "source"), workers(c.socket, "sink")

    def in_place():
        source.send("next", 1)
        with b.client() as client:
            client.attach()
            lease = client.receive().lease
            done = client.call("Forward", pb.ForwardRequest(lease=lease, route="on"), pb.ForwardResponse, 5)
        assert sink.receive() == 1
        if not done.in_place:
            sink("release")
        return done.in_place
    wait_for(in_place)
    sink.signal(signal.SIGSTOP)
    wait_for(lambda: [line["name"] for line in stalls(a)] == ["sink"])
    assert stalls(a)[0]["rest"].endswith(f"route to {place}/c.sock")
    sink.signal(signal.SIGCONT)
    sink("release")


def test_reading_outlasts_the_ticket_and_the_sidecars_patience(start, workers):
    """A reader stands still for ten times the life of its ticket and ten times a drain, over the end of its sidecar."""
    daemon = start(stall_report_ms=0, tickets={"ttl_ms": 100}, drain_timeout_ms=100)
    reader, good = workers(daemon.socket, "reader"), workers(daemon.socket, "good")
    good.send("self", 1)
    assert good.receive() == 1
    good("release")
    good("loan 100 0")
    reader("read " + good("share 9")[0])
    reader.signal(signal.SIGSTOP)
    time.sleep(1)
    daemon.stop()
    daemon.start()
    time.sleep(1)
    with daemon.client() as client:
        assert [(c.name, c.leases) for c in client.status().clients if c.name == "reader"] == [("reader", 1)]
    for i in range(40):  # every other slot, several times over
        good.send("self", 100 + i)
        assert good.receive() == 100 + i
        good("release")
    reader.signal(signal.SIGCONT)
    assert reader("look")[0] == "9"
    reader("release")
    with daemon.client() as client:
        wait_for(lambda: client.slots() == [])


def test_starved_worker_is_slow_and_nothing_else(start, workers, cpu_group):  # noqa: F811
    """One twentieth of a processor, and that shared with a busy loop: late is not dead."""
    daemon = start(stall_report_ms=100)
    group = cpu_group(5)
    starved, good = workers(daemon.socket, "starved"), workers(daemon.socket, "good")
    hog = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        for pid in (starved.process.pid, hog.pid):
            (group.path / "cgroup.procs").write_text(str(pid))
        for i in range(20):
            good.send("self", i)
            starved.begin("receive 20000")
            assert starved.end(30)[0] == str(i)
            for other in range(16):  # as many again as there are slots, while it has one
                good("loan 100 5000")
                good("abandon")
            assert starved("look", 30)[0] == str(i)
            starved("release", 30)
    finally:
        hog.kill()
        hog.wait()
    with daemon.client() as client:
        assert client.status().totals.requeued == 0 and client.slots() == []


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

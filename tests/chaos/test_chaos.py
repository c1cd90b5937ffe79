# SPDX-License-Identifier: Apache-2.0
"""The chaos run itself: its plan, its figures, and that it would tell."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import pytest

import calls
import chaos
from harness import Ledger, until

SCRIPT = pathlib.Path(chaos.__file__)


def test_same_seed_same_plan():
    assert chaos.plan(5, 60) == chaos.plan(5, 60) != chaos.plan(6, 60)
    assert chaos.plan(5, 120)[:len(chaos.plan(5, 60))] == chaos.plan(5, 60)
    kinds = {fault[1] for fault in chaos.plan(5, 60)}
    assert kinds == {"kill", "stop", "sidecar", "sidecar_stop"}
    assert max(len(fault[2]) for fault in chaos.plan(5, 60) if fault[1] == "sidecar") == len(chaos.STAGES)


def test_plan_is_printed_as_it_is_played():
    output = subprocess.run([sys.executable, SCRIPT, "--plan", "--seed", "9", "--seconds", "3"], capture_output=True,
                            text=True, check=True).stdout
    assert output.splitlines() == [" ".join(map(str, fault)) for fault in chaos.plan(9, 3)]


class FakeRing:
    """Totals of counters, as a ring tells them."""

    def __init__(self, **totals):
        self.totals = totals

    def total(self, name):
        return self.totals.get(name, 0)


def accounted(tmp_path, messages, kills=0, **totals):
    """What account() makes of (sent, kind, deaths of holders, arrivals at the sinks, at the spills) of some messages."""
    pipeline = chaos.Pipeline.__new__(chaos.Pipeline)
    pipeline.ledger = Ledger(tmp_path / "ledger", 100)
    for number, (sent, kind, orphaned, arrived, *spilt) in enumerate(messages, 1):
        at = Ledger.HEAD + 8 * number
        pipeline.ledger.memory[at:at + 8] = bytes([sent, kind, 0, orphaned, sum(spilt), 0, 0, arrived])
    pipeline.ledger[Ledger.NEXT] = len(messages) + 1
    pipeline.rings = [FakeRing(**totals)] + [FakeRing()] * (len(chaos.STAGES) - 1)
    pipeline.kills, pipeline.sidecar_kills = kills, 0
    return pipeline.account()[:3]


@pytest.mark.parametrize("messages, counters, figures", [
    ([(2, 0, 0, 1)], {}, (0, 0, 0)),
    ([(2, 0, 0, 0)], {"kills": 9, "expired": 9}, (1, 0, 0)),  # nothing excuses the loss of a durable one
    ([(1, 0, 0, 0), (3, 0, 0, 0)], {}, (0, 0, 0)),            # tried, refused: never accepted
    ([(2, 1, 0, 0)] * 3, {"expired": 2}, (1, 0, 0)),
    ([(2, 1, 0, 0)] * 3, {"expired": 1, "kills": 1}, (1, 0, 0)),
    ([(2, 1, 0, 0)] * 3, {"expired": 3}, (0, 0, 0)),
    ([(2, 3, 0, 0)], {"expired": 5}, (1, 0, 0)),              # each kind by its own counter
    ([(2, 3, 0, 0)], {"dropped": 1}, (0, 0, 0)),
    ([(2, 2, 0, 0)], {"dead_lettered": 1}, (0, 0, 0)),
    ([(2, 0, 0, 2)], {"kills": 9}, (0, 1, 1)),                # a death of somebody else explains nothing
    ([(2, 0, 1, 2)], {"kills": 1}, (0, 1, 0)),
    ([(2, 0, 1, 4)], {"kills": 1}, (0, 3, 2)),
    ([(2, 0, 0, 0, 1)], {}, (1, 1, 1)),                       # it came where it was not sent
    ([(2, 0, 0, 1, 1)], {}, (0, 1, 1)),
    ([(2, 3, 0, 0, 1)], {}, (0, 0, 0)),                       # who spills sends it there
    ([(3, 0, 0, 1)], {}, (0, 1, 1)),                          # its sender was told that it was not sent
    ([(0, 0, 0, 1)], {}, (0, 1, 1)),
    ([(1, 0, 0, 1)], {}, (0, 0, 0)),                          # its sender died before it was told
])
def test_what_is_lost_and_what_is_double(tmp_path, messages, counters, figures):
    assert accounted(tmp_path, messages, **counters) == figures


def of_calls(*rows):
    """What calls.account() makes of (sent, outcome, deaths of callees, executions, answers, a death near by)."""
    table = numpy.array([(sent, calls.CALL, *rest, 0) for sent, *rest in rows], numpy.uint8)
    return calls.account(table, 0)


TOLD, REFUSED = calls.ACCEPTED, 3


@pytest.mark.parametrize("row, unexplained", [
    ((TOLD, calls.OK, 0, 1, 1, 0), ""),
    ((TOLD, calls.OK, 1, 1, 1, 1), ""),           # its callee died behind the last reply
    ((TOLD, calls.OK, 0, 1, 0, 0), "1 answered to the caller but not by a callee"),
    ((TOLD, calls.OK, 0, 0, 0, 1), "1 answered to the caller but not by a callee"),
    ((TOLD, calls.REFUSED, 0, 0, 0, 0), "1 answered to the caller but not by a callee"),
    ((TOLD, calls.UNAVAILABLE, 0, 0, 0, 0), "1 unavailable without a death"),
    ((TOLD, calls.UNAVAILABLE, 0, 0, 0, 1), ""),  # who had taken it died before the note
    ((TOLD, calls.UNAVAILABLE, 0, 1, 0, 1), "1 unavailable without a death"),  # who began with it lives
    ((TOLD, calls.UNAVAILABLE, 1, 1, 0, 0), ""),
    ((TOLD, calls.UNAVAILABLE, 1, 1, 1, 0), ""),
    ((TOLD, calls.NONE, 0, 1, 1, 0), "1 without an end"),
    ((TOLD, calls.ABANDONED, 0, 1, 1, 0), ""),
    ((TOLD, calls.CANCELLED, 0, 0, 0, 0), ""),
    ((TOLD, calls.CANCELLED, 1, 2, 0, 0), "1 executed more than once"),  # a death is no leave to do it again
    ((TOLD, calls.TIMED_OUT, 0, 1, 1, 0), ""),
    ((REFUSED, calls.NONE, 0, 0, 0, 0), ""),
    ((REFUSED, calls.NONE, 0, 1, 1, 0), "1 executed although refused or not sent"),
    ((0, calls.NONE, 0, 1, 1, 0), "1 executed although refused or not sent"),
    ((REFUSED, calls.OK, 0, 0, 0, 0), "1 ended although refused or not sent, "
                                      "1 answered to the caller but not by a callee"),
    ((calls.TRIED, calls.ABANDONED, 0, 1, 1, 0), ""),
])
def test_which_calls_are_unexplained(row, unexplained):
    figures, stuck, words = of_calls((TOLD, calls.OK, 0, 1, 1, 0), row)
    assert words == unexplained and figures["calls_unexplained"] == words.count("1 ")
    assert figures["calls"] == 1 + (row[0] == TOLD) and stuck == 0


def test_outcomes_of_calls_are_counted():
    outcomes = range(calls.OK, calls.FAILED + 1)
    figures, stuck, _ = of_calls(*[(TOLD, outcome, 1, 1, 1, 1) for outcome in outcomes for _ in range(outcome)])
    assert [figures[key] for key in calls.KEYS[1:7]] == list(outcomes)[:6] and stuck == calls.STUCK
    assert figures["calls"] == sum(outcomes)


@pytest.mark.parametrize("role, status, deaths, lost", [
    ("socket caller", chaos.LOST, 1, True), ("socket caller", chaos.LOST, 0, False),  # its sidecar lives
    ("socket caller", 1, 1, False), ("caller", chaos.LOST, 1, False)])
def test_sessions_end_with_their_sidecar_alone(role, status, deaths, lost):
    pipeline = chaos.Pipeline.__new__(chaos.Pipeline)
    index = chaos.WORKERS.index(role)
    pipeline.workers = {index: subprocess.CompletedProcess([], status)}
    pipeline.deaths_before, pipeline.sidecar_deaths = {index: 4}, [9] * len(chaos.STAGES)
    pipeline.sidecar_deaths[chaos.STAGES.index("ask")] = 4 + deaths
    assert pipeline.lost_session(index) == lost


def undisturbed(seconds=1.0):
    """A run without faults: its figures of calls, and what is corrupt and stuck."""
    with tempfile.TemporaryDirectory(prefix="ringside-chaos-", dir="/dev/shm") as directory:
        pipeline = chaos.Pipeline(pathlib.Path(directory), os.environ["RINGSIDE_CHAOS_WORKER"], 1, 4000000)
        try:
            pipeline.start()
            until(lambda: pipeline.ledger[Ledger.SOCKET_OK] > 0, "a call over the socket is answered", 20)
            time.sleep(seconds)
            leaked = pipeline.finish()
            figures, _ = pipeline.account_calls()
            return {**figures, "leaked": leaked, "corrupt": pipeline.corrupt(), "stuck": pipeline.stuck}
        finally:
            pipeline.close()


@pytest.mark.parametrize("plant, figure", [
    (None, None),
    ("body", "corrupt"),   # of another call
    ("order", "corrupt"),  # another reply of this call
    ("early", "corrupt"),  # the last reply comes before others
    ("drop", "calls_unexplained"),
    ("hold", "stuck"),
])
def test_wrong_answers_are_told(monkeypatch, plant, figure):
    """The callees' environment makes some of their answers wrong."""
    monkeypatch.setenv("RINGSIDE_CHAOS_PLANT", plant or "")
    figures = undisturbed()
    told = {name for name in chaos.BAD if figures.get(name)}
    assert told == {figure} - {None}, figures
    assert figures["calls_ok"] > 0 and figures["replies"] > figures["calls_ok"]
    if plant is None:
        assert figures["calls_refused"] and figures["calls_timed_out"] and figures["calls_cancelled"]


def test_figures_have_their_names(tmp_path):
    path = tmp_path / "figures.json"
    subprocess.run([sys.executable, SCRIPT, "--seconds", "2", "--json", path], check=True, stdout=subprocess.DEVNULL)
    assert tuple(json.loads(path.read_text())) == (
        "messages", "kills", "stops", "sidecar_kills", "recovery_ms_p50", "recovery_ms_max", "lost", "duplicates",
        "duplicates_unexplained", "calls", "calls_ok", "calls_refused", "calls_unavailable", "calls_timed_out",
        "calls_cancelled", "calls_abandoned", "calls_unexplained", "replies", "leaked", "corrupt", "stuck",
        "outage_throughput_ratio")


def test_programs_have_failpoints_only_when_asked_for():
    """Names of variables and points would stand in the programs as text."""
    wanted = os.environ["RINGSIDE_HAS_FAILPOINTS"] == "1"
    for program in (os.environ["RINGSIDE_PROXY"], os.environ["RINGSIDE_LIBRARY"]):
        data = pathlib.Path(program).read_bytes()
        assert (b"RINGSIDE_FAILPOINT" in data) == wanted
        assert (b"seal_before" in data) == wanted
        symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
        assert ("rs_failpoint" in symbols) == wanted

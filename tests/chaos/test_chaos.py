# SPDX-License-Identifier: Apache-2.0
"""The chaos run itself: its plan, its figures, and that it would tell."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

import chaos
from harness import Ledger

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
    pipeline.rings = [FakeRing(**totals)] + [FakeRing()] * 4
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


def test_figures_have_their_names(tmp_path):
    path = tmp_path / "figures.json"
    subprocess.run([sys.executable, SCRIPT, "--seconds", "2", "--json", path], check=True, stdout=subprocess.DEVNULL)
    assert tuple(json.loads(path.read_text())) == (
        "messages", "kills", "stops", "sidecar_kills", "recovery_ms_p50", "recovery_ms_max", "lost", "duplicates",
        "duplicates_unexplained", "leaked", "corrupt", "stuck", "outage_throughput_ratio")


def test_programs_have_failpoints_only_when_asked_for():
    """Names of variables and points would stand in the programs as text."""
    wanted = os.environ["RINGSIDE_HAS_FAILPOINTS"] == "1"
    for program in (os.environ["RINGSIDE_PROXY"], os.environ["RINGSIDE_LIBRARY"]):
        data = pathlib.Path(program).read_bytes()
        assert (b"RINGSIDE_FAILPOINT" in data) == wanted
        assert (b"seal_before" in data) == wanted
        symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
        assert ("rs_failpoint" in symbols) == wanted

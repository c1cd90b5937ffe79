# SPDX-License-Identifier: Apache-2.0
"""A process dies before or after each atomic step: nothing is lost, leaked, corrupt or stuck, whoever it was.

Each scenario is played once to see which failpoints its victim passes, and then once for each of them with the victim
killed there. After each death the survivors take what there is, all slots must be free and all clients those of before
within a bound, every accepted message must have arrived or been counted, and the survivors must work as before.
"""
import dataclasses
import os
import re
import signal
import subprocess
import time
import typing

import pytest

from harness import LOANED, Sidecar, kill_and_reap
from world import CELLS, ROOT, SLOTS, WAIT_S, Session, World, until

HIT, KILLED, STOPPED, AGAIN = {}, {}, {}, {}  # role -> points; AGAIN: killed there when it passed for the second time
PASSED = {}  # scenario -> points, each with how often the victim passes it
TRIES = 3


@dataclasses.dataclass
class Scenario:
    """`prepare` by the keepers, `waiting` for what the victim does, the victim's script."""

    role: str
    victim: str                       # a stage: of the worker, or of the sidecar
    script: typing.Any                # commands of an actor, or a function of the world that moves the sidecar
    prepare: typing.Sequence = ()     # (stage, command, answer or None)
    waiting: typing.Sequence = ()     # (stage, command): begun before, ended after
    meanwhile: typing.Callable = None # what happens while a worker plays
    counted: bool = False             # messages may end as expired, dropped or dead
    only: str = ""                    # points that matter here, a regular expression; all others by other scenarios


def session(stage, *steps):
    """A session of the sidecar that takes these steps."""
    def play(world):
        def steps_of_child():
            worker = Session(world, stage)
            for step in steps:
                name, *arguments = step.split()
                getattr(worker, name)(*arguments)
            worker.client.close()
        world.fork(steps_of_child)
    return play


def dying(stage, *commands):
    """A worker that dies with all that it holds."""
    def play(world):
        subprocess.run(world.actor(stage, "dying", *commands, "die"), timeout=20, stderr=subprocess.DEVNULL)
    return play


# ---- what moves a sidecar ----

def reading_that_ends_first(world):
    """Two read a message for one reader; one ends, the other dies: the sweep is left with it."""
    keeper = world.keepers["a"]
    assert keeper("share 0 1") == 0
    reader = subprocess.Popen(world.actor("a", "dying", "read 0", "sleep 20000"))
    try:
        until(lambda: reader.poll() is not None or world.rings["a"].is_read() or
              not world.sidecars["a"].running(), "it reads", 5)
        if world.rings["a"].is_read():
            assert keeper("read 0") == 0 and keeper("unread") == 0
    finally:
        reader.kill()
        reader.wait()


def lost_hints(world):
    """Somebody wrote where only hints are."""
    ring = world.rings["b"]
    head, tail = ring.word(ring.inbox_at), ring.word(ring.inbox_at + 64)
    assert world.keepers["a"]("send b 2") == 2
    ring.store(ring.inbox_at, head + 40 * CELLS)
    ring.store(ring.inbox_at + 64, tail + 50 * CELLS)
    world.pass_by("b")


def nonsense(world):
    """A slot whose state no sequence of steps can leave; made good again, because nothing leaves QUARANTINED."""
    ring = world.rings["a"]
    at = ring.slots_at + 3 * 256
    before = ring.word(at)
    ring.store(at, before | 9 << 16)
    try:
        for _ in range(3):
            world.pass_by("a")
    finally:
        until(lambda: not world.sidecars["a"].running() or ring.word(at) >> 8 & 0xff == 3, "quarantine", 5)
        ring.store(at, before)


def restart(stage):
    """The sidecar dies while its ring is in use, and the next one takes the ring over."""
    def play(world):
        if world.sidecars[stage].running():
            world.sidecars[stage].kill()
        world.sidecars[stage].start(wait=False)
        world.until_served(stage)
    return play


def restart_with_the_dead(world):
    """Worker and sidecar die together: the next sidecar finds the worker by its lock."""
    held = subprocess.Popen(world.actor("a", "dying", "loan 3 0", "sleep 20000"))
    until(lambda: world.rings["a"].phases()[LOANED] == 3 or held.poll() is not None or
          not world.sidecars["a"].running(), lambda: f"it has loaned\n{world.tell()}", 5)
    if world.sidecars["a"].running():
        world.sidecars["a"].kill()
    held.kill()
    held.wait()
    world.sidecars["a"].start(wait=False)
    world.until_served("a")


def pod_that_is_gone(world):
    """Another stage that sends to b, drains and removes its files: its number in b's inbox is given back."""
    gone = Sidecar(world.directory, "z", {"b": ("b", {})}, SLOTS, CELLS)
    table = world.rings["b"]
    at = table.word(128)
    numbers = lambda: sum(table.word(at + i * 64) & 0xff != 0 for i in range(256))
    before = numbers()
    try:
        gone.start()
        until(lambda: gone.ring().connected()[1] >= 1 or not world.sidecars["b"].running(), "z leads to b", 10)
        gone.stop()
    finally:
        kill_and_reap(gone.process)
    until(lambda: not world.sidecars["b"].running() or numbers() == before, "its number is free again", 10)


TO_B = [("a", "send b 4", 4)]


def fill_up(world):
    """Of b's inbox. An audit between a seal and its push gives that message a second cell, which leaves room for one less."""
    got = world.keepers["a"]("fill b")
    assert got in (CELLS - 1, CELLS), f"fill b: {got} {world.keepers['a'].text}\n{world.tell()}"


FULL = [("a", fill_up, None)]


def end_what_is_old(world):
    """The audit after somebody left ends what is too old."""
    world.pass_by("a")
    until(lambda: list(world.rings["a"].queued()) == ["b"], "one is left", 5)


SCENARIOS = {
    # worker that produces
    "send": Scenario("producer", "a", ["loan 2 0", "abandon", "send b 2", "send bc 2"],
                     waiting=[("b", "take 1 500")]),
    "send_to_a_poller": Scenario("producer", "a", ["send b 2"], prepare=[("b", "poll", 0), ("b", "take 1 0", None)],
                                 only="wake|push"),
    "wait_for_a_slot": Scenario("producer", "a", ["?loan 1 30"], prepare=[("a", f"loan {SLOTS} 0", SLOTS)],
                                only="wait_armed"),
    "give_back_to_who_waits": Scenario("producer", "a", [f"loan {SLOTS} 0", "sleep 20", "abandon"],
                                       waiting=[("a", "loan 2 500")]),
    "drop_oldest": Scenario("producer", "a", ["send drop 2"], prepare=FULL, counted=True),
    "come_back": Scenario("producer", "a", ["loan 1 0", "?take 1 1500"], meanwhile=restart("a"),
                          only="attached_again"),
    "send_into_a_full_inbox": Scenario("producer", "b", ["send c 6"], prepare=[("a", "send bc 4", 4)]),
    # worker that consumes
    "take": Scenario("consumer", "b", ["hold 2 500", "nack", "hold 1 500", "release", "take 3 500"], prepare=TO_B,
                     waiting=[("a", f"loan {SLOTS - 2} 500")]),
    "make_room": Scenario("consumer", "b", ["sleep 30", "take 4 500"], prepare=[("a", "fill b", None)],
                          waiting=[("a", "send b 1 0 500")]),
    "nack_to_the_end": Scenario("consumer", "b", ["hold 1 500", "nack", "hold 1 500", "nack", "hold 1 500", "nack"],
                                prepare=[("a", "send b 1", 1)], counted=True),
    "forward": Scenario("consumer", "b", ["hold 2 500", "forward c"], prepare=TO_B, waiting=[("c", "take 1 500")]),
    "forward_to_two": Scenario("consumer", "b", ["hold 2 500", "forward ca"], prepare=TO_B),
    "forward_by_copy": Scenario("consumer", "b", ["hold 2 500", "copy ca"], prepare=TO_B),
    "expired": Scenario("consumer", "b", ["sleep 5", "take 1 20", "?take 4 20"], counted=True,
                        prepare=[("a", "send b 2 1", 2), ("a", "send b 1", 1)], only="receive|release|free|clear"),
    "nack_into_a_full_inbox": Scenario("consumer", "b", ["hold 1 500", "sleep 30", "nack", "?take 9 50", "?take 1 10"],
                                       prepare=FULL, waiting=[("a", "send b 1 0 500")]),
    "nack_over_stale_cells": Scenario("consumer", "b", ["hold 1 500", "sleep 30", "nack", "?take 4 20"],
                                      prepare=[("a", "send b 1", 1), ("a", "fill b 1", None),
                                               ("a", end_what_is_old, None)],
                                      waiting=[("a", "send b 1 0 500")], counted=True, only="push|overflow|bell|nack"),
    "wait_for_a_message": Scenario("consumer", "b", ["?take 1 30"], only="wait_armed|receive"),
    "close_with_all": Scenario("consumer", "b", ["hold 3 500", "loan 2 0", "sleep 0"], prepare=TO_B),
    # worker that calls, and one that is called
    "call": Scenario("caller", "a", ["call b 2 1", "call b 1 2"], waiting=[("b", "serve 3 2 500")]),
    "cancel": Scenario("caller", "a", ["begin b 1", "sleep 200", "cancel"], waiting=[("b", "hold 1 500")],
                       only="cancel|expire|free|call"),
    "cancel_before_it_is_taken": Scenario("caller", "a", ["begin b 1", "cancel"], only="expire|free"),
    "close_calling": Scenario("caller", "a", ["begin b 3", "sleep 30"], waiting=[("b", "serve 1 3 500")],
                              only="close|nack|release|free"),
    "answer": Scenario("callee", "b", ["serve 1 1 500"], waiting=[("a", "call b 1 1")]),
    "stream": Scenario("callee", "b", ["serve 1 6 500"], waiting=[("a", "call b 1 2")], only="post|repl|wait|wake"),
    "answer_at_last": Scenario("callee", "b", ["hold 1 500", "release"], waiting=[("a", "call b 1 1")],
                               only="post|repl|release"),
    "close_with_a_call": Scenario("callee", "b", ["hold 1 500"], waiting=[("a", "call b 1 1")],
                                  only="close|nack|free|wake"),
    "answer_in_vain": Scenario("callee", "b", ["hold 1 2000", "loan 1 0", "sleep 100", "abandon", "reply 1", "release"],
                               prepare=[("a", "begin b 1", 0)], meanwhile=lambda world: world.keepers["a"]("cancel 0"),
                               only="post|repl|take_back|release|free"),
    # worker that reads by ticket
    "read": Scenario("reader", "a", ["read 0", "pass 1", "unread", "read 0", "unread", "read 0", "unread", "misread 0", "read 1", "pass 1", "unread",
                                     "free 1", "share 2 3", "read 2", "free 2", "unread", "share 2 3", "free 2"],
                     prepare=[("a", "share 0 2", 0), ("a", "share 1 0", 0)]),
    "close_reading": Scenario("reader", "a", ["read 0"], prepare=[("a", "share 0 2", 0)]),
    # the ring's own sidecar
    "session_sends": Scenario("own sidecar", "a", session("a", "abandon", "send b", "send bc", "send b")),
    "session_drops": Scenario("own sidecar", "a", session("a", "send drop"), prepare=FULL, counted=True),
    "session_copies": Scenario("own sidecar", "b", session("b", "hold", "forward ca"),
                               prepare=[("a", "send bc 1", 1)], only="session_copied|release|seal"),
    "expiry": Scenario("own sidecar", "a", lambda world: world.pass_by("a"), counted=True,
                       prepare=[("a", "send b 3 1", 3), ("a", "sleep 5", 0)]),
    "session_tickets": Scenario("own sidecar", "a", session("a", "tickets")),
    "session_receives": Scenario("own sidecar", "a", session("a", "hold", "nack", "hold", "release", "hold",
                                                             "release"),
                                 prepare=[("b", "send ca 2", 2)]),
    "session_calls": Scenario("own sidecar", "a", session("a", "call b"), waiting=[("b", "serve 1 1 1000")],
                              only="session|box_take|release"),
    "session_cancels": Scenario("own sidecar", "a", session("a", "cancel b"), waiting=[("b", "hold 1 1000")],
                                only="session|cancel"),
    "session_answers": Scenario("peer sidecar", "b", session("b", "answer"), waiting=[("a", "call b 1 1")],
                                only="session|post|reply|release"),
    "sweep_of_a_producer": Scenario("own sidecar", "a", dying("a", "send b 1", "loan 3 0", "share 0 1")),
    "sweep_of_a_consumer": Scenario("own sidecar", "a", dying("b", "hold 3 500"), prepare=TO_B),
    "sweep_of_a_callee": Scenario("own sidecar", "a", dying("b", "hold 1 500", "reply 2"),
                                  prepare=[("a", "begin b 2", 0)], waiting=[("a", "await")], only="sweep|client|mend"),
    "sweep_of_a_caller": Scenario("own sidecar", "b", dying("a", "begin b 2", "sleep 50"),
                                  waiting=[("b", "serve 1 2 500")], only="sweep|client|mend|box"),
    "caller_comes": Scenario("own sidecar", "b", dying("a", "begin b 1", "cancel", "sleep 0"), only="admit|box"),
    "sweep_of_a_reader": Scenario("own sidecar", "a", reading_that_ends_first),
    "lost_hints": Scenario("own sidecar", "b", lost_hints),
    "nonsense": Scenario("own sidecar", "a", nonsense, only="quarantine"),
    "adopt": Scenario("own sidecar", "a", restart("a"), prepare=TO_B + [("b", "hold 2 500", 2)]),
    "adopt_with_the_dead": Scenario("own sidecar", "a", restart_with_the_dead, prepare=TO_B),
    # the sidecar of the stage that receives
    "peer_session_receives": Scenario("peer sidecar", "b", session("b", "hold", "nack", "hold", "release", "hold",
                                                                   "release"), prepare=TO_B),
    "peer_session_forwards": Scenario("peer sidecar", "b", session("b", "hold", "forward c", "hold", "forward ca"),
                                      prepare=TO_B),
    "peer_adopts": Scenario("peer sidecar", "b", restart("b"), prepare=TO_B + [("b", "hold 2 500", 2)]),
    "peer_meets_a_worker": Scenario("peer sidecar", "b", dying("b", "take 1 500"), prepare=TO_B),
    "peer_is_gone": Scenario("peer sidecar", "b", pod_that_is_gone),
}


@pytest.fixture(scope="module")
def shared():
    box = []
    yield box
    for world in box:
        world.close()


@pytest.fixture
def world(shared):
    if shared and shared[0].broken:
        shared.pop().close()
    if not shared:
        shared.append(World())
    shared[0].broken = True
    yield shared[0]


def prepare(world, scenario):
    for stage, command, answer in scenario.prepare:
        if callable(command):
            command(world)
            continue
        got = world.keepers[stage](command)
        assert answer is None or got == answer, f"{command}: {got} {world.keepers[stage].text}\n{world.tell()}"


def play(world, scenario, point, nth):
    """One run. Whether the victim was killed when it came to the point for the nth time; without a point it must live."""
    prepare(world, scenario)
    world.dead_letters = world.rings["a"].total("dead_lettered")
    for stage, command in scenario.waiting:
        world.keepers[stage].begin(command)
    if scenario.waiting:
        time.sleep(0.01)
    if isinstance(scenario.script, list):
        world.victim_points.arm(point, nth)
        status = world.run_actor(scenario.victim, scenario.script, scenario.meanwhile)
        killed = status == -signal.SIGKILL
        world.victim_points.arm(None)
        assert killed or status == 0, f"the victim ended with {status}"
    else:
        world.points[scenario.victim].arm(point, nth)
        scenario.script(world)
        killed = bool(point) and world.died(scenario.victim)
        world.points[scenario.victim].arm(None)
        world.ensure_running()
    for stage, command in scenario.waiting:
        start = time.monotonic()
        got = world.keepers[stage].end()
        assert got > 0 or killed and world.in_vain(stage, command), \
            f"{command} of {stage}: {got} {world.keepers[stage].text}\n{world.tell()}"
        assert time.monotonic() - start < WAIT_S + 0.5, f"{command} of {stage} waited too long"
    return killed


def run(world, name, scenario, point=None, nth=1):
    ended_before = sum(ring.accounted() for ring in world.rings.values())
    what = f"{name}, killed at {point} ({nth})" if point else name
    killed = play(world, scenario, point, nth)
    world.give_back()
    world.settle(what)
    missing, ended = world.account(what, ended_before, deaths=int(killed))
    allowed = ended + int(killed) if scenario.counted else 0
    assert len(missing) <= allowed, f"{what}: lost {missing}, {ended} were counted\n{world.tell()}"
    return killed


def points_of(world, scenario):
    return world.victim_points if isinstance(scenario.script, list) else world.points[scenario.victim]


def passed_by(world, name):
    """The points that the victim passes: the scenario is played once."""
    if name not in PASSED:
        points = points_of(world, SCENARIOS[name])
        before = points.hits()
        run(world, name, SCENARIOS[name])
        after = points.hits()
        PASSED[name] = {point: after[point] - before[point] for point in world.names if after[point] > before[point]}
        HIT.setdefault(SCENARIOS[name].role, set()).update(PASSED[name])
    return PASSED[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_death_at_every_failpoint_of(world, name):
    scenario = SCENARIOS[name]
    passed = passed_by(world, name)
    chosen = [point for point in passed if re.search(scenario.only, point)]
    killed = KILLED.setdefault(scenario.role, set())
    done = []
    for point in chosen:
        # Some points are passed only when others are at the right place just then.
        if any(run(world, name, scenario, point) for _ in range(TRIES if point not in killed else 1)):
            killed.add(point)
            done.append(point)
    print(f"\n{name}: {len(done)} of {len(passed)} points: {' '.join(done)}")
    assert done, "nobody died"
    world.broken = False


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if isinstance(scenario.script, list)])
def test_death_at_the_second_hit_of_each_failpoint_of(world, name):
    """Something of the same kind is done already, and a part of what was to be done is not."""
    scenario = SCENARIOS[name]
    again = AGAIN.setdefault(scenario.role, set())
    twice = [point for point, hits in passed_by(world, name).items()
             if hits > 1 and point not in again and re.search(scenario.only, point)]
    done = [point for point in twice if run(world, name, scenario, point, 2)]
    again.update(done)
    print(f"\n{name}: {len(done)} of {len(twice)} points: {' '.join(done)}")
    world.broken = False


# ---- the sidecar that comes to put it in order dies as well ----

FIRST = ["client_dead", "sweep_delivery_after", "mend_swept", "client_swept", "client_counted"]  # of a death alone
SECOND = ["adopt_before", "adopt_epoch", "adopt_hints", "adopt_readers", "client_adopted", "client_dying", "client_dead",
          "mend_bell_cleared", "mend_swept", "mend_audited", "client_swept", "client_counted", "client_unused"]


def worker_and_two_sidecars(world, first, second):
    """A worker of b dies with messages of a; a's sidecar dies of it at `first`, the next one at `second`. How many died."""
    points, sidecar = world.points["a"], world.sidecars["a"]
    points.arm(first)
    dying("b", "hold 3 500")(world)
    if not world.died("a"):
        return 0
    points.arm(second)
    sidecar.start(wait=False)
    world.until_served("a")
    return 1 + world.died("a")


@pytest.mark.parametrize("first, second", [(FIRST[(i + step) % len(FIRST)], second)
                                           for i, second in enumerate(SECOND) for step in (0, 2)])
def test_death_of_a_worker_and_of_two_sidecars(world, first, second):
    what = f"killed at {first}, the next one at {second}"
    ended_before = sum(ring.accounted() for ring in world.rings.values())
    requeued = world.rings["a"].total("requeued")
    assert world.keepers["a"]("send b 4") == 4
    died = worker_and_two_sidecars(world, first, second)
    world.points["a"].arm(None)
    world.ensure_running()
    world.settle(what)
    assert world.rings["a"].total("requeued") - requeued in (2, 3)  # a death may take along one count
    assert world.account(what, ended_before, deaths=0) == ([], 0)
    assert died == 2, what
    world.broken = False


@pytest.mark.parametrize("point, nth", [("client_swept", 1), ("client_counted", 1), ("client_unused", 1), *[
    (point, nth) for point in ("count_noted", "count_added", "count_zeroed") for nth in (1, 2, 3)]])
def test_counts_of_the_dead_are_kept_whoever_sweeps(world, point, nth):
    """What a worker counted is the sidecar's after its death: neither less nor more when that one dies on the way."""
    ring, points = world.rings["a"], world.points["a"]
    counts = lambda: {name: ring.total(name) for name in ("sent", "sent_bytes", "shared")}
    before = counts()
    points.arm(point, nth)
    dying("a", "send b 3", "share 0 1")(world)
    assert world.died("a"), "the sidecar lives"
    points.arm(None)
    world.ensure_running()
    until(lambda: world.names_of("a") == (world.baseline["a"], True), "it is swept", 5)
    after = counts()
    assert {name: after[name] - before[name] for name in before} == {"sent": 3, "sent_bytes": 4 * 1024, "shared": 1}
    world.settle(f"killed at {point} ({nth})")
    world.broken = False


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items()
                                  if isinstance(scenario.script, list) and not scenario.meanwhile])
def test_stop_at_every_failpoint_of(world, name):
    """Nothing is taken from who stands still, and nobody waits for it; then it goes on as if nothing had been."""
    scenario, stopped = SCENARIOS[name], STOPPED.setdefault(SCENARIOS[name].role, set())
    done = 0
    for point in passed_by(world, name):
        if point in stopped:
            continue
        ended_before = sum(ring.accounted() for ring in world.rings.values())
        what = f"{name}, stopped at {point}"
        prepare(world, scenario)
        world.victim_points.arm(point, action=2)
        if world.run_stopped_actor(scenario.victim, scenario.script):
            stopped.add(point)
            done += 1
        world.victim_points.arm(None)
        world.give_back()
        world.settle(what)
        missing, ended = world.account(what, ended_before, deaths=0)
        assert len(missing) <= (ended if scenario.counted else 0), f"{what}: lost {missing}, {ended} were counted"
    print(f"\n{name}: {done} points")
    world.broken = False


def test_every_failpoint_was_hit_and_killed_at(shared):
    if len(PASSED) < len(SCENARIOS):
        pytest.skip("only some of the scenarios were run")
    names = set(shared[0].names)
    print("\n".join(f"{role}: {len(points)} points killed at" for role, points in KILLED.items()))
    assert names - set().union(*HIT.values()) == set(), "points that nothing passes"
    assert names - set().union(*KILLED.values()) == set(), "points at which nobody died"


def test_the_table_names_what_is_in_the_sources(shared):
    """A point that was taken out of the sources must leave the table too."""
    used = set()
    for folder in ("proto", "proxy", "client/c"):
        for path in (ROOT / folder).glob("*.c"):
            used |= set(re.findall(r"\bRS_FAILPOINT\((\w+)\)", path.read_text()))
    names = subprocess.run([os.environ["RINGSIDE_FAILPOINTS"]], capture_output=True, text=True, check=True).stdout
    assert used == set(names.split())

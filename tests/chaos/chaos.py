#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pipeline of four stages, and callers with callees, under load, whose processes are killed, stopped and started
again by a plan.

tests/chaos/README.md defines every figure. Exit status 1 when anything was lost, leaked, corrupt or stuck, and when a
message was doubled or a call ended without a death that explains it.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

import calls
from harness import FREE, Ledger, Sidecar, kill_and_reap, until

STAGES = ("one", "two", "three", "four", "tickets", "ask", "answer")  # the first four are the pipeline
WORKERS = ["source"] * 3 + ["spill"] * 2 + ["two"] * 3 + ["three"] * 3 + ["sink"] * 3 + ["reader"] * 2 + \
    ["caller"] * 2 + ["own callee"] + ["callee"] * 2 + ["socket caller", "socket callee"]
ROLE = {"source": ("source", 0), "spill": ("spill", 0), "two": ("middle", 1), "three": ("middle", 2),
        "sink": ("sink", 3), "reader": ("reader", 4), "caller": ("caller", 5), "own callee": ("callee", 5),
        "callee": ("callee", 6), "socket caller": ("caller", 5), "socket callee": ("callee", 6)}
ROUTE = {"callee": 0, "socket callee": 0, "own callee": 1}  # by which they are called
SOCKET_WORKER = pathlib.Path(__file__).with_name("socket_worker.py")
LOST = 75        # its status when its session ended with its sidecar
DURABLE, MORTAL, POISON, SPILL = range(4)
BEAT_S = 5       # a worker that is neither stopped nor starting does something at least this often
PROGRESS_S = 10  # the sinks get something at least this often
DRAIN_S = 30     # after the faults, all that was accepted comes to its end
TICKET_S = 0.25  # a ticket's time to live is over
READY_S = 20     # a sidecar that was started serves
OUTAGE_S, OUTAGES = 0.5, 8
KEYS = ("messages", "kills", "stops", "sidecar_kills", "recovery_ms_p50", "recovery_ms_max", "lost", "duplicates",
        "duplicates_unexplained", *calls.KEYS, "leaked", "corrupt", "stuck", "outage_throughput_ratio")
BAD = ("lost", "duplicates_unexplained", "calls_unexplained", "leaked", "corrupt", "stuck")


def plan(seed, seconds):
    """(moment, what, ...) of every fault, from the seed alone, in the order of the moments."""
    dice, at, faults = random.Random(seed), 0.0, []
    while (at := at + dice.uniform(0.02, 0.25)) < seconds:
        roll, worker, stage = dice.random(), dice.randrange(len(WORKERS)), dice.randrange(len(STAGES))
        moment, away = round(at, 3), round(dice.choice((0, 0.05, 0.3)) * dice.random(), 3)
        if roll < 0.44:
            faults.append((moment, "kill", (worker,), away))
        elif roll < 0.5:
            faults.append((moment, "sidecar_stop", (stage,), round(dice.choice((0.01, 0.2, 2)) * dice.random(), 3)))
        elif roll < 0.7:
            faults.append((moment, "stop", (worker,), round(dice.choice((0.01, 0.2, 2)) * dice.random(), 3)))
        elif roll < 0.75:  # all of one stage
            role = WORKERS[worker]
            faults.append((moment, "kill", tuple(i for i, name in enumerate(WORKERS) if name == role), away))
        elif roll < 0.87:
            faults.append((moment, "sidecar", (stage,), away))
        elif roll < 0.93:  # neighbours at once
            faults.append((moment, "sidecar", (stage, (stage + 1) % len(STAGES)), away))
        elif roll < 0.97:  # a sidecar and workers of its stage at once
            mine = [i for i, name in enumerate(WORKERS) if ROLE[name][1] == stage]
            faults.append((moment, "kill", tuple(dice.sample(mine, 2)), away))
            faults.append((moment, "sidecar", (stage,), away))
        else:
            faults.append((moment, "sidecar", tuple(range(len(STAGES))), away))
    return faults


class Pipeline:
    """The processes, and what has been seen of them."""

    def __init__(self, directory, program, seed, messages):
        self.program, self.seed, self.dice = program, seed, random.Random(seed + 1)
        self.ledger = Ledger(directory / "ledger", messages)
        self.ledger[Ledger.NEXT] = self.ledger[Ledger.SOCKET_LIMIT] = 1 + messages // 100
        block = {"when_full": "block", "attempts": 15}
        routes = [{"next": (["two"], block), "spill": (["one"], {"when_full": "drop-oldest", "attempts": 15})},
                  {"next": (["three"], block)}, {"next": (["four"], block)}, {}, {},
                  {"there": (["answer"], block), "here": (["ask"], {"when_full": "error"})}, {}]
        # Rings and inboxes are tiny: everything is full most of the time.
        self.sidecars = [Sidecar(directory, stage, routes[i], slots=24, cells=16, depth=(4, 16, 8, 8, 8, 8, 8)[i],
                                 clients={"max": 24, "spin_us": 20}, log={"level": "warn"})
                         for i, stage in enumerate(STAGES)]
        self.workers = [None] * len(WORKERS)
        self.stopped = {}          # worker, or -1 - stage -> when it goes on
        self.starting = []         # (when, worker), (when, -1 - stage)
        self.unreaped = {}         # pid -> when its death was seen, or when a sidecar came back that has to see to it
        self.dead_sidecars = {}    # stage -> True while it is away, then when it was started
        self.sidecar_deaths = [0] * len(STAGES)
        self.deaths_before = {}    # worker -> of its sidecar, before it was started
        self.recoveries = []       # seconds
        self.kills = self.stops = self.sidecar_kills = self.stuck = 0
        self.orphaned = 0
        self.errors = []
        self.progress = {}         # what -> how often, and when that was last seen to change

    # ---- processes ----

    def start_worker(self, index):
        role, stage = ROLE[WORKERS[index]]
        program = [sys.executable, SOCKET_WORKER] if WORKERS[index].startswith("socket") else [self.program]
        command = [*program, role, str(self.sidecars[stage].socket), str(self.ledger.path), str(index),
                   str(self.dice.randrange(1 << 32))]
        self.ledger.beat(index, time.monotonic_ns())
        self.deaths_before[index] = self.sidecar_deaths[stage]
        self.workers[index] = subprocess.Popen(command, stdin=subprocess.PIPE)

    def start(self):
        for sidecar in self.sidecars:
            sidecar.start(wait=False)
        for sidecar in self.sidecars:
            sidecar.wait_ready()
        self.rings = [sidecar.ring() for sidecar in self.sidecars]
        until(lambda: all(total == done for total, done in (ring.connected() for ring in self.rings)),
              "the stages are connected", 10)
        for index in range(len(WORKERS)):
            self.start_worker(index)

    def kill_worker(self, index):
        worker = self.workers[index]
        if worker is None:
            return False
        self.stopped.pop(index, None)
        self.count_death(ROUTE.get(WORKERS[index]))
        worker.kill()
        worker.wait()
        self.count_death(ROUTE.get(WORKERS[index]))
        if not self.lost_session(index) and worker.returncode != -signal.SIGKILL:  # between the last look and the kill
            self.fail(f"a {WORKERS[index]} ended with {worker.returncode}")
        self.kills += 1
        self.bury(index)
        return True

    def bury(self, index):
        """A dead worker's notes."""
        worker, self.workers[index] = self.workers[index], None
        self.unreaped[worker.pid] = time.monotonic()
        worker.stdin.close()
        for held in self.ledger.take_held(index):
            if ROLE[WORKERS[index]][0] == "caller":
                self.ledger.abandon(held)
            else:
                self.orphaned += 1
                self.ledger.orphan(held)

    def lost_session(self, index):
        """Whether it ended as one whose session ended with its sidecar, which indeed died."""
        return WORKERS[index].startswith("socket") and self.workers[index].returncode == LOST and \
            self.sidecar_deaths[ROLE[WORKERS[index]][1]] > self.deaths_before[index]

    def count_death(self, route):
        """Before it and after it: a caller tells by that whether one may have fallen into the time of a call."""
        if route is not None:
            self.ledger[Ledger.DEATHS + route] += 1

    def kill_sidecar(self, stage):
        if stage in self.dead_sidecars:
            return False
        sidecar = self.sidecars[stage]
        self.dead_sidecars[stage] = True
        self.stopped.pop(-1 - stage, None)
        self.unreaped[sidecar.process.pid] = time.monotonic()
        route = 0 if STAGES[stage] == "answer" else None  # the session of the socket's callee dies with it
        self.count_death(route)
        sidecar.kill()
        self.count_death(route)
        if sidecar.process.returncode != -signal.SIGKILL:
            self.fail(f"the sidecar of {STAGES[stage]} ended with {sidecar.process.returncode}: {sidecar.tail()}")
        self.sidecar_kills += 1
        self.sidecar_deaths[stage] += 1
        return True

    def start_sidecar(self, stage):
        """Started now, ready later: look_at_sidecars sees when."""
        self.sidecars[stage].start(wait=False)
        self.dead_sidecars[stage] = time.monotonic()

    # ---- looks ----

    def fail(self, text):
        self.stuck += 1
        self.errors.append(text)
        print(f"stuck: {text}", file=sys.stderr)

    def look_at_sidecars(self):
        now = time.monotonic()
        for stage, sidecar in enumerate(self.sidecars):
            if stage not in self.dead_sidecars and not sidecar.running():
                self.fail(f"the sidecar of {STAGES[stage]} ended with {sidecar.process.returncode}: {sidecar.tail()}")
                self.unreaped[sidecar.process.pid] = now
                self.start_sidecar(stage)
        for stage, since in list(self.dead_sidecars.items()):
            if since is True:
                continue
            if self.sidecars[stage].answers():
                del self.dead_sidecars[stage]
                for pid in self.unreaped:
                    self.unreaped[pid] = now
            elif now - since > READY_S:
                self.fail(f"the sidecar of {STAGES[stage]} does not come back: {self.sidecars[stage].tail()}")
                del self.dead_sidecars[stage]

    def look_at_the_dead(self):
        """Recovered: no ring knows the process any more. The clock stands while a sidecar is away or stopped."""
        if not self.unreaped or self.dead_sidecars or min(self.stopped, default=0) < 0:
            return
        known = {pid for ring in self.rings for _, _, pid, _ in ring.clients()}
        now = time.monotonic()
        for pid, since in list(self.unreaped.items()):
            if pid not in known:
                self.recoveries.append(now - since)
                del self.unreaped[pid]
            elif now - since > DRAIN_S:
                self.fail(f"process {pid} is dead and still known after {DRAIN_S} s")
                del self.unreaped[pid]

    def look_at_the_living(self):
        now = time.monotonic()
        received = 0
        for index, worker in enumerate(self.workers):
            line = self.ledger.worker(index)
            received += line[3]
            if worker is None or index in self.stopped:
                continue
            if worker.poll() is not None:
                if not self.lost_session(index):
                    self.fail(f"a {WORKERS[index]} ended with {worker.returncode}")
                self.bury(index)
                self.starting.append((now, index))
            elif now - line[1] / 1e9 > BEAT_S:
                self.fail(f"a {WORKERS[index]} (pid {worker.pid}) does nothing for {now - line[1] / 1e9:.1f} s")
                self.ledger.beat(index, time.monotonic_ns())
        self.look_at_progress("nothing arrived", received)
        for route, name in enumerate(calls.ROUTES):
            self.look_at_progress(f"no call {name} was answered", self.ledger[Ledger.OK + route])
        self.look_at_progress("no call by socket was answered", self.ledger[Ledger.SOCKET_OK])

    def look_at_progress(self, what, count):
        now = time.monotonic()
        before, since = self.progress.setdefault(what, (count, now))
        if count != before or now - since > PROGRESS_S:
            self.progress[what] = count, now
        if count == before and now - since > PROGRESS_S:
            self.fail(f"{what} for {PROGRESS_S} s\n{self.dump()}")

    def dump(self):
        return "\n".join(f"--- {stage}\n{ring.dump()}" for stage, ring in zip(STAGES, self.rings))

    def received(self):
        return sum(self.ledger.worker(index)[3] for index in range(len(WORKERS)))

    # ---- the run ----

    def due(self, now):
        for moment, what in list(self.starting):
            if moment <= now:
                self.starting.remove((moment, what))
                self.start_worker(what) if what >= 0 else self.start_sidecar(-1 - what)
        for index, moment in list(self.stopped.items()):
            if moment <= now:
                del self.stopped[index]
                if index < 0:
                    self.sidecars[-1 - index].process.send_signal(signal.SIGCONT)
                    self.unreaped = dict.fromkeys(self.unreaped, time.monotonic())
                else:
                    self.ledger.beat(index, time.monotonic_ns())
                    self.workers[index].send_signal(signal.SIGCONT)

    def strike(self, fault):
        _, what, whom, seconds = fault
        now = time.monotonic()
        for one in whom:
            if what == "kill" and self.kill_worker(one):
                self.starting.append((now + seconds, one))
            elif what == "stop" and self.workers[one] is not None and one not in self.stopped:
                self.workers[one].send_signal(signal.SIGSTOP)
                self.stopped[one] = now + seconds
                self.stops += 1
            elif what == "sidecar_stop" and one not in self.dead_sidecars and -1 - one not in self.stopped:
                self.sidecars[one].process.send_signal(signal.SIGSTOP)
                self.stopped[-1 - one] = now + seconds
                self.stops += 1
            elif what == "sidecar" and self.kill_sidecar(one):
                self.starting.append((now + seconds, -1 - one))

    def tick(self):
        self.due(time.monotonic())
        self.look_at_sidecars()
        self.look_at_the_dead()
        self.look_at_the_living()

    def faults(self, faults):
        start = time.monotonic()
        for fault in faults:
            while (left := start + fault[0] - time.monotonic()) > 0:
                self.tick()
                time.sleep(min(left, 0.002))
            self.strike(fault)

    def rate(self, seconds):
        before, start = self.received(), time.monotonic()
        while time.monotonic() - start < seconds:
            self.look_at_the_living()
            time.sleep(0.01)
        return (self.received() - before) / (time.monotonic() - start)

    def outages(self):
        """Messages/s at the sinks while a sidecar is away, over those right before."""
        before = during = 0.0
        for i in range(OUTAGES):
            stage = i % 4
            before += self.rate(OUTAGE_S)
            self.kill_sidecar(stage)
            during += self.rate(OUTAGE_S)
            self.start_sidecar(stage)
            self.wait(lambda: self.tick() or not self.dead_sidecars and not self.unreaped, "the sidecar is back")
        return during / before if before else 0.0

    def finish(self):
        """No more faults and sources; all comes to its end; everybody leaves. The slots and clients that stay."""
        self.wait(lambda: self.tick() or not (self.starting or self.stopped or self.dead_sidecars), "all are back")
        self.ledger[self.ledger.STOP] = 1

        def drained():
            self.progress.clear()  # nothing need come any more
            self.tick()
            return all(ring.phases()[FREE] == ring.slot_count
                       for stage, ring in zip(STAGES, self.rings) if stage != "tickets")
        self.wait(drained, "what was accepted comes to its end")
        time.sleep(TICKET_S)  # the audit after the last worker's leave ends all tickets
        for worker in self.workers:
            worker.stdin.close()
        for index, worker in enumerate(self.workers):
            try:
                if worker.wait(10) != 0 and not self.lost_session(index):
                    self.fail(f"a {WORKERS[index]} ended with {worker.returncode}")
            except subprocess.TimeoutExpired:
                self.fail(f"a {WORKERS[index]} does not end")
                kill_and_reap(worker)
        self.workers = [None] * len(WORKERS)
        self.wait(lambda: self.look_at_the_dead() or self.leaked() == 0, "rings are empty, all workers are forgotten")
        return self.leaked()

    def wait(self, condition, what):
        try:
            until(condition, what, DRAIN_S)
        except AssertionError:
            self.fail(f"{what}: not within {DRAIN_S} s\n{self.dump()}")

    def leaked(self):
        """Slots that are not free, by memory and by status, and clients that are no sidecars."""
        count = 0
        for sidecar, ring in zip(self.sidecars, self.rings):
            count += ring.slot_count - ring.phases()[FREE]
            count += sum(not name.endswith(" sidecar") for _, _, _, name in ring.clients())
        return count

    def status_leaks(self):
        """What `ringside status` tells that is not at rest."""
        count = 0
        for sidecar in self.sidecars:
            status = sidecar.status()
            for row in status["classes"]:
                count += row["slots"] - row["free"]
            count += sum(not client["name"].endswith(" sidecar") for client in status.get("clients", []))
        return count

    def entries(self):
        """The ledger's, a row of 8 bytes each."""
        end = min(self.ledger[Ledger.NEXT], self.ledger[Ledger.LIMIT])
        return numpy.frombuffer(self.ledger.memory, numpy.uint8, 8 * end, Ledger.HEAD).reshape(-1, 8)[1:]

    def account_calls(self):
        """The figures of calls; those that were stuck are told."""
        figures, stuck, words = calls.account(
            self.entries(), self.ledger[Ledger.REPLIES] + self.ledger[Ledger.SOCKET_REPLIES])
        if stuck:
            self.fail(f"{stuck} calls did not end")
        return figures, words

    def corrupt(self):
        return sum(self.ledger[word] for word in (Ledger.CORRUPT, Ledger.FAILED, Ledger.SOCKET_FAULTS))

    def account(self):
        """lost, duplicates, duplicates_unexplained, and the same in words."""
        ledger, rings = self.ledger, self.rings
        table = self.entries()
        table = table[table[:, 1] != calls.CALL]
        sent, kinds, orphaned = table[:, 0], table[:, 1], table[:, 3].astype(int)
        told = sent == ledger.ACCEPTED
        arrived = numpy.where(kinds == SPILL, table[:, 4], table[:, 7]).astype(int)
        # Where it was not sent, or although its sender was told that it was not, or never sent: nothing explains that.
        ghosts = table[:, 4:].astype(int).sum(axis=1) - arrived
        ghosts += numpy.where((sent == ledger.ACCEPTED) | (sent == ledger.TRIED), 0, arrived)
        again = numpy.maximum(arrived - 1, 0)
        duplicates = int((again + ghosts).sum())
        unexplained = int((numpy.maximum(again - orphaned, 0) + ghosts).sum())
        accepted = numpy.bincount(kinds[told], minlength=4).tolist()
        missing = numpy.bincount(kinds[told & (arrived == 0)], minlength=4).tolist()
        everywhere = lambda counter: sum(ring.total(counter) for ring in rings[:4])
        counted = [0, everywhere("expired"), everywhere("dead_lettered"), everywhere("dropped")]  # by kind
        # A process that dies between a step and its count takes that one count along.
        deaths = self.kills + self.sidecar_kills
        lost = missing[DURABLE]
        lost += sum(max(0, missing[kind] - counted[kind] - deaths) for kind in (MORTAL, POISON, SPILL))
        words = ", ".join(f"{name} {accepted[kind]} accepted {missing[kind]} missing {counted[kind]} counted"
                          for kind, name in enumerate(("durable", "mortal", "poison", "spill")))
        return lost, duplicates, unexplained, words

    def close(self):
        for worker in self.workers:
            if worker is not None:
                kill_and_reap(worker)
        for sidecar in self.sidecars:
            if sidecar.running():
                kill_and_reap(sidecar.process)


def run(arguments, directory):
    pipeline = Pipeline(directory, arguments.worker, arguments.seed, 150000 * int(arguments.seconds + 20))
    try:
        pipeline.start()
        time.sleep(0.5)
        ratio = pipeline.outages()
        pipeline.faults(plan(arguments.seed, arguments.seconds))
        leaked = pipeline.finish()
        leaked = max(leaked, pipeline.status_leaks())
        lost, duplicates, unexplained, words = pipeline.account()
        of_calls, call_words = pipeline.account_calls()
        for sidecar in pipeline.sidecars:
            if sidecar.stop() != 0:
                pipeline.fail(f"the sidecar of {sidecar.stage} ended badly: {sidecar.tail()}")
            for line in sidecar.log.read_text(errors="replace").splitlines():
                if " error " in line:  # none of the faults is one
                    pipeline.fail(f"the sidecar of {sidecar.stage} says: {line}")
        left = [path.name for path in (directory / "ring").iterdir()]
        leaked += len(left)
        ledger = pipeline.ledger
        recoveries = pipeline.recoveries or [0.0]
        if call_words:
            print(f"calls: {call_words}", file=sys.stderr)
        if arguments.verbose or lost or leaked or pipeline.stuck:
            print(words, file=sys.stderr)
            print(", ".join(f"{name} {sum(ring.total(name) for ring in pipeline.rings[:4])}" for name in
                            ("requeued", "nacked", "overflows", "forwarded", "forward_copies")), file=sys.stderr)
            print(f"left over: {left}; ids that somebody died with: {pipeline.orphaned}; "
                  f"calls by socket: {ledger[Ledger.SOCKET_NEXT]}", file=sys.stderr)
        sent = sum(ledger.worker(index)[2] for index in range(len(WORKERS)))
        p50, worst = (round(1000 * figure, 2) for figure in (statistics.median(recoveries), max(recoveries)))
        return dict(zip(KEYS, (
            sent, pipeline.kills, pipeline.stops, pipeline.sidecar_kills, p50, worst, lost, duplicates, unexplained,
            *of_calls.values(), leaked, pipeline.corrupt(), pipeline.stuck, round(ratio, 3))))
    finally:
        pipeline.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, prog="run chaos")
    parser.add_argument("--seconds", type=float, default=60, help="of faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan of faults (default: 1)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--plan", action="store_true", help="print the plan of faults and do nothing")
    parser.add_argument("--verbose", action="store_true", help="tell what was accepted, missing and counted")
    parser.add_argument("--worker", default=os.environ.get("RINGSIDE_CHAOS_WORKER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plan:
        for fault in plan(arguments.seed, arguments.seconds):
            print(*fault)
        return 0
    with tempfile.TemporaryDirectory(prefix="ringside-chaos-", dir="/dev/shm") as directory:
        figures = run(arguments, pathlib.Path(directory))
    width = max(map(len, figures))
    for key, value in figures.items():
        print(f"{key:{width}}  {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures) + "\n")
    return int(any(figures[key] for key in BAD))


if __name__ == "__main__":
    sys.exit(main())

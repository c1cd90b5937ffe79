# SPDX-License-Identifier: Apache-2.0
"""Three stages with a living worker each, into which test_kill.py sends those that die."""
import os
import pathlib
import signal
import struct
import subprocess
import tempfile
import time

import control_pb2 as pb
import ttrpc_client
from harness import ALIVE, FREE, LOANED, Failpoints, Ledger, Sidecar, kill_and_reap, until

ACTOR, NAMES = os.environ["RINGSIDE_ACTOR"], os.environ["RINGSIDE_FAILPOINTS"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
STAGES = "abc"
SLOTS, CELLS = 12, 8
TICKET_MS = 400 # a ticket that nobody knows of ends by its time to live alone
BODY_BYTES = 1024
BOUND_S = 5   # for everything to be as before after a death
WAIT_S = 3    # what a survivor may have to wait
MASK = (1 << 64) - 1


def mix(value):
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9 & MASK
    value = (value ^ value >> 27) * 0x94d049bb133111eb & MASK
    return value ^ value >> 31


def body_of(number, ticket):
    """What ledger_fill of ledger.c writes."""
    seed = mix(number) ^ ticket
    words = [mix(seed + i * 0x9e3779b97f4a7c15 & MASK) for i in range(3, BODY_BYTES // 8)]
    return struct.pack(f"<{BODY_BYTES // 8}Q", number, ticket, BODY_BYTES, *words)


class Keeper:
    """A worker that outlives all others and does what it is told."""

    def __init__(self, world, stage):
        self.stage = stage
        self.process = subprocess.Popen(world.actor(stage, f"keeper {stage}"), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)

    def begin(self, command):
        self.process.stdin.write(command + "\n")

    def end(self):
        words = self.process.stdout.readline().split(" ", 1)
        assert words[0], f"the keeper of {self.stage} ended with {self.process.wait()}"
        self.text = words[1].strip()
        return int(words[0])

    def __call__(self, command):
        self.begin(command)
        return self.end()


class Session:
    """A worker that lets its sidecar take every step; in a process of its own, so that it can be gone."""

    def __init__(self, world, stage):
        self.world, self.stage = world, stage
        self.client = ttrpc_client.Client(world.sidecars[stage].socket, timeout=5)
        self.client.attach(name="session")
        self.held = []

    def loan(self):
        return self.client.call("Loan", pb.LoanRequest(tensors=[pb.Tensor(dtype=pb.UINT8, shape=[BODY_BYTES])]),
                                pb.LoanResponse, 2)

    def abandon(self):
        self.client.call("Abandon", pb.LeaseRequest(lease=self.loan().lease))

    def fill(self, loan):
        ledger = self.world.ledger
        number = ledger[ledger.NEXT]
        ledger[ledger.NEXT] = number + 1
        with open(loan.body_path, "r+b") as file:
            file.seek(loan.slot_offset + loan.tensors[0].offset)
            file.write(body_of(number, loan.lease.ticket))
        return ledger.HEAD + 8 * number

    def send(self, route):
        ledger, loan = self.world.ledger, self.loan()
        at = self.fill(loan)
        stages = "b" if route == "drop" else route
        ledger.memory[at] = ledger.TRIED
        ledger.memory[at + 1] = route == "drop"
        ledger.memory[at + 2] = sum(1 << STAGES.index(stage) for stage in stages)
        self.client.send(loan.lease, route=route)
        ledger.memory[at] = ledger.ACCEPTED

    def hold(self):
        message = self.client.receive(timeout=2)
        with open(message.body_path, "rb") as file:
            file.seek(message.slot_offset + message.tensors[0].offset)
            body = file.read(BODY_BYTES)
        number, ticket = struct.unpack_from("<QQ", body)
        assert body == body_of(number, ticket)
        assert ticket == message.lease.ticket or ticket >> 48 != message.lease.ticket >> 48
        self.held.append((message, number))

    def release(self):
        message, number = self.held.pop()
        at = self.world.ledger.HEAD + 8 * number + 4 + STAGES.index(self.stage)
        self.world.ledger.memory[at] += 1
        self.client.release(message.lease)

    def nack(self):
        self.client.call("Nack", pb.LeaseRequest(lease=self.held.pop()[0].lease))

    def forward(self, route):
        message, number = self.held.pop()
        at = self.world.ledger.HEAD + 8 * number + 3
        self.world.ledger.memory[at] |= sum(1 << STAGES.index(stage) for stage in route)
        self.client.call("Forward", pb.ForwardRequest(lease=message.lease, route=route), pb.ForwardResponse, 2)

    def begin(self, route):
        loan = self.client.call("Loan", pb.LoanRequest(tensors=[pb.Tensor(dtype=pb.UINT8, shape=[BODY_BYTES])],
                                                       metadata_bytes=64), pb.LoanResponse, 2)
        self.fill(loan)
        request = pb.CallRequest(lease=loan.lease, route=route, method="method")
        return self.client.begin("Call", request.SerializeToString(), 2)

    def call(self, route):
        reply = self.client.end(self.begin(route), pb.CallResponse).message
        self.client.release(reply.lease)

    def cancel(self, route):
        """A call that somebody holds is given up with its connection."""
        self.begin(route)
        time.sleep(0.03)

    def answer(self):
        request = self.client.receive(timeout=2).lease
        loan = self.loan()
        self.fill(loan)
        self.client.call("Reply", pb.ReplyRequest(request=request, reply=loan.lease), timeout=2)
        self.client.release(request)

    def tickets(self):
        """Every way of reading by ticket."""
        share = lambda **how: self.fill(loan := self.loan()) and self.client.call(
            "Share", pb.ShareRequest(lease=loan.lease, **how), pb.ShareResponse)
        read = lambda ticket: self.client.call("Read", pb.ReadRequest(ticket=ticket), pb.ReadResponse).message
        once, kept = share(readers=1).ticket, share(kept=True).ticket
        self.client.release(read(once).lease)
        try:
            read(kept ^ 1 << 16)
            raise AssertionError("a reading of a ticket that never was")
        except ttrpc_client.Refused as error:
            assert error.name == "STALE_TICKET"
        self.client.call("Free", pb.FreeRequest(ticket=kept))


class World:
    """Everything of a run; broken once a check has failed."""

    def __init__(self):
        self.place = tempfile.TemporaryDirectory(prefix="ringside-kill-", dir="/dev/shm")
        self.directory = pathlib.Path(self.place.name)
        self.names = subprocess.run([NAMES], capture_output=True, text=True, check=True).stdout.split()
        self.ledger = Ledger(self.directory / "ledger", 1 << 20)
        self.checked = 1  # ids below it have been accounted for
        self.broken = True
        block, drop, error = ({"when_full": what, "attempts": 3} for what in ("block", "drop-oldest", "error"))
        routes = {"a": {"b": ("b", block), "bc": ("bc", block), "drop": ("b", drop), "a": ("a", error)},
                  "b": {"c": ("c", block), "ca": ("ca", block)}, "c": {}}
        settings = {"clients": {"max": 24, "spin_us": 20}, "tickets": {"ttl_ms": TICKET_MS}}
        self.sidecars = {stage: Sidecar(self.directory, stage, routes[stage], SLOTS, CELLS, **settings)
                         for stage in STAGES}
        self.points = {stage: Failpoints(self.sidecars[stage].failpoints, self.names) for stage in STAGES}
        self.victim_points = Failpoints(self.directory / "victim.failpoints", self.names)
        self.keepers, self.rings, self.baseline = {}, {}, None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        for sidecar in self.sidecars.values():
            sidecar.start(wait=False)
        for sidecar in self.sidecars.values():
            sidecar.wait_ready()
        self.rings = {stage: self.sidecars[stage].ring() for stage in STAGES}
        for stage in STAGES:
            self.keepers[stage] = Keeper(self, stage)
        self.warm_up()
        self.broken = False

    def close(self):
        for keeper in self.keepers.values():
            keeper.process.stdin.close()
            kill_and_reap(keeper.process)
            keeper.process.stdout.close()
        for sidecar in self.sidecars.values():
            if sidecar.running():
                sidecar.kill()
        self.place.cleanup()

    def actor(self, stage, name, *commands):
        return [ACTOR, str(self.sidecars[stage].socket), str(self.ledger.path), str(STAGES.index(stage)), name,
                *commands]

    def names_of(self, stage):
        clients = list(self.rings[stage].clients())
        return sorted(name for _, phase, _, name in clients if phase == ALIVE), \
            all(phase == ALIVE for _, phase, _, _ in clients)

    def warm_up(self):
        """Everybody has met everybody: rings are opened, stages introduced to each other."""
        until(lambda: all(total == done for total, done in (self.rings[s].connected() for s in STAGES)) and
              self.rings["a"].connected()[0] >= 2, "the stages are connected", 10)
        until(self.forwards_in_place, "b forwards to c in place", 10)
        self.keepers["b"].begin("serve 1 1 2000")
        assert self.keepers["a"]("call b 1 1") == 1 and self.keepers["b"].end() == 1
        assert self.keepers["a"]("send bc 1") == 1 and self.keepers["b"]("send ca 1") == 1
        until(lambda: sum([self.keepers[s]("take 8 20") > 0 for s in STAGES]) == 0 and self.all_free(),
              "all is taken", 10)
        time.sleep(0.1)
        self.baseline = {stage: self.names_of(stage)[0] for stage in STAGES}
        self.links = {stage: self.rings[stage].connected() for stage in STAGES}
        self.settle("warm-up")

    def forwards_in_place(self):
        copies = self.rings["b"].total("forward_copies")
        assert self.keepers["a"]("send b 1") == 1 and self.keepers["b"]("hold 1 2000") == 1
        assert self.keepers["b"]("forward c") == 1 and self.keepers["c"]("take 1 2000") == 1
        return self.rings["b"].total("forward_copies") == copies

    # ---- checks ----

    def all_free(self):
        return all(ring.phases() == [SLOTS, 0, 0, 0] for ring in self.rings.values())

    def is_as_before(self):
        return self.all_free() and all(self.names_of(s) == (self.baseline[s], True) for s in STAGES) and \
            all(self.rings[s].connected() == self.links[s] for s in STAGES)

    def tell(self):
        return "\n".join(f"--- {s}: {self.names_of(s)} wanted {self.baseline and self.baseline[s]}\n"
                         f"{self.rings[s].dump()}\n{self.sidecars[s].tail(12)}" for s in STAGES)

    def give_back(self):
        """What the keepers hold for a scenario."""
        for keeper in self.keepers.values():
            keeper("release")
            keeper("abandon")
            keeper("cancel 0")

    def take_all(self):
        for keeper in self.keepers.values():
            keeper("take 64 1")

    def settle(self, what):
        """Survivors take what there is until all is as before; then they work as before. The seconds it took."""
        start = time.monotonic()
        def calm():
            self.take_all()
            if not self.is_as_before() and time.monotonic() - start > TICKET_MS / 1000:
                self.pass_by("a")  # the audit after it ends the tickets
            return self.is_as_before()
        took = until(calm, lambda: f"{what}: as before\n{self.tell()}", BOUND_S)
        start = time.monotonic()
        for stage in STAGES:
            keeper = self.keepers[stage]
            assert keeper(f"loan {SLOTS} {WAIT_S * 1000}") == SLOTS, f"{what}: all slots of {stage}: {self.tell()}"
            assert keeper("abandon") == SLOTS
        for stage in "bc":
            self.keepers[stage].begin(f"take 4 {WAIT_S * 1000}")
        assert self.keepers["a"]("send bc 4") == 4, f"{what}: send: {self.tell()}"
        for stage in "bc":
            got = self.keepers[stage].end()
            assert got == 4, f"{what}: {stage} took {got} of 4: {self.tell()}"
        until(self.all_free, lambda: f"{what}: free again\n{self.tell()}", WAIT_S)
        waited = time.monotonic() - start
        assert waited < WAIT_S, f"{what}: survivors waited {waited:.3f} s"
        return took

    def account(self, what, ended_before, deaths):
        """Every accepted message arrived or was counted; none arrived twice without a death."""
        ledger = self.ledger
        assert ledger[ledger.CORRUPT] == 0, what
        missing = []
        for number in range(self.checked, ledger[ledger.NEXT]):
            sent, kind, wanted, turned, *arrived = ledger.message(number)
            for stage in range(len(STAGES)):  # sent there, and by b once more
                ways = 1 + ((wanted & turned) >> stage & 1)
                assert arrived[stage] <= ways + deaths, f"{what}: message {number} arrived {arrived} times"
            assert sent != ledger.REFUSED or not any(arrived), f"{what}: message {number} was refused, and arrived"
            if sent != ledger.ACCEPTED:
                continue
            for stage in range(len(STAGES)):
                if not wanted >> stage & 1 or arrived[stage]:
                    continue
                elsewhere = [bool(arrived[i]) for i in range(len(STAGES)) if turned >> i & 1]
                if not (turned and stage == 1 and all(elsewhere)):
                    missing.append((number, kind, wanted, turned, arrived))
        self.checked = ledger[ledger.NEXT]
        ended = sum(ring.accounted() for ring in self.rings.values()) - ended_before
        return missing, ended

    def in_vain(self, stage, command):
        """Whether a survivor that got nothing waited for what indeed was not there. Nobody else takes anything now."""
        verb, what, *_ = command.split() + [""]
        if verb in ("call", "await"):  # nobody had taken it: else its sweep would have said so
            return self.rings["a"].total("dead_lettered") == self.dead_letters
        if verb == "serve":
            return True  # whoever calls died before
        if verb == "loan":
            return self.rings["a"].phases()[FREE] < int(what)
        if verb == "send":
            return self.rings["b"].depth() >= CELLS
        return not any(stage in ring.queued() for ring in self.rings.values())

    # ---- those who die ----

    def run_actor(self, stage, commands, meanwhile=None):
        """A worker that plays the commands; its exit status."""
        environment = {**os.environ, "RINGSIDE_FAILPOINT_LOG": str(self.directory / "victim.failpoints")}
        victim = subprocess.Popen(self.actor(stage, "victim", *commands), env=environment)
        if meanwhile:
            until(lambda: victim.poll() is not None or self.rings[stage].phases()[LOANED], "it has a loan", 5)
            meanwhile(self)
        return victim.wait(20)

    def run_stopped_actor(self, stage, commands):
        """A worker that stops at the armed point, stands still while others work, and goes on. Whether it stopped."""
        environment = {**os.environ, "RINGSIDE_FAILPOINT_LOG": str(self.directory / "victim.failpoints")}
        victim = subprocess.Popen(self.actor(stage, "victim", *commands), env=environment)
        stands = lambda: victim.poll() is None and \
            pathlib.Path(f"/proc/{victim.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
        until(lambda: victim.poll() is not None or stands(), "it stops or ends", 10)
        stopped = victim.poll() is None
        if stopped:
            known = [self.names_of(s)[0].count("victim") for s in STAGES]
            self.give_back()
            for _ in range(3):  # nobody waits for it, and what it holds stays its own
                self.take_all()
                assert self.keepers["a"]("send b 1 0 500") == 1, f"send beside a stopped worker\n{self.tell()}"
                assert self.keepers["b"]("take 1 500") == 1, f"take beside a stopped worker\n{self.tell()}"
            assert known == [self.names_of(s)[0].count("victim") for s in STAGES], f"taken from the living\n{self.tell()}"
            victim.send_signal(signal.SIGCONT)
        assert victim.wait(20) in (0, 1)  # 1: what it wanted went to others meanwhile
        return stopped

    def fork(self, play):
        """Plays in a child; True when it came to its end, False when the sidecar broke the connection."""
        child = os.fork()
        if child == 0:
            status = 3
            try:
                play()
                status = 0
            except (OSError, EOFError, ttrpc_client.Refused) as error:
                status = 1 if isinstance(error, OSError) or error.name == "UNAVAILABLE" else 2
                if status == 2:
                    print(repr(error), flush=True)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 1), f"the session ended with {status}"
        return status == 0

    def died(self, stage, seconds=1.2):
        """Whether the armed sidecar came to its point, now or soon."""
        end = time.monotonic() + seconds
        while self.sidecars[stage].running() and time.monotonic() < end:
            if not self.points[stage].armed():
                time.sleep(0.01)
                continue
            time.sleep(0.002)
        return not self.sidecars[stage].running()

    def until_served(self, stage):
        """Until it serves and has its links, or is dead again."""
        sidecar = self.sidecars[stage]
        def done():
            return not sidecar.running() or (sidecar.listens() and self.rings[stage].connected() == self.links[stage])
        until(done, lambda: f"{stage} serves: {sidecar.tail()}", 10)

    def pass_by(self, stage):
        """Somebody comes and goes: a sweep and an audit of that ring."""
        subprocess.run(self.actor(stage, "passing", "sleep 0"), timeout=20, stderr=subprocess.DEVNULL)

    def ensure_running(self):
        for sidecar in self.sidecars.values():
            if not sidecar.running():
                sidecar.process.wait()
                assert sidecar.process.returncode == -signal.SIGKILL, f"{sidecar.stage}: {sidecar.tail()}"
                sidecar.start()

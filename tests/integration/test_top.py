# SPDX-License-Identifier: Apache-2.0
"""`ringside top` on a real pseudo-terminal and without one, and what a shell completes."""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from cli import OK, RINGSIDE, UNREACHABLE, environment, lines, ringside
from daemon import wait_for
from fake_sidecar import FakeSidecar, HangUp, control

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
COMPLETION = pathlib.Path(__file__).resolve().parents[2] / "client/cli/ringside.bash-completion"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sock"


def a_status(sent=0, **fields):
    status = control.StatusResponse(**{"stage": "features", "state": "serving", "inbox_depth": 3, "inbox_limit": 64,
                                       "incarnation": bytes(range(16)), **fields})
    status.classes.add(slot_bytes=262144, slots=256, free=200, loaned=5, sealed=51)
    status.classes.add(slot_bytes=16 << 20, slots=16, free=15, quarantined=1)
    status.totals.sent, status.totals.received, status.totals.sent_bytes = sent, 3 * sent, 10**6 * sent
    return status


def a_slot(state, age_ns, number=0, slot_bytes=262144, client="worker"):
    slot = control.Slot(slot=number, text=f"rst1-0001{number:05x}000000ab-5f3a9c11-772c", slot_bytes=slot_bytes)
    slot.tensors.add(dtype=control.FLOAT32, shape=[4], bytes=16)
    slot.holders.add(state=state, age_ns=age_ns, client=client)
    return slot


def top(*arguments, path=""):
    """Two looks soon after another; what the arguments say wins. A busy machine may take its time to answer."""
    return ringside("top", "-i", "0.05", "-t", "10", *arguments, path=path)


def serve(path, statuses, *slots):
    """A sidecar that gives these statuses in turn, the last again and again, and always these slots."""
    statuses = list(statuses)

    def status(_):
        return statuses.pop(0) if len(statuses) > 1 else statuses[0]

    return FakeSidecar(path, {"Status": status, "List": lambda _: control.ListResponse(slots=slots)})


# ---- Reports ----

def test_rates_are_of_two_looks(path):
    begin = time.monotonic()
    with serve(path, [a_status(100), a_status(150)]):
        [report] = lines(top("--once", "-j", "-i", "0.1", path=path))
    [stage] = report["stages"]
    assert stage["stage"] == "features" and stage["error"] is None
    assert 50 / (time.monotonic() - begin) < stage["sent_per_s"] <= 50 / 0.1
    assert stage["received_per_s"] == pytest.approx(3 * stage["sent_per_s"])
    assert stage["sent_bytes_per_s"] == pytest.approx(10**6 * stage["sent_per_s"])
    assert stage["hand_off"] is None and stage["queued"] == {"seen": 0}


@pytest.mark.parametrize("second", [a_status(99), a_status(150, incarnation=bytes(16))])
def test_no_rate_of_two_rings(second, path):
    with serve(path, [a_status(100), second]):
        [report] = lines(top("--once", "-j", path=path))
        assert report["stages"][0]["sent_per_s"] is None
    path.unlink()
    with serve(path, [a_status(100), second]):
        assert "serving       -       -     -" in top("-i", "0.05", path=path).stdout


def test_ages_and_holders(path):
    slots = [a_slot("queued", n * 10**6, n) for n in range(1, 100)]
    slots += [a_slot("held", 5 * 10**9, 200, client="slow"), a_slot("loaned", 10**9, 201), a_slot("kept", 10**12, 202),
              a_slot("reading", 2 * 10**9, 203, 16 << 20)]
    with serve(path, [a_status()], *slots):
        [report] = lines(top("--once", "-j", path=path))
        text = top("-i", "0.05", path=path).stdout.splitlines()
    [stage] = report["stages"]
    assert stage["queued"] == {"seen": 198, "min_ns": 10**6, "p50_ns": 50 * 10**6, "p99_ns": 99 * 10**6,
                               "max_ns": 99 * 10**6}
    assert stage["holders"] == 3
    assert [entry["oldest"]["client"] for entry in stage["classes"]] == ["slow", "worker"]
    assert stage["classes"][0]["oldest"]["age_ns"] == 5 * 10**9
    assert {k: stage["classes"][0][k] for k in ("free", "loaned", "sealed", "quarantined")} == \
        {"free": 200, "loaned": 5, "sealed": 51, "quarantined": 0}
    assert text[1].split() == ["features", "serving", "0.0", "0.0", "0.0", "3/64", "50ms", "99ms", "-"]
    assert text[4].split() == ["features", "256Ki", "256", "200", "5", "51", "0", "5s", "slow", "held"]
    assert text[5].split() == ["16Mi", "16", "15", "0", "0", "1", "2s", "worker", "reading"]
    assert [line.split()[:2] for line in text[8:]] == [["5s", "held"], ["2s", "reading"], ["1s", "loaned"]]


def test_of_a_real_stage(start):
    sidecar = start(stage="latent")
    with sidecar.client() as worker:
        worker.attach("the worker")
        worker.send(worker.loan(shape=(100,)).lease)
        worker.send(worker.loan(shape=(100,)).lease)
        worker.receive()
        [report] = lines(top(sidecar.socket, "-j"))
        [stage] = report["stages"]
        assert stage["inbox_depth"] == 1 and stage["queued"]["seen"] == 2 and stage["holders"] == 1
        oldest = stage["classes"][0]["oldest"]
        assert (oldest["state"], oldest["client"], oldest["bytes"]) == ("held", "the worker", 100)
        assert len(worker.slots()) == 2


def test_a_sidecar_that_is_away_hides_no_other(path, tmp_path):
    def hang_up(_):
        raise HangUp

    with serve(path, [a_status()]), FakeSidecar(tmp_path / "h", {"Status": hang_up}):
        for arguments in ([], ["-j"]):
            result = top(tmp_path / "nobody", path, tmp_path / "h", *arguments)
            assert result.returncode == UNREACHABLE and "nobody" in result.stderr
            if arguments:
                away, there, gone = json.loads(result.stdout)["stages"]
                assert there["stage"] == "features" and set(away) == set(gone) == {"socket", "error"}
                assert "running?" in away["error"]
            else:
                assert result.stdout.count("no answer") == 2 and "features" in result.stdout


def test_a_sidecar_that_hangs_is_not_waited_for_long(path):
    with serve(path, [a_status()]):
        hung = str(path) + "2"
        with FakeSidecar(hung, {"Status": lambda _: time.sleep(3) or a_status()}):
            result = ringside("top", hung, path, "-i", "0.2")
    assert result.returncode == UNREACHABLE and "TIMEOUT" in result.stdout and "features" in result.stdout


def test_pages_that_never_end(path):
    slots = [a_slot("queued", 1)]
    with FakeSidecar(path, {"Status": lambda _: a_status(),
                            "List": lambda r: control.ListResponse(slots=slots, next_slot=r.first_slot + 1)}) as fake:
        result = top("-i", "0.05", path=path)
        assert result.returncode == OK and "features: more slots in use" in result.stdout
        assert sum(method == "List" for method, _ in fake.requests) == 32
    path.unlink()
    with FakeSidecar(path, {"Status": lambda _: a_status(),
                            "List": lambda _: control.ListResponse(next_slot=3)}) as fake:
        assert top("-i", "0.05", path=path).returncode == OK
        assert sum(method == "List" for method, _ in fake.requests) == 4


def test_count(path):
    with serve(path, [a_status()]):
        assert len(lines(top("-n3", "-j", "-i", "0.02", path=path))) == 3
        assert top("-n3", "-i", "0.02", path=path).stdout.count("SENT/s") == 3


# ---- The screen ----

class Terminal:
    """top on a pseudo-terminal of its own."""

    def __init__(self, *arguments, path, rows=24, columns=80):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        self.process = subprocess.Popen(
            [RINGSIDE, "top", "-i", "0.05", "-t", "10", *map(str, arguments)],
            env={**environment(path), "TERM": "xterm"}, stdin=self.slave, stdout=self.slave,
            stderr=self.slave, preexec_fn=self._own)

    def _own(self):
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        if select.select([self.master], [], [], 0.02)[0]:
            self.output += os.read(self.master, 1 << 16)
        return self.output

    def frames(self):
        """Whole pictures since the last clear(), as lists of lines."""
        return [re.sub(rb"\x1b\[K|\r", b"", frame[:-3]).decode().split("\n")
                for frame in self.read().split(b"\x1b[H")[1:] if frame.endswith(b"\x1b[J")]

    def frame(self, condition=lambda frame: True):
        self.output = b""
        return wait_for(lambda: next((frame for frame in self.frames() if condition(frame)), None))

    def key(self, key):
        os.write(self.master, key)

    def end(self):
        wait_for(lambda: self.read() is None or self.process.poll() is not None)
        while select.select([self.master], [], [], 0.05)[0]:
            self.output += os.read(self.master, 1 << 16)
        return self.process.returncode

    def is_restored(self):
        return self.output.endswith(b"\x1b[?7h\x1b[?25h" + LEAVE) and termios.tcgetattr(self.slave) == self.before

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal():
    terminals = []

    def launch(*arguments, **keywords):
        terminals.append(Terminal(*arguments, **keywords))
        return terminals[-1]

    yield launch
    for each in terminals:
        each.close()


def fits(frame, rows, columns):
    return len(frame) <= rows and max(map(len, frame)) <= columns


def test_fits_80_x_24_whatever_there_is(path, terminal):
    slots = [a_slot("held", 10**9 * n, n, client="\x1b[2J" + "w" * 60) for n in range(1, 60)]
    status = a_status(10**12, stage="f\u00e9" + "\x1b" * 30, inbox_depth=10**6, inbox_limit=10**6)
    with serve(path, [status], *slots):
        frame = terminal(path=path).frame()
    assert fits(frame, 24, 80) and len(frame) == 24, frame
    assert "59s" in "".join(frame) and "more lines" in frame[-1]
    assert not any(character < " " for line in frame for character in line)


def test_many_stages_are_cut(path, terminal):
    with serve(path, [a_status()]):
        shown = terminal(*[path] * 40, path=path)
        frame = shown.frame()
        assert fits(frame, 24, 80) and len(frame) == 24
        shown.resize(100, 132)
        assert "SLOTS OF" in "".join(shown.frame(lambda f: len(f) > 80))


def test_follows_the_size(path, terminal):
    with serve(path, [a_status()], a_slot("held", 10**9)):
        shown = terminal("-i", "1000", path=path)  # no look would redraw it
        assert len(shown.frame()) == 10
        for rows, columns in ((5, 60), (2, 20), (1, 1), (40, 200)):
            shown.resize(rows, columns)
            frame = shown.frame(lambda f, rows=rows: len(f) == min(rows, 10))
            assert fits(frame, rows, columns), frame


@pytest.mark.parametrize("end, code", [
    (lambda t: t.key(b"q"), 0),
    (lambda t: t.key(b"xQ"), 0),
    (lambda t: t.key(b"\x03"), -signal.SIGINT),
    (lambda t: t.key(b"\x1c"), -signal.SIGQUIT),
    (lambda t: t.process.send_signal(signal.SIGTERM), -signal.SIGTERM),
    (lambda t: t.process.send_signal(signal.SIGHUP), -signal.SIGHUP),
])
def test_restores_the_terminal(end, code, path, terminal):
    with serve(path, [a_status()]):
        shown = terminal(path=path)
        shown.frame()
        assert termios.tcgetattr(shown.slave) != shown.before
        end(shown)
        assert shown.end() == code and shown.is_restored()


def test_restores_the_terminal_while_a_sidecar_hangs(path, terminal):
    with FakeSidecar(path, {"Status": lambda _: time.sleep(3) or a_status()}):
        shown = terminal("-t", "30", path=path)
        wait_for(lambda: ENTER in shown.read())
        shown.process.send_signal(signal.SIGTERM)
        assert shown.end() == -signal.SIGTERM and shown.is_restored()


def test_gives_the_terminal_back_while_it_is_stopped(path, terminal):
    with serve(path, [a_status()]):
        shown = terminal(path=path)
        shown.frame()
        shown.key(b"\x1a")
        wait_for(lambda: os.waitpid(shown.process.pid, os.WUNTRACED | os.WNOHANG)[0])
        assert shown.process.poll() is None
        while select.select([shown.master], [], [], 0.05)[0]:
            shown.read()
        assert shown.is_restored()
        shown.output = b""
        shown.process.send_signal(signal.SIGCONT)
        wait_for(lambda: ENTER in shown.read())
        shown.frame()
        shown.key(b"q")
        assert shown.end() == 0 and shown.is_restored()


def test_a_sidecar_that_comes_back(path, terminal):
    shown = terminal(path=path)
    shown.frame(lambda f: "no answer" in f[2])
    with serve(path, [a_status()]):
        shown.frame(lambda f: "serving" in f[2])
    shown.frame(lambda f: "no answer" in f[2])
    shown.key(b"q")
    assert shown.end() == 0


# ---- Completion ----

def complete(*words, socket=""):
    """What bash offers for the last of the words."""
    script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ringside; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    result = subprocess.run(["bash", "-uc", script, "bash", COMPLETION, RINGSIDE, *words], env=environment(socket),
                            text=True, capture_output=True, timeout=60, check=True)
    assert result.stderr == ""
    return result.stdout.split()


def test_completes_commands_and_options():
    everything = complete("")
    assert {"status", "ls", "describe", "send", "recv", "call", "share", "read", "free", "tap", "routes", "top", "ping",
            "bench", "drain", "help"} == set(everything)
    assert complete("d") == ["describe", "drain"] and complete("help", "rec") == ["recv"]
    assert complete("-s", "/x", "rec") == ["recv"] and complete("--socket", "=", "/x", "rec") == ["recv"]
    assert complete("recv", "--o") == ["--output"] and complete("--ver") == ["--version"]
    assert set(complete("send", "r", "--")) >= {"--each", "--ttl", "--meta", "--dtype", "--json", "--socket"}
    assert complete("send", "--dtype", "bf") == ["bfloat16"] and complete("recv", "-n", "") == []


def test_every_option_in_the_help_is_offered():
    for command in complete(""):
        text = ringside("help", command).stdout if command != "help" else ""
        offered = set(complete(command, "--"))
        assert set(re.findall(r"^    (?:-., )?(--[a-z-]+)", text, re.M)) <= offered, command


def test_completes_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.npy", "a.txt"):
        pathlib.Path(name).touch()
    pathlib.Path("arrays").mkdir()
    assert sorted(complete("send", "route", "a")) == ["a.npy", "arrays"]
    assert sorted(complete("share", "a")) == ["a.npy", "arrays"]
    assert complete("recv", "-o", "a") == ["arrays"]
    assert sorted(complete("call", "route.Method", "a")) == ["a.npy", "arrays"]
    assert sorted(complete("--socket", "=", "a")) == ["a.npy", "a.txt", "arrays"]


def test_completes_routes(start, tmp_path):
    sidecar = start(routes={"embeddings": {"to": [f"unix:{tmp_path}/x"]}})
    assert complete("send", "", socket=sidecar.socket) == ["self", "embeddings"]
    assert complete("tap", "-n", "3", "em", socket=sidecar.socket) == ["embeddings"]
    assert complete("call", "em", socket=sidecar.socket) == ["embeddings."]
    assert complete("send", "-s", sidecar.socket, "s", socket="/nobody") == ["self"]
    assert complete("-s", sidecar.socket, "tap", "s") == ["self"]
    assert complete("send", "", socket="/nobody") == []

# SPDX-License-Identifier: Apache-2.0
"""Sidecars and workers of different users, in namespaces of their own: only descriptors join them, and no pid is trusted."""
import array
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

import daemon as daemon_module
import worker as worker_module
from daemon import wait_for
from machine import is_sanitized, root, sidecar  # noqa: F401
from worker import Failed, Worker

NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
PIDS = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def as_user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


@pytest.fixture(autouse=True)
def programs(place, monkeypatch):
    """Copies of the programs where any user may run them; the build may lie in somebody's home."""
    root()
    if subprocess.run(as_user(1001) + NAMESPACES + ["true"], capture_output=True).returncode:
        pytest.skip("users may make no namespaces here")
    os.chmod(place, 0o755)
    copies = place / "bin"
    copies.mkdir()
    library = pathlib.Path(os.environ["RINGSIDE_LIBRARY"])
    shutil.copy(library, copies / "libringside.so.0")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(copies))
    for module, name in ((daemon_module, "PROXY"), (worker_module, "PROGRAM")):
        shutil.copy(getattr(module, name), copies)
        monkeypatch.setattr(module, name, str(copies / pathlib.Path(getattr(module, name)).name))


@pytest.fixture
def prefixed(sidecar, monkeypatch):  # noqa: F811
    """prefixed(prefix) gives a sidecar that starts, and starts again, behind these programs."""
    def make(prefix, at):
        path, ring = f"{at}/stage.sock", f"{at}/ring"
        made = sidecar(socket={"mode": "0666", "path": path}, ring={"control_dir": ring, "body_dir": ring},
                       routes={"self": {"to": [f"unix:{path}"], "when_full": "error"}})
        shell = at / "sidecar"
        shell.write_text(f'#!/bin/sh\nexec {" ".join(prefix)} {daemon_module.PROXY} "$@"\n')
        shell.chmod(0o755)
        monkeypatch.setattr(daemon_module, "PROXY", str(shell))
        return made

    return make


@pytest.fixture
def workers():
    running = []

    def start(*arguments, **options):
        running.append(Worker(*arguments, **options))
        return running[-1]

    yield start
    for one in running:
        one.kill()


def kill(daemon):
    """Ends the prefix, and with it the sidecar, a little later."""
    pid = daemon.process.pid
    inside = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    daemon.kill()
    wait_for(lambda: not any(os.path.exists(f"/proc/{child}") for child in inside))


def everything(one, other):
    """Every verb, between two workers that share nothing but what their sidecar passed them."""
    one.send("self", 1)
    assert other.receive() == 1
    other("nack")
    value, attempts, _ = one("receive 5000")
    assert (value, attempts) == ("1", "1")
    one("release")
    other("loan 100 0")
    other("abandon")
    one("loan 100 0")
    ticket = one("share 2")[0]
    assert other("read " + ticket)[0] == "2"
    one("free " + ticket)
    assert other("look")[0] == "2"
    other("release")
    with pytest.raises(Failed) as error:
        other("read " + ticket)
    assert error.value.name == "STALE_TICKET"


def test_different_users_in_namespaces_of_their_own(place, prefixed, workers):
    """Nobody may look into anybody's /proc, and pids mean nothing to each other."""
    home = place / "home"
    home.mkdir()
    os.chown(home, 1001, 1001)
    daemon = prefixed(as_user(1001) + NAMESPACES, home).start()
    one = workers(daemon.socket, "one", as_user(1002) + NAMESPACES)
    other = workers(daemon.socket, "other", as_user(1003) + NAMESPACES)
    assert one("pid") == other("pid") == ["1"]
    everything(one, other)
    one.send("self", 3)
    assert other.receive() == 3
    other.kill()  # with the message in its hands
    value, attempts, _ = one("receive 10000")
    assert (value, attempts) == ("3", "1")
    one("loan 100 0")
    kill(daemon)
    daemon.start()
    one("release")
    one("send self 4")  # what it had is still its own
    again = workers(daemon.socket, "again", as_user(1003) + NAMESPACES)
    assert again.receive() == 4
    again("release")
    everything(one, again)


def test_worker_with_a_ring_of_the_same_name_in_a_tmpfs_of_its_own(place, sidecar, workers):  # noqa: F811
    """What it sees under the ring's path is another file; what it was passed is the ring."""
    daemon = sidecar().start()
    decoy = place / "decoy"
    shutil.copytree(daemon.ring, decoy)
    inside = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {daemon.ring} && cp -r {decoy}/. {daemon.ring} "
              '&& exec "$0" "$@"']
    one, other = workers(daemon.socket, "one"), workers(daemon.socket, "other", inside)
    everything(one, other)
    everything(other, one)


class Swapper:
    """Stands between worker and sidecar, and passes a copy of the control file in the control file's place."""

    def __init__(self, path, beyond, copy):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.beyond, self.copy = beyond, copy
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        near = self.listener.accept()[0]
        far = socket.socket(socket.AF_UNIX)
        far.connect(self.beyond)
        threading.Thread(target=self.pump, args=(near, far), daemon=True).start()
        self.pump(far, near)

    def pump(self, source, target):
        while True:
            data, fds, _, _ = socket.recv_fds(source, 65536, 16)
            if fds:
                os.close(fds[0])
                fds[0] = os.open(self.copy, os.O_RDWR)
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
            for fd in fds:
                os.close(fd)


def test_memory_that_is_not_the_sidecars_is_refused(place, sidecar):  # noqa: F811
    daemon = sidecar().start()
    copy = place / "copy.control"
    shutil.copy(daemon.ring / "stage.control", copy)
    relay = str(place / "relay.sock")
    Swapper(relay, daemon.socket, copy)
    with pytest.raises(Failed) as error:
        Worker(relay).kill()
    assert error.value.name == "DENIED" and "memory" in str(error.value)
    with daemon.client() as client:
        assert client.status().state == "serving"


# ---- pids ----

def test_equal_pids_before_and_after_a_restart(place, prefixed, workers):
    """Sidecar and workers are process 1 each, as in containers; the one that came back is not its own ghost."""
    home = place / "home"
    home.mkdir()
    daemon = prefixed(PIDS, home).start()
    ghost = workers(daemon.socket, "ghost", PIDS)
    living = workers(daemon.socket, "living", PIDS)
    everything(living, ghost)
    ghost("loan 100 0")
    living("loan 100 0")
    kill(daemon)
    ghost.kill()
    daemon.start()
    reborn = workers(daemon.socket, "reborn", PIDS)
    assert reborn("pid") == living("pid") == ["1"]
    with daemon.client() as client:
        assert client.status().epoch == 1
        wait_for(lambda: [s.holders[0].client for s in client.slots()] == ["living"])
        assert {c.name for c in client.status().clients} == {"living", "reborn"}
    living("send self 7")
    assert reborn.receive() == 7


PID_OF_ANOTHER = """
import os, signal, sys, time
sys.path[:0] = {path!r}
import daemon, pathlib
from daemon import Daemon, wait_for
change = {change!r}
one = Daemon(pathlib.Path({place!r}))
one.start()
ready, told = os.pipe()
dead = os.fork()
if dead == 0:
    client = one.client()
    client.attach("dead")
    client.loan()
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)
one.kill()
os.kill(dead, signal.SIGKILL)
os.waitpid(dead, 0)
time.sleep(0.05)  # start times count in hundredths of a second
open("/proc/sys/kernel/ns_last_pid", "w").write(str(dead - 1))
heir = os.fork()
if heir == 0:
    signal.pause()
assert heir == dead, (heir, dead)
if change:
    one.config["ring"]["classes"] = [{{"slot_bytes": "128Ki", "slots": 4}}]
one.start()
with one.client() as client:
    wait_for(lambda: not client.status().clients and not client.slots())
os.kill(heir, signal.SIGKILL)
assert one.stop() == 0
"""


@pytest.mark.parametrize("change", [False, True])
def test_pid_that_belongs_to_somebody_else_now(place, change):
    """A worker without a lock of its own died while no sidecar ran, and its pid was given again."""
    code = PID_OF_ANOTHER.format(path=sys.path, place=str(place), change=change)
    done = subprocess.run(PIDS + [sys.executable, "-c", code], env={**os.environ, "RINGSIDE_PROXY": daemon_module.PROXY},
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- files ----

def test_files_of_the_killed_do_not_pile_up_in_a_sticky_directory(place, prefixed, workers):
    """Where nobody may remove another's files: all are the sidecar's, and as many after many deaths."""
    home = place / "home"
    home.mkdir()
    home.chmod(0o1777)
    daemon = prefixed(as_user(1001), home)
    daemon.config["routes"]["self"]["attempts"] = 1  # what a victim had is nobody's after it
    daemon.start()
    with daemon.client() as client:
        pid = client.status().pid
        before = None
        for i in range(201 if is_sanitized(worker_module.PROGRAM) else 1001):
            victim = Worker(daemon.socket, "victim", as_user(1002))
            try:
                victim("loan 100 5000")
                if i % 2:
                    victim("send self 1")
                    victim("receive 5000")
            finally:
                victim.kill()
            if i % 50 == 0:
                wait_for(lambda: not client.status().clients)
                before = before or (files_of(home, 1001), len(os.listdir(f"/proc/{pid}/fd")))
                assert files_of(home, 1001) == before[0]
                wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) == before[1])
        assert client.slots() == [] and files_of(home, 1002) == []


def files_of(directory, uid):
    return sorted(p.name for p in directory.rglob("*") if p.stat().st_uid == uid)


@pytest.mark.parametrize("phase", [0, 2, 3, 7])
def test_lock_speaks_for_a_worker_whose_entry_was_spoiled(sidecar, workers, phase):  # noqa: F811
    """A stray write into the phase of its entry, then the sidecar dies: the next one asks the kernel who lives."""
    daemon = sidecar().start()
    living = workers(daemon.socket, "living")
    living("loan 100 0")
    daemon.kill()
    with open(daemon.ring / "stage.control", "r+b") as file:
        at = struct.unpack_from("<Q", file.read(4096), 96)[0] + 256
        file.seek(at)
        word, = struct.unpack("<Q", file.read(8))
        file.seek(at)
        file.write(struct.pack("<Q", word & ~0xff | phase))
    daemon.start()
    time.sleep(0.3)  # a sweep would have come
    with daemon.client() as client:
        assert [slot.state for slot in client.slots()] == ["loaned"]
        client.attach(name="another")  # without a lock
        assert [c.number for c in client.status().clients if c.name == "another"] != [1]

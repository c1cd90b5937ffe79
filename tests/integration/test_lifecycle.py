# SPDX-License-Identifier: Apache-2.0
"""How a sidecar starts, refuses to start, drains and ends."""
import json
import os
import pathlib
import signal
import socket
import stat
import subprocess
import time

import pytest

import control_pb2 as pb
from daemon import PROXY, Daemon, wait_for
from machine import cpu_group  # noqa: F401
from ttrpc_client import Refused


def run(*arguments, **options):
    return subprocess.run([PROXY, *map(str, arguments)], capture_output=True, text=True, timeout=20,
                          **options)


# ---- command line ----

def test_help_version_and_usage():
    assert "Exit status" in run("--help").stdout
    assert run("--version").stdout.startswith("ringside-proxy ")
    for wrong in ([], ["--nonsense"], ["a.json", "b.json"], ["--check"]):
        result = run(*wrong)
        assert result.returncode == 2 and "Usage" in result.stderr


def test_check_prints_what_it_resolves_to(place):
    good, bad = place / "good.json", place / "bad.json"
    good.write_text('{"stage": "a"}')
    bad.write_text('{"stage": "a", "clints": {}}')
    assert json.loads(run("--check", good).stdout)["stage"] == "a"
    result = run("--check", bad)
    assert result.returncode == 1 and "clients" in result.stderr
    assert run("--check", place / "absent.json").returncode == 1
    assert run(bad).returncode == 1


# ---- start and end ----

def test_ends_without_a_trace(start):
    daemon = start()
    assert daemon.stop() == 0
    assert daemon.files() == []


def test_interrupt_ends_it_too(start):
    daemon = start()
    daemon.signal(signal.SIGINT)
    assert daemon.wait() == 0 and daemon.files() == []


def test_stale_socket_after_a_kill_is_replaced(start):
    daemon = start()
    daemon.kill()
    assert pathlib.Path(daemon.socket).exists()
    daemon.start()
    assert daemon.stop() == 0 and daemon.files() == []


def test_living_sidecar_is_not_displaced(start, place):
    first = start()
    inode = os.stat(first.socket).st_ino
    second = Daemon(place, "stage").start(wait=False)
    assert second.wait() == 3
    other_ring = Daemon(place, "other", socket={"path": first.socket}).start(wait=False)
    assert other_ring.wait() == 3
    assert os.stat(first.socket).st_ino == inode
    with first.client() as client:
        assert client.status().stage == "stage"


def test_same_ring_under_another_socket_is_refused(start, place):
    first = start()
    second = Daemon(place, "stage", socket={"path": str(place / "b.sock")}).start(wait=False)
    assert second.wait() == 3
    with first.client() as client:
        assert client.status().state == "serving"


def test_of_many_at_once_exactly_one_wins(place):
    for _ in range(5):
        racers = [Daemon(place, "stage").start(wait=False) for _ in range(6)]
        wait_for(lambda: sum(r.process.poll() is None for r in racers) == 1, 20)
        codes = [r.process.poll() for r in racers]
        winner = racers[codes.index(None)]
        assert sorted(c for c in codes if c is not None) == [3] * 5
        winner.wait_ready()
        assert winner.stop() == 0


def test_file_that_is_no_socket_is_kept(place):
    daemon = Daemon(place)
    pathlib.Path(daemon.socket).write_text("precious")
    daemon.start(wait=False)
    assert daemon.wait() == 1
    assert pathlib.Path(daemon.socket).read_text() == "precious"
    assert "no socket" in daemon.log()


def test_socket_of_somebody_else_is_not_displaced(place):
    daemon = Daemon(place)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(daemon.socket)
        other.listen()
        daemon.start(wait=False)
        assert daemon.wait() == 3
    assert pathlib.Path(daemon.socket).exists()


@pytest.mark.parametrize("mask", [0o000, 0o077])
@pytest.mark.parametrize("mode", ["0600", "0660", "0666"])
def test_mode_does_not_depend_on_umask(place, mask, mode):
    daemon = Daemon(place)
    daemon.config["socket"]["mode"] = mode
    daemon.start(umask=mask)
    assert stat.S_IMODE(os.stat(daemon.socket).st_mode) == int(mode, 8)
    assert daemon.stop() == 0


def test_group_is_set_or_refused_by_name(place):
    daemon = Daemon(place)
    daemon.config["socket"]["group"] = "1234"
    daemon.start()
    assert os.stat(daemon.socket).st_gid == 1234
    daemon.stop()
    daemon.config["socket"]["group"] = "no-such-group"
    daemon.start(wait=False)
    assert daemon.wait() == 1 and "no-such-group" in daemon.log()
    assert daemon.files() == []


@pytest.mark.parametrize("length, starts", [(107, True), (108, False), (109, False)])
def test_long_socket_paths_are_used_whole_or_refused(place, length, starts):
    name = "s" * (length - len(str(place)) - 1)
    path = str(place / name)
    assert len(path) == length
    daemon = Daemon(place, "stage", socket={"path": path})
    daemon.config["routes"] = {}
    daemon.start(wait=starts)
    if starts:
        assert stat.S_ISSOCK(os.stat(path).st_mode)
        assert daemon.stop() == 0
        assert not pathlib.Path(path).exists()
    else:
        assert daemon.wait() == 1
        assert not [p for p in place.iterdir() if p.name.startswith("sss")]


# ---- readiness ----

@pytest.mark.parametrize("abstract", [False, True])
def test_service_manager_is_told(place, abstract):
    name = f"\0rs-notify-{os.getpid()}" if abstract else str(place / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(10)
        daemon = Daemon(place)
        daemon.start(env={**os.environ, "NOTIFY_SOCKET": name.replace("\0", "@")})
        assert manager.recv(100) == b"READY=1"
        assert daemon.stop() == 0
        assert manager.recv(100) == b"STOPPING=1"


def test_absent_service_manager_is_no_reason_to_fail(place):
    daemon = Daemon(place)
    daemon.start(env={**os.environ, "NOTIFY_SOCKET": str(place / "nobody")})
    assert daemon.stop() == 0


# ---- drain ----

def test_term_waits_for_what_is_held(start):
    daemon = start(drain_timeout_ms=20000)
    with daemon.client() as client, daemon.client() as late:
        client.attach()
        client.send(client.loan().lease)
        message = client.receive()
        daemon.signal(signal.SIGTERM)
        wait_for(lambda: client.status().state == "draining")
        for refused in (late.attach, client.loan):
            with pytest.raises(Refused) as error:
                refused()
            assert error.value.name == "DRAINING"
        assert daemon.process.poll() is None
        client.release(message.lease)
        assert daemon.wait() == 0


def test_term_gives_up_after_the_drain_timeout(start):
    daemon = start(drain_timeout_ms=200)
    with daemon.client() as client:
        client.attach()
        client.loan()
        begin = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        assert time.monotonic() - begin >= 0.2
        assert "stage.body" in daemon.files()
        assert "stays for the next sidecar" in daemon.log()


def test_start_of_a_large_ring_can_be_ended(place, cpu_group):  # noqa: F811
    """Its pages take long to come; meanwhile it is alive, hears signals, and is not ready."""
    daemon = Daemon(place, ring={"classes": [{"slot_bytes": "256Mi", "slots": 8}]})
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(place / "notify"))
    manager.settimeout(10)
    daemon.start(wait=False, preexec_fn=cpu_group(5).enter, env={**os.environ, "NOTIFY_SOCKET": str(place / "notify")})
    try:
        for _ in range(10):
            time.sleep(0.1)
            assert daemon.process.poll() is None, daemon.log()
            with pytest.raises(OSError):
                daemon.client().close()
        begin = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"  # not READY=1; two signals at once would be one
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 1 and "second signal" in daemon.log()
        assert time.monotonic() - begin < 3
    finally:
        daemon.kill()
        manager.close()
    daemon.config["ring"]["classes"] = [{"slot_bytes": "64Ki", "slots": 8}]
    assert daemon.start().stop() == 0 and daemon.files() == []


def test_second_term_ends_at_once(start):
    daemon = start(drain_timeout_ms=600000)
    with daemon.client() as client:
        client.attach()
        client.loan()
        daemon.signal(signal.SIGTERM)
        wait_for(lambda: client.status().state == "draining")
        daemon.signal(signal.SIGTERM)
        assert daemon.wait(5) == 0


def test_drain_by_call_answers_when_empty_and_does_not_end(start):
    daemon = start()
    with daemon.client() as client, daemon.client() as other:
        client.attach()
        lease = client.loan().lease
        with pytest.raises(Refused) as error:
            other.call("Drain", pb.DrainRequest(timeout_ns=100_000_000))
        assert error.value.name == "TIMEOUT" and "1 loaned" in error.value.message
        call = other.begin("Drain", pb.DrainRequest(timeout_ns=10 ** 10).SerializeToString())
        client.call("Abandon", pb.LeaseRequest(lease=lease))
        other.end(call, pb.Empty)
        assert other.status().state == "draining"
    assert daemon.process.poll() is None


# ---- log ----

def test_full_stderr_does_not_block(place):
    reader, writer = os.pipe()
    daemon = Daemon(place)
    path = place / "c.json"
    path.write_text(json.dumps(daemon.config))
    daemon.process = subprocess.Popen([PROXY, str(path)], stderr=writer)
    os.close(writer)
    daemon.log = lambda: "nobody reads it"
    daemon.wait_ready()
    os.set_blocking(reader, False)
    for _ in range(3000):  # three lines each, more than the pipe and the buffer hold
        with daemon.client() as client:
            client.call("Status", kind=pb.StatusResponse)
    with daemon.client() as client:
        assert client.status().log_suppressed > 0
    assert daemon.stop() == 0
    os.close(reader)


def test_closed_stderr_does_not_kill(place):
    reader, writer = os.pipe()
    os.close(reader)
    path = place / "c.json"
    daemon = Daemon(place)
    path.write_text(json.dumps(daemon.config))
    daemon.process = subprocess.Popen([PROXY, str(path)], stderr=writer)
    os.close(writer)
    daemon.log = lambda: "nobody reads it"
    daemon.wait_ready()
    assert daemon.stop() == 0


def test_json_log_is_one_object_per_line(start):
    daemon = start(log={"format": "json", "level": "debug"})
    with daemon.client() as client:
        client.attach(name='quo"te\\ and \x01 line\nbreak')
    daemon.stop()
    lines = [json.loads(line) for line in daemon.log().splitlines()]
    assert {"time", "level", "subsystem", "stage", "message"} <= set(lines[0])
    assert any('quo"te\\ and ? line?break' in line["message"] for line in lines)

# SPDX-License-Identifier: Apache-2.0
"""Crowds, trickles and greed: whoever is served already goes on being served, and nothing grows or spins."""
import contextlib
import errno
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest

import control_pb2 as pb
from daemon import PROXY, wait_for
from machine import is_sanitized, sidecar  # noqa: F401
from ttrpc_client import HEADER, Refused, field
from worker import Failed, Worker

CLI = os.environ["RINGSIDE_CLI"]
MI = 1 << 20


@pytest.fixture(autouse=True)
def many_descriptors():
    """For the crowds on our side."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (8192, max(hard, 8192)))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def crowd():
    """crowd(daemon, count) connects that many sockets without waiting; False for each that was refused."""
    sockets = []

    def connect(daemon, count):
        results = []
        for _ in range(count):
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            sockets.append(one)
            results.append(one.connect_ex(daemon.socket))
        return sockets[-count:], results

    yield connect
    for one in sockets:
        one.close()


def cpu_seconds(daemon):
    fields = pathlib.Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(daemon):
    text = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) << 10


def busy(daemon, seconds):
    """CPU time used, as a share of the time that passes."""
    before = cpu_seconds(daemon)
    time.sleep(seconds)
    return (cpu_seconds(daemon) - before) / seconds


def serves(client):
    """A whole message through the socket; the seconds it took."""
    begin = time.monotonic()
    client.send(client.loan().lease)
    client.release(client.receive().lease)
    return time.monotonic() - begin


# ---- descriptors and connections ----

def test_descriptors_run_out_and_come_back(sidecar, crowd):  # noqa: F811
    daemon = sidecar()
    daemon.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    with daemon.client() as old:
        old.attach()
        sockets, results = crowd(daemon, 200)
        assert set(results) == {0}
        wait_for(lambda: "cannot accept: Too many open files" in daemon.log())
        assert busy(daemon, 2) < 0.05
        assert max(serves(old) for _ in range(20)) < 1
        for one in sockets:
            one.close()
        with daemon.client() as late:
            late.attach()
            serves(late)
    assert daemon.log().count("cannot accept") < 40  # one a try, and few of them


def test_stopped_sidecar_and_a_crowd_that_connects(sidecar, crowd):  # noqa: F811
    daemon = sidecar().start()
    with daemon.client() as old:
        old.attach()
        daemon.signal(signal.SIGSTOP)
        try:
            sockets, results = crowd(daemon, 5000)
            assert set(results) == {0, errno.EAGAIN}
            for one, result in zip(sockets, results):
                if result:
                    one.close()  # as most of a crowd would
            waiting = subprocess.Popen([CLI, "--socket", daemon.socket, "--connect-timeout", "15", "ping", "--count", "1"],
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            time.sleep(0.5)
            assert waiting.poll() is None  # a full queue is no reason to give up
        finally:
            daemon.signal(signal.SIGCONT)
        assert waiting.communicate(timeout=20)[0] and waiting.returncode == 0
        assert serves(old) < 2
        with daemon.client() as late:
            late.attach()
    assert busy(daemon, 0.5) < 0.2


def test_one_client_more_than_there_may_be(start):
    daemon = start(clients={"max": 3})
    workers = [Worker(daemon.socket, f"w{i}") for i in range(3)]
    try:
        with pytest.raises(Failed) as error:
            Worker(daemon.socket, "one too many").kill()
        assert error.value.name == "LIMIT" and "clients.max" in str(error.value) and " 3 " in str(error.value)
        workers[0].send("self", 1)
        assert workers[1].receive() == 1
        workers.pop().close()
        wait_for(lambda: len(clients(daemon)) == 2)
        workers.append(Worker(daemon.socket, "next"))
        workers[-1].send("self", 2)
    finally:
        for worker in workers:
            worker.kill()


def clients(daemon):
    with daemon.client() as client:
        return client.status().clients


# ---- frames ----

def test_five_hundred_that_trickle(sidecar, crowd):  # noqa: F811
    """A byte a second each: the memory stays, others are served, and each is cut off in the end."""
    daemon = sidecar(clients={"max": 64}).start()
    with daemon.client() as old:
        old.attach()
        serves(old)
        before = rss_bytes(daemon)
        sockets, _ = crowd(daemon, 500)
        frame, slowest, most = HEADER.pack(65536, 1, 1, 0) + b"x" * 20, 0, 0
        for second in range(7):
            for one in sockets:
                with contextlib.suppress(OSError):
                    one.send(frame[2 * second:2 * second + 2])
            begin = time.monotonic()
            while time.monotonic() < begin + 0.8:
                slowest = max(slowest, serves(old))
                most = max(most, rss_bytes(daemon))
                time.sleep(0.02)
        with daemon.client() as late:
            late.attach()
        assert slowest < 5  # and not as long as the deaf one is waited for
        assert most - before < 8 * MI or is_sanitized(PROXY)  # 96 connections at once, not 500 frames of 64 KiB
        ended = 0
        for one in sockets:
            one.setblocking(True)
            one.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
            ended += 1
        assert ended == 500


def test_pipelined_calls_cut_in_halves(start):
    """Two frames in three pieces, over and over, through one connection."""
    daemon = start()
    body = field(1, b"ringside.v1.Control") + field(2, b"Status")
    with daemon.client() as client:
        client.status()
        before = rss_bytes(daemon)
        for i in range(500):
            calls = (client.stream + 2, client.stream + 4)
            client.stream += 4
            frames = b"".join(HEADER.pack(len(body), call, 1, 0) + body for call in calls)
            one = 1 + i % (len(frames) - 2)
            two = one + 1 + i * 7 % (len(frames) - one - 1)
            for piece in (frames[:one], frames[one:two], frames[two:]):
                client.socket.sendall(piece)
            for call in calls:
                assert client.end(call, pb.StatusResponse).stage == "stage"
        assert rss_bytes(daemon) - before < 2 * MI or is_sanitized(PROXY)


def test_output_that_nobody_reads(start):
    """A client asks and never listens: what is kept for it is bounded, others are served, and in the end it is cut off."""
    daemon = start()
    with daemon.client() as old, daemon.client() as deaf:
        old.attach()
        serves(old)
        deaf.socket.setblocking(False)
        body = field(1, b"ringside.v1.Control") + field(2, b"Status")
        before, most, slowest, unread = rss_bytes(daemon), 0, 0, b""
        begin = time.monotonic()
        while "has not read for 30 s" not in daemon.log() and time.monotonic() - begin < 60:
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                while True:
                    if not unread:
                        deaf.stream += 2
                        unread = HEADER.pack(len(body), deaf.stream, 1, 0) + body
                    unread = unread[deaf.socket.send(unread):]
            slowest = max(slowest, serves(old))
            most = max(most, rss_bytes(daemon))
            time.sleep(0.05)
        assert 25 < time.monotonic() - begin < 60
        assert slowest < 5  # and not as long as the deaf one is waited for
        assert most - before < 8 * MI or is_sanitized(PROXY)
        assert serves(old) < 0.5


def test_lengths_announced_cost_nothing(start):
    """Only what has arrived is kept, whatever a header says will come."""
    daemon = start()
    with daemon.client() as watcher:
        watcher.attach()
        before = rss_bytes(daemon)
        for length in (0, 1, 65536, 65537, 2 ** 31, 2 ** 32 - 1):
            others = [daemon.client() for _ in range(30)]
            for other in others:
                other.socket.sendall(HEADER.pack(length, 1, 1, 0))
                if length in (0, 65537, 2 ** 31, 2 ** 32 - 1):
                    with pytest.raises(Refused) as error:
                        other.end(1, pb.Empty)
                    assert error.value.name == ("INVALID" if length == 0 else "LIMIT")
            assert serves(watcher) < 1
            assert rss_bytes(daemon) - before < 2 * MI or is_sanitized(PROXY)
            for other in others:
                other.close()


# ---- slots ----

def test_everybody_holds_all_and_asks_for_one_more(start):
    """Releasing waits for nobody who loans: the first slot that comes back ends the standstill."""
    daemon = start(inbox={"cells": 32, "depth": 16})
    workers = [Worker(daemon.socket, f"w{i}") for i in range(4)]
    try:
        for i in range(8):
            workers[i % 4].send("self", i)
        for i in range(8):
            workers[i % 4]("receive 1000")
        for worker in workers[1:]:
            worker.begin("loan 100 20000")
        with daemon.client() as through_socket:
            through_socket.attach()
            call = through_socket.begin("Loan", pb.LoanRequest(tensors=[pb.Tensor(dtype=pb.UINT8, shape=[1])])
                                        .SerializeToString(), 20)
            with pytest.raises(Failed) as error:
                workers[0]("loan 100 100")
            assert error.value.name == "TIMEOUT"
            for _ in range(2):
                workers[0]("release", 5)
            served = [worker for worker in workers[1:] if finished(worker)]
            with contextlib.suppress(TimeoutError, OSError):
                through_socket.socket.settimeout(0.5)
                lease = through_socket.end(call, pb.LoanResponse).lease
                served.append(None)
                through_socket.call("Abandon", pb.LeaseRequest(lease=lease))  # its process lives on after this test
            assert len(served) == 2
    finally:
        for worker in workers:
            worker.kill()
    with daemon.client() as client:
        wait_for(lambda: client.status().classes[0].loaned == 0)


def test_greedy_do_not_starve_the_patient(start):
    """Three take whatever slot comes free, at once and for ever; the fourth gets its turn, every time."""
    daemon = start(ring={"classes": [{"slot_bytes": "64Ki", "slots": 2}]})
    greedy, patient = [Worker(daemon.socket, f"greedy {i}") for i in range(3)], Worker(daemon.socket, "patient")
    over = threading.Event()

    def grab(worker):
        while not over.is_set():
            with contextlib.suppress(Failed):  # it waits, too
                worker("loan 100 5000")
                worker("abandon")

    threads = [threading.Thread(target=grab, args=(worker,)) for worker in greedy]
    try:
        for thread in threads:
            thread.start()
        for _ in range(200):
            patient("loan 100 5000")
            patient("abandon")
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for worker in (*greedy, patient):
            worker.kill()


def finished(worker):
    try:
        worker.end(1)
        return True
    except AssertionError:
        return False


# ---- stderr ----

def test_nobody_reads_stderr_and_nobody_waits_for_it(place, sidecar):  # noqa: F811
    daemon = sidecar()
    (place / "c.json").write_text(json.dumps(daemon.config))
    reader, writer = os.pipe()
    daemon.process = subprocess.Popen([PROXY, str(place / "c.json")], stderr=writer)
    daemon.log = lambda: "nobody reads it"
    filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)  # what the sidecar was given blocks
    try:
        daemon.wait_ready()
        with pytest.raises(BlockingIOError):
            while True:
                os.write(filler, bytes(4096))
        with pytest.raises(BlockingIOError):
            while True:
                os.write(filler, b"x")
        slowest = 0
        with daemon.client() as old:
            old.attach()
            for _ in range(200):
                with daemon.client() as other:
                    other.status()
                slowest = max(slowest, serves(old))
        assert slowest < 5  # and not as long as the deaf one is waited for
        assert busy(daemon, 0.5) < 0.05
        assert daemon.stop() == 0
    finally:
        for fd in (reader, writer, filler):
            os.close(fd)

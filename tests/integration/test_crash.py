# SPDX-License-Identifier: Apache-2.0
"""Workers and sidecars that die at any time, and what the next one finds."""
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

import control_pb2 as pb
from daemon import wait_for
from ttrpc_client import Refused


def hold(path, what, ready):
    """In a process of its own: attaches, takes `what`, tells, and stays."""
    import ttrpc_client

    client = ttrpc_client.Client(path)
    token = client.attach(name="victim").session_token
    lease = b""
    if what == "loan":
        lease = client.loan().lease.SerializeToString()
    elif what == "message":
        lease = client.receive(timeout=10).lease.SerializeToString()
    ready.send((token, lease))
    signal.pause()


@pytest.fixture
def victim():
    started = []

    def begin(daemon, what):
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=hold, args=(daemon.socket, what, there))
        process.start()
        started.append(process)
        assert here.poll(20)
        return process, *here.recv()

    yield begin
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


def test_loan_of_a_dead_worker_is_freed(start, victim):
    daemon = start()
    with daemon.client() as client:
        process, _, _ = victim(daemon, "loan")
        assert [s.state for s in client.slots()] == ["loaned"]
        assert client.slots()[0].holders[0].client == "victim"
        process.kill()
        wait_for(lambda: client.slots() == [])
        wait_for(lambda: not client.status().clients)
        assert client.status().sweeps == 1


def test_message_of_a_dead_worker_comes_again(start, victim):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        sent = client.send(client.loan().lease)
        process, _, _ = victim(daemon, "message")
        process.kill()
        message = client.receive(timeout=10)
        assert (message.lease.ticket, message.attempts) == (sent.ticket, 1)
        assert client.status().totals.requeued == 1


def test_stopped_worker_keeps_what_it_holds_and_is_named(start, victim):
    daemon = start(stall_report_ms=300)
    with daemon.client() as client:
        client.attach()
        client.send(client.loan().lease)
        process, _, _ = victim(daemon, "message")
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: "is held by client" in daemon.log() and "victim" in daemon.log())
        with pytest.raises(Refused):
            client.receive(timeout=0.2)
        lease = [c for c in client.status().clients if c.name == "victim"][0]
        assert lease.leases == 1 and lease.oldest_lease_ns > 0
        os.kill(process.pid, signal.SIGCONT)


def test_closed_socket_frees_nothing_while_the_process_lives(start):
    daemon = start()
    with daemon.client() as watcher:
        client = daemon.client()
        token = client.attach(name="wanderer").session_token
        loan = client.loan()
        client.close()
        wait_for(lambda: [c.state for c in watcher.status().clients] == ["detached"])
        assert len(watcher.slots()) == 1
        with daemon.client() as back:
            answer = back.attach(session_token=token)
            assert answer.resumed and [h.ticket for h in answer.held] == [loan.lease.ticket]
            back.send(answer.held[0])
            assert back.receive().lease.ticket == loan.lease.ticket


def write_on(path, ready):
    """In a process of its own: nothing but the mappings is left of its connection, and it goes on writing through them."""
    import mmap
    import struct
    import ttrpc_client

    client = ttrpc_client.Client(path)
    version, layout_hash = ready.recv()
    ring = client.attach(name="writer", want_descriptors=True, layout_version=version, layout_hash=layout_hash).ring
    control, body = (mmap.mmap(fd, 0) for fd in client.descriptors[:2])
    state = struct.unpack_from("<Q", control, 144)[0]  # of slot 0, which is free: a worker loans in memory
    word, = struct.unpack_from("<Q", control, state)
    struct.pack_into("<Q", control, state, (word >> 32) + 1 << 32 | ring.client << 16 | 1 << 8)
    for fd in client.descriptors:
        os.close(fd)
    client.close()
    ready.send(ring.client)
    while True:
        for value in (0xAA, 0x55):
            body[:16384] = bytes([value]) * 16384


def test_who_closed_everything_goes_on_writing_into_what_is_its_own(start, place):
    import struct

    daemon = start()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    writer = context.Process(target=write_on, args=(daemon.socket, there))
    writer.start()
    try:
        with open(daemon.ring / "stage.control", "rb") as file:
            head = file.read(24)
        here.send((struct.unpack_from("<I", head, 8)[0], struct.unpack_from("<Q", head, 16)[0]))
        assert here.poll(20)
        number = here.recv()
        for restart in (False, True):
            if restart:
                daemon.kill()
                daemon.start()
            with daemon.client() as client:
                wait_for(lambda: [c.state for c in client.status().clients if c.name == "writer"] == ["detached"])
                client.attach()
                for value in range(40):  # through every other slot, several times
                    loan = client.loan((16384,))
                    assert loan.lease.ticket >> 28 & 0xFFFFF != 0, "the slot of a living worker was given away"
                    with open(loan.body_path, "r+b") as file:
                        file.seek(loan.slot_offset)
                        file.write(bytes([value]) * 16384)
                    client.send(loan.lease)
                    message = client.receive()
                    with open(message.body_path, "rb") as file:
                        file.seek(message.slot_offset)
                        assert file.read(16384) == bytes([value]) * 16384
                    client.release(message.lease)
                assert [(s.slot, s.state, s.holders[0].client_number) for s in client.slots()] == [(0, "loaned", number)]
        writer.kill()
        with daemon.client() as client:
            wait_for(lambda: client.slots() == [] and not [c for c in client.status().clients if c.name == "writer"])
    finally:
        writer.kill()
        writer.join()


def test_connections_that_end_right_after_a_request(start):
    """The answer finds nobody: what it would have given is nobody's."""
    daemon = start()
    with daemon.client() as watcher:
        for i in range(600):
            with daemon.client() as client:
                client.attach()
                for method, request in (("Loan", pb.LoanRequest(tensors=[pb.Tensor(dtype=pb.UINT8, shape=[64])])),
                                        ("Status", pb.StatusRequest()), ("Receive", pb.ReceiveRequest()))[i % 3:]:
                    client.begin(method, request.SerializeToString())
        assert daemon.process.poll() is None, daemon.log()
        # This process lives, and so do its sessions that hold a loan; all others are gone.
        wait_for(lambda: len(watcher.status().clients) == len(watcher.slots()))
        assert watcher.status().state == "serving"


def test_unknown_token_is_a_new_session(start):
    daemon = start()
    with daemon.client() as client:
        assert not client.attach(session_token=os.urandom(16)).resumed
    with daemon.client() as client, pytest.raises(Refused) as error:
        client.attach(session_token=b"short")
    assert error.value.name == "INVALID"


def test_session_moves_to_the_newer_connection(start):
    daemon = start()
    with daemon.client() as old, daemon.client() as new:
        token = old.attach().session_token
        assert new.attach(session_token=token).resumed
        with pytest.raises((ConnectionError, OSError)):
            old.loan()
        new.loan()


def test_killed_sidecar_is_followed_by_one_that_has_the_ring(start):
    daemon = start()
    client = daemon.client()
    first = client.attach(name="survivor")
    kept = client.send(client.loan().lease, metadata=b"kept")
    held = client.loan()
    daemon.kill()
    client.close()
    daemon.start()
    with daemon.client() as client:
        status = client.status()
        assert status.epoch == 1 and status.incarnation == first.ring.incarnation
        assert [(c.name, c.state) for c in status.clients] == [("survivor", "detached")]
        answer = client.attach(session_token=first.session_token)
        assert answer.resumed and answer.ring.client == first.ring.client
        assert [h.ticket for h in answer.held] == [held.lease.ticket]
        message = client.receive()
        assert message.lease.ticket == kept.ticket and message.metadata == b"kept"
        client.release(message.lease)
        client.send(answer.held[0])
        client.release(client.receive().lease)
        assert client.slots() == []
    assert daemon.stop() == 0 and daemon.files() == []


def test_tickets_of_a_ring_that_is_no_more(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        ticket = client.call("Share", pb.ShareRequest(lease=client.loan().lease, readers=1), pb.ShareResponse).ticket
        client.release(client.call("Read", pb.ReadRequest(ticket=ticket), pb.ReadResponse).message.lease)
    assert daemon.stop() == 0 and daemon.files() == []
    daemon.start()
    with daemon.client() as client:
        client.attach()
        for _ in range(20):  # also when its slot is in use again
            with pytest.raises(Refused) as error:
                client.call("Read", pb.ReadRequest(ticket=ticket), pb.ReadResponse)
            assert error.value.name in ("STALE_TICKET", "FOREIGN_TICKET")
            client.call("Share", pb.ShareRequest(lease=client.loan().lease, readers=1), pb.ShareResponse)
            if not client.status().classes[0].free:
                break


def test_worker_that_died_with_the_sidecar_is_swept_by_the_next(start, victim):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        sent = client.send(client.loan().lease)
        process, _, _ = victim(daemon, "message")
        daemon.kill()
    process.kill()
    process.join()
    daemon.start()
    with daemon.client() as client:
        client.attach()
        message = client.receive(timeout=10)
        assert message.lease.ticket == sent.ticket and message.attempts == 1


def test_kills_leave_no_files_behind(start):
    daemon = start()
    daemon.kill()
    size = len(daemon.files())
    for _ in range(20):
        daemon.start()
        daemon.kill()
        assert len(daemon.files()) == size
    daemon.start()
    assert daemon.stop() == 0 and daemon.files() == []


def test_truncated_ring_ends_the_ring_and_not_the_sidecar(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        loan = client.loan()
        os.truncate(loan.body_path, 0)
        wait_for(lambda: client.status().state == "damaged")
        with pytest.raises(Refused) as error:
            client.loan()
        assert error.value.name == "CORRUPT"
        assert "truncated" in daemon.log()
    assert daemon.stop() == 0 and daemon.files() == []


def test_few_descriptors_do_not_make_it_spin(start, place):
    from daemon import Daemon

    daemon = Daemon(place)
    daemon.start(preexec_fn=lambda: __import__("resource").setrlimit(
        __import__("resource").RLIMIT_NOFILE, (40, 40)))
    with daemon.client() as old:
        old.attach()
        crowd = [daemon.client() for _ in range(200)]
        before = os.times()
        stat = lambda: sum(map(int, open(f"/proc/{daemon.process.pid}/stat").read()
                               .rsplit(")", 1)[1].split()[11:13]))
        ticks = stat()
        import time
        time.sleep(1)
        assert stat() - ticks < 20  # of 100 ticks a second
        old.send(old.loan().lease)
        for one in crowd:
            one.close()
    assert daemon.stop() == 0


def test_worker_in_another_pid_namespace_is_seen_to_die(start):
    if os.geteuid() != 0:
        pytest.skip("needs root for a PID namespace")
    daemon = start()
    code = ("import sys, signal; sys.path[:0] = %r; import ttrpc_client as t; "
            "c = t.Client(%r); c.attach('inside'); c.loan(); print('ready', flush=True); "
            "signal.pause()" % (sys.path, daemon.socket))
    process = subprocess.Popen(["unshare", "-pf", "--kill-child", sys.executable, "-c", code],
                               stdout=subprocess.PIPE)
    try:
        if process.stdout.readline() != b"ready\n":
            pytest.skip("no PID namespace can be made here")
        with daemon.client() as client:
            assert len(client.slots()) == 1
            process.kill()
            wait_for(lambda: client.slots() == [])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

# SPDX-License-Identifier: Apache-2.0
"""Memory runs out at the Nth allocation of a request, for each N: calls fail, the sidecar serves on, nothing is lost."""
import contextlib
import mmap
import os
import pathlib
import struct

import pytest

import control_pb2 as pb
from daemon import wait_for
from machine import sidecar  # noqa: F401 (a fixture)
from ttrpc_client import Refused

GIVE_UP = 800  # allocations of one script: none needs that many
STRIDE = int(os.environ.get("RINGSIDE_OOM_STRIDE", "4"))  # of the slow scripts: every 4th allocation; 1 takes minutes


class Shortage:
    """The file through which allocations of a sidecar fail."""

    def __init__(self, path):
        path.write_bytes(bytes(24))
        self.environment = {**os.environ, "RINGSIDE_OOM": str(path)}
        with open(path, "r+b") as file:
            self.words = mmap.mmap(file.fileno(), 24)

    def begin(self, left, goes_on):
        struct.pack_into("<QQQ", self.words, 0, 0, goes_on, 0)
        struct.pack_into("<Q", self.words, 0, left)

    def end(self):
        """How many allocations failed."""
        struct.pack_into("<Q", self.words, 0, 0)
        return struct.unpack_from("<Q", self.words, 16)[0]


@contextlib.contextmanager
def attempt():
    """A call may be refused, and a connection may end; anything else, silence above all, fails the test."""
    try:
        yield
    except (Refused, ConnectionError):
        pass


def script(daemon):
    """Every verb once, as far as it gets. Gives the tokens of its sessions."""
    tokens = []
    with attempt(), daemon.client() as client:
        tokens.append(client.attach(name="worker").session_token)
        loan = client.loan(request_id=7)
        client.loan(request_id=7)
        client.send(loan.lease, metadata=b"about it")
        message = client.receive(request_id=8)
        client.call("Forward", pb.ForwardRequest(lease=message.lease, route="self"), pb.ForwardResponse)
        message = client.receive()
        client.call("Nack", pb.LeaseRequest(lease=message.lease))
        client.release(client.receive().lease)
    with attempt(), daemon.client() as client:
        tokens.append(client.attach(name="again").session_token)
        client.call("Abandon", pb.LeaseRequest(lease=client.loan(shape=(1000,)).lease))
        share = pb.ShareRequest(lease=client.loan().lease, kept=True)
        ticket = client.call("Share", share, pb.ShareResponse).text
        reading = client.call("Read", pb.ReadRequest(text=ticket), pb.ReadResponse).message
        client.call("Describe", pb.DescribeRequest(text=ticket), pb.DescribeResponse)
        client.release(reading.lease)
        client.call("Free", pb.FreeRequest(text=ticket))
        with contextlib.suppress(Refused):  # usually nothing is there
            client.release(client.receive(timeout=0.001).lease)
        waiting = client.begin("Receive", b"", 1)
        client.send(client.loan().lease)
        client.release(client.end(waiting, pb.ReceiveResponse).message.lease)
        stream = client.receive_stream(9, 1)
        client.send(client.loan().lease)
        client.release(client.next(stream).lease)
        client.credit(9, 1, end=True)
        client.next(stream)
    with attempt(), daemon.client() as client:
        tokens.append(client.attach(name="calls").session_token)
        for credits in (0, 2):
            pending = client.begin_call("m", b"x", request_id=5, credits=credits)
            request = client.receive()
            client.cancelled(request.lease)
            client.reply(request.lease, b"y", more=credits > 0)
            client.release((client.next(pending) if credits else client.end_call(pending)).lease)
            if credits:
                client.reply(request.lease, status=3, text="no more")
                with contextlib.suppress(Refused):
                    client.next(pending)
            client.release(request.lease)
    with attempt(), daemon.client() as client:
        client.status()
        client.slots()
        client.call("Open", pb.OpenRequest(ring=0), pb.OpenResponse)
    return tokens


def give_back(daemon, token):
    with daemon.client() as client:
        for lease in client.attach(session_token=token).held:
            try:
                client.call("Abandon", pb.LeaseRequest(lease=lease))
            except Refused:
                client.release(lease)


def check_nothing_is_lost(daemon, tokens, idle):
    """What a script that was cut short held can be given back; then the ring is empty and nobody is attached."""
    for token in tokens:
        give_back(daemon, token)
    with daemon.client() as client:
        wait_for(lambda: not client.status().clients)
        client.attach(name="cleaner")
        with contextlib.suppress(Refused):
            while True:
                client.release(client.receive(timeout=0.001).lease)
        for slot in client.slots():
            client.call("Free", pb.FreeRequest(text=slot.text))
        assert client.slots() == []
        assert [c.free for c in client.status().classes] == [8]
    wait_for(lambda: descriptors(daemon) <= idle, 5)


def descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def connections(daemon):
    """Those that the kernel shows at the sidecar's socket."""
    rows = [line.split() for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [row for row in rows if row[-1] == daemon.socket and row[5] == "03"]  # connected


@pytest.fixture
def shortage(place):
    return Shortage(place / "oom")


def sweep(shortage, goes_on, act, stride=1):
    """act() with the first, the second, ... allocation failing, until it says that none did; how many there were."""
    for left in range(1, GIVE_UP, stride):
        shortage.begin(left, goes_on)
        if not act():
            return left - 1
    raise AssertionError(f"more than {GIVE_UP} allocations")


@pytest.mark.parametrize("goes_on", [0, 1], ids=["one_fails", "all_fail_from_there"])
def test_every_request_without_memory(sidecar, shortage, goes_on):  # noqa: F811
    daemon = sidecar().start(env=shortage.environment)
    script(daemon)  # what is allocated once and kept
    with daemon.client() as client:
        wait_for(lambda: not client.status().clients)
    wait_for(lambda: not connections(daemon))
    idle = descriptors(daemon)

    def act():
        tokens = script(daemon)
        failed = shortage.end()
        check_nothing_is_lost(daemon, tokens, idle)
        return failed

    count = sweep(shortage, goes_on, act, max(1, STRIDE // 4))
    print(f"{count} allocations")
    assert count > 40
    assert daemon.stop() == 0, daemon.log()


def test_more_descriptors_than_ever_without_memory(sidecar, shortage):  # noqa: F811
    """Tables by descriptor have their size before memory is short: each number is first used without any."""
    daemon = sidecar(clients={"max": 64}).start(env=shortage.environment)
    with contextlib.ExitStack() as clients:
        for _ in range(30):
            for left in range(1, 20):
                shortage.begin(left, 1)
                with attempt(), daemon.client() as client:
                    client.attach()
                shortage.end()
            clients.enter_context(daemon.client()).attach()
        assert descriptors(daemon) > 62
    assert daemon.stop() == 0, daemon.log()


def linked(daemon, direction):
    with attempt(), daemon.client() as client:
        return "connected" in [p.state for p in client.status().peers if p.direction == direction]


def read_across(sender, receiver):
    """A ticket of the sender's ring is read at the other stage; in the end it is freed whatever fails once."""
    share = pb.ShareRequest(lease=sender.loan().lease, kept=True)
    ticket = pb.FreeRequest(text=sender.call("Share", share, pb.ShareResponse).text)
    try:
        request = pb.ReadRequest(text=ticket.text)
        receiver.call("Describe", pb.DescribeRequest(text=ticket.text), pb.DescribeResponse)
        receiver.release(receiver.call("Read", request, pb.ReadResponse, timeout=5).message.lease)
    finally:
        try:
            sender.call("Free", ticket)
        except Refused:
            sender.call("Free", ticket)


def call_across(caller, callee):
    """A call may fail, as every request; then its callee sees that and gives up."""
    pending = caller.begin_call("m", b"x", route="next", timeout=2)
    with contextlib.suppress(Refused):
        request = callee.receive(timeout=0.5)
        with contextlib.suppress(Refused):
            callee.reply(request.lease, b"y")
        callee.release(request.lease)
    with contextlib.suppress(Refused):
        caller.release(caller.end_call(pending).lease)


def exchange(front, back, tokens):
    """A message from one stage to the next, and all that waited there; `tokens` gets those of the sessions."""
    with front.client() as sender, back.client() as receiver:
        tokens.append((front, sender.attach().session_token))
        tokens.append((back, receiver.attach().session_token))
        sender.send(sender.loan().lease, route="next")
        receiver.release(receiver.receive(timeout=5).lease)
        with contextlib.suppress(Refused):
            while True:
                receiver.release(receiver.receive(timeout=0.001).lease)
        call_across(sender, receiver)
        read_across(sender, receiver)


@pytest.mark.parametrize("side", ["upstream", "downstream"])
def test_links_without_memory(sidecar, place, shortage, side):  # noqa: F811
    """The other sidecar comes and goes; the link is made all the same, and a message passes."""
    front = sidecar("front", routes={"next": {"to": [f"unix:{place}/back.sock"]}})
    back = sidecar("back")
    tested, other = (front, back) if side == "upstream" else (back, front)
    tested.start(env=shortage.environment)

    def act():
        other.start()
        wait_for(lambda: linked(front, "downstream") and linked(back, "upstream"), 20)
        tokens = []
        with attempt():
            exchange(front, back, tokens)
        failed = shortage.end()
        for daemon, token in tokens:
            give_back(daemon, token)
        exchange(front, back, [])
        assert other.stop() == 0, other.log()
        return failed

    count = sweep(shortage, 0, act, STRIDE)
    print(f"{count} allocations")
    assert count > 5
    assert tested.stop() == 0, tested.log()

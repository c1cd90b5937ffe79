# SPDX-License-Identifier: Apache-2.0
"""ReceiveStream: messages for credits, every end that it can have, and what is given back then."""
import contextlib
import multiprocessing
import signal
import socket

import pytest

import control_pb2 as pb
from daemon import wait_for
from messages import put, refused
from ttrpc_client import DATA, HEADER, NO_DATA, REMOTE_CLOSED, REMOTE_OPEN

DEEP = {"inbox": {"cells": 256, "depth": 200}}


@pytest.fixture
def client(start):
    with start(**DEEP).client() as client:
        client.attach()
        yield client


def waiting(client):
    """How many messages wait in the inbox."""
    return sum(h.state == "queued" for slot in client.slots() for h in slot.holders)


def send(client, *numbers):
    for number in numbers:
        put(client, b"x", sequence=number)


def take(client, stream, count):
    messages = [client.next(stream) for _ in range(count)]
    return [m.sequence for m in messages], [m.lease for m in messages]


def test_one_message_for_each_credit(client):
    send(client, 1, 2, 3)
    stream = client.receive_stream(9, 2)
    numbers, leases = take(client, stream, 2)
    assert numbers == [1, 2]
    client.credit(9)  # none more: an answer, and no message
    assert waiting(client) == 1 and not client.data.get(stream)
    client.credit(9, 2)
    numbers, more = take(client, stream, 1)
    assert numbers == [3]
    send(client, 4, 5)
    numbers, last = take(client, stream, 1)
    assert numbers == [4] and waiting(client) == 1
    for lease in leases + more + last:
        client.release(lease)
    assert waiting(client) == len(client.slots()) == 1


def test_stream_without_credit_does_not_take_what_others_wait_for(client):
    stream = client.receive_stream(9, 0)
    send(client, 1)
    assert client.receive().sequence == 1
    send(client, 2)
    client.credit(9, 1)
    assert take(client, stream, 1)[0] == [2]


def test_messages_come_as_they_are_sent_by_others(start):
    daemon = start(**DEEP)
    with daemon.client() as receiver, daemon.client() as sender:
        receiver.attach()
        sender.attach()
        stream = receiver.receive_stream(1, 64)
        for number in range(300):
            put(sender, b"x", sequence=number, trace_id=b"0123456789abcdef", metadata=b"{}")
            message = receiver.next(stream)
            assert (message.sequence, message.trace_id) == (number, b"0123456789abcdef")
            receiver.release(message.lease)
            receiver.credit(1, 1)
        totals = receiver.status().totals
        assert (totals.received, totals.released) == (300, 300)


def test_end_by_credit_is_in_good_order(client):
    stream = client.receive_stream(9, 5)
    send(client, 1)
    wait_for(lambda: waiting(client) == 0)  # it is the stream's
    client.credit(9, end=True)
    assert client.next(stream).sequence == 1
    assert client.next(stream) is None
    send(client, 2)
    assert waiting(client) == 1
    with refused("STATE"):
        client.credit(9, 1)


def test_end_by_timeout_keeps_what_was_delivered(client):
    send(client, 1)
    stream = client.receive_stream(9, 5, timeout=0.3)
    numbers, (lease,) = take(client, stream, 1)
    with refused("TIMEOUT"):
        client.next(stream)
    send(client, 2)
    assert waiting(client) == 1
    client.release(lease)


def test_end_by_the_callers_side_of_an_open_stream(client):
    stream = client.receive_stream(9, 5, flags=REMOTE_OPEN)
    send(client, 1)
    assert client.next(stream).sequence == 1
    client.socket.sendall(HEADER.pack(0, stream, DATA, REMOTE_CLOSED | NO_DATA))
    assert client.next(stream) is None
    send(client, 2)
    assert waiting(client) == 1


def test_data_frames_that_mean_nothing_are_ignored(client):
    stream = client.receive_stream(9, 1)
    call = client.begin("Receive", timeout=10)
    for number, flags in ((stream, 0), (call, REMOTE_CLOSED), (stream + 100, REMOTE_CLOSED), (0, 255), (2, 0)):
        client.socket.sendall(HEADER.pack(3, number, DATA, flags) + b"abc")
    send(client, 1, 2)
    got = {client.end(call, pb.ReceiveResponse).message.sequence, client.next(stream).sequence}
    assert got == {1, 2}


def test_connection_that_ends_gives_back_what_was_not_delivered(start):
    """The receiver does not read: the kernel has some messages, the sidecar the rest, and takes that back."""
    slots = 200
    daemon = start(inbox={"cells": 512, "depth": 256},
                   ring={"classes": [{"slot_bytes": "64Ki", "slots": slots}]})
    with daemon.client() as sender, daemon.client() as receiver:
        sender.attach()
        token = receiver.attach().session_token
        receiver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        receiver.receive_stream(9, 64)
        for number in range(slots):
            put(sender, b"x", sequence=number, metadata=bytes(32768))
        def taken_at_last():
            looks = {slots - waiting(sender) for _ in range(5)}  # the sidecar did what it could before each answer
            return len(looks) == 1 and looks.pop()

        taken = wait_for(taken_at_last)
        receiver.close()
        wait_for(lambda: sender.status().clients[1].state == "detached")
        with daemon.client() as again:
            held = again.attach(session_token=token).held
            assert len(held) + waiting(sender) == slots and len(held) < taken
            for lease in held:
                again.release(lease)
        assert waiting(sender) == len(sender.slots()) == slots - len(held)


def test_killed_receiver_of_a_stream(start):
    daemon = start(**DEEP)
    with daemon.client() as sender:
        sender.attach()
        send(sender, 1, 2, 3)
        ready = multiprocessing.Event()

        def receive():
            client = daemon.client()
            client.attach()
            take(client, client.receive_stream(9, 2), 2)
            ready.set()
            signal.pause()

        process = multiprocessing.Process(target=receive)
        process.start()
        assert ready.wait(20)
        process.kill()
        process.join()
        wait_for(lambda: waiting(sender) == 3)


def test_equal_stream_gives_what_is_still_held_again(start):
    daemon = start(**DEEP)
    with daemon.client() as sender:
        sender.attach()
        send(sender, 1, 2, 3, 4)
        with daemon.client() as client:
            token = client.attach().session_token
            stream = client.receive_stream(77, 3)
            numbers, leases = take(client, stream, 3)
            client.release(leases[1])
        with daemon.client() as client:
            assert len(client.attach(session_token=token).held) == 2
            stream = client.receive_stream(77, 1)
            numbers, again = take(client, stream, 1)  # what comes again needs credit as well
            assert numbers == [1] and again == [leases[0]]
            client.credit(77, 2)
            numbers, more = take(client, stream, 2)
            assert numbers == [3, 4] and more[0] == leases[2]
            other = client.receive_stream(78, 5)  # another stream has nothing to do with it
            send(sender, 5)
            assert take(client, other, 1)[0] == [5]
            for lease in (again[0], more[1]):
                client.release(lease)
            client.call("Nack", pb.LeaseRequest(lease=leases[2]))
            message = client.next(other)
            assert (message.sequence, message.attempts) == (3, 1)
            client.credit(77, end=True)
            assert client.next(stream) is None
            stream = client.receive_stream(77, 1, timeout=0.2)
            with refused("TIMEOUT"):  # what came by the other stream is not this one's any more
                client.next(stream)


@pytest.mark.parametrize("request_id, credits, name", [(0, 1, "INVALID"), (9, 65, "LIMIT"), (9, 2 ** 32 - 1, "LIMIT")])
def test_wrong_requests(client, request_id, credits, name):
    with refused(name):
        client.next(client.receive_stream(request_id, credits))


def test_wrong_credit(client):
    with refused("STATE"):
        client.credit(9, 1)
    with refused("STATE"):
        client.credit(0, 1)
    client.receive_stream(9, 60)
    with refused("LIMIT"):
        client.credit(9, 5)
    with refused("LIMIT"):
        client.credit(9, 2 ** 32 - 1)
    client.credit(9, 4)
    with refused("IN_USE"):
        client.next(client.receive_stream(9, 1))


def test_flags_must_fit_the_method(start):
    with start().client() as client:
        with refused("STATE"):
            client.next(client.receive_stream(9, 1))  # not attached
        client.attach()
        with refused("INVALID") as error:
            client.end(client.receive_stream(9, 1, flags=0), pb.Empty)
        assert "remote closed" in error.value.message
        for flags in (REMOTE_CLOSED, REMOTE_OPEN):
            with refused("UNIMPLEMENTED"):
                client.end(client.begin("Status", flags=flags), pb.Empty)
        with refused("UNIMPLEMENTED"):
            client.end(client.begin("Ping", service="ringside.peer.v1.Peer", flags=REMOTE_CLOSED), pb.Empty)


def test_many_streams_of_many_sessions_share_the_inbox(start):
    daemon = start(**DEEP)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(daemon.client()) for _ in range(5)]
        for client in clients:
            client.attach()
        streams = [(c, c.receive_stream(n, 4)) for c in clients[1:] for n in (1, 2)]
        send(clients[0], *range(8))
        seen = []
        for client, _ in streams[::2]:
            client.status()  # what was sent to it before has arrived then
        for client, stream in streams:
            for flags, body in client.data.get(stream, []):
                seen.append(pb.ReceiveResponse.FromString(body).message.sequence)
        assert sorted(seen) == list(range(8))

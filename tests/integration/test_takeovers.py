# SPDX-License-Identifier: Apache-2.0
"""Sessions that others took over or that outlived their sidecar: what was once wrong with them."""
import signal
import struct
import time

import pytest

import control_pb2 as pb
from children import children, told  # noqa: F401
from daemon import wait_for
from ttrpc_client import Refused


def resumes(pipe, path):
    """Takes over the session whose token it is told, and keeps it."""
    import ttrpc_client

    client = ttrpc_client.Client(path)
    answer = client.attach(session_token=pipe.recv())
    pipe.send([lease.SerializeToString() for lease in answer.held])
    signal.pause()


def begins(pipe, path, loan=True):
    import ttrpc_client

    client = ttrpc_client.Client(path)
    token = client.attach(name="first").session_token
    if loan:
        client.loan()
    pipe.send(token)
    signal.pause()


def test_session_that_another_process_took_over_outlives_the_first(start, children):  # noqa: F811
    """The table still named the first process: after a restart the second one's loan was taken from it."""
    daemon = start()
    first, pipe = children(begins, daemon.socket)
    token = told(pipe)
    second, pipe = children(resumes, daemon.socket)
    pipe.send(token)
    assert len(told(pipe)) == 1
    time.sleep(1.2)  # the sidecar looks every second whether its tables are as it wrote them
    first.kill()
    first.join()
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        assert [c.pid for c in client.status().clients] == [second.pid]
        assert [s.state for s in client.slots()] == ["loaned"]
        second.kill()
        wait_for(lambda: not client.slots())


def locks(pipe, path, layout, token):
    """Attaches with descriptors, so that a byte of the ring is locked for it."""
    import ttrpc_client

    client = ttrpc_client.Client(path)
    version, layout_hash = layout
    answer = client.attach(name="locks", session_token=token, want_descriptors=True, layout_version=version,
                           layout_hash=layout_hash)
    loan = b"" if token else client.loan().lease.SerializeToString()
    pipe.send((answer.session_token, loan))
    signal.pause()


def layout(daemon):
    head = (daemon.ring / "stage.control").read_bytes()[:24]
    return struct.unpack_from("<I", head, 8)[0], struct.unpack_from("<Q", head, 16)[0]


def lock_in_turn(daemon, children):  # noqa: F811
    """Two processes, the second with the token of the first."""
    first, pipe = children(locks, daemon.socket, layout(daemon), b"")
    token, _ = told(pipe)
    second, pipe = children(locks, daemon.socket, layout(daemon), token)
    told(pipe)
    return first, second


def test_process_whose_lock_lives_loses_nothing_when_another_used_its_token(start, children):  # noqa: F811
    daemon = start()
    first, second = lock_in_turn(daemon, children)
    second.kill()
    second.join()
    with daemon.client() as client:
        wait_for(lambda: [c.state for c in client.status().clients] == ["detached"])
        assert [s.state for s in client.slots()] == ["loaned"]
        first.kill()
        wait_for(lambda: not client.slots() and not client.status().clients)


def test_process_whose_lock_lives_loses_nothing_when_another_used_its_token_before_a_restart(start, children):  # noqa: F811
    daemon = start()
    first, second = lock_in_turn(daemon, children)
    daemon.kill()
    daemon.start()
    second.kill()
    second.join()
    time.sleep(1.2)
    with daemon.client() as client:
        assert [s.state for s in client.slots()] == ["loaned"]
        first.kill()
        wait_for(lambda: not client.slots() and not client.status().clients)


def test_process_that_took_over_keeps_what_it_has_when_the_locks_owner_ends(start, children):  # noqa: F811
    daemon = start()
    first, second = lock_in_turn(daemon, children)
    first.kill()
    first.join()
    time.sleep(0.1)
    with daemon.client() as client:
        assert [s.state for s in client.slots()] == ["loaned"]
    daemon.kill()
    daemon.start()
    time.sleep(0.3)
    with daemon.client() as client:
        assert [s.state for s in client.slots()] == ["loaned"]
        second.kill()
        wait_for(lambda: not client.slots() and not client.status().clients)


def test_session_does_not_change_between_socket_and_memory(start):
    """Who judges its life is decided at the first attach."""
    daemon = start()
    version, layout_hash = layout(daemon)
    with daemon.client() as client, daemon.client() as again:
        token = client.attach().session_token
        with pytest.raises(Refused) as error:
            again.attach(session_token=token, want_descriptors=True, layout_version=version, layout_hash=layout_hash)
        assert error.value.name == "INVALID" and "descriptors" in error.value.message
        client.loan()


def test_reading_survives_the_sidecar_and_can_be_ended(start):
    daemon = start()
    client = daemon.client()
    token = client.attach().session_token
    shared = client.call("Share", pb.ShareRequest(lease=client.loan().lease, readers=1), pb.ShareResponse)
    client.call("Read", pb.ReadRequest(text=shared.text), pb.ReadResponse)
    daemon.kill()
    client.close()
    daemon.start()
    with daemon.client() as back:
        held = back.attach(session_token=token).held
        assert [(lease.ticket, lease.delivery) for lease in held] == [(shared.ticket, -1)]
        back.release(held[0])
        assert back.slots() == []


def reads(pipe, path, text):
    """Reads by ticket, and goes on reading."""
    import ttrpc_client

    client = ttrpc_client.Client(path)
    reader = client.attach(name="reader").ring.reader
    client.call("Read", pb.ReadRequest(text=text), pb.ReadResponse)
    pipe.send(reader)
    signal.pause()


def test_reading_without_a_number_survives_the_sidecar(start, children):  # noqa: F811
    """The next sidecar took the bit that they share off at once, and the slot from under the reader."""
    daemon = start()
    crowd = [daemon.client() for _ in range(36)]
    for client in crowd:
        client.attach()
    shared = crowd[0].call("Share", pb.ShareRequest(lease=crowd[0].loan().lease, kept=True), pb.ShareResponse)
    reader, pipe = children(reads, daemon.socket, shared.text)
    assert told(pipe) == 255
    crowd[0].call("Free", pb.FreeRequest(text=shared.text))
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        wait_for(lambda: client.status().audits >= 1)
        assert [s.ticket for s in client.slots()] == [shared.ticket]
        reader.kill()
        wait_for(lambda: client.slots() == [])
    for client in crowd:
        client.close()

# SPDX-License-Identifier: Apache-2.0
"""Calls over the socket while sidecars end and come back."""
import contextlib
import signal
import time

import pytest

from call_sides import (call, call_and_stay, callee, caller, process, stages, take_and_stay, two, worker_of)  # noqa: F401
from daemon import wait_for
from messages import data_of, refused
from ttrpc_client import Refused


def serve_until_told(socket, pipe):
    """Answers calls; over a restart of its sidecar it comes back with its token."""
    import ttrpc_client
    token = b""
    while not pipe.poll():
        try:
            with ttrpc_client.Client(socket) as client:
                token = client.attach("server", session_token=token).session_token
                while not pipe.poll():
                    try:
                        request = client.receive(timeout=0.05)
                    except Refused:
                        continue
                    client.reply(request.lease, data_of(request) * 2)
                    client.release(request.lease)
        except (OSError, Refused):
            time.sleep(0.01)


def eventually(client, **options):
    """A reply, once the stages found each other again."""
    end = time.monotonic() + 20
    while True:
        try:
            return caller_reply(client, **options)
        except Refused:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def caller_reply(client, **options):
    reply = client.end_call(call(client, data=b"ab", timeout=1, **options))
    data = data_of(reply)
    client.release(reply.lease)
    return data


@pytest.mark.parametrize("which", ["front", "back"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_restart_of_a_sidecar(two, which, number):  # noqa: F811
    with process(serve_until_told, two.back.socket) as (server, pipe):
        with process(call_and_wait, two.front.socket) as (one, calls):
            assert calls.poll(20) and calls.recv() == b"abab"
            daemon = getattr(two, which)
            daemon.signal(number)
            daemon.wait()
            daemon.start()
            two.wait_linked()
            calls.send("again")
            assert calls.poll(30) and calls.recv() == b"abab"
        pipe.send(0)
        server.join(10)
    two.wait_empty()
    wait_for(lambda: not two.clients(), 10, lambda: f"{two.clients()}")


def call_and_wait(socket, pipe):
    """One call, and when it is told another, in the same session as far as its sidecar lets it."""
    import ttrpc_client
    client = ttrpc_client.Client(socket)
    token = client.attach("caller").session_token
    pipe.send(eventually(client))
    pipe.recv()
    end = time.monotonic() + 20
    while True:
        try:
            pipe.send(eventually(client))
            break
        except OSError:
            assert time.monotonic() < end
            with contextlib.suppress(OSError, Refused):
                client = ttrpc_client.Client(socket)
                client.attach("caller", session_token=token)
    signal.pause()


def test_call_in_progress_over_a_restart_of_the_callers_sidecar(two):  # noqa: F811
    """The connection ends, so the call does: its callee sees that, and its late reply goes."""
    with process(call_and_stay, two.front.socket) as (one, pipe), two.back.client() as callee:  # noqa: F811
        callee.attach()
        assert pipe.poll(20)
        request = callee.receive()
        two.front.kill()
        two.front.start()
        two.wait_linked()
        wait_for(lambda: callee.cancelled(request.lease))
        with refused("CANCELLED"):
            callee.reply(request.lease, b"late")
        callee.release(request.lease)
        two.wait_empty()


def test_call_in_progress_over_a_restart_of_the_callees_sidecar(two):  # noqa: F811
    """The next sidecar knows nothing of what its sessions hold in other rings; it is theirs until they are gone."""
    with two.front.client() as caller:  # noqa: F811
        caller.attach()
        with process(take_and_stay, two.back.socket) as (one, pipe):
            pending = call(caller, timeout=30)
            assert pipe.poll(20)
            two.back.kill()
            two.back.start()
            two.wait_linked()
            assert [s.holders[0].state for s in two.slots()] == ["held"]
            one.kill()
            one.join()
            with refused("UNAVAILABLE"):
                caller.end_call(pending)
        two.wait_empty()


def test_worker_in_memory_answers_over_a_restart_of_its_sidecar(two):  # noqa: F811
    with two.front.client() as caller, worker_of(two.back, "callee") as callee:  # noqa: F811
        caller.attach()
        pending = call(caller, timeout=30)
        callee.receive()
        two.back.kill()
        two.back.start()
        two.wait_linked()
        callee("reply 3")
        reply = caller.end_call(pending)
        assert data_of(reply) == b"\3" * 16
        caller.release(reply.lease)
        callee("release")
        two.wait_empty()


def test_new_ring_of_the_callees_stage(two):  # noqa: F811
    """The old ring stays mapped for what is held in it, the new one takes the next calls."""
    with two.front.client() as caller:  # noqa: F811
        caller.attach()
        with process(serve_until_told, two.back.socket) as (server, _):
            old = caller.end_call(call(caller, data=b"old"))
            assert data_of(old) == b"oldold"
            server.kill()
            server.join()
        wait_for(lambda: len(two.clients()) == 2)
        two.back.kill()
        for file in two.back.ring.glob("back.*"):
            file.unlink()
        two.back.start()
        two.wait_linked()
        with process(serve_until_told, two.back.socket):
            assert eventually(caller) == b"abab"
            caller.release(old.lease)
            with refused("STATE"):
                caller.release(old.lease)
            maps = f"/proc/{two.front.process.pid}/maps"
            wait_for(lambda: "back.body (deleted)" not in open(maps).read(), 10)
            assert eventually(caller) == b"abab"

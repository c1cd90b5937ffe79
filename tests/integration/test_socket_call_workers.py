# SPDX-License-Identifier: Apache-2.0
"""Calls between the socket and workers on libringside, and handlers that share a session."""
import threading

import pytest

import control_pb2 as pb
from call_sides import call, call_in_time, callee, caller, stages, worker_of  # noqa: F401
from messages import data_of, refused
from ttrpc_client import Refused
from worker import Failed


def test_socket_calls_a_worker_in_memory(stages, caller):  # noqa: F811
    with worker_of(stages.back, "callee") as callee:  # noqa: F811
        for value in range(1, 6):
            pending = call(caller, "add.one", bytes([value]) * 16)
            assert callee.receive() == value and callee("method") == ["add.one"]
            callee(f"reply {value + 1}")
            callee("release")
            reply = caller.end_call(pending)
            assert data_of(reply) == bytes([value + 1]) * 16
            caller.release(reply.lease)
        pending = call(caller)
        callee.receive()
        callee("error 5 no such thing")
        with pytest.raises(Refused) as error:
            caller.end_call(pending)
        assert (error.value.code, error.value.message) == (5, "CALLEE: no such thing")
        callee("release")
        pending = call(caller)
        callee.receive()
        callee("release")
        with pytest.raises(Refused) as error:
            caller.end_call(pending)
        assert error.value.code == 13
        pending, _, _ = call_in_time(caller, lambda: callee.receive(100))
        with refused("TIMEOUT"):
            caller.end_call(pending)
        assert callee("cancelled") == ["1"]
        with pytest.raises(Failed) as failed:
            callee("reply 1")
        assert failed.value.name == "CANCELLED"
        callee("release")
        stages.wait_empty()
        stream = call(caller, credits=3, request_id=9)
        callee.receive()
        for i in range(3):
            callee(f"reply {i} {i // 2}")
            assert data_of(caller.next(stream)) == bytes([i]) * 16
        assert caller.next(stream) is None
        pending = call(caller, timeout=20)
        callee.receive()
        callee.kill()
        with refused("UNAVAILABLE"):
            caller.end_call(pending)


def test_worker_in_memory_calls_a_socket(stages, callee):  # noqa: F811
    with worker_of(stages.front, "caller") as caller:  # noqa: F811
        for value in range(1, 6):
            caller(f"call there double {value} 5000")
            request = callee.receive()
            assert request.method == "double" and data_of(request) == bytes([value]) * 16
            callee.reply(request.lease, bytes([2 * value]) * 16)
            callee.release(request.lease)
            assert caller("wait 5000")[0] == str(2 * value)
            caller("release")
        caller("call there double 1 5000 2")
        request = callee.receive()
        for i in range(4):
            callee.reply(request.lease, bytes([i]), more=i < 3)
            assert caller("wait 5000")[0] == str(i)
        for _ in range(4):
            caller("release")
        callee.release(request.lease)
        for release, name in ((False, "TOO_BIG"), (True, "INTERNAL")):
            caller("call there double 1 5000")
            request = callee.receive()
            if not release:
                callee.reply(request.lease, status=11, text="out of range")
            callee.release(request.lease)
            with pytest.raises(Failed) as failed:
                caller("wait 5000")
            assert failed.value.name == name
        caller("call there double 1 5000")
        request = callee.receive()
        callee.call("Nack", pb.LeaseRequest(lease=request.lease))
        with pytest.raises(Failed) as failed:
            caller("wait 5000")
        assert failed.value.name == "UNAVAILABLE"
        caller("call there double 1 5000")
        request = callee.receive()
        caller("cancel")
        assert callee.cancelled(request.lease)
        with refused("CANCELLED"):
            callee.reply(request.lease, b"late")
        callee.release(request.lease)
        stages.wait_empty()


def test_handler_threads_of_one_session(stages, caller):  # noqa: F811
    """A callee that works on several connections, each waiting while others answer."""
    done = threading.Event()

    def serve():
        with stages.back.client() as client:
            client.attach("server")
            while not done.is_set():
                try:
                    request = client.receive(timeout=0.05)
                except Refused:
                    continue
                client.reply(request.lease, data_of(request)[::-1])
                client.release(request.lease)

    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(10):
            pending = [call(caller, data=bytes([round_, i])) for i in range(16)]
            for i, one in enumerate(pending):
                reply = caller.end_call(one)
                assert data_of(reply) == bytes([i, round_])
                caller.release(reply.lease)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert stages.slots() == []

# SPDX-License-Identifier: Apache-2.0
"""Calls over the socket at their edges: replies that wait behind one another, headers that change under the sidecar."""
import multiprocessing
import time

import pytest

import control_pb2 as pb
from call_sides import DEEP, call, stages, worker_of  # noqa: F401
from daemon import wait_for
from messages import refused
from ttrpc_client import Refused
from worker import Failed

SLOTS_OFFSET = 144  # in the superblock
SLOT_BYTES, HEADER = 256, 80
WORD_CALL, WORD_METHOD, WORD_ADMISSION = 19, 20, 21
REPLY_KIND = 2 << 56
CREDITS = 0xff << 24


def test_error_waits_behind_a_reply(stages):  # noqa: F811
    """A reply without room, and an error after it: both come, in this order."""
    with stages.front.client() as caller, stages.back.client() as callee:
        caller.attach("caller")
        callee.attach("callee")
        stream = call(caller, credits=1, request_id=7)
        request = callee.receive()
        callee.reply(request.lease, b"0" * 16, more=True)
        reply = caller.next(stream)  # it had the one credit of the stream; the cell is empty again
        callee.reply(request.lease, b"1" * 16, more=True)
        loan = callee.loan((16,), metadata_bytes=256)
        waiting = [callee.begin("Reply", message.SerializeToString(), 10) for message in (
            pb.ReplyRequest(request=request.lease, reply=loan.lease, more=True),
            pb.ReplyRequest(request=request.lease, status=9, text="as far as it got"))]
        caller.release(reply.lease)
        caller.credit(7, 3)
        for _ in range(2):
            caller.release(caller.next(stream).lease)
        with pytest.raises(Refused) as error:
            caller.next(stream)
        assert (error.value.code, error.value.message) == (9, "CALLEE: as far as it got")
        for each in waiting:
            callee.end(each, pb.Empty)
        callee.release(request.lease)
    stages.wait_empty()


def flip(path, at, values, seconds):
    """Another process that has the ring mapped writes where it must not."""
    import mmap

    with open(path, "r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    one, other = values
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(1000):
            words[at] = one
            words[at] = other


def header_word(path, slot, word):
    with open(path, "rb") as file:
        file.seek(SLOTS_OFFSET)
        begin = int.from_bytes(file.read(8), "little")
    return (begin + slot * SLOT_BYTES + HEADER) // 8 + word


def poke(path, at, value=None):
    with open(path, "r+b") as file:
        file.seek(at * 8)
        before = int.from_bytes(file.read(8), "little")
        if value is not None:
            file.seek(at * 8)
            file.write(value.to_bytes(8, "little"))
    return before


def test_request_that_becomes_a_reply_under_the_sidecar(stages):  # noqa: F811
    """What the header says of the call changes between two looks of the sidecar that answers it."""
    with stages.front.client() as caller, stages.back.client() as callee:
        path = caller.attach("caller").ring.control_path
        callee.attach("callee")
        call(caller)
        request = callee.receive()
        slot = request.lease.ticket >> 28 & 0xfffff
        at = header_word(path, slot, WORD_CALL)
        word = poke(path, at)
        assert word >> 56 == 1
        poke(path, header_word(path, slot, WORD_METHOD), 0)
        values = word, word & ~CREDITS & (1 << 56) - 1 | REPLY_KIND
        writer = multiprocessing.get_context("spawn").Process(target=flip, args=(path, at, values, 3))
        writer.start()
        try:
            while writer.is_alive():
                with pytest.raises(Refused):
                    callee.reply(request.lease, status=9, text="x")
        finally:
            writer.kill()
            writer.join()
        assert callee.status().stage == "back"


@pytest.mark.parametrize("credits", [1, 4])
def test_stream_whose_sidecar_restarts_in_the_middle(start, place, credits):
    """Caller in memory and callee on the socket, of one stage: the next sidecar does not know how many replies there were.
    The caller is told, and gets no stream with a hole."""
    stage = start("back", routes={"there": {"to": [f"unix:{place}/back.sock"], "when_full": "error"}}, **DEEP)
    with worker_of(stage, "caller") as caller:
        with stage.client() as callee:
            token = callee.attach("callee").session_token
            caller(f"call there m 1 30000 {credits}")
            request = callee.receive()
            callee.reply(request.lease, b"0" * 16, more=True)
            assert caller("wait 5000")[0] == str(ord("0"))
            stage.kill()
            stage.start()
        with stage.client() as callee:
            assert callee.attach("callee", session_token=token).resumed
            if credits == 1:
                callee.reply(request.lease, b"1" * 16, more=True)
            else:
                with refused("UNAVAILABLE"):
                    callee.reply(request.lease, b"1" * 16, more=True)
                callee.release(request.lease)
            with pytest.raises(Failed) as error:
                caller("wait 10000")
            assert error.value.name == "UNAVAILABLE"
            if credits == 1:
                assert callee.cancelled(request.lease)
                callee.release(request.lease)
            caller("release")
            wait_for(lambda: not [slot for slot in callee.slots() if slot.state != "loaned"])


def test_call_that_was_not_answered_is_answered_by_the_next_sidecar(start, place):
    stage = start("back", routes={"there": {"to": [f"unix:{place}/back.sock"], "when_full": "error"}}, **DEEP)
    with worker_of(stage, "caller") as caller:
        with stage.client() as callee:
            token = callee.attach("callee").session_token
            caller("call there m 1 30000 1")
            request = callee.receive()
            stage.kill()
            stage.start()
        with stage.client() as callee:
            assert callee.attach("callee", session_token=token).resumed
            callee.reply(request.lease, b"1" * 16)
            assert caller("wait 10000")[0] == str(ord("1"))
            callee.release(request.lease)


def test_every_reply_says_for_whom_it_is(start, place):
    """Also an error reply, which its sidecar writes: who has the caller's number after it must not be taken for the caller."""
    stage = start("back", routes={"there": {"to": [f"unix:{place}/back.sock"], "when_full": "error"}}, **DEEP)
    with worker_of(stage, "caller") as caller, stage.client() as callee:
        path = callee.attach("callee").ring.control_path
        for status in (0, 9):
            caller("call there m 1 30000 1")
            request = callee.receive()
            slot = request.lease.ticket >> 28 & 0xfffff
            admission = poke(path, header_word(path, slot, WORD_ADMISSION))
            if status:
                callee.reply(request.lease, status=status, text="x")
            else:
                callee.reply(request.lease, b"0" * 16)
            callee.release(request.lease)
            reply, = [each for each in callee.slots() if each.state == "sealed" and each.slot != slot]
            assert poke(path, header_word(path, reply.slot, WORD_ADMISSION)) == admission != 0
            if not status:
                caller("wait 5000")
                caller("release")

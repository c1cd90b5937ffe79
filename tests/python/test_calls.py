# SPDX-License-Identifier: Apache-2.0
"""Calls between two stages: one reply, errors, and what must not be done."""

import gc
import os
import pickle
import resource
import sys

import numpy as np
import pytest
import ringside
from call_stages import LONG, Serving, callee, make_stage, rs, stages  # noqa: F401
from sidecars import SLOTS, free_slots

# ---- one reply ----

def test_call_and_reply(rs, stages):  # noqa: F811
    with Serving(stages[1], make_stage()) as server:
        with rs.call("work.Double", np.arange(5), timeout=LONG) as reply:
            assert reply.numpy().tolist() == [0, 2, 4, 6, 8] and reply.method is None and reply.call_id != 0
            with pytest.raises(ValueError):
                reply.numpy()[0] = 1
        with rs.call("work.Echo", [np.zeros((2, 3), "f4"), b"abc", np.float64(2.5)], timeout=LONG) as reply:
            assert [(tensor.dtype, tensor.shape) for tensor in reply.tensors] == [
                ("float32", (2, 3)), ("uint8", (3,)), ("float64", ())]
            assert bytes(reply.buffer(1)) == b"abc"
        with rs.call("work.strict.Double", np.array([4]), timeout=LONG) as reply:  # a route with a dot
            assert reply.numpy()[0] == 8
        with rs.call("work.Nothing", timeout=LONG) as reply:
            assert reply.nbytes == 0 and reply.meta == b""
        sent = {"a": [1, (2, None)], "x": np.arange(3)}
        with rs.call("work.Tree", sent, timeout=LONG) as reply:
            tree = reply.tree()
            assert tree["method"] == "Tree" and tree["got"]["a"] == [1, (2, None)] and tree["got"]["x"].tolist() == [0, 1, 2]
            del tree
        assert server.stats()["received"] == 5


def test_slots_go_as_they_are(rs, callee):  # noqa: F811
    slot = rs.loan(1000, "f4", timeout=LONG, meta_bytes=64)
    slot.numpy()[...] = 7
    ticket = slot.ticket
    call = rs._call("work.Take", slot, {"k": 1}, LONG, None, 1)
    call._start()
    with pytest.raises(ringside.InvalidState):
        slot.send("work")
    request = callee.receive(LONG)
    assert request.ticket == ticket and request.meta == {"k": 1} and request.method == "Take"
    answer = callee.loan(3, "i8", timeout=LONG)
    answer.numpy()[...] = [1, 2, 3]
    request.reply(answer, meta={"done": True})
    with pytest.raises(ringside.InvalidState):
        answer.send("work")
    with pytest.raises(ringside.InvalidState, match="had its last reply"):
        request.reply(b"again")
    request.release()
    with call._next() as reply:
        assert reply.numpy().tolist() == [1, 2, 3] and reply.meta == {"done": True}


def test_what_cannot_be_called(rs, callee):  # noqa: F811
    for target in ("work", ".x", "work.", "work." + "m" * 64, "w" * 64 + ".x", ""):
        with pytest.raises(ringside.InvalidArgument, match="ROUTE.METHOD"):
            rs.call(target, timeout=1)
    with pytest.raises(ringside.NoRoute):
        rs.call("nowhere.Double", timeout=1)
    with pytest.raises(ringside.InvalidArgument, match="timeout is 0"):
        rs.call("work.Double", timeout=0)
    with pytest.raises(ringside.InvalidArgument, match="dict"):
        rs.call("work.Double", {"a": 1}, meta={"b": 2}, timeout=1)
    with pytest.raises(ringside.InvalidArgument, match="credits"):
        rs.call_stream("work.Count", credits=0)
    with pytest.raises(ValueError, match="credits"):
        rs.call_stream("work.Count", credits=65)
    with rs.loan(1, "u1", timeout=1) as slot:
        with pytest.raises(ringside.NoRoute):
            rs.call("nowhere.Double", slot, timeout=1)
        slot.numpy()[0] = 1  # still held
    with callee.loan(1, "u1", timeout=1) as slot, pytest.raises(ringside.InvalidArgument, match="another connection"):
        rs.call("work.Double", slot, timeout=1)
    rs.send("work", b"x", timeout=LONG)
    with callee.receive(LONG) as message:
        assert message.method is None and message.cancelled is False and message.time_left is None
        with pytest.raises(ringside.InvalidState, match="no call"):
            message.reply(b"y")
        with pytest.raises(ringside.InvalidState, match="no call"):
            message.reply_error(5)


# ---- errors ----

def test_errors_keep_their_kind(rs, stages, caplog):  # noqa: F811
    stage = make_stage()

    @stage.method
    def Raise(request):
        raise getattr(ringside, request.meta["kind"])(request.meta["text"])

    @stage.method
    def Break(request):
        return request.numpy()[10]

    @stage.method
    def Half(request):
        yield np.array([1])
        raise ringside.TooBig("after one")

    @stage.method
    def Plain(request):
        request.reply_error(99, "nobody knows")

    @stage.method
    def Twice(request):
        request.reply(b"1")
        return b"2"

    with Serving(stages[1], stage):
        for kind in ringside.__all__:
            kind = getattr(ringside, kind)
            if isinstance(kind, type) and issubclass(kind, ringside.RingsideError) and kind.code:
                with pytest.raises(kind, match="^w\N{LATIN SMALL LETTER U WITH DIAERESIS}: on purpose$") as caught:
                    rs.call("work.Raise", meta={"kind": kind.__name__, "text": "w\u00fc: on purpose"}, timeout=LONG)
                assert type(caught.value) is kind and caught.value.status in range(1, 17)
        with pytest.raises(ringside.Unimplemented, match="stage 'callee' has no method 'Trouble'; it has: Double, Echo, Count"):
            rs.call("work.Trouble", timeout=LONG)
        assert not caplog.records
        with pytest.raises(ringside.InternalError, match="^IndexError: .*10") as caught:
            rs.call("work.Break", np.arange(3), timeout=LONG)
        assert caught.value.status == 13 and "'Break'" in caplog.text and "Traceback" in caplog.text
        with pytest.raises(ringside.InternalError, match="nobody knows") as caught:
            rs.call("work.Plain", timeout=LONG)
        assert caught.value.status == 99
        replies = rs.call_stream("work.Half", timeout=LONG)
        assert next(replies).numpy()[0] == 1
        with pytest.raises(ringside.TooBig, match="after one"):
            next(replies)
        assert list(replies) == []
        with rs.call("work.Twice", timeout=LONG) as reply:
            assert bytes(reply.buffer()) == b"1"
        with pytest.raises(ringside.InvalidState, match="call_stream"):
            rs.call("work.Count", np.array([2]), timeout=LONG)
        with pytest.raises(ringside.Timeout):
            rs.receive(timeout=0)
        assert rs.call("work.Nothing", timeout=LONG).release() is None


def test_methods_are_named_once():
    stage = make_stage()
    for name in ("Double", "", "a.b", "m" * 64):
        with pytest.raises(ValueError, match="method"):
            stage.method(name=name)(print)


MANY = 100_000


# ---- what must not be done ----

def test_nothing_of_a_call_is_pickled(rs, callee):  # noqa: F811
    call = rs._call("work.M", np.arange(3), None, LONG, None, 1)
    with pytest.raises(TypeError, match="call in flight"):
        pickle.dumps(call)
    call._start()
    with callee.receive(LONG) as request:
        with pytest.raises(TypeError, match="came by a route"):
            pickle.dumps(request)
        request.reply(request.numpy())
    reply = call._next()
    with pytest.raises(TypeError, match="reply to a call"):
        pickle.dumps(reply)
    with pytest.raises(ringside.InvalidState, match="reply to a call"):
        reply.nack()
    del reply  # is released, not given back
    assert callee.stats()["requeued"] == rs.stats()["nacked"] == 0


def test_views_keep_reply_and_request(rs, callee):  # noqa: F811
    call = rs._call("work.M", np.arange(3), None, LONG, None, 1)
    call._start()
    request = callee.receive(LONG)
    kept = request.numpy()
    request.reply(kept * 3)
    request.release()
    assert free_slots(rs) == SLOTS - 1
    reply = call._next()
    view = reply.numpy()
    reply.release()
    del reply, call
    assert free_slots(callee) == SLOTS - 1
    assert view.tolist() == [0, 3, 6] and kept.tolist() == [0, 1, 2]
    del view, kept
    gc.collect()
    assert free_slots(callee) == free_slots(rs) == SLOTS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_cannot_call(rs):  # noqa: F811
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rs.call("work.Double", timeout=1)
        except ringside.Forked:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_many_calls_leak_nothing(rs, callee):  # noqa: F811
    """Both sides in one thread, by hand: the calls cost what they cost, and no time is lost in waiting."""
    data = np.arange(8)

    def some(count):
        for i in range(count):
            call = rs._call("work.M", data, None, LONG, None, 1)
            call._start()
            request = callee.receive(LONG)
            if i % 16 == 1:
                request.reply_error(9, "STATE: no")
            elif i % 16 == 2:
                call.cancel()
            else:
                request.reply(data, meta=b"x")
            request.release()
            try:
                reply = call._next()
            except ringside.InvalidState:
                continue
            if reply is not None:
                reply.release()

    some(2000)
    gc.collect()
    before, blocks, received = resident_bytes(), sys.getallocatedblocks(), callee.stats()["received"]
    some(MANY)
    gc.collect()
    assert callee.stats()["received"] == received + MANY
    assert resident_bytes() - before < 4 << 20 and sys.getallocatedblocks() - blocks < 1000
    assert free_slots(rs) == free_slots(callee) == SLOTS

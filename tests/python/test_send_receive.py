# SPDX-License-Identifier: Apache-2.0
"""The verbs: loan, send, receive, release, nack, forward, share, read, free."""

import json
import pickle
import select
import time

import numpy as np
import pytest
import ringside
from sidecars import SLOT_BYTES, SLOTS, drain, free_slots


def test_loan_write_send_receive_read(rs):
    with rs.loan((2, 3), "float32", timeout=1) as slot:
        slot.numpy()[...] = [[1, 2, 3], [4, 5, 6]]
        assert slot.shape == (2, 3) and slot.dtype == "float32" and slot.nbytes == 24
        ticket = slot.ticket
        slot.send("loop", ttl=5, stream=7, sequence=2**64 - 1, trace=b"0123456789abcdef")
    before = time.monotonic_ns()
    with rs.receive(timeout=1) as message:
        assert np.array_equal(message.numpy(), [[1, 2, 3], [4, 5, 6]])
        assert message.tensors == (((2, 3), "float32", 24),)
        assert message.tensors[0].dtype == "float32"
        assert (message.ticket, message.attempts, message.ttl) == (ticket, 0, 5.0)
        assert (message.stream, message.sequence) == (7, 2**64 - 1)
        assert message.trace == b"0123456789abcdef"
        assert 0 < before - message.publish_ns < 10**10
        assert message.origin_ticket is None
    assert free_slots(rs) == SLOTS


def test_defaults_of_the_header(rs):
    rs.send("loop", np.zeros(1))
    with rs.receive(timeout=1) as message:
        assert (message.stream, message.sequence, message.trace, message.ttl) == (0, 0, None, None)
        assert message.meta == b""


def test_several_tensors(rs):
    with rs.loan([((3,), "uint8"), (5, np.float64), ((), "int32")], meta_bytes=16) as slot:
        assert [tensor.shape for tensor in slot.tensors] == [(3,), (5,), ()]
        slot.numpy(0)[:] = 1
        slot.numpy(1)[:] = np.pi
        slot.numpy(2)[()] = -9
        slot.send("loop", meta=b"m" * 16)
    with rs.receive(timeout=1) as message:
        first, second, third = message.arrays()
        assert first.tolist() == [1, 1, 1] and second.tolist() == [np.pi] * 5 and third == -9
        assert second.ctypes.data % 256 == 0 and third.ctypes.data % 256 == 0
        assert message.meta == b"m" * 16
        with pytest.raises(ValueError, match="i is 3"):
            message.numpy(3)


def test_64_tensors_and_no_more(rs):
    rs.send("loop", [np.full(3, i, "u1") for i in range(64)])
    with rs.receive(timeout=1) as message:
        assert [array[0] for array in message.arrays()] == list(range(64))
    with pytest.raises(ringside.InvalidShape, match="65"):
        rs.send("loop", [np.zeros(1)] * 65)
    with pytest.raises(ringside.InvalidShape):
        rs.send("loop", [])


@pytest.mark.parametrize("size", [0, 1, 4096, 70_000])
def test_metadata_bytes(rs, size):
    meta = bytes(i * 7 & 255 for i in range(size))
    rs.send("loop", np.arange(3), meta=meta)
    with rs.receive(timeout=1) as message:
        assert message.meta == meta
        assert message.numpy().tolist() == [0, 1, 2]


def test_metadata_dict_travels_as_json(rs):
    meta = {"utterance": 2**60, "text": "grün\u2028", "deep": [1.5, None, {"a": True}], "long": "x" * 5000}
    rs.send("loop", np.arange(3), meta=meta)
    with rs.receive(timeout=1) as message:
        assert message.meta == meta
        assert message.meta is message.meta
    with pytest.raises(ValueError):
        rs.send("loop", np.arange(3), meta={"x": float("nan")})
    with pytest.raises(TypeError, match="meta is a int"):
        rs.send("loop", np.arange(3), meta=3)


def test_metadata_cached_before_release_stays(rs):
    rs.send("loop", np.arange(3), meta=b"seen")
    message = rs.receive(timeout=1)
    assert message.meta == b"seen"
    message.release()
    assert message.meta == b"seen"


def test_send_anything_with_numbers(rs):
    base = np.arange(120, dtype="f4").reshape(4, 5, 6)
    cases = [base, base[:, ::2, ::-1], base.T, base[1:1], base[2, 3, 4], np.float32(7), memoryview(b"abc"),
             np.asfortranarray(base), base[:, None, :1], np.broadcast_to(np.float32(3), (2, 2))]
    for case in cases:
        rs.send("loop", case, timeout=1)
        with rs.receive(timeout=1) as message:
            expected = np.asarray(case)
            assert message.shape == expected.shape
            assert message.numpy().dtype == expected.dtype
            assert np.array_equal(message.numpy(), expected)


def test_send_large_strided_and_contiguous(rs):
    base = np.random.default_rng(1).standard_normal((512, 256)).astype("f4")
    for case in (base, base.T, base[::2]):
        rs.send("loop", case)
        with rs.receive(timeout=1) as message:
            assert np.array_equal(message.numpy(), case)


def test_send_bytes_are_opaque(rs):
    for data in (b"opaque", bytearray(b"opaque")):
        rs.send("loop", data)
        with rs.receive(timeout=1) as message:
            assert message.dtype == "bytes" and bytes(message) == b"opaque"
            assert message.numpy().tobytes() == b"opaque"


def test_send_a_received_message_copies_it(rs):
    rs.send("loop", np.arange(6, dtype="i2").reshape(2, 3))
    with rs.receive(timeout=1) as message:
        rs.send("again", message)
    with rs.receive(timeout=1) as message:
        assert message.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_slot_is_spent_after_send(rs):
    slot = rs.loan(4, "u1")
    slot.send("loop")
    for use in (slot.numpy, slot.buffer, slot.abandon, slot.share, lambda: slot.send("loop"), slot.__enter__):
        with pytest.raises(ringside.InvalidState, match="sent"):
            use()
    with pytest.raises(BufferError, match="sent"):
        memoryview(slot)


def test_loan_is_abandoned_without_send(rs):
    with rs.loan(4, "u1"):
        assert free_slots(rs) == SLOTS - 1
    slot = rs.loan(4, "u1")
    del slot
    with pytest.raises(KeyError), rs.loan(4, "u1"):
        raise KeyError
    assert free_slots(rs) == SLOTS


def test_failed_send_keeps_the_slot(rs):
    with rs.loan(4, "u1") as slot:
        slot.numpy()[:] = 5
        with pytest.raises(ringside.NoRoute, match="nowhere"):
            slot.send("nowhere")
        slot.send("loop")
    with rs.receive(timeout=1) as message:
        assert message.numpy().tolist() == [5] * 4
    with pytest.raises(ringside.NoRoute):
        rs.send("nowhere", np.zeros(4))
    assert free_slots(rs) == SLOTS


def test_with_message_nacks_on_exception(rs):
    rs.send("loop", np.arange(3))
    with pytest.raises(KeyError), rs.receive(timeout=1):
        raise KeyError
    with rs.receive(timeout=1) as message:
        assert message.attempts == 1
    assert free_slots(rs) == SLOTS


def test_dropped_message_is_nacked(rs):
    rs.send("loop", np.arange(3))
    rs.receive(timeout=1)
    message = rs.receive(timeout=1)
    assert message.attempts == 1
    message.nack()
    with rs.receive(timeout=1) as message:
        assert message.attempts == 2


def test_nack_past_the_limit_drops(rs):
    rs.send("loop", np.arange(3))
    seen = []
    with pytest.raises(ringside.Timeout):
        while True:
            message = rs.receive(timeout=0)
            seen.append(message.attempts)
            message.nack()
    assert seen == list(range(15))
    assert free_slots(rs) == SLOTS


def test_released_message_refuses(rs):
    rs.send("loop", np.arange(3), meta=b"m")
    message = rs.receive(timeout=1)
    message.release()
    for use in (message.numpy, message.arrays, message.buffer, message.release, message.nack, message.__dlpack__,
                lambda: message.forward("loop"), lambda: message.meta):
        with pytest.raises(ringside.InvalidState, match="released"):
            use()
    assert message.shape == (3,) and message.dtype == "int64"


def test_inbox_acknowledges_when_the_next_is_asked_for(rs):
    for i in range(3):
        rs.send("loop", np.array([i]))
    seen, held = [], []
    for message in rs.inbox(timeout=0.05):
        seen.append(int(message.numpy()[0]))
        held.append(SLOTS - free_slots(rs))
    assert seen == [0, 1, 2]
    assert held == [3, 2, 1]
    del message
    assert free_slots(rs) == SLOTS


def test_inbox_leaves_what_the_loop_ended_itself(rs):
    for i in range(4):
        rs.send("loop", np.array([i]))
    attempts = []
    for message in rs.inbox(timeout=0.05):
        attempts.append((int(message.numpy()[0]), message.attempts))
        if len(attempts) == 1:
            message.release()
        elif len(attempts) == 2:
            message.nack()
        elif len(attempts) == 3:
            message.forward("again")
    assert attempts == [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 0)]


def test_inbox_break_and_exception_give_back(rs):
    rs.send("loop", np.array([1]))
    for message in rs.inbox():
        break
    del message
    with pytest.raises(KeyError):
        for message in rs.inbox():
            assert message.attempts == 1
            raise KeyError
    del message
    with rs.receive(timeout=1) as message:
        assert message.attempts == 2


def test_receive_batch(rs):
    for i in range(5):
        rs.send("loop", np.array([i]))
    batch = rs.receive_batch(3, timeout=1) + rs.receive_batch(100, timeout=1)
    assert [int(message.numpy()[0]) for message in batch] == list(range(5))
    for message in batch:
        message.release()
    with pytest.raises(ringside.Timeout):
        rs.receive_batch(2, timeout=0.01)


def test_forward(rs):
    rs.send("loop", np.arange(3), meta=b"keep", stream=4, sequence=5, trace=b"t" * 16)
    message = rs.receive(timeout=1)
    ticket = message.ticket
    assert message.forward("again") is True
    with pytest.raises(ringside.InvalidState, match="forwarded"):
        message.numpy()
    with rs.receive(timeout=1) as message:
        assert message.ticket == ticket and message.numpy().tolist() == [0, 1, 2]
        assert (message.meta, message.stream, message.sequence) == (b"keep", 4, 5)
        assert message.trace == b"t" * 16
    assert free_slots(rs) == SLOTS


def test_forward_with_another_header_copies(rs):
    rs.send("loop", np.arange(3), meta=b"old", stream=4, sequence=5)
    message = rs.receive(timeout=1)
    assert message.forward("again", meta={"new": 1}, sequence=6, ttl=9) is False
    with rs.receive(timeout=1) as message:
        assert message.numpy().tolist() == [0, 1, 2]
        assert (message.meta, message.stream, message.sequence, message.ttl) == ({"new": 1}, 4, 6, 9.0)
    assert free_slots(rs) == SLOTS


def test_forward_refuses_while_views_live(rs):
    rs.send("loop", np.arange(3))
    message = rs.receive(timeout=1)
    view = message.numpy()
    with pytest.raises(ringside.InvalidState, match="1 views"):
        message.forward("again")
    del view
    message.forward("again")
    drain(rs)


def test_share_read_count(rs):
    with rs.loan((2,), "f8") as slot:
        slot.numpy()[:] = [1.5, 2.5]
        ticket = slot.share(readers=2, ttl=30, meta={"k": 1})
    assert isinstance(ticket, int)
    text = rs.ticket_text(ticket)
    assert json.loads(json.dumps(text)) == text
    for name in (ticket, text):
        with rs.read(name) as message, rs.read(ticket) as again:  # at once in one process: one reading
            assert message.numpy().tolist() == again.numpy().tolist() == [1.5, 2.5]
            assert message.meta == {"k": 1} and message.ticket == ticket
            with pytest.raises(ringside.InvalidState, match="no inbox"):
                message.nack()
    with pytest.raises(ringside.StaleTicket):
        rs.read(ticket)
    with pytest.raises(ringside.StaleTicket):
        rs.read(text)
    assert free_slots(rs) == SLOTS


@pytest.mark.parametrize("form", ["number", "text"])
def test_share_kept_until_free(rs, form):
    with rs.loan(2, "f8") as slot:
        ticket = slot.share(kept=True)
    name = ticket if form == "number" else rs.ticket_text(ticket)
    for _ in range(20):
        rs.read(name).release()
    rs.free(name)
    with pytest.raises(ringside.StaleTicket):
        rs.read(name)
    assert free_slots(rs) == SLOTS


def test_reading_dropped_or_failed_ends(rs):
    with rs.loan(2, "f8") as slot:
        ticket = slot.share(kept=True)
    rs.read(ticket)
    with pytest.raises(KeyError), rs.read(ticket):
        raise KeyError
    rs.free(ticket)
    assert free_slots(rs) == SLOTS


def test_wrong_tickets(rs):
    for text in ("", "nonsense", "rs1-zz"):
        with pytest.raises(ringside.MalformedTicket):
            rs.read(text)
    with pytest.raises(ringside.ForeignTicket):
        rs.read(0xFFFE << 48 | 1 << 28 | 1)
    for number in (-1, 2**64):
        with pytest.raises(ValueError, match="ticket is"):
            rs.read(number)
    with pytest.raises(TypeError):
        rs.read(1.5)


def test_expired_ticket(rs):
    with rs.loan(2, "f8") as slot:
        ticket = slot.share(kept=True, ttl=0.001)
    time.sleep(0.01)
    with pytest.raises((ringside.ExpiredTicket, ringside.StaleTicket)):
        rs.read(ticket)


def test_expired_message_is_skipped(rs):
    rs.send("loop", np.array([1]), ttl=0.001)
    rs.send("loop", np.array([2]))
    time.sleep(0.01)
    with rs.receive(timeout=1) as message:
        assert message.numpy()[0] == 2


def test_full_ring_and_timeout(rs):
    slots = [rs.loan(4, "u1") for _ in range(SLOTS)]
    with pytest.raises(ringside.RingFull):
        rs.loan(4, "u1", timeout=0)
    with pytest.raises(ringside.Timeout) as caught:
        rs.loan(4, "u1", timeout=0.01)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.code, caught.value.name) == (1001, "TIMEOUT")
    slots.pop().abandon()
    rs.loan(4, "u1", timeout=0).abandon()


def test_too_big(rs):
    with pytest.raises(ringside.TooBig, match=str(SLOT_BYTES)):
        rs.loan(SLOT_BYTES + 1, "u1")
    with pytest.raises(ringside.TooBig):
        rs.send("loop", np.zeros(SLOT_BYTES + 1, "u1"))


def test_receive_timeouts(rs):
    with pytest.raises(ringside.Timeout):
        rs.receive(timeout=0)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        rs.receive(timeout=0.25)
    assert time.monotonic() - begin >= 0.25


def test_fileno_polls(rs):
    poll = select.poll()
    poll.register(rs, select.POLLIN)
    while poll.poll(0):
        drain(rs)
    rs.send("loop", np.arange(3))
    assert poll.poll(5000)
    rs.receive(timeout=0).release()
    drain(rs)


@pytest.mark.parametrize("call, error, text", [
    (lambda rs: rs.loan(), TypeError, "missing required argument 'shape'"),
    (lambda rs: rs.loan((1,), "f4", tiemout=1), TypeError, "tiemout"),
    (lambda rs: rs.loan((1,), "f4", shape=1), TypeError, "multiple values"),
    (lambda rs: rs.loan(1, "f4", 1, 1, 1), TypeError, "at most 4"),
    (lambda rs: rs.loan((1,), "f4", timeout=-1), ValueError, "timeout is -1"),
    (lambda rs: rs.loan((1,), "f4", timeout=float("nan")), ValueError, "timeout is nan"),
    (lambda rs: rs.loan((1,), "f4", timeout="1"), TypeError, None),
    (lambda rs: rs.loan((1, -1), "f4"), ringside.InvalidShape, "dimension 1 of the shape is -1"),
    (lambda rs: rs.loan((1,) * 9, "f4"), ringside.InvalidShape, "8 dimensions"),
    (lambda rs: rs.loan((2**62, 2**62), "f4"), ringside.InvalidShape, None),
    (lambda rs: rs.loan((2**64,), "f4"), (ringside.InvalidShape, OverflowError), None),
    (lambda rs: rs.loan((1.5,), "f4"), TypeError, None),
    (lambda rs: rs.loan((1, 2)), ringside.InvalidShape, "pair"),
    (lambda rs: rs.loan([]), ringside.InvalidShape, "1..64"),
    (lambda rs: rs.loan(1, "f4", meta_bytes=-1), ValueError, "meta_bytes is -1"),
    (lambda rs: rs.send("loop", np.zeros(1), ttl=0), ValueError, "ttl is 0"),
    (lambda rs: rs.send("loop", np.zeros(1), ttl=-1), ValueError, "ttl is -1"),
    (lambda rs: rs.send("loop", np.zeros(1), stream=2**64), ValueError, "stream is"),
    (lambda rs: rs.send("loop", np.zeros(1), trace=b"short"), ValueError, "16 bytes"),
    (lambda rs: rs.send(b"loop", np.zeros(1)), TypeError, None),
    (lambda rs: rs.send("loop", np.zeros((1,) * 9)), ringside.InvalidShape, "9 dimensions"),
    (lambda rs: rs.send("loop", object()), ringside.UnsupportedDtype, "unknown dtype"),
    (lambda rs: rs.loan(1, "f4").share(readers=0), ringside.InvalidArgument, "readers is 0"),
    (lambda rs: rs.loan(1, "f4").share(readers=256), ValueError, "0..255"),
])
def test_bad_arguments_say_what_and_cost_nothing(rs, call, error, text):
    with pytest.raises(error, match=text):
        call(rs)
    assert free_slots(rs) == SLOTS


def test_pickling_is_refused_with_advice(rs):
    slot = rs.loan(1, "f4")
    with pytest.raises(TypeError, match="share"):
        pickle.dumps(slot)
    slot.send("loop")
    with rs.receive(timeout=1) as message, pytest.raises(TypeError, match="share"):
        pickle.dumps(message)
    with pytest.raises(TypeError, match="connect"):
        pickle.dumps(rs)


def test_types_cannot_be_made_by_hand():
    for kind in (ringside.Slot, ringside.Message):
        with pytest.raises(TypeError):
            kind()
        with pytest.raises(TypeError):
            object.__new__(kind)


def test_connection(sidecar, monkeypatch):
    monkeypatch.setenv("RINGSIDE_SOCKET", sidecar.socket)
    with ringside.connect() as connection:
        assert connection.stage == "loop" and not connection.closed
        assert "loop" in repr(connection)
    assert connection.closed
    connection.close()
    for use in (lambda: connection.receive(timeout=0), lambda: connection.loan(1, "u1"), connection.fileno,
                lambda: connection.send("loop", b"x"), lambda: connection.read(1), connection.__enter__):
        with pytest.raises(ringside.InvalidState, match="closed"):
            use()
    monkeypatch.delenv("RINGSIDE_SOCKET")
    with pytest.raises(ringside.InvalidArgument, match="RINGSIDE_SOCKET"):
        ringside.connect()


def test_connect_to_nobody(tmp_path):
    with pytest.raises((ringside.Unavailable, ringside.Timeout), match="nobody.sock"):
        ringside.connect(tmp_path / "nobody.sock", timeout=0.1)


def test_connect_path_too_long():
    with pytest.raises(ringside.RingsideError, match="107"):
        ringside.connect("/tmp/" + "x" * 103, timeout=0.1)


def test_every_error_number_has_its_class():
    from ringside import _errors
    header = {code: kind.name for code, kind in _errors._BY_CODE.items()}
    assert sorted(header) == list(range(1000, 1024))
    for code, kind in _errors._BY_CODE.items():
        error = _errors.make(code, kind.name, "text")
        assert type(error) is kind and str(error) == "text"
        assert type(pickle.loads(pickle.dumps(error))) is kind
    error = _errors.make(2, "ENOENT", "no such file")
    assert isinstance(error, OSError) and error.errno == 2 and error.name == "ENOENT"

# SPDX-License-Identifier: Apache-2.0
"""Tickets of another stage's ring over the socket: read, freed and described by the sidecar of the stage that reads it."""
import multiprocessing

import pytest

from peer_stages import directory, stages  # noqa: F401
from peer_tools import CONTROL, Connection, Failed, Worker, control, until


@pytest.fixture(params=["before", "behind"])
def pair(stages, request):  # noqa: F811
    """Stage b reads the ring of a, which sends to b, or which b sends to."""
    a = stages("a", {"next": "b"} if request.param == "before" else ())
    b = stages("b", {"next": "a"} if request.param == "behind" else ())
    first, second = (a, b) if request.param == "before" else (b, a)
    until(lambda: first.connected_to(second.name) and first.name in second.peers("upstream"), "a and b are linked", a.log)
    return a, b


def share(worker, data, **how):
    tensor = control.Tensor(dtype=control.UINT8, shape=[len(data)])
    loan = worker("Loan", control.LoanRequest(tensors=[tensor]))
    with open(loan.body_path, "r+b") as body:
        body.seek(loan.slot_offset + loan.tensors[0].offset)
        body.write(data)
    return worker("Share", control.ShareRequest(lease=loan.lease, **how))


def read(worker, **by):
    message = worker("Read", control.ReadRequest(**by)).message
    with open(message.body_path, "rb") as body:
        body.seek(message.slot_offset + message.tensors[0].offset)
        return message, body.read(message.tensors[0].bytes)


def free(worker, **by):
    worker("Free", control.FreeRequest(**by))


def add_readers(worker, message, readers=1):
    worker("AddReaders", control.AddReadersRequest(lease=message.lease, readers=readers))


def describe(stage, **by):
    connection = Connection(stage.socket)
    try:
        return connection.call(CONTROL, "Describe", control.DescribeRequest(**by), control.DescribeResponse).slot
    finally:
        connection.close()


def refused(name, act, *arguments, **by):
    with pytest.raises(Failed) as error:
        act(*arguments, **by)
    assert error.value.name == name, error.value
    return str(error.value)


def free_slots(stage):
    return stage.status().classes[0].free


def test_both_forms_are_read_and_counted(pair):
    a, b = pair
    sender, reader = Worker(a), Worker(b)
    options = control.Options(metadata=b"{}", metadata_kind=control.JSON, trace_id=bytes(range(16)))
    shared = share(sender, b"payload", readers=2, options=options)
    message, data = read(reader, ticket=shared.ticket)
    assert data == b"payload" and message.body_path.endswith("/a.body")
    assert message.lease.ring == a.status().incarnation and message.lease.delivery == -1
    assert (message.metadata, message.trace_id) == (b"{}", bytes(range(16)))
    reader.release(message)
    message, data = read(reader, text=shared.text)
    assert data == b"payload"
    assert free_slots(a) == 15
    reader.release(message)
    assert free_slots(a) == 16
    refused("STALE_TICKET", read, reader, text=shared.text)
    refused("STATE", reader.release, message)
    assert b.status().totals.reads == 2


def test_freed_elsewhere_while_it_is_read(pair):
    a, b = pair
    sender, reader, other = Worker(a), Worker(b, "the reader"), Worker(b)
    shared = share(sender, b"kept", kept=True)
    first, data = read(reader, ticket=shared.ticket)
    again, _ = read(reader, text=shared.text)
    free(other, text=shared.text)
    refused("STALE_TICKET", read, other, text=shared.text)
    refused("STALE_TICKET", read, reader, text=shared.text)
    for stage in pair:
        holders = describe(stage, text=shared.text).holders
        assert [(h.state, h.client) for h in holders] == [("reading", "the reader")]
    reader.release(first)
    assert free_slots(a) == 15
    reader.release(again)
    assert free_slots(a) == 16
    refused("STALE_TICKET", free, other, ticket=shared.ticket)


def test_describe_names_what_and_who(pair):
    a, b = pair
    shared = share(Worker(a), b"12345", kept=True)
    here, there = describe(b, ticket=shared.ticket), describe(a, text=shared.text)
    assert here.tensors == there.tensors and [t.bytes for t in here.tensors] == [5]
    assert (here.state, here.text, here.slot_bytes) == ("sealed", shared.text, 65536)
    assert [h.state for h in here.holders] == [h.state for h in there.holders] == ["kept"]
    worker = Worker(a, "busy")
    loan = worker("Loan", control.LoanRequest(tensors=[control.Tensor(dtype=control.UINT8, shape=[1])]))
    assert [(h.state, h.client) for h in describe(b, ticket=loan.lease.ticket).holders] == [("loaned", "busy")]
    if a.connected_to("b"):
        ticket = worker("Send", control.SendRequest(lease=loan.lease, route="next")).ticket
        assert [(h.state, h.destination) for h in describe(b, ticket=ticket).holders] == [("queued", "b")]


def test_every_bad_ticket_has_its_error(pair, stages):  # noqa: F811
    a, b = pair
    alone = stages("alone")
    sender, reader = Worker(a), Worker(b)
    shared = share(sender, b"x", kept=True)
    short = share(sender, b"x", kept=True, options=control.Options(ttl_ns=1))
    for act in (read, free):
        refused("STALE_TICKET", act, reader, ticket=shared.ticket ^ 1)
        refused("STALE_TICKET", act, reader, ticket=shared.ticket | 0xfffff << 28)  # slot out of range
        refused("MALFORMED_TICKET", act, reader, text=shared.text[:-1])
        refused("MALFORMED_TICKET", act, reader, ticket=0)
        text = refused("FOREIGN_TICKET", act, reader, ticket=shared.ticket ^ 1 << 63)
        assert "stage b" in text and str(shared.ticket >> 48 ^ 1 << 15) in text
    refused("EXPIRED_TICKET", read, reader, text=short.text)
    for by in ({"ticket": shared.ticket}, {"text": shared.text}):
        assert read(reader, **by)[1] == b"x"
    for act in (read, free):
        refused("FOREIGN_TICKET", act, Worker(alone), text=shared.text)
    refused("FOREIGN_TICKET", describe, alone, ticket=shared.ticket)


def test_generations_are_never_mixed_up(pair):
    """Every ticket of one slot, many times over: only the living one is read, by either form."""
    a, b = pair
    sender, reader = Worker(a), Worker(b)
    held = [sender("Loan", control.LoanRequest(tensors=[control.Tensor(dtype=control.UINT8, shape=[1])]))
            for _ in range(15)]
    old = []
    for number in range(40):
        shared = share(sender, b"%d" % number, readers=1)
        for ticket in old[-5:]:
            refused("STALE_TICKET", read, reader, ticket=ticket.ticket)
            refused("STALE_TICKET", read, reader, text=ticket.text)
            refused("STALE_TICKET", free, reader, text=ticket.text)
            refused("STALE_TICKET", describe, b, text=ticket.text)
        message, data = read(reader, **({"ticket": shared.ticket} if number % 2 else {"text": shared.text}))
        assert data == b"%d" % number
        reader.release(message)
        old.append(shared)
    assert len({t.ticket >> 28 for t in old}) == 1 and len({t.ticket for t in old}) == 40 and len(held) == 15


def test_reader_that_dies_is_swept(pair):
    a, b = pair
    shared = share(Worker(a), b"x", kept=True)
    ready, done = multiprocessing.Event(), multiprocessing.Event()

    def run():
        worker = Worker(b)
        read(worker, ticket=shared.ticket)
        ready.set()
        done.wait()

    process = multiprocessing.Process(target=run)
    process.start()
    assert ready.wait(20)
    free(Worker(b), ticket=shared.ticket)
    assert free_slots(a) == 15
    process.kill()
    process.join()
    until(lambda: free_slots(a) == 16, "the dead reader's bit is off", a.log)


def test_session_that_comes_back_finds_its_reading(pair):
    a, b = pair
    shared = share(Worker(a), b"x", readers=1)
    reader = Worker(b)
    lease = read(reader, ticket=shared.ticket)[0].lease
    reader.close()
    back = Worker(b, token=reader.attached.session_token)
    assert list(back.attached.held) == [lease]
    back("Release", control.LeaseRequest(lease=lease))
    assert free_slots(a) == 16


def test_other_sidecar_is_away(pair):
    a, b = pair
    sender, reader, late = Worker(a), Worker(b), Worker(b)
    shared = share(sender, b"x", kept=True)
    reader.release(read(reader, ticket=shared.ticket)[0])
    a.kill()
    until(lambda: not any(p.stage == "a" and p.state == "connected" for p in b.status().peers), "b knows", b.log)
    message, data = read(reader, text=shared.text)  # it has its place, and takes every step in the memory
    assert data == b"x"
    assert "ringside status" in refused("UNAVAILABLE", read, late, text=shared.text)
    a.start()
    until(lambda: any(p.stage == "a" and p.state == "connected" for p in b.status().peers), "linked anew", b.log)
    assert read(late, text=shared.text)[1] == b"x"
    reader.release(message)


def test_rings_with_one_id(stages):  # noqa: F811
    """A bare ticket is answered by the ring in which it is alive; the text names one ring."""
    b = stages("b")
    both = [stages(name, {"next": "b"}, id=77) for name in ("one", "two")]
    until(lambda: all(s.connected_to("b") for s in both) and len(b.peers("upstream")) == 2, "linked", b.log)
    reader = Worker(b)
    for stage in both:
        worker = Worker(stage)
        shared = share(worker, stage.name.encode(), kept=True)
        for by in ({"ticket": shared.ticket}, {"text": shared.text}):
            assert read(reader, **by)[1] == stage.name.encode()
        free(reader, ticket=shared.ticket)
        refused("STALE_TICKET", read, reader, ticket=shared.ticket)


def test_reader_numbers_run_out(stages):  # noqa: F811
    a = stages("a", {"next": "b"}, clients={"max": 64})
    b = stages("b", clients={"max": 64})
    until(lambda: a.connected_to("b") and "a" in b.peers("upstream"), "linked", a.log)
    shared = share(Worker(a), b"x", kept=True)
    readers = [Worker(b) for _ in range(38)]
    outcomes = []
    for reader in readers:
        try:
            outcomes.append(read(reader, ticket=shared.ticket)[1])
        except Failed as error:
            outcomes.append(error.name)
    assert set(outcomes) == {b"x", "LIMIT"} and outcomes.count(b"x") >= 33
    assert outcomes == sorted(outcomes, key=lambda o: o == "LIMIT")
    free(readers[-1], ticket=shared.ticket)
    refused("STALE_TICKET", read, readers[-1], ticket=shared.ticket)


def test_reads_are_added_for_those_whom_the_ticket_is_passed_on_to(pair):
    a, b = pair
    sender, reader, other = Worker(a), Worker(b), Worker(b)
    shared = share(sender, b"payload", readers=1)
    message, _ = read(reader, text=shared.text)
    for readers, reason in ((0, "INVALID"), (256, "INVALID"), (255, "LIMIT")):
        refused(reason, add_readers, reader, message, readers)
    refused("FOREIGN_TICKET", add_readers, other, message)  # it has no place in that ring yet
    add_readers(reader, message, 2)
    reader.release(message)
    refused("STATE", add_readers, reader, message)
    for _ in range(2):
        message, data = read(other, text=shared.text, added=True)
        assert data == b"payload"
        other.release(message)
    refused("STALE_TICKET", read, other, text=shared.text)
    assert free_slots(a) == 16

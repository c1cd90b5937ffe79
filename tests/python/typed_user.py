# SPDX-License-Identifier: Apache-2.0
"""A user's program, for the type checker alone. The lines marked as errors must be found to be errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import ringside


def produce(rs: ringside.Connection) -> ringside.Ticket:
    with rs.loan((1, 80, 3000), "float32", timeout=0.05) as slot:
        slot.numpy()[...] = 1.0
        slot.send("embeddings", ttl=0.2, meta={"utterance": 17})
    with rs.loan([((2, 3), "float32"), (7, "int8")], meta_bytes=100) as slot:
        shapes: list[tuple[int, ...]] = [tensor.shape for tensor in slot.tensors]
        ticket = slot.share(readers=2, ttl=1.5)
    number: int = ticket
    text: str = str(ticket)
    print(shapes, number, text, ringside.Ticket(text))
    rs.send("embeddings", [b"abc"], meta=b"opaque", trace=bytes(16))
    return rs.put({"x": [1, 2.5, None]}, kept=True)


def consume(rs: ringside.Connection, ticket: ringside.Ticket) -> None:
    tree: Any = rs.get(str(ticket), copy=True)
    for message in rs.inbox(timeout=1):
        attempts: int = message.attempts
        ttl: float | None = message.ttl
        moved: bool = message.forward("on")
        print(tree, attempts, ttl, moved)
    with rs.read(ticket) as message:
        first: str = message.tensors[0].dtype
        memory: memoryview = message.buffer()
        print(first, memory)
    rs.free(ticket)
    sent: int = rs.stats()["sent"]
    print(sent, ringside.default_connection().stage)


async def both(rs: ringside.Connection) -> None:
    slot: ringside.Slot = await rs.loan_async(4, "u1")
    await slot.send_async("embeddings", timeout=1)
    await rs.send_async("embeddings", b"x")
    async for message in rs.inbox_async(timeout=1):
        done: bool = await message.forward_async("on")
        print(done)
    got: ringside.Message = await rs.receive_async(1)
    ticket: ringside.Ticket = await rs.put_async([1])
    print(got, ticket)


stage = ringside.Stage()


@stage.method
def Half(request: ringside.Message) -> list[Any]:
    left: float | None = request.time_left
    name: str | None = request.method
    print(left, name, request.cancelled)
    return [array / 2 for array in request.arrays()]


@stage.method(name="Count")
async def count(request: ringside.Message) -> AsyncIterator[bytes]:
    yield b"1"


@stage.on_message
def plain(message: ringside.Message) -> None:
    print(message.meta)


def call(rs: ringside.Connection) -> None:
    with rs.call("next.Half", {"x": 1}, timeout=1) as reply:
        halves: list[Any] = reply.arrays()
    with rs.call_stream("next.Count", b"x", meta={"k": 1}, credits=8) as replies:
        for reply in replies:
            print(halves, reply.tensors)
    Half(reply)
    stage.serve(rs, timeout=1, threads=2)


async def call_async(rs: ringside.Connection) -> None:
    reply: ringside.Message = await rs.call_async("next.Half", b"x", timeout=1)
    async for reply in rs.call_stream_async("next.Count"):
        await reply.reply_async(b"y", last=False)
    await stage.serve_async(rs)


def wrong(rs: ringside.Connection, slot: ringside.Slot) -> None:
    rs.loan((1, 2), "float32", timeout="1")  # type: ignore[arg-type]
    rs.read(1.5)  # type: ignore[arg-type]
    slot.send()  # type: ignore[call-arg]
    slot.share(reader=1)  # type: ignore[call-arg]
    ringside.Ticket(7)  # type: ignore[arg-type]
    text: str = slot.ticket  # type: ignore[assignment]
    rs.stats()["nonsense"]  # type: ignore[typeddict-item]
    rs.receive_async().release()  # type: ignore[attr-defined,misc]
    rs.call("next.Half", timeout="1")  # type: ignore[arg-type]
    rs.call("next.Half").reply(last="x")  # type: ignore[arg-type]
    stage.method("Half")  # type: ignore[call-overload]
    Half(1)  # type: ignore[arg-type]
    print(text)


def errors() -> None:
    try:
        with ringside.connect("/run/ringside/a.sock", name="typed", timeout=None) as rs:
            consume(rs, produce(rs))
    except (ringside.StaleTicket, ringside.Timeout) as error:
        code: int = error.code
        print(code, error.name)

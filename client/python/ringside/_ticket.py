# SPDX-License-Identifier: Apache-2.0
"""The Ticket: a number that names a message, with the text form that is safe to pass on."""

from __future__ import annotations

from typing import Callable

from . import _core


class Ticket(int):
    """What share() and put() return: pass it on, and read() or get() by it in any worker of the stage or of one next to it.

    It is an ``int`` of 64 bits. Its ``str()`` is the text form, ``rst1-...``, which names the message more exactly (the
    whole generation of its slot, and the incarnation of the ring) and survives everything that carries text. A pickle
    carries the text; Ray, which has a shorter way for plain numbers and texts, is fastest with ``str(ticket)``. In JSON
    give ``str(ticket)``: ``json.dumps(ticket)`` writes the number, and most readers of JSON round numbers beyond 2**53.
    What takes a ticket takes a Ticket, its text and the bare number.

    Parameters
    ----------
    text : str
        The text form; ``Ticket(rs.ticket_text(number))`` makes one of a bare number.

    Raises
    ------
    MalformedTicket
        The text is none, or was changed on its way.
    """

    _text: str

    def __new__(cls, text: str) -> Ticket:
        if isinstance(text, Ticket):
            text = text._text
        self = super().__new__(cls, _core.ticket_parse(text))
        self._text = text
        return self

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Ticket('{self._text}')"

    def __reduce__(self) -> tuple[Callable[[str], Ticket], tuple[str]]:
        # Of a function in C a pickler writes the name; a class it looks into first, and cloudpickle (Ray's) in Python.
        return _core.unpickle_ticket, (self._text,)

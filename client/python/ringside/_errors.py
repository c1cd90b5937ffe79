# SPDX-License-Identifier: Apache-2.0
"""What can go wrong: one class per error number of ringside.h."""

from __future__ import annotations

import errno


class RingsideError(Exception):
    """Base of every error of this package.

    Attributes
    ----------
    code : int
        Number of ``enum ringside_error``, or an ``errno``.
    name : str
        Its symbolic name, such as ``"STALE_TICKET"`` or ``"ENOENT"``.
    status : int or None
        When a callee answered a call with it, the gRPC status that it gave.
    """

    code: int = 0
    name: str = ""
    status: int | None = None


class InvalidArgument(RingsideError, ValueError):
    """An argument is out of range."""

    code, name = 1000, "INVALID"


class Timeout(RingsideError, TimeoutError):
    """Nothing came, or no room appeared, within the timeout."""

    code, name = 1001, "TIMEOUT"


class RingFull(RingsideError):
    """No free slot, or the inbox of a route is full."""

    code, name = 1002, "FULL"


class TooBig(RingsideError, ValueError):
    """The message fits no slot class of the ring."""

    code, name = 1003, "TOO_BIG"


class StaleTicket(RingsideError, LookupError):
    """The message was freed or its slot reused."""

    code, name = 1004, "STALE_TICKET"


class ForeignTicket(RingsideError, LookupError):
    """The ticket is of a ring that is not attached here."""

    code, name = 1005, "FOREIGN_TICKET"


class MalformedTicket(RingsideError, ValueError):
    """Not a ticket."""

    code, name = 1006, "MALFORMED_TICKET"


class ExpiredTicket(RingsideError, LookupError):
    """The ticket's time to live is over."""

    code, name = 1007, "EXPIRED_TICKET"


class NoRoute(RingsideError, LookupError):
    """The stage has no route of that name."""

    code, name = 1008, "NO_ROUTE"


class Unavailable(RingsideError, ConnectionError):
    """The sidecar or a peer cannot be reached now."""

    code, name = 1009, "UNAVAILABLE"


class Draining(RingsideError):
    """The sidecar is draining and takes nothing new."""

    code, name = 1010, "DRAINING"


class VersionMismatch(RingsideError):
    """The sidecar speaks another layout or protocol version."""

    code, name = 1011, "VERSION"


class Denied(RingsideError, PermissionError):
    """Not allowed."""

    code, name = 1012, "DENIED"


class Forked(RingsideError):
    """The connection belongs to the parent of this process; connect anew."""

    code, name = 1013, "FORKED"


class LimitReached(RingsideError):
    """A configured limit is reached."""

    code, name = 1014, "LIMIT"


class InvalidState(RingsideError):
    """The slot, message or connection was sent, released, closed or lost already."""

    code, name = 1015, "STATE"


class UnsupportedDtype(RingsideError, TypeError):
    """A dtype that cannot travel, or that NumPy or torch cannot show."""

    code, name = 1016, "DTYPE"


class Corrupt(RingsideError):
    """Shared memory holds nonsense, or lost its pages."""

    code, name = 1017, "CORRUPT"


class InternalError(RingsideError):
    """A broken invariant of ours."""

    code, name = 1018, "INTERNAL"


class ProtocolError(RingsideError):
    """A malformed frame or message came from the peer."""

    code, name = 1019, "PROTOCOL"


class Cancelled(RingsideError):
    """The call was cancelled."""

    code, name = 1020, "CANCELLED"


class InvalidShape(RingsideError, ValueError):
    """A shape, or a count of tensors, that cannot travel."""

    code, name = 1021, "SHAPE"


class InUse(RingsideError):
    """Already in use by a living process."""

    code, name = 1022, "IN_USE"


class Unimplemented(RingsideError, NotImplementedError):
    """Not implemented by this sidecar."""

    code, name = 1023, "UNIMPLEMENTED"


class SystemCallError(RingsideError, OSError):
    """A system call failed; `errno` says how."""


_BY_CODE = {
    kind.code: kind for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, RingsideError) and kind.code
}


def make(code: int, name: str, text: str, status: int = 0) -> RingsideError:
    """The exception for an error number of libringside."""
    kind = _BY_CODE.get(code)
    if kind is not None:
        failure = kind(text)
    else:
        failure = SystemCallError(code, text) if code in errno.errorcode else RingsideError(text)
        failure.code, failure.name = code, name
    if status:
        failure.status = status
    return failure

# SPDX-License-Identifier: Apache-2.0
"""put() and get(): nested objects as tensors of one message, and their structure as JSON (proto/README.md, Trees)."""

from __future__ import annotations

import base64
import json
import math
import sys
from typing import Any, Callable, NoReturn

from . import _core
from ._errors import Corrupt, InvalidArgument, InvalidShape, RingsideError, TooBig, UnsupportedDtype
from ._ticket import Ticket

MAX_TENSORS = 64
MAX_BYTES = 1 << 20  # of the JSON: what everybody can receive
MAX_DEPTH = 100
INLINE_BYTES = 1024  # longer byte strings become tensors
SAFE_INT = 1 << 53
_TAGS = frozenset(("$tensor", "$torch", "$scalar", "$bytes", "$base64", "$tuple", "$dict", "$int", "$float", "$complex",
                   "$ticket"))

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
_ascii_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)


class _Refusal(Exception):
    """Something in the tree that cannot travel; `path` grows on the way up."""

    def __init__(self, kind: type[Exception], text: str) -> None:
        self.kind, self.text, self.path = kind, text, ""


class _Encoder:
    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.seen: dict[int, int] = {}  # by id: an array that occurs twice travels once

    def encode(self, item: Any, depth: int = 0) -> Any:
        kind = type(item)
        if item is None or kind is bool or kind is str:
            return item
        if kind is int:
            return item if -SAFE_INT <= item <= SAFE_INT else {"$int": str(item)}
        if kind is float:
            return item if math.isfinite(item) else {"$float": str(item)}
        if depth > MAX_DEPTH:
            raise _Refusal(InvalidArgument, f"is nested more than {MAX_DEPTH} deep, or holds itself; make it flatter")
        if isinstance(item, dict):
            return self._dict(item, depth)
        if isinstance(item, list):
            return self._items(item, depth)
        if isinstance(item, tuple):
            return {"$tuple": self._items(item, depth)}
        return self._other(item, depth)

    def _items(self, items: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        encoded = []
        for i, item in enumerate(items):
            try:
                encoded.append(self.encode(item, depth + 1))
            except _Refusal as refusal:
                refusal.path = f"[{i}]{refusal.path}"
                raise
        return encoded

    def _dict(self, items: dict[Any, Any], depth: int) -> Any:
        plain = all(type(key) is str and not key.startswith("$") for key in items)
        pairs = []
        for key, item in items.items():
            try:
                pairs.append((key if plain else self._key(key), self.encode(item, depth + 1)))
            except _Refusal as refusal:
                refusal.path = f"[{key!r}]{refusal.path}"
                raise
        return dict(pairs) if plain else {"$dict": pairs}

    def _key(self, key: Any) -> Any:
        before = len(self.tensors)
        encoded = self.encode(key)
        if len(self.tensors) > before:
            raise _Refusal(TypeError, "has an array or a long byte string as its key; use a number or a string")
        return encoded

    def _other(self, item: Any, depth: int) -> Any:
        if isinstance(item, bytes):
            if len(item) > INLINE_BYTES:
                return {"$bytes": self._tensor(bytes(item), item)}
            return {"$base64": base64.b64encode(item).decode()}
        if isinstance(item, Ticket):
            return {"$ticket": str(item)}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(item, numpy.ndarray):
            return {"$tensor": self._numpy(item)}
        if numpy is not None and isinstance(item, numpy.generic) and item.dtype.kind not in "US":
            return self._scalar(item, depth)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(item, torch.Tensor):
            return {"$torch": self._tensor(item, item)}
        if isinstance(item, str):  # of a subclass, such as an IntEnum, the value
            return str.__str__(item)
        if isinstance(item, int):
            return self.encode(int.__int__(item), depth)
        if isinstance(item, float):
            return self.encode(float.__float__(item), depth)
        if isinstance(item, complex):
            return {"$complex": [self.encode(item.real), self.encode(item.imag)]}
        if hasattr(item, "__array__") or _has_buffer(item):
            return {"$tensor": self._tensor(item, item)}
        raise _Refusal(TypeError, f"is a {kind_name(item)}; what travels is dict, list, tuple, arrays, str, bytes, bool, "
                                  "int, float, complex, Ticket and None")

    def _scalar(self, item: Any, depth: int) -> Any:
        name = item.dtype.name
        if item.dtype.kind not in "biufcV" or _core.dtype_from_name(name) < 0:
            raise _Refusal(UnsupportedDtype, f"is a NumPy scalar of dtype {name}, which cannot travel; convert it first")
        value = item.item() if item.dtype.kind != "V" else float(item)  # V: the kinds of ml_dtypes
        return {"$scalar": [name, self.encode(value, depth)]}

    def _numpy(self, array: Any) -> int:
        if array.dtype.kind in "OUSmM" or array.dtype.fields is not None:
            raise _Refusal(UnsupportedDtype, f"is an array of dtype {array.dtype}, which cannot travel; make it a list, or "
                                             "an array of numbers (a time: .view('int64'))")
        return self._tensor(array, array)

    def _tensor(self, data: Any, item: Any) -> int:
        index = self.seen.setdefault(id(item), len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(data)
        return index


def kind_name(item: Any) -> str:
    kind = type(item)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _has_buffer(item: Any) -> bool:
    try:
        memoryview(item).release()
    except TypeError:
        return False
    return True


def encode(obj: Any) -> tuple[list[Any], bytes]:
    """The arrays and the JSON of an object."""
    encoder = _Encoder()
    try:
        root = encoder.encode(obj)
    except _Refusal as refusal:
        raise refusal.kind(f"the object{refusal.path} {refusal.text}") from None
    count = len(encoder.tensors)
    if count > MAX_TENSORS:
        raise InvalidShape(f"the object holds {count} arrays and long byte strings; a message has at most {MAX_TENSORS}: "
                           "stack arrays of one shape, or put() it in parts")
    try:
        text = _encoder.encode(root).encode()
    except UnicodeEncodeError:  # lone surrogates have no UTF-8, but an escape
        text = _ascii_encoder.encode(root).encode()
    if len(text) > MAX_BYTES:
        raise TooBig(f"the structure takes {len(text)} bytes as JSON; at most {MAX_BYTES} can travel: keep long lists of "
                     "numbers in arrays, and long strings as bytes")
    return encoder.tensors or [b""], text


class _Decoder:
    def __init__(self, message: _core.Message, copy: bool) -> None:
        self.message, self.copy = message, copy
        self.made: dict[tuple[str, int], Any] = {}  # what travelled once is one array again

    def decode(self, item: Any) -> Any:
        if isinstance(item, list):
            return [self.decode(each) for each in item]
        if not isinstance(item, dict):
            return item
        if len(item) == 1:
            (name, value), = item.items()
            if name.startswith("$"):
                if name not in _TAGS:
                    raise ValueError(f"tag {name!r} is unknown")
                return getattr(self, f"_{name[1:]}")(value)
        return {key: self.decode(value) for key, value in item.items()}

    def _once(self, kind: str, index: int, make: Callable[[int], Any]) -> Any:
        if (kind, index) not in self.made:
            self.made[kind, index] = make(index)
        return self.made[kind, index]

    def _tensor(self, index: int) -> Any:
        return self._once("tensor", index, self._make_numpy)

    def _make_numpy(self, index: int) -> Any:
        array = self.message.numpy(index)
        return array.copy() if self.copy else array

    def _torch(self, index: int) -> Any:
        return self._once("torch", index, self._make_torch)

    def _make_torch(self, index: int) -> Any:
        try:
            import torch  # noqa: F401
        except ImportError:
            return self._make_numpy(index)
        return self.message.torch(index, self.copy)

    def _bytes(self, index: int) -> Any:
        return self._once("bytes", index, lambda i: bytes(self.message.buffer(i)))

    def _base64(self, text: str) -> bytes:
        return base64.b64decode(text, validate=True)

    def _ticket(self, text: str) -> Ticket:
        return Ticket(text)

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self.decode(items))

    def _dict(self, pairs: list[Any]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(value) for key, value in pairs}

    def _int(self, text: str) -> int:
        return int(text)

    def _float(self, text: str) -> float:
        return float(text)

    def _complex(self, parts: list[Any]) -> complex:
        real, imaginary = self.decode(parts)
        return complex(real, imaginary)

    def _scalar(self, pair: list[Any]) -> Any:
        name, value = pair
        code = _core.dtype_from_name(name)
        if code < 0:
            raise ValueError(f"dtype {name!r} is unknown")
        value = self.decode(value)
        try:
            from ._support import numpy_dtype

            return numpy_dtype(code).type(value)
        except (ImportError, UnsupportedDtype):
            return value


def tree(self: _core.Message, copy: bool = False) -> Any:
    """The object that put() was given; its arrays are views of this message, or copies."""
    if self._kind != 2:
        raise InvalidArgument("the message was not made by put(): take its arrays() and meta")
    try:
        return _Decoder(self, copy).decode(json.loads(self.meta))
    except RingsideError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    raise Corrupt(f"the message's metadata makes no tree: {error}; whoever put it does not follow the format") from error


def put(self: _core.Connection, obj: Any, readers: int = 1, kept: bool = False, ttl: float | None = None,
        timeout: float | None = None) -> Ticket:
    """Copy an object into the ring, without pickle, and publish it for reading by ticket.

    Parameters
    ----------
    obj : dict, list, tuple, array, number, str, bytes or None, nested
        Arrays are NumPy arrays, torch tensors on the CPU, and whatever has a buffer; they become tensors of one
        message, at most 64. The rest travels as JSON, at most 1 MiB. Dicts may have any keys but arrays. Of subclasses
        (a namedtuple, an OrderedDict) the plain kind arrives.
    readers : int
        How many reads it is good for, 1..255, or
    kept : bool
        until ``free(ticket)``.
    ttl : float, optional
        Seconds that it lives at most; by default the stage's ``tickets.ttl_ms``.
    timeout : float, optional
        Seconds to wait for a free slot; None waits for ever.

    Returns
    -------
    Ticket
        For ``get()``.

    Raises
    ------
    TypeError, UnsupportedDtype
        Something in it cannot travel; the text says where it stands.
    InvalidShape, TooBig
        Too many arrays; too much structure, or no slot of that size.
    RingFull, Timeout
        No slot became free.
    """
    arrays, structure = encode(obj)
    return self._put(arrays, structure, readers, kept, ttl, timeout)


def get(self: _core.Connection, ticket: int | str, copy: bool = False) -> Any:
    """The object that put() was given, by its ticket; one of its reads.

    Arrays are read-only views of shared memory, and the reading lasts as long as the last of them. torch tensors
    arrive as torch tensors where torch is installed; torch has no read-only ones, and writing to one ends the process.

    Parameters
    ----------
    ticket : Ticket, its text, or the bare number
    copy : bool
        Arrays of one's own instead, writable; the reading ends at once.

    Raises
    ------
    StaleTicket, ForeignTicket, MalformedTicket, ExpiredTicket
    InvalidArgument
        The ticket is of a message that put() did not make: read() it.
    """
    with self.read(ticket) as message:
        return tree(message, copy)

# SPDX-License-Identifier: Apache-2.0
"""put() and get(): what goes in comes out, without pickle and, for arrays, without a copy."""

import array
import collections
import enum
import gc
import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest
import ringside
from ringside import _tree
from sidecars import SLOT_BYTES, SLOTS, free_slots


def same(a, b):
    """Equal in value and in kind; arrays in dtype, shape and bytes."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(type(x) is type(y) for x, y in zip(a, b)) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (complex, np.complexfloating)):
        return repr(a) == repr(b)
    if isinstance(a, (float, np.floating)) and math.isnan(a):
        return math.isnan(b)
    return a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


PLAIN = [
    None, True, False, 0, -1, 2**53, 2**53 + 1, -2**53 - 1, 2**200, 0.1, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan,
    1 + 2j, complex(math.nan, -math.inf), "", "text", "\u00e4\u4e2d\U0001f600\0", "lone \udc80", b"", b"\0\xff", b"x" * 5000, [], (), {},
    [[]], ((),), [(), {}], {"": None}, {"$tensor": 0}, {"$dict": [[1, 2]], "b": 1}, {1: "a", "1": "b", None: 3, 2.5: 4,
    (1, "x"): 5, b"k": 6, "t": 7}, {"$": {"$$": "$"}}, {"a": [1, 2.0, ("b", None, {"c": b"d"})]},
    np.float32(1.1), np.float64(0.1), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.complex64(1 + 2j), np.float16(0.5),
    np.float32("nan"), {np.int64(3): 1}, "x" * 100_000, list(range(1000)),
]
ARRAYS = [
    np.arange(6, dtype="f4").reshape(2, 3), np.array(3.5), np.zeros((0, 4), "i2"), np.arange(20, dtype="i8")[::-2],
    np.asfortranarray(np.arange(6).reshape(2, 3)), np.array([True, False]), np.ones((2,) * 8, "c8"), np.arange(3, dtype="u1"),
]


@pytest.mark.parametrize("index", range(len(PLAIN)))
def test_plain_values(rs, index):
    value = PLAIN[index]
    assert same(rs.get(rs.put(value)), value)
    assert same(rs.get(rs.put({"deep": [value, (value,)]})), {"deep": [value, (value,)]})
    assert free_slots(rs) == SLOTS


@pytest.mark.parametrize("index", range(len(ARRAYS)))
def test_arrays(rs, index):
    value = ARRAYS[index]
    got = rs.get(rs.put([value, {"x": (value.copy(),)}]))
    assert same(got[0], value) and same(got[1]["x"][0], value)
    assert not got[0].flags.writeable
    del got
    assert free_slots(rs) == SLOTS


def test_buffers_arrive_as_arrays(rs):
    got = rs.get(rs.put([bytearray(b"ab"), memoryview(b"cd"), array.array("d", [1.5])]))
    assert got[0].tolist() == [97, 98] and got[1].tolist() == [99, 100] and got[2].tolist() == [1.5]
    assert got[2].dtype == np.float64


def test_subclasses_arrive_as_the_plain_kind(rs):
    class Number(enum.IntEnum):
        ONE = 1

    class Word(str, enum.Enum):
        HELLO = "hello"

    pair = collections.namedtuple("pair", "a b")
    value = [collections.OrderedDict(a=1), pair(1, 2), Number.ONE, Word.HELLO, collections.defaultdict(int, x=2), np.str_("s")]
    got = rs.get(rs.put(value))
    assert got == [{"a": 1}, (1, 2), 1, "hello", {"x": 2}, "s"]
    assert [type(each) for each in got] == [dict, tuple, int, str, dict, str]


def test_views_keep_the_reading(rs):
    ticket = rs.put({"a": np.arange(3), "b": [np.arange(4.0)]}, readers=1)
    got = rs.get(ticket)
    b = got["b"][0]
    del got
    assert free_slots(rs) == SLOTS - 1 and b.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError):
        b[0] = 1
    del b
    assert free_slots(rs) == SLOTS
    with pytest.raises(ringside.StaleTicket):
        rs.get(ticket)


def test_copies_are_ones_own(rs):
    got = rs.get(rs.put([np.arange(3), b"x" * 2000]), copy=True)
    assert free_slots(rs) == SLOTS
    got[0][0] = 9
    assert got[0].tolist() == [9, 1, 2] and got[1] == b"x" * 2000


def test_an_array_that_occurs_twice_travels_once(rs):
    one = np.arange(5)
    ticket = rs.put([one, one, {"x": one}], readers=2)
    with rs.read(ticket) as message:
        assert len(message.tensors) == 1
        del message
    first, second, third = rs.get(ticket)
    assert first is second is third["x"]


def test_kept_readers_ttl(rs):
    ticket = rs.put([1], kept=True)
    for _ in range(5):
        assert rs.get(str(ticket)) == [1]
    rs.free(ticket)
    ticket = rs.put([2], readers=3, ttl=30)
    with rs.read(ticket) as message:
        assert message.ttl == 30 and message.tree() == [2] and json.loads(message.meta) == [2]
    assert rs.get(int(ticket)) == rs.get(ticket) == [2]
    for wrong in ({"readers": 0}, {"readers": 256}, {"ttl": 0}, {"ttl": 1e9}):
        with pytest.raises(ValueError):
            rs.put([1], **wrong)
    assert free_slots(rs) == SLOTS


def test_tickets_within_trees(rs):
    inner = rs.put(np.arange(3))
    got = rs.get(rs.put({"inner": inner}))
    assert type(got["inner"]) is ringside.Ticket and str(got["inner"]) == str(inner)
    assert rs.get(got["inner"]).tolist() == [0, 1, 2]


def test_what_cannot_travel_is_named_with_its_place(rs):
    class Thing:
        pass

    for value, place in ((Thing(), "the object is a .*Thing"), ({"a": [1, {2}]}, r"\['a'\]\[1\] is a set"),
                         ([lambda: 0], r"\[0\] is a function"), ({"k": ({"x": Thing},)}, r"\['k'\]\[0\]\['x'\] is a type")):
        with pytest.raises(TypeError, match=place):
            rs.put(value)
    for value in (np.array([object()]), np.array(["a"]), np.zeros(2, "M8[s]"), np.zeros(2, [("a", "i4")])):
        with pytest.raises(ringside.UnsupportedDtype, match=r"\['here'\] is an array of dtype"):
            rs.put({"here": value})
    with pytest.raises(ringside.UnsupportedDtype, match="big-endian|newbyteorder"):
        rs.put(np.arange(3, dtype=">i4"))
    with pytest.raises(ringside.UnsupportedDtype, match="scalar"):
        rs.put(np.datetime64("2020-01-01"))
    with pytest.raises(TypeError, match="key"):
        rs.put({b"x" * 5000: 1})
    loop = []
    loop.append(loop)
    for value in (loop, _nested(200)):
        with pytest.raises(ringside.InvalidArgument, match="100 deep"):
            rs.put(value)
    assert same(rs.get(rs.put(_nested(90))), _nested(90))
    assert free_slots(rs) == SLOTS


def _nested(depth):
    value = {"end": 1}
    for i in range(depth):
        value = ([value], {2: value}, (value,))[i % 3] if i % 3 != 1 else {2: value}
    return value


def test_limits(rs):
    arrays = [np.full(3, i) for i in range(65)]
    assert [a[0] for a in rs.get(rs.put(arrays[:64]))] == list(range(64))
    with pytest.raises(ringside.InvalidShape, match="65 arrays.*64"):
        rs.put(arrays)
    with pytest.raises(ringside.TooBig, match="structure takes .* at most 1048576"):
        rs.put(list(range(1 << 18)))
    with pytest.raises(ringside.TooBig, match="fit no slot"):
        rs.put(np.zeros(SLOT_BYTES + 1, "u1"))
    held = [rs.put(i, kept=True) for i in range(SLOTS)]
    with pytest.raises(ringside.RingFull):
        rs.put(1, timeout=0)
    with pytest.raises(ringside.Timeout):
        rs.put(1, timeout=0.01)
    for ticket in held:
        rs.free(ticket)
    assert free_slots(rs) == SLOTS


def test_other_messages_are_no_trees(rs):
    with rs.loan(4, "u1") as slot:
        ticket = slot.share(readers=2, meta={"a": 1})
    with pytest.raises(ringside.InvalidArgument, match=r"put\(\)"):
        rs.get(ticket)
    rs.read(ticket).release()
    rs.send("loop", np.arange(3))
    with rs.receive(timeout=1) as message, pytest.raises(ringside.InvalidArgument):
        message.tree()
    assert free_slots(rs) == SLOTS


BROKEN = [b"", b"{", b"\xff", b'{"$tensor":1}', b'{"$tensor":-1}', b'{"$tensor":"a"}', b'{"$unknown":1}', b'{"$tuple":1}',
          b'{"$dict":[[1]]}', b'{"$dict":[[[],1]]}', b'{"$scalar":["float32"]}', b'{"$scalar":["object",1]}', b'{"$int":"x"}',
          b'{"$class__":1}', b'{"$once":1}', b'{"$base64":"?"}', b'{"$complex":[1]}', b"[" * 100_000]


def test_broken_trees_are_refused(rs):
    for tree in BROKEN:
        ticket = rs._put([np.arange(3)], tree, 1, False, None, 1)
        with pytest.raises(ringside.Corrupt, match="no tree"):
            rs.get(ticket)
    ticket = rs._put([np.arange(3)], b'{"$ticket":"x"}', 1, False, None, 1)
    with pytest.raises(ringside.MalformedTicket):
        rs.get(ticket)
    gc.collect()
    assert free_slots(rs) == SLOTS


def random_tree(random_, depth=0):
    kind = random_.randrange(12 if depth < 4 else 8)
    if kind >= 8:
        items = [random_tree(random_, depth + 1) for _ in range(random_.randrange(4))]
        if kind == 8:
            return items
        if kind == 9:
            return tuple(items)
        keys = [random_.choice(["a", "$b", "c d", 1, 2.5, None, ("t", 1), b"k", "$tensor"]) for _ in items]
        return dict(zip(keys, items))
    return [lambda: random_.choice(PLAIN), lambda: random_.randint(-2**70, 2**70), lambda: random_.uniform(-1e9, 1e9),
            lambda: "".join(chr(random_.randrange(0x20, 0x3000)) for _ in range(5)), lambda: random_.randbytes(random_.randrange(3000)),
            lambda: random_.choice(ARRAYS), lambda: np.random.default_rng(random_.randrange(99)).random((3, 2), "f4"),
            lambda: None][kind]()


def test_random_trees(rs):
    random_ = random.Random(7)
    made = 0
    for _ in range(300):
        value = random_tree(random_)
        try:
            ticket = rs.put(value)
        except ringside.InvalidShape:
            continue
        assert same(rs.get(ticket), value)
        made += 1
    assert made > 200
    gc.collect()
    assert free_slots(rs) == SLOTS


def test_torch(rs):
    torch = pytest.importorskip("torch", reason="torch is not installed: put() of tensors is NOT tested")
    value = {"w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "t": (torch.tensor(3.5), torch.zeros(0, 2)),
             "s": torch.arange(10)[::2]}
    got = rs.get(rs.put(value))
    for a, b in ((got["w"], value["w"]), (got["t"][0], value["t"][0]), (got["t"][1], value["t"][1]), (got["s"], value["s"])):
        assert isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    got = rs.get(rs.put(value), copy=True)
    got["w"][0, 0] = 5
    assert got["w"][0, 0] == 5
    del got, a, b
    gc.collect()
    assert free_slots(rs) == SLOTS


def test_without_numpy_scalars_and_text_travel(rs, sidecar):
    """The reader of a tree without arrays needs no NumPy."""
    ticket = rs.put({"a": [1, (2.5, "x")], "b": b"y" * 3000})
    script = ("import sys\n"
              "sys.modules['numpy'] = None\n"
              "import ringside\n"
              "with ringside.connect(sys.argv[1]) as rs:\n"
              "    assert rs.get(sys.argv[2]) == {'a': [1, (2.5, 'x')], 'b': b'y' * 3000}\n"
              "    assert rs.get(rs.put([b'z' * 3000, 1])) == [b'z' * 3000, 1]\n")
    subprocess.run([sys.executable, "-c", script, sidecar.socket, str(ticket)], check=True, timeout=60)

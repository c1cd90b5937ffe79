# SPDX-License-Identifier: Apache-2.0
"""Every dtype there and back, bit for bit; and those that are refused."""

import numpy as np
import pytest
import ringside
from ringside import _core

NUMPY = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
         "float32", "float64", "complex64", "complex128"]
RAW = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
       "float8_e8m0fnu": 1}


def pattern(nbytes):
    return bytes(i * 37 + 11 & 255 for i in range(nbytes))


def test_the_two_lists_are_all():
    assert set(NUMPY) | set(RAW) | {"bytes"} == set(_core.DTYPES)


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (1, 8, 0, 128), (2, 3, 4), (1,) * 8])
def test_round_trip(rs, name, shape):
    array = np.zeros(shape, name)
    raw = pattern(array.nbytes)
    if name == "bool":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, name).reshape(shape)
    with rs.loan(shape, name) as slot:
        slot.numpy()[...] = array
        slot.send("loop")
    rs.send("again", array)
    for _ in range(2):
        with rs.receive(timeout=1) as message:
            received = message.numpy()
            assert received.dtype == array.dtype and received.shape == shape
            assert received.tobytes() == raw
            assert not received.flags.writeable and received.flags.c_contiguous and received.flags.aligned
            memory = memoryview(message)
            assert memory.readonly and memory.shape == shape and memory.nbytes == len(raw)
            assert np.asarray(memory).dtype == array.dtype
            assert np.asarray(memory).tobytes() == raw
            del received, memory


@pytest.mark.parametrize("name, bits", [("float16", 0x7D01), ("float32", 0x7FA00001), ("float64", 0x7FF4000000000001)])
def test_nan_payload_survives(rs, name, bits):
    width = np.dtype(name).itemsize
    array = np.frombuffer(bits.to_bytes(width, "little"), name)
    rs.send("loop", array)
    with rs.receive(timeout=1) as message:
        assert np.isnan(message.numpy()[0])
        assert int.from_bytes(message.numpy().tobytes(), "little") == bits


@pytest.mark.parametrize("name", RAW)
def test_dtypes_without_numpy_equivalent_are_bytes(rs, name):
    raw = pattern(6 * RAW[name])
    with rs.loan([((2, 3), name), ((6,), name)]) as slot:
        assert slot.dtype == name and slot.nbytes == len(raw)
        memoryview(slot)[:] = raw
        slot.buffer(1)[:] = raw[::-1]
        slot.send("loop")
    with rs.receive(timeout=1) as message:
        assert message.dtype == name and message.shape == (2, 3)
        assert bytes(memoryview(message)) == raw
        assert bytes(message.buffer(1)) == raw[::-1]
        assert message.buffer(1).format == "B" and message.buffer(1).shape == (len(raw),)
        rs.send("again", message)
    with rs.receive(timeout=1) as message:
        assert message.dtype == name and message.shape == (2, 3) and bytes(message) == raw


@pytest.mark.parametrize("name", RAW)
def test_ml_dtypes_or_a_clear_error(rs, name):
    rs.loan((2, 3), name).send("loop")
    with rs.receive(timeout=1) as message:
        try:
            import ml_dtypes
            kind = getattr(ml_dtypes, name)
        except (ImportError, AttributeError):
            with pytest.raises(ringside.UnsupportedDtype, match="ml_dtypes"):
                message.numpy()
            with pytest.raises(TypeError):
                message.arrays()
            return
        assert message.numpy().dtype == np.dtype(kind) and message.numpy().shape == (2, 3)
    array = np.arange(12).reshape(3, 4).astype(kind)
    for case in (array, array.T, array[::2]):
        rs.send("loop", case)
        with rs.receive(timeout=1) as message:
            assert message.dtype == name and message.numpy().tobytes() == case.tobytes()


@pytest.mark.parametrize("dtype, name", [
    (np.float32, "float32"), (np.dtype("<i8"), "int64"), ("<f2", "float16"), ("?", "bool"), (float, "float64"),
    (bool, "bool"), (complex, "complex128"), ("F8_E4M3", "float8_e4m3fn"), ("BF16", "bfloat16"),
    ("torch.bfloat16", "bfloat16"), (np.dtype("q"), "int64"), (np.dtype("V1"), "bytes"), ("FP16", "float16")])
def test_names(rs, dtype, name):
    with rs.loan(1, dtype) as slot:
        assert slot.dtype == name


@pytest.mark.parametrize("dtype, text", [
    ("int4", "less than 8 bits"), ("float4_e2m1fn", "less than 8 bits"), (">f4", "big-endian"),
    (np.dtype(">i2"), "big-endian"), ("S4", "unknown dtype"), (np.dtype("S"), "unknown dtype"),
    ("datetime64[s]", "unknown dtype"), (object, "unknown dtype"), ("nonsense", "nonsense.*float32"),
    (np.dtype([("a", "f4")]), "unknown dtype"), (np.longdouble, "unknown dtype"), ([], "unknown dtype"),
    (None, "."), (7, "unknown dtype"), (np.dtype(("f4", 2)), "unknown dtype")])
def test_refused_dtypes(rs, dtype, text):
    with pytest.raises((ringside.UnsupportedDtype, ringside.InvalidShape), match=text):
        rs.loan((2,), dtype)


@pytest.mark.parametrize("array", [
    np.arange(3, dtype=">f4"), np.arange(3).astype("M8[s]"), np.array(["a", "b"]), np.array([object()]),
    np.zeros(3, np.longdouble), np.zeros(2, [("a", "f4"), ("b", "i2")])])
def test_refused_arrays(rs, array):
    with pytest.raises(ringside.UnsupportedDtype):
        rs.send("loop", array)
    with pytest.raises(TypeError):
        rs.send("loop", array)


def test_big_endian_bytes_have_no_order(rs):
    rs.send("loop", np.arange(3, dtype=">u1"))
    with rs.receive(timeout=1) as message:
        assert message.numpy().tolist() == [0, 1, 2]


def test_slot_buffer_is_writable(rs):
    with rs.loan((2, 2), "int32") as slot:
        memory = memoryview(slot)
        assert not memory.readonly and memory.format == "i" and memory.strides == (8, 4)
        memory[1, 1] = 9
        assert slot.numpy()[1, 1] == 9

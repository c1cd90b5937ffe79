# SPDX-License-Identifier: Apache-2.0
"""DLPack and torch: no copy, and the lease stays as long as the consumer's array."""

import ctypes
import gc

import numpy as np
import pytest
from sidecars import SLOTS, free_slots

DTYPES = ["uint8", "int16", "int64", "float16", "float32", "float64", "complex64", "complex128"]


class Unversioned:
    """A producer that consumers of every age take: the capsule from before DLPack 1.0."""

    def __init__(self, producer):
        self.producer = producer

    def __dlpack__(self, **options):
        return self.producer.__dlpack__()

    def __dlpack_device__(self):
        return self.producer.__dlpack_device__()


def capsule_name(capsule):
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule)


def versioned_fields(capsule):
    """(major, minor, flags, data) of a DLManagedTensorVersioned."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pointer = get(capsule, b"dltensor_versioned")
    major, minor = (ctypes.c_uint32 * 2).from_address(pointer)
    _, _, flags, data = (ctypes.c_uint64 * 4).from_address(pointer + 8)
    return major, minor, flags, data


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 8, 0, 4)])
def test_numpy_from_dlpack(rs, name, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(name)
    rs.send("loop", array)
    message = rs.receive(timeout=1)
    shared = np.from_dlpack(Unversioned(message))
    assert shared.dtype == array.dtype and shared.shape == shape and np.array_equal(shared, array)
    assert not array.nbytes or shared.ctypes.data == message.numpy().ctypes.data
    message.release()
    assert free_slots(rs) == SLOTS - 1
    assert np.array_equal(shared, array)
    del shared
    gc.collect()
    assert free_slots(rs) == SLOTS


def test_capsules(rs):
    rs.send("loop", np.arange(3))
    with rs.receive(timeout=1) as message:
        assert message.__dlpack_device__() == (1, 0)
        assert capsule_name(message.__dlpack__()) == b"dltensor"
        assert capsule_name(message.__dlpack__(max_version=(0, 8))) == b"dltensor"
        capsule = message.__dlpack__(max_version=(1, 1), dl_device=(1, 0))
        major, minor, flags, data = versioned_fields(capsule)
        assert (major, minor, flags) == (1, 0, 1)
        assert data == message.numpy().ctypes.data
        copied = versioned_fields(message.__dlpack__(max_version=(1, 0), copy=True))
        assert copied[2] == 2 and copied[3] != data
        del capsule
        for wrong in ({"stream": 1}, {"dl_device": (2, 0)}, {"dl_device": "cuda"}):
            with pytest.raises(BufferError):
                message.__dlpack__(**wrong)
    assert free_slots(rs) == SLOTS


def test_unused_capsule_drops_the_lease(rs):
    rs.send("loop", np.arange(3))
    message = rs.receive(timeout=1)
    capsules = [message.__dlpack__(), message.__dlpack__(max_version=(1, 0))]
    message.release()
    assert free_slots(rs) == SLOTS - 1
    capsules.clear()
    assert free_slots(rs) == SLOTS


@pytest.mark.parametrize("name", DTYPES + ["bool", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bytes"])
@pytest.mark.parametrize("copy", [False, True])
def test_torch(rs, name, copy):
    torch = pytest.importorskip("torch", reason="torch is not installed: message.torch() is NOT tested")
    if not hasattr(torch, "uint8" if name == "bytes" else name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    for shape in [(2, 3), (), (0, 4)]:
        with rs.loan(shape, name) as slot:
            memory = slot.buffer().cast("B") if slot.nbytes else b""
            for i in range(slot.nbytes):
                memory[i] = i % 2
            del memory
            slot.send("loop")
        with rs.receive(timeout=1) as message:
            tensor = message.torch(copy=copy)
            assert tuple(tensor.shape) == shape
            assert str(tensor.dtype) == ("torch.uint8" if name == "bytes" else f"torch.{name}")
            raw = bytes(message.buffer().cast("B")) if message.nbytes else b""
            if raw:
                assert bytes(tensor.reshape(-1).view(torch.uint8).tolist()) == raw
                address = np.frombuffer(message.buffer().cast("B"), "u1").ctypes.data
                assert (tensor.data_ptr() == address) is not copy
            if name != "bytes":
                rs.send("again", tensor)
                with rs.receive(timeout=1) as echo:
                    assert echo.dtype == name and echo.shape == shape and bytes(echo) == raw
            del tensor
    gc.collect()
    assert free_slots(rs) == SLOTS


def test_torch_from_dlpack(rs):
    torch = pytest.importorskip("torch", reason="torch is not installed: torch.from_dlpack is NOT tested")
    rs.send("loop", np.arange(6, dtype="f4").reshape(2, 3))
    message = rs.receive(timeout=1)
    tensor = torch.from_dlpack(message)
    assert tensor.data_ptr() == message.numpy().ctypes.data
    message.release()
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    del tensor
    assert free_slots(rs) == SLOTS


def test_without_torch_it_says_so(rs):
    try:
        import torch  # noqa: F401
        pytest.skip("torch is installed")
    except ImportError:
        pass
    rs.send("loop", np.arange(3))
    with rs.receive(timeout=1) as message, pytest.raises(ImportError, match="torch"):
        message.torch()


def test_slot_is_written_through_dlpack(rs):
    """A loaned slot is exported writable, in place; after it was sent it is not exported any more."""
    with rs.loan((2, 3), "float32", timeout=1) as slot:
        assert slot.__dlpack_device__() == (1, 0)
        array = np.from_dlpack(Unversioned(slot))
        assert array.shape == (2, 3) and array.ctypes.data == slot.numpy().ctypes.data
        *_, flags, data = versioned_fields(slot.__dlpack__(max_version=(1, 0)))
        assert flags == 0 and data == array.ctypes.data
        slot.numpy()[...] = 7
        assert (array == 7).all()
        del array
        gc.collect()
        slot.send("loop")
        with pytest.raises(Exception, match="slot|sent"):
            slot.__dlpack__()
    with rs.receive(timeout=1) as message:
        assert (message.numpy() == 7).all()


def test_slot_is_a_torch_tensor(rs):
    torch = pytest.importorskip("torch", reason="torch is not installed: slot.torch() is NOT tested")
    with rs.loan((4,), "float32", timeout=1) as slot:
        slot.torch()[:] = torch.arange(4.0)
        assert slot.numpy().tolist() == [0, 1, 2, 3]

# SPDX-License-Identifier: Apache-2.0
"""What the compiled part leaves to Python: names of dtypes, metadata, and arrays without a plain buffer."""

from __future__ import annotations

import json
import sys
from typing import Any

from . import _core
from ._default import unpickle_message
from ._errors import UnsupportedDtype
from ._ticket import Ticket
from ._tree import encode as encode_tree

__all__ = ["Ticket", "encode_tree", "unpickle_message"]  # what the compiled part looks up here, beside what stands below

UINT8 = _core.DTYPES["uint8"]
BYTES = _core.DTYPES["bytes"]


def _names(dtype: Any) -> list[str]:
    """Names under which a dtype of NumPy, ml_dtypes, torch or Python may be known."""
    if isinstance(dtype, str):
        return [dtype]
    if type(dtype).__module__.partition(".")[0] == "torch":
        return [str(dtype)]
    if isinstance(dtype, type) and "numpy" in sys.modules:
        import numpy

        dtype = numpy.dtype(dtype)
    text = getattr(dtype, "str", None)
    if not isinstance(text, str):
        return []
    if text[:1] == ">" or dtype.kind not in "biufcV" or dtype.fields is not None:
        return [text]  # its name would not say so
    return [dtype.name, text]  # the name first: the type string of ml_dtypes' kinds says "V2" or "f1"


def dtype_code(dtype: Any) -> int:
    """Code of whatever names a dtype.

    Raises
    ------
    UnsupportedDtype
        The dtype is unknown, big-endian or narrower than a byte.
    """
    try:
        names = _names(dtype)
    except TypeError:
        names = []
    for name in names:
        code = _core.dtype_from_name(name)
        if code >= 0:
            return code
        refusal = _core.dtype_refusal(name)
        if refusal:
            raise UnsupportedDtype(f"dtype {name!r}: {refusal}")
    shown = names[0] if names else dtype
    raise UnsupportedDtype(f"unknown dtype {shown!r}; known are {', '.join(_core.DTYPES)}")


def numpy_dtype(code: int) -> Any:
    """The numpy.dtype for a code; those NumPy lacks come from ml_dtypes if it is installed."""
    import numpy

    name, text, *_ = _core.dtype_info(code)
    if code == BYTES:
        return numpy.dtype("u1")
    if text is not None:
        return numpy.dtype(text)
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise UnsupportedDtype(
            f"NumPy has no {name}: install ml_dtypes, or take the bytes with buffer(i)"
        ) from None


def torch_tensor(view: Any, code: int, shape: tuple[int, ...], copy: bool) -> Any:
    """A torch.Tensor over a View; dtypes that DLPack consumers may not know travel as bytes."""
    import torch

    name, _, torch_name, dlpack_code, _ = _core.dtype_info(code)
    dtype = torch.uint8 if code == BYTES else getattr(torch, torch_name or name, None)
    if dtype is None:
        raise UnsupportedDtype(f"torch {torch.__version__} has no {name}; take the bytes with buffer(i)")
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    if dlpack_code >= 6:
        tensor = torch.from_dlpack(view.as_bytes()).view(dtype).reshape(shape)
    else:
        tensor = torch.from_dlpack(view)
    return tensor.clone() if copy else tensor


def encode_metadata(metadata: dict[str, Any]) -> bytes:
    """JSON of a dict, compact; NaN and infinities have no JSON and are refused."""
    return json.dumps(metadata, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def decode_metadata(metadata: bytes) -> Any:
    """What encode_metadata encoded."""
    return json.loads(metadata)


def as_source(item: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """Buffer, dtype and shape of an array that has no buffer of its own dtype.

    Parameters
    ----------
    item : torch.Tensor, or anything numpy.asarray makes an array of
        On the CPU; any strides.
    """
    if type(item).__module__.partition(".")[0] == "torch":
        return _torch_source(item)
    import numpy

    array = numpy.asarray(item)
    code = dtype_code(array.dtype)
    contiguous = numpy.ascontiguousarray(array)
    return contiguous.reshape(-1).view(numpy.uint8), _core.dtype_info(code)[0], array.shape


def _torch_source(tensor: Any) -> tuple[Any, Any, tuple[int, ...]]:
    import torch

    if tensor.device.type != "cpu":
        raise TypeError(f"the tensor is on {tensor.device}; send(tensor.cpu())")
    code = dtype_code(tensor.dtype)
    flat = tensor.detach().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return data, _core.dtype_info(code)[0], tuple(tensor.shape)


def copy_into(array: Any, source: Any) -> None:
    """Copy a strided source into the array of a slot."""
    import numpy

    numpy.copyto(array, numpy.asarray(source))

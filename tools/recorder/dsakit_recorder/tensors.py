"""Arrays and torch tensors as bytes with a dtype name and a shape, and back.

torch is never imported here: a tensor is recognised by its methods, so that the package works without.
"""
import sys
from dataclasses import dataclass

import numpy as np

# As the recording format names them -> bytes of an element (docs/recordings.md).
DTYPES = {
    "bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "int64": 8, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
}
# What numpy itself has; the others are uint of the same size, or of ml_dtypes.
_NUMPY = {"float16": np.float16, "float32": np.float32, "int32": np.int32, "int64": np.int64, "uint8": np.uint8}


@dataclass(frozen=True)
class Payload:
    """A contiguous tensor: `bits` is an array of unsigned integers of the element's size."""
    dtype: str
    bits: np.ndarray

    @property
    def shape(self):
        return self.bits.shape

    @property
    def nbytes(self):
        return self.bits.nbytes


def is_torch(value):
    return hasattr(value, "detach") and hasattr(value, "data_ptr")


def dtype_name(value):
    """"bfloat16" of a torch tensor or an array; TypeError where the format has no such dtype."""
    name = str(value.dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise TypeError(f"found dtype {name}, want one of {', '.join(DTYPES)}")
    return name


def _unsigned(name):
    return np.dtype(f"<u{DTYPES[name]}")


def take(value, dtype=None):
    """Copies a torch tensor (of any device) or an array into host memory.

    `dtype` says what the elements are where the value says only how wide they are: a uint8 tensor of fp8
    codes, a uint16 array of bfloat16 bits. A scalar is refused: the format keeps those as attributes.
    """
    name = dtype or dtype_name(value)
    if name not in DTYPES or value.dtype.itemsize != DTYPES[name]:
        raise TypeError(f"found dtype {value.dtype}, want one of the size of {name}")
    if len(value.shape) == 0:
        raise TypeError("found a scalar, want at least one axis")
    if is_torch(value):
        torch = sys.modules[type(value).__module__.partition(".")[0]]
        shape = tuple(value.shape)
        # numpy has no bf16 and no fp8, so bytes cross over.
        raw = value.detach().contiguous().view(torch.uint8).cpu().numpy()
        bits = np.array(raw, copy=True).reshape(-1).view(_unsigned(name)).reshape(shape)
    else:
        array = np.ascontiguousarray(value)
        bits = array.reshape(-1).view(_unsigned(name)).reshape(array.shape).copy()
    return Payload(name, bits)


def to_numpy(payload):
    """The elements in their own dtype: bfloat16 and fp8 of ml_dtypes, packed fp4 as its bytes."""
    if payload.dtype in _NUMPY:
        return payload.bits.view(_NUMPY[payload.dtype])
    if payload.dtype == "float4_e2m1fn_x2":  # ml_dtypes' float4 has one code a byte
        return payload.bits
    import ml_dtypes
    return payload.bits.view(getattr(ml_dtypes, payload.dtype))


def to_torch(payload):
    import torch
    raw = torch.from_numpy(payload.bits.reshape(-1).view(np.uint8).copy())
    return raw.view(getattr(torch, payload.dtype)).reshape(payload.shape)

"""The few calls of torch that the recorder makes, on numpy: loaded under the name torch where there is none."""
import numpy as np

__version__ = "0-fake"
_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "int64": 8, "uint8": 1, "float64": 8,
          "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1}
_NUMPY = {"float16", "float32", "int32", "int64", "uint8", "float64"}


class dtype:
    def __init__(self, name):
        self.name = name

    itemsize = property(lambda self: _SIZES[self.name])

    def __repr__(self):
        return "torch." + self.name


for _name in _SIZES:
    globals()[_name] = dtype(_name)


class Tensor:
    """Holds unsigned integers of the element's size."""

    def __init__(self, bits, kind, device="cpu"):
        self._bits, self.dtype, self.device = bits, kind, device

    shape = property(lambda self: self._bits.shape)
    is_cuda = property(lambda self: self.device != "cpu")
    data_ptr = lambda self: self._bits.ctypes.data  # noqa: E731
    detach = lambda self: self  # noqa: E731
    contiguous = lambda self: self._like(np.ascontiguousarray(self._bits))  # noqa: E731
    clone = lambda self: self._like(self._bits.copy())  # noqa: E731
    cpu = lambda self: Tensor(self._bits, self.dtype)  # noqa: E731

    def __len__(self):
        return len(self._bits)

    def _like(self, bits):
        return Tensor(bits, self.dtype, self.device)

    def view(self, kind):
        if self._bits.ndim == 0:
            raise RuntimeError("a scalar cannot be viewed as another size")
        return Tensor(self._bits.view(f"<u{_SIZES[kind.name]}"), kind, self.device)

    def reshape(self, *shape):
        return self._like(self._bits.reshape(*shape))

    def transpose(self, a, b):
        return self._like(np.swapaxes(self._bits, a, b))

    def numpy(self):
        if self.is_cuda or self.dtype.name not in _NUMPY:
            raise TypeError(f"numpy has no {self.dtype} of {self.device}")
        return self._bits.view(self.dtype.name)

    def __getitem__(self, key):
        return self._like(self._bits[key._bits.view(np.int64) if isinstance(key, Tensor) else key])

    def __setitem__(self, key, value):
        self._bits[key] = value._bits


def from_numpy(array):
    return Tensor(array.view(f"<u{array.itemsize}"), globals()[array.dtype.name])


class cuda:
    capturing = False
    is_available = staticmethod(lambda: True)
    is_current_stream_capturing = staticmethod(lambda: cuda.capturing)
    get_device_name = staticmethod(lambda device: "a fake of " + str(device))


class ops:
    """Operations of libraries, by their namespace."""


class version:
    hip = None

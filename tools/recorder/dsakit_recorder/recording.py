"""Reads recordings."""
from h5py import h5d, h5f, h5g

from . import hdf5
from .tensors import DTYPES, Payload, to_numpy, to_torch


class Recording:
    """Recording("run.h5"): what a file says, and its tensors as arrays or torch tensors.

    For what is judged use `dsakit`, which also checks shapes, ids and the contract.
    """

    def __init__(self, path):
        self.path = path
        self._file = h5f.open(str(path).encode(), h5f.ACC_RDONLY)
        root = hdf5.read_attributes(h5g.open(self._file, b"/"))
        if root.get("format") != hdf5.FORMAT:
            raise ValueError(f"{path}: found format {root.get('format')!r}, want {hdf5.FORMAT}")
        self.level = root.get("level")
        self.config = self._attributes("/config")
        self.provenance = self._attributes("/provenance")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def _group(self, path):
        return h5g.open(self._file, path.encode())

    def _attributes(self, path):
        return hdf5.read_attributes(self._group(path))

    def _names(self, path):
        return sorted(name.decode() for name in self._group(path))

    def contract(self, step=None):
        """Of the file, or as it is in a step."""
        values = self._attributes("/contract")
        if step is not None:
            values.update(self._attributes(f"/steps/{step}"))
        return values

    @property
    def operations(self):
        """[(step, operation)]"""
        return [(step, operation) for step in sorted(map(int, self._names("/steps")))
                for operation in self._names(f"/steps/{step}")]

    def names(self, step, operation, side):
        """Of "inputs" or "outputs"."""
        return self._names(f"/steps/{step}/{operation}/{side}")

    def attributes(self, step, operation, side, name):
        return hdf5.read_attributes(self._dataset(f"/steps/{step}/{operation}/{side}/{name}"))

    def numpy(self, step, operation, side, name):
        """bfloat16 and fp8 in the dtypes of ml_dtypes, packed fp4 as bytes."""
        return to_numpy(self._payload(f"/steps/{step}/{operation}/{side}/{name}"))

    def torch(self, step, operation, side, name):
        return to_torch(self._payload(f"/steps/{step}/{operation}/{side}/{name}"))

    def _dataset(self, path):
        return h5d.open(self._file, path.encode())

    def _payload(self, path):
        dataset = self._dataset(path)
        dtype = hdf5.read_attributes(dataset)["dtype"]
        if self.level != "full":
            raise ValueError(f"{self.path}: {path}: found level {self.level}, want full for values")
        return Payload(dtype, hdf5.read_dataset(dataset, dtype, DTYPES[dtype]))

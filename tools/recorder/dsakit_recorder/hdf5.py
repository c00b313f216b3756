"""Recording format 1 (docs/recordings.md) in HDF5: every byte of a file lies under a checksum.

h5py's own functions would leave bytes in reserve, keep many links in trees that no checksum covers, and write
variable-length strings. So groups and datasets are made with property lists; for the three properties that h5py
has no function for, the HDF5 library that it loaded is called itself.
"""
import ctypes

import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5p, h5s, h5t

FORMAT = "dsakit-recording/1"
_MOST_IN_HEADER = 65535  # HDF5's own limit
_CHUNK_BYTES = 1 << 20

_library = ctypes.CDLL(h5p.__file__)  # a symbol is looked for in what the module depends on, too


def _set(function, plist, *values):
    call = getattr(_library, function)
    call.restype = ctypes.c_int
    call.argtypes = [ctypes.c_int64] + [kind for kind, _ in values]
    if call(plist.id, *[value for _, value in values]) < 0:
        raise RuntimeError(f"{function} failed")


def _object_properties(plist):
    plist.set_obj_track_times(False)
    plist.set_attr_phase_change(_MOST_IN_HEADER, _MOST_IN_HEADER)
    return plist


def create_file(path):
    """A new file; the id of it."""
    creation = _object_properties(h5p.create(h5p.FILE_CREATE))
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    _set("H5Pset_meta_block_size", access, (ctypes.c_uint64, 0))
    _set("H5Pset_small_data_block_size", access, (ctypes.c_uint64, 0))
    return h5f.create(path.encode(), h5f.ACC_TRUNC, creation, access)


def create_group(file, path):
    creation = _object_properties(h5p.create(h5p.GROUP_CREATE))
    _set("H5Pset_link_phase_change", creation, (ctypes.c_uint, _MOST_IN_HEADER), (ctypes.c_uint, _MOST_IN_HEADER))
    return h5g.create(file, path.encode(), gcpl=creation)


def write_attribute(item, name, value):
    """A UTF-8 string of fixed length: a variable one lies outside the checksums."""
    text = str(value).encode()
    kind = h5t.C_S1.copy()
    kind.set_size(max(len(text), 1))  # HDF5 has no string of size 0
    kind.set_strpad(h5t.STR_NULLPAD)
    kind.set_cset(h5t.CSET_UTF8)
    attribute = h5a.create(item, name.encode(), kind, h5s.create(h5s.SCALAR))
    attribute.write(np.array(text, dtype=f"S{max(len(text), 1)}"), kind)


def read_attributes(item):
    values = {}
    for i in range(h5a.get_num_attrs(item)):
        attribute = h5a.open(item, index=i)
        kind = attribute.get_type()
        if not isinstance(kind, h5t.TypeStringID) or kind.is_variable_str():
            raise ValueError(f"attribute {attribute.name.decode()}: want a string of fixed length")
        text = np.zeros((), dtype=f"S{kind.get_size()}")
        attribute.read(text, kind)
        values[attribute.name.decode()] = text.item().decode()
    return values


def _half(exponent_bits, mantissa_bits):
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, mantissa_bits, exponent_bits, 0, mantissa_bits)
    kind.set_ebias((1 << (exponent_bits - 1)) - 1)
    kind.set_precision(16)
    kind.set_size(2)
    return kind


def element_type(dtype):
    """bfloat16 is a real float, so that h5dump and h5py show numbers; fp8, fp4 and e8m0 are uint8."""
    if dtype == "bfloat16":
        return _half(8, 7)
    if dtype == "float16":
        return _half(5, 10)
    return {"float32": h5t.IEEE_F32LE, "int32": h5t.STD_I32LE, "int64": h5t.STD_I64LE}.get(dtype, h5t.STD_U8LE)


def _chunk(shape, element_bytes):
    """Whole trailing axes, a part of one axis, one of each leading axis: about 1 MiB."""
    chunk, budget = [1] * len(shape), _CHUNK_BYTES // element_bytes
    for axis in reversed(range(len(shape))):
        chunk[axis] = min(shape[axis], budget)
        if chunk[axis] < shape[axis]:
            break
        budget //= shape[axis]
    return tuple(chunk)


def write_dataset(file, path, payload, attributes, with_payload=True):
    """Without its payload a dataset keeps dtype, shape and attributes, and reads as zeros."""
    creation = _object_properties(h5p.create(h5p.DATASET_CREATE))
    if 0 not in payload.shape:  # nothing to check in an empty one
        creation.set_chunk(_chunk(payload.shape, payload.bits.itemsize))
        creation.set_fletcher32()
    kind = element_type(payload.dtype)
    dataset = h5d.create(file, path.encode(), kind, h5s.create_simple(payload.shape), creation)
    if with_payload and 0 not in payload.shape:
        dataset.write(h5s.ALL, h5s.ALL, payload.bits, mtype=kind)
    for name in sorted(attributes):
        write_attribute(dataset, name, attributes[name])


def link(file, existing, path):
    """The dataset at `existing` appears at `path` too, stored once."""
    root = h5g.open(file, b"/")
    root.links.create_hard(path.encode(), root, existing.encode())


def read_dataset(dataset, dtype, element_bytes):
    """The bits as they are stored: no conversion, so none is lost."""
    bits = np.empty(dataset.shape, dtype=f"<u{element_bytes}")
    if bits.size:
        dataset.read(h5s.ALL, h5s.ALL, bits, mtype=dataset.get_type())
    return bits

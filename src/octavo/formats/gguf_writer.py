"""The pieces that GGUF files are written from; gguf.py reads them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

ALIGNMENT = 32
_ARRAY_TYPES = {np.dtype(np.int32): 5, np.dtype(np.float32): 6, np.dtype(np.bool_): 7, np.dtype(np.uint8): 0}


def preamble(metadata: Mapping[str, object], num_tensors: int, *, version: int = 3) -> bytes:
    """Everything before the tensor table.

    Metadata: bool, int (uint32), float (float32), str, lists of str, lists of lists, numpy arrays.
    """
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, len(metadata))
    return head + b"".join(string(key) + _typed(value) for key, value in metadata.items())


def tensor_entry(name: str, dims: Sequence[int], type_id: int, offset: int) -> bytes:
    """A line of the tensor table; dims are in GGUF's order, fastest first."""
    sizes = b"".join(struct.pack("<Q", size) for size in dims)
    return string(name) + struct.pack("<I", len(dims)) + sizes + struct.pack("<IQ", type_id, offset)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def padding(num_bytes: int) -> bytes:
    """What brings num_bytes to the alignment of tensors."""
    return bytes(-num_bytes % ALIGNMENT)


def _typed(value: object) -> bytes:
    """Type, then value."""
    match value:
        case bool():
            return struct.pack("<IB", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + string(value)
        case list() | np.ndarray():
            return struct.pack("<I", 9) + _array(value)
    raise TypeError(f"no GGUF type for {value!r}")


def _array(values: object) -> bytes:
    if isinstance(values, np.ndarray):
        return struct.pack("<IQ", _ARRAY_TYPES[values.dtype], len(values)) + values.tobytes()
    assert isinstance(values, list)
    if all(isinstance(item, str) for item in values):
        return struct.pack("<IQ", 8, len(values)) + b"".join(map(string, values))
    return struct.pack("<IQ", 9, len(values)) + b"".join(map(_array, values))

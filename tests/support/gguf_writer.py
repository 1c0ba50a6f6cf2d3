"""Writes small GGUF files: whole models for tests, and broken ones to be refused."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from octavo.kernels.weights import Weight

ALIGNMENT = 32
_ARRAY_TYPES = {np.dtype(np.int32): 5, np.dtype(np.float32): 6, np.dtype(np.bool_): 7, np.dtype(np.uint8): 0}


def gguf_bytes(metadata: Mapping[str, object], weights: Iterable[Weight] = (), *, version: int = 3) -> bytes:
    """A file's bytes. A weight of one row is written as a vector; tensor data follows the order given.

    Metadata: bool, int (uint32), float (float32), str, lists of str, lists of lists, numpy arrays.
    """
    weights = list(weights)
    header = b"GGUF" + struct.pack("<IQQ", version, len(weights), len(metadata))
    header += b"".join(string(key) + _typed(value) for key, value in metadata.items())
    table, data = b"", b""
    for weight in weights:
        dims = [weight.cols] if weight.rows == 1 else [weight.cols, weight.rows]
        table += tensor_entry(weight.name, dims, weight.type.value, len(data))
        data += padded(weight.data.tobytes())
    return padded(header + table) + data


def write_gguf(path: Path, metadata: Mapping[str, object], weights: Iterable[Weight] = ()) -> Path:
    path.write_bytes(gguf_bytes(metadata, weights))
    return path


def tensor_entry(name: str, dims: Sequence[int], type_id: int, offset: int) -> bytes:
    """A line of the tensor table; dims are in GGUF's order, fastest first."""
    sizes = b"".join(struct.pack("<Q", size) for size in dims)
    return string(name) + struct.pack("<I", len(dims)) + sizes + struct.pack("<IQ", type_id, offset)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % ALIGNMENT)


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

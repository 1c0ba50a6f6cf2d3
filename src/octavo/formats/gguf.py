"""Reads GGUF files, versions 2 and 3: typed metadata, a table of tensors, their bytes mapped, not copied.

Every count and length in a file is checked against the bytes that remain before anything of that size is
made, so that a truncated or hostile file is a GGUFError and neither a crash nor a large allocation.

    magic · version · num_tensors · num_entries │ metadata entries │ tensor table │ padding │ tensor data
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from octavo.formats.ggml_types import GGML_TYPES

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_MAX_NESTING = 4
_MAX_NAME_BYTES = 65_535
_DEFAULT_ALIGNMENT = 32
_MIN_ENTRY_BYTES = 8 + 4 + 1  # length of the key, type, the smallest value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # length of the name, number of dims, one dim, type, offset


class GGUFError(ValueError):
    """A file that is no valid GGUF. The message says what is wrong and at which byte."""


class _ValueType(IntEnum):
    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_SCALARS: dict[int, np.dtype[Any]] = {
    _ValueType.UINT8: np.dtype("<u1"),
    _ValueType.INT8: np.dtype("<i1"),
    _ValueType.UINT16: np.dtype("<u2"),
    _ValueType.INT16: np.dtype("<i2"),
    _ValueType.UINT32: np.dtype("<u4"),
    _ValueType.INT32: np.dtype("<i4"),
    _ValueType.FLOAT32: np.dtype("<f4"),
    _ValueType.BOOL: np.dtype("<u1"),
    _ValueType.UINT64: np.dtype("<u8"),
    _ValueType.INT64: np.dtype("<i8"),
    _ValueType.FLOAT64: np.dtype("<f8"),
}
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    """One tensor as the file holds it."""

    name: str
    type_id: int
    type_name: str
    """ggml's name of the element type, such as Q4_K; not necessarily one that can be computed with."""
    shape: tuple[int, ...]
    """Slowest dimension first, as numpy has it: (rows, cols) for a matrix."""
    data: npt.NDArray[np.uint8]
    """[num_bytes], a read-only view of the mapped file."""

    @property
    def num_bytes(self) -> int:
        return int(self.data.size)


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """An open file. The mapping lives as long as any tensor's data."""

    path: Path
    version: int
    metadata: Mapping[str, object]
    """Scalars as int, float, bool or str; arrays of strings or arrays as list; others as numpy arrays."""
    tensors: Mapping[str, GGUFTensor]
    """By name, in the order of the file."""
    header: npt.NDArray[np.uint8]
    """All bytes before the tensor data: what identifies metadata and tensor table."""
    mapping: mmap.mmap

    def release_pages(self) -> None:
        """Give back the memory of what was read so far. What is touched again is read again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED)


def open_gguf(path: str | Path) -> GGUFFile:
    """Map a file and read its metadata and tensor table; tensor data is read when it is touched.

    Raises GGUFError for a file that is no valid GGUF, OSError for one that cannot be opened.
    """
    path = Path(path)
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise GGUFError(f"{path.name}: the file is empty")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped = np.frombuffer(mapping, np.uint8)
    reader = _Reader(path.name, mapped)
    version, num_tensors, num_entries = _read_preamble(reader)
    metadata = _read_metadata(reader, num_entries)
    infos = _read_tensor_table(reader, num_tensors)
    alignment = _alignment(reader, metadata)
    data_start = -(-reader.offset // alignment) * alignment
    return GGUFFile(
        path=path,
        version=version,
        metadata=MappingProxyType(metadata),
        tensors=MappingProxyType(_map_tensors(reader, infos, data_start, alignment)),
        header=mapped[:data_start],
        mapping=mapping,
    )


class _Reader:
    """A cursor over the file's bytes. Nothing is taken that is not there."""

    def __init__(self, file_name: str, data: npt.NDArray[np.uint8]) -> None:
        self.data = data
        self.offset = 0
        self.context = "the preamble"
        """What is being read, for messages."""
        self._file_name = file_name
        self._view = data.data

    @property
    def remaining(self) -> int:
        return len(self._view) - self.offset

    def fail(self, message: str, cause: Exception | None = None) -> NoReturn:
        raise GGUFError(f"{self._file_name}: {message}, in {self.context} at byte {self.offset}") from cause

    def skip(self, num_bytes: int) -> int:
        """Move on; returns the offset before."""
        if num_bytes > self.remaining:
            self.fail(f"the file ends too early: {num_bytes} bytes wanted, {self.remaining} left")
        start = self.offset
        self.offset += num_bytes
        return start

    def uint32(self) -> int:
        return int(_UINT32.unpack_from(self._view, self.skip(4))[0])

    def uint64(self) -> int:
        return int(_UINT64.unpack_from(self._view, self.skip(8))[0])

    def count(self, what: str, min_bytes: int) -> int:
        """A number of things that take at least min_bytes each: more than can follow is an error."""
        count = self.uint64()
        if count * min_bytes > self.remaining:
            self.fail(f"{count} {what} cannot fit into the {self.remaining} bytes left")
        return count

    def name(self) -> str:
        name = self.string()
        if not name or len(name) > _MAX_NAME_BYTES:
            self.fail(f"a name of {len(name)} characters")
        return name

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """`count` strings. One tight loop, because a vocabulary has 100,000 of them."""
        view, offset, end = self._view, self.offset, len(self._view)
        unpack_length = _UINT64.unpack_from
        out = []
        try:
            for _ in range(count):
                start = offset + 8
                stop = start + unpack_length(view, offset)[0]
                if stop > end:
                    self.offset = offset
                    self.fail(f"a string of {stop - start} bytes, {end - start} left")
                out.append(str(view[start:stop], "utf-8"))
                offset = stop
        except struct.error as error:
            self.offset = offset
            self.fail("the file ends too early, before a string", error)
        except UnicodeDecodeError as error:
            self.offset = offset
            self.fail("a string is not valid UTF-8", error)
        self.offset = offset
        return out

    def value(self, value_type: int, depth: int = 0) -> object:
        if value_type == _ValueType.STRING:
            return self.string()
        if value_type == _ValueType.ARRAY:
            return self._array(depth)
        return self._scalars(value_type, 1)[0].item()

    def _array(self, depth: int) -> object:
        if depth == _MAX_NESTING:
            self.fail(f"arrays nested more than {_MAX_NESTING} deep")
        value_type = self.uint32()
        if value_type == _ValueType.STRING:
            return self.strings(self.count("strings", 8))
        if value_type == _ValueType.ARRAY:
            return [self._array(depth + 1) for _ in range(self.count("arrays", 12))]
        return self._scalars(value_type, self.count("numbers", 1))

    def _scalars(self, value_type: int, count: int) -> npt.NDArray[np.generic]:
        """Read-only, aligned, and no view of the file."""
        dtype = _SCALARS.get(value_type)
        if dtype is None:
            self.fail(f"unknown value type {value_type}")
        start = self.skip(count * dtype.itemsize)
        values = np.frombuffer(self._view, dtype, count, start).copy()
        if value_type == _ValueType.BOOL:
            if np.any(values > 1):
                self.fail("a bool that is neither 0 nor 1")
            values = values.astype(np.bool_)
        values.flags.writeable = False
        return values


def _read_preamble(reader: _Reader) -> tuple[int, int, int]:
    """Version, number of tensors, number of metadata entries."""
    magic = reader.data[:4].tobytes()
    if magic != _MAGIC:
        reader.fail(f"not a GGUF file: it starts with {magic!r} and not with {_MAGIC!r}")
    reader.skip(4)
    version = reader.uint32()
    if version not in _VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            reader.fail("the file is big-endian; only little-endian files are supported")
        reader.fail(f"version {version} is not supported; versions {_VERSIONS} are")
    num_tensors = reader.count("tensors", _MIN_TENSOR_BYTES)
    num_entries = reader.count("metadata entries", _MIN_ENTRY_BYTES)
    return version, num_tensors, num_entries


def _read_metadata(reader: _Reader, num_entries: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for index in range(num_entries):
        reader.context = f"metadata entry {index}"
        key = reader.name()
        reader.context = f"metadata {key!r}"
        if key in metadata:
            reader.fail("the key stands twice")
        metadata[key] = reader.value(reader.uint32())
    return metadata


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    """From the start of the tensor data."""
    num_bytes: int


def _read_tensor_table(reader: _Reader, num_tensors: int) -> list[_TensorInfo]:
    infos = []
    names: set[str] = set()
    for index in range(num_tensors):
        reader.context = f"tensor {index} of the table"
        name = reader.name()
        reader.context = f"tensor {name!r}"
        if name in names:
            reader.fail("the name stands twice")
        names.add(name)
        infos.append(_read_tensor_info(reader, name))
    return infos


def _read_tensor_info(reader: _Reader, name: str) -> _TensorInfo:
    num_dims = reader.uint32()
    if not 1 <= num_dims <= _MAX_DIMS:
        reader.fail(f"{num_dims} dimensions; 1 to {_MAX_DIMS} are possible")
    shape = tuple(reader.uint64() for _ in range(num_dims))[::-1]
    type_id, offset = reader.uint32(), reader.uint64()
    element = GGML_TYPES.get(type_id)
    if element is None:
        reader.fail(f"unknown element type {type_id}")
    num_elements = 1
    for size in shape:
        num_elements *= size
    if num_elements == 0:
        reader.fail(f"shape {shape} is empty")
    if shape[-1] % element.group_size:
        reader.fail(
            f"rows of {shape[-1]} elements, but {element.name} comes in groups of {element.group_size}"
        )
    num_bytes = num_elements // element.group_size * element.group_bytes
    return _TensorInfo(name, type_id, shape, offset, num_bytes)


def _alignment(reader: _Reader, metadata: Mapping[str, object]) -> int:
    """The tensor data, and each tensor in it, starts at a multiple of this many bytes."""
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        reader.context = "metadata 'general.alignment'"
        reader.fail(f"{alignment!r} is not a power of two")
    return alignment


def _map_tensors(
    reader: _Reader, infos: list[_TensorInfo], data_start: int, alignment: int
) -> dict[str, GGUFTensor]:
    """Views of each tensor's bytes. They must be aligned, inside the file, and must not overlap."""
    end_of_last = 0
    for info in sorted(infos, key=lambda info: info.offset):
        reader.context = f"tensor {info.name!r}"
        if info.offset % alignment:
            reader.fail(f"its offset {info.offset} is not a multiple of {alignment}")
        if info.offset < end_of_last:
            reader.fail(f"its offset {info.offset} lies in the tensor before it")
        end_of_last = info.offset + info.num_bytes
        if data_start + end_of_last > len(reader.data):
            missing = data_start + end_of_last - len(reader.data)
            reader.fail(f"the file ends too early: {missing} of its {info.num_bytes} bytes are missing")
    tensors = {}
    for info in infos:
        start = data_start + info.offset
        data = reader.data[start : start + info.num_bytes]
        type_name = GGML_TYPES[info.type_id].name
        tensors[info.name] = GGUFTensor(info.name, info.type_id, type_name, info.shape, data)
    return tensors

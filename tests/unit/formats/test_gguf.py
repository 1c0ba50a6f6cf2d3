"""The GGUF reader: what the writer wrote comes back; what is broken is refused, with a reason and a place."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from octavo.formats.gguf import GGUFError, GGUFFile, open_gguf
from octavo.formats.gguf_writer import string, tensor_entry
from octavo.kernels.quantization import quantize
from octavo.kernels.weights import WeightType
from support.gguf_writer import gguf_bytes, padded, write_gguf

METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "an.int": 7,
    "a.float": 0.5,
    "a.bool": True,
    "some.strings": ["", "a", "Ġé😀"],
    "some.numbers": np.array([1, -2], np.int32),
    "some.bools": np.array([True, False]),
    "nested": [np.array([1.5], np.float32), ["x"], []],
}
WEIGHTS = [
    quantize(np.arange(5), WeightType.F32, "vector"),
    quantize(np.arange(192).reshape(3, 64), WeightType.Q4_1, "matrix"),
]
VALID = gguf_bytes(METADATA, WEIGHTS)


def header(num_tensors: int, num_entries: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_entries)


def entry(key: str, value_type: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", value_type) + value


@pytest.fixture
def open_bytes(tmp_path: Path) -> Callable[[bytes], GGUFFile]:
    def open_them(raw: bytes) -> GGUFFile:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return open_gguf(path)

    return open_them


Open = Callable[[bytes], GGUFFile]


# --- what is valid ---


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_comes_back_with_its_types(open_bytes: Open, version: int) -> None:
    file = open_bytes(gguf_bytes(METADATA, WEIGHTS, version=version))
    assert file.version == version
    assert list(file.metadata) == list(METADATA)
    scalars = {key: value for key, value in METADATA.items() if isinstance(value, bool | int | float | str)}
    for key, value in scalars.items():
        assert file.metadata[key] == value
        assert type(file.metadata[key]) is type(value)
    assert file.metadata["some.strings"] == ["", "a", "Ġé😀"]
    numbers, bools = file.metadata["some.numbers"], file.metadata["some.bools"]
    assert isinstance(numbers, np.ndarray)
    assert isinstance(bools, np.ndarray)
    assert (numbers.tolist(), bools.tolist()) == ([1, -2], [True, False])
    nested = file.metadata["nested"]
    assert isinstance(nested, list)
    assert (nested[0].tolist(), nested[1:]) == ([1.5], [["x"], []])


@pytest.mark.parametrize(
    ("value_type", "code", "value"),
    [
        (0, "B", 255),
        (1, "b", -1),
        (2, "H", 65535),
        (3, "h", -2),
        (4, "I", 2**32 - 1),
        (5, "i", -3),
        (6, "f", 0.25),
        (7, "?", False),
        (10, "Q", 2**64 - 1),
        (11, "q", -(2**63)),
        (12, "d", 0.1),
    ],
)
def test_every_scalar_type(open_bytes: Open, value_type: int, code: str, value: float) -> None:
    file = open_bytes(header(0, 1) + entry("key", value_type, struct.pack("<" + code, value)))
    assert file.metadata["key"] == value


def test_tensors_come_back_as_views_of_the_file(open_bytes: Open) -> None:
    file = open_bytes(VALID)
    assert list(file.tensors) == ["vector", "matrix"]
    vector, matrix = file.tensors.values()
    assert (vector.shape, vector.type_name, vector.num_bytes) == ((5,), "F32", 20)
    assert (matrix.shape, matrix.type_name, matrix.type_id) == ((3, 64), "Q4_1", 3)
    for weight in WEIGHTS:
        data = file.tensors[weight.name].data
        np.testing.assert_array_equal(data, weight.data)
        assert not data.flags.owndata
        assert not data.flags.writeable


def test_a_type_that_cannot_be_computed_is_listed_by_name(open_bytes: Open) -> None:
    table = tensor_entry("w", [256, 2], 12, 0)
    file = open_bytes(padded(header(1, 0) + table) + bytes(2 * 144))
    assert (file.tensors["w"].type_name, file.tensors["w"].num_bytes) == ("Q4_K", 288)


def test_the_alignment_of_the_file_is_used(open_bytes: Open) -> None:
    start = header(2, 1) + entry("general.alignment", 4, struct.pack("<I", 8))
    start += tensor_entry("a", [1], 0, 0) + tensor_entry("b", [1], 0, 8)
    start += bytes(-len(start) % 8)
    file = open_bytes(start + struct.pack("<f4xf", 1.5, 2.5))
    assert file.tensors["b"].data.view(np.float32) == 2.5


def test_a_file_without_tensors_is_valid(open_bytes: Open) -> None:
    assert not open_bytes(header(0, 0)).tensors


def test_tensors_read_the_same_after_their_pages_were_released(open_bytes: Open) -> None:
    file = open_bytes(VALID)
    before = {name: tensor.data.copy() for name, tensor in file.tensors.items()}
    file.release_pages()
    for name, tensor in file.tensors.items():
        np.testing.assert_array_equal(tensor.data, before[name])
        assert not tensor.data.flags.writeable


# --- what is refused ---

BIG = 2**62
COUNT = struct.Struct("<Q").pack

BROKEN = {
    "magic": (b"GGML" + VALID[4:], "starts with b'GGML'"),
    "empty": (b"", "empty"),
    "shorter than the magic": (b"GG", "starts with b'GG'"),
    "old version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
    "future version": (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "count of tensors": (header(BIG, 0), "tensors cannot fit"),
    "count of entries": (header(0, BIG), "entries cannot fit"),
    "length of a key": (header(0, 1) + COUNT(BIG) + bytes(9), "a string of 4611686018427387904 bytes"),
    "length of a string": (header(0, 1) + entry("k", 8, COUNT(2**64 - 1)), "metadata 'k'"),
    "count of numbers": (header(0, 1) + entry("k", 9, struct.pack("<IQ", 4, BIG)), "numbers cannot fit"),
    "count of wide numbers": (
        header(0, 1) + entry("k", 9, struct.pack("<IQ", 12, 8) + bytes(32)),
        "64 bytes wanted, 32 left",
    ),
    "count of strings": (header(0, 1) + entry("k", 9, struct.pack("<IQ", 8, BIG)), "strings cannot fit"),
    "count of arrays": (header(0, 1) + entry("k", 9, struct.pack("<IQ", 9, BIG)), "arrays cannot fit"),
    "depth": (header(0, 1) + entry("k", 9, struct.pack("<IQ", 9, 1) * 5000), "nested more than 4 deep"),
    "value type": (header(0, 1) + entry("k", 13, bytes(8)), "unknown value type 13"),
    "bool": (header(0, 1) + entry("k", 7, b"\2"), "neither 0 nor 1"),
    "key twice": (header(0, 2) + entry("k", 7, b"\0") * 2, "metadata 'k'"),
    "empty key": (header(0, 1) + entry("", 7, b"\0"), "a name of 0 characters"),
    "utf-8": (header(0, 1) + entry("k", 8, string(b"\xff\xfe")), "not valid UTF-8"),
    "alignment": (header(0, 1) + entry("general.alignment", 4, struct.pack("<I", 24)), "power of two"),
    "alignment of 0": (header(0, 1) + entry("general.alignment", 4, bytes(4)), "power of two"),
    "alignment as text": (header(0, 1) + entry("general.alignment", 8, string("32")), "power of two"),
}
FOUR_FLOATS = bytes(32)
BROKEN_TENSORS: dict[str, tuple[list[tuple[str, list[int], int, int]], str]] = {
    "name twice": ([("w", [1], 0, 0), ("w", [1], 0, 32)], "stands twice"),
    "no dimension": ([("w", [], 0, 0)], "0 dimensions"),
    "many dimensions": ([("w", [1] * 5, 0, 0)], "5 dimensions"),
    "size of 0": ([("w", [4, 0], 0, 0)], r"shape \(0, 4\) is empty"),
    "overflowing sizes": ([("w", [2**32, 2**32], 0, 0)], "bytes are missing"),
    "wrapping sizes": ([("w", [2**63, 2], 0, 0)], "bytes are missing"),
    "type": ([("w", [32], 5, 0)], "unknown element type 5"),
    "ragged groups": ([("w", [33], 2, 0)], "rows of 33 elements, but Q4_0 comes in groups of 32"),
    "offset beyond the end": ([("w", [4], 0, 2**40)], "ends too early"),
    "offset that wraps": ([("w", [4], 0, 2**64 - 32)], "ends too early"),
    "one element too many": ([("w", [9], 0, 0)], "4 of its 36 bytes are missing"),
    "unaligned": ([("w", [4], 0, 4)], "offset 4 is not a multiple of 32"),
    "overlapping": ([("v", [4], 0, 0), ("w", [4], 0, 0)], "lies in the tensor before it"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_headers_are_refused(open_bytes: Open, case: str) -> None:
    raw, reason = BROKEN[case]
    with pytest.raises(GGUFError, match=reason) as caught:
        open_bytes(raw)
    assert "model.gguf" in str(caught.value)


@pytest.mark.parametrize("case", BROKEN_TENSORS)
def test_broken_tensors_are_refused_by_name(open_bytes: Open, case: str) -> None:
    entries, reason = BROKEN_TENSORS[case]
    table = b"".join(tensor_entry(*line) for line in entries)
    with pytest.raises(GGUFError, match=reason) as caught:
        open_bytes(padded(header(len(entries), 0) + table) + FOUR_FLOATS)
    assert "tensor 'w'" in str(caught.value)


def test_every_truncation_is_refused(open_bytes: Open) -> None:
    end = len(VALID) - (-WEIGHTS[1].num_bytes % 32)  # the padding after the last tensor may be missing
    for length in range(end):
        with pytest.raises(GGUFError):
            open_bytes(VALID[:length])
    assert open_bytes(VALID[:end]).tensors


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_gguf(tmp_path / "none.gguf")


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=4),
    length=st.one_of(st.none(), st.integers(0, len(VALID))),
)
@example(flips=[], length=None)
def test_random_damage_is_a_file_or_a_gguf_error(
    tmp_path: Path, flips: list[tuple[int, int]], length: int | None
) -> None:
    raw = bytearray(VALID)
    for offset, value in flips:
        raw[offset] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw[:length])
    try:
        file = open_gguf(path)
    except GGUFError:
        assert flips or length is not None
        return
    assert sum(tensor.data.size for tensor in file.tensors.values()) <= len(raw)


def test_the_writer_and_an_independent_reader_agree(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", METADATA, WEIGHTS)
    reader = gguf.GGUFReader(path)
    assert [tensor.name for tensor in reader.tensors] == ["vector", "matrix"]
    assert reader.fields["some.strings"].contents() == METADATA["some.strings"]
    np.testing.assert_array_equal(reader.tensors[1].data.reshape(-1), WEIGHTS[1].data)

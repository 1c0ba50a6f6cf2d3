"""Packing, quantisation and matmul on every instruction set of this machine, against numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from octavo.kernels.weights import WeightType

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

QUANTIZED = (WeightType.Q8_0, WeightType.Q4_0, WeightType.Q4_1)
FLOAT = (WeightType.F32, WeightType.F16, WeightType.BF16)
TYPES = QUANTIZED + FLOAT
ROWS = (1, 7, 8, 9, 24, 100)
BATCHES = (1, 2, 3, 5, 7, 8, 11, 17, 24, 33, 71, 131, 137)


def has_isa(isa: str) -> bool:
    try:
        _native.quantize_row(np.zeros((1, 32), np.float32), isa)
    except ValueError:
        return False
    return True


ISAS = [isa for isa in ("portable", "avx2") if has_isa(isa)]
every_isa = pytest.mark.parametrize("isa", ISAS)
every_type = pytest.mark.parametrize("weight_type", TYPES, ids=lambda t: t.name)


# --- twins ---


@dataclass(frozen=True)
class Matrix:
    """A matrix as a file holds it, packed, and as the floats that it means, [rows, cols]."""

    type: WeightType
    packed: _native.PackedMatrix
    values: Floats

    @property
    def rows(self) -> int:
        return int(self.values.shape[0])


def pack(weight_type: WeightType, data: Bytes, rows: int, cols: int) -> Matrix:
    packed = _native.PackedMatrix(data, weight_type.value, rows, cols)
    return Matrix(weight_type, packed, dequantized(weight_type, data, rows, cols))


def dequantized(weight_type: WeightType, data: Bytes, rows: int, cols: int) -> Floats:
    """GGUF bytes → float32 [rows, cols], by the definition of each format."""
    if weight_type is WeightType.F32:
        return data.view(np.float32).reshape(rows, cols)
    if weight_type is WeightType.F16:
        return data.view(np.float16).astype(np.float32).reshape(rows, cols)
    if weight_type is WeightType.BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(rows, cols)
    groups = data.reshape(-1, weight_type.group_bytes)
    scale = groups[:, :2].copy().view(np.float16).astype(np.float32)
    if weight_type is WeightType.Q8_0:
        return (scale * groups[:, 2:].view(np.int8)).reshape(rows, cols)
    nibbles = np.concatenate([groups[:, -16:] & 15, groups[:, -16:] >> 4], axis=1)
    if weight_type is WeightType.Q4_0:
        return (scale * (nibbles.astype(np.float32) - 8)).reshape(rows, cols)
    minimum = groups[:, 2:4].copy().view(np.float16).astype(np.float32)
    return (scale * nibbles.astype(np.float32) + minimum).reshape(rows, cols)


def random_matrix(weight_type: WeightType, rows: int, cols: int, seed: int = 0) -> Matrix:
    """Every bit pattern of the quants, and moderate float16 scales of both signs."""
    rng = np.random.default_rng(seed)
    if weight_type in FLOAT:
        values = rng.standard_normal(rows * cols, dtype=np.float32)
        if weight_type is WeightType.F16:
            return pack(weight_type, values.astype(np.float16).view(np.uint8), rows, cols)
        if weight_type is WeightType.BF16:
            halves = (values.view(np.uint32) >> 16).astype(np.uint16)
            return pack(weight_type, halves.view(np.uint8), rows, cols)
        return pack(weight_type, values.view(np.uint8), rows, cols)
    data = rng.integers(0, 256, (rows * cols // 32, weight_type.group_bytes), dtype=np.uint8)
    for at in range(0, weight_type.group_bytes % 16, 2):
        scales = rng.uniform(-0.1, 0.1, (len(data), 1)).astype(np.float16)
        data[:, at : at + 2] = scales.view(np.uint8)
    return pack(weight_type, data.reshape(-1), rows, cols)


def random_rows(m: int, cols: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal((m, cols), dtype=np.float32)


Quantized = tuple[npt.NDArray[np.int8], npt.NDArray[np.int32], Floats, Floats]


def quantized(x: Floats) -> Quantized:
    """What quantize_row promises, for finite x: quants, factors, sums and units."""
    one = np.float32(1)
    groups = x.reshape(x.shape[0], -1, 32)
    units = np.abs(x).max(axis=1) / np.float32(127 * 32767)
    units[units < np.finfo(np.float32).tiny] = 0
    unit = np.where(units == 0, one, units)[:, None]
    factors = np.ceil(np.abs(groups).max(axis=2) / (np.float32(127) * unit)).clip(max=32767)
    factors[units == 0] = 0
    inverse = np.where(factors == 0, 0, one / (np.where(factors == 0, one, factors) * unit))
    quants = np.rint(groups * inverse[..., None]).clip(-127, 127).astype(np.int8)
    sums = quants.sum(axis=2, dtype=np.int32).astype(np.float32)
    return quants.reshape(x.shape), factors.astype(np.int32), factors * sums, units


def as_the_matmul_sees(x: Floats, weight_type: WeightType) -> npt.NDArray[np.float64]:
    if weight_type in FLOAT:
        return x.astype(np.float64)
    quants, factors, _, units = quantized(x)
    return quants * np.repeat(factors, 32, axis=1) * units.astype(np.float64)[:, None]


def check_product(matrix: Matrix, x: Floats, out: Floats) -> None:
    """The error may be a small share of the sum of magnitudes, which bounds what float32 sums can lose."""
    seen = as_the_matmul_sees(x, matrix.type)
    weights = matrix.values.astype(np.float64)
    magnitude = np.abs(seen) @ np.abs(weights).T
    assert out.shape == (x.shape[0], matrix.rows)
    assert np.all(np.abs(out - seen @ weights.T) <= 2e-6 * magnitude + 1e-30)


# --- quantisation of activations ---


@every_isa
@pytest.mark.parametrize("cols", [32, 64, 256, 288, 480, 576])
def test_quantize_row_is_exact(isa: str, cols: int) -> None:
    x = random_rows(40, cols) * np.float32(10.0) ** np.arange(-20, 20, dtype=np.float32)[:, None]
    for got, expected in zip(_native.quantize_row(x, isa), quantized(x), strict=True):
        np.testing.assert_array_equal(got, expected)


@every_isa
def test_quantize_row_stays_close_to_the_values(isa: str) -> None:
    """Half a quant, and what a factor is rounded up by; groups of very different sizes share a row."""
    x = random_rows(20, 320) * np.repeat(np.float32(10.0) ** -np.arange(10, dtype=np.float32), 32)
    quants, factors, _, units = _native.quantize_row(x, isa)
    step = np.repeat(factors, 32, axis=1) * units.astype(np.float64)[:, None]
    greatest = np.repeat(np.abs(x.reshape(20, 10, 32)).max(axis=2), 32, axis=1)
    assert np.all(np.abs(quants * step - x) <= 0.501 * step)
    assert np.all(step <= greatest / 127 + units[:, None])


@every_isa
def test_quantize_row_rounds_halves_to_even(isa: str) -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :7] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5]
    x[0, 32] = 32767 * 127  # so that the unit is 1
    quants, factors, sums, units = _native.quantize_row(x, isa)
    assert quants[0, :7].tolist() == [127, 0, 2, 2, 0, -2, -126]
    assert (factors.tolist(), sums.tolist(), units.tolist()) == ([[1, 32767]], [[3, 32767 * 127]], [1])


@every_isa
@pytest.mark.parametrize("greatest", [0.0, 1e-45, 4.8e-32, 5e-32, 3e38])
def test_quantize_row_at_the_ends_of_the_range(isa: str, greatest: float) -> None:
    x = np.linspace(-1, 1, 32, dtype=np.float32)[None] * np.float32(greatest)
    got = _native.quantize_row(x, isa)
    for one, expected in zip(got, quantized(x), strict=True):
        np.testing.assert_array_equal(one, expected)
    assert got[0].any() == (greatest > 4.9e-32)


@every_isa
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_the_output_of_its_row_only(isa: str, bad: float) -> None:
    matrix = random_matrix(WeightType.Q4_1, 9, 64)
    x = random_rows(5, 64)
    clean = _native.linear(matrix.packed, x, isa)
    x[2, 40] = bad
    out = _native.linear(matrix.packed, x, isa)
    assert not np.isfinite(out[2]).any()
    np.testing.assert_array_equal(np.delete(out, 2, axis=0), np.delete(clean, 2, axis=0))


def test_quantize_row_is_the_same_on_every_isa() -> None:
    x = random_rows(8, 96)
    x[1, 3], x[2, 5], x[3, 7], x[4] = np.nan, np.inf, -np.inf, 0
    expected = _native.quantize_row(x, "portable")
    for isa in ISAS:
        for got, want in zip(_native.quantize_row(x, isa), expected, strict=True):
            np.testing.assert_array_equal(got, want)


# --- matmul ---


@every_isa
@every_type
@pytest.mark.parametrize("rows", ROWS)
def test_linear_against_numpy(isa: str, weight_type: WeightType, rows: int) -> None:
    for cols in (32, 64, 96, 1600) if weight_type in QUANTIZED else (1, 13, 32, 100, 576):
        matrix = random_matrix(weight_type, rows, cols)
        for m in BATCHES:
            x = random_rows(m, cols)
            check_product(matrix, x, _native.linear(matrix.packed, x, isa))


@every_isa
@every_type
@pytest.mark.parametrize(("rows", "cols"), [(27, 96), (27, 800), (92, 64), (107, 64)])
def test_a_row_alone_is_the_row_in_a_batch_bit_for_bit(
    isa: str, weight_type: WeightType, rows: int, cols: int
) -> None:
    matrix = random_matrix(weight_type, rows, cols)
    x = random_rows(max(BATCHES), cols)
    alone = np.concatenate([_native.linear(matrix.packed, row[None], isa) for row in x])
    for m in (*BATCHES, 4, 6, 7):
        np.testing.assert_array_equal(_native.linear(matrix.packed, x[:m], isa), alone[:m])
        np.testing.assert_array_equal(_native.linear(matrix.packed, x[-m:], isa), alone[-m:])


@every_isa
@every_type
@pytest.mark.parametrize("m", [1, 5, 130])
def test_any_split_of_tiles_gives_the_same_bits(isa: str, weight_type: WeightType, m: int) -> None:
    matrix = random_matrix(weight_type, 60, 64)
    x = random_rows(m, 64)
    whole = _native.linear(matrix.packed, x, isa)
    for cuts in ([0, 1, 8], [0, 2, 5, 8], [0, 3, 3, 4, 8], list(range(9))):
        parts = sum(
            _native.linear(matrix.packed, x, isa, tiles=(begin, end)) for begin, end in pairwise(cuts)
        )
        np.testing.assert_array_equal(parts, whole)


@every_isa
@every_type
@pytest.mark.parametrize("rows", [9, 16])
def test_accumulate_adds_the_finished_dot(isa: str, weight_type: WeightType, rows: int) -> None:
    matrix = random_matrix(weight_type, rows, 96)
    x, before = random_rows(6, 96), random_rows(6, rows, seed=2)
    kept = before.copy()
    out = _native.linear(matrix.packed, x, isa, accumulate_into=before)
    np.testing.assert_array_equal(out, kept + _native.linear(matrix.packed, x, isa))
    np.testing.assert_array_equal(before, kept)


@every_isa
@pytest.mark.parametrize("weight_type", QUANTIZED, ids=lambda t: t.name)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0x81, 0xFF])
@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_quants_do_not_saturate(isa: str, weight_type: WeightType, byte: int, sign: int) -> None:
    rows, cols = 9, 64
    data = np.full((rows * cols // 32, weight_type.group_bytes), byte, np.uint8)
    for at in range(0, weight_type.group_bytes % 16, 2):
        data[:, at : at + 2] = np.array([1], np.float16).view(np.uint8)
    matrix = pack(weight_type, data.reshape(-1), rows, cols)
    x = np.full((20, cols), 127 * sign, np.float32)
    for m in (1, 5, 20):
        check_product(matrix, x[:m], _native.linear(matrix.packed, x[:m], isa))


@every_isa
@every_type
def test_a_zero_row_gives_zeros(isa: str, weight_type: WeightType) -> None:
    x = random_rows(4, 64)
    x[2] = 0
    out = _native.linear(random_matrix(weight_type, 12, 64).packed, x, isa)
    assert not out[2].any()
    assert out[[0, 1, 3]].all()


@every_isa
@pytest.mark.parametrize("weight_type", QUANTIZED, ids=lambda t: t.name)
@pytest.mark.parametrize("scale", [2.0**-24, 2.0**-14, 65504.0, -65504.0])
def test_scales_at_the_ends_of_float16(isa: str, weight_type: WeightType, scale: float) -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, (20, weight_type.group_bytes), dtype=np.uint8)
    for at in range(0, weight_type.group_bytes % 16, 2):
        data[:, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    matrix = pack(weight_type, data.reshape(-1), 10, 64)
    x = random_rows(3, 64)
    check_product(matrix, x, _native.linear(matrix.packed, x, isa))


def test_isas_agree() -> None:
    for weight_type in TYPES:
        matrix = random_matrix(weight_type, 24, 192)
        x = random_rows(6, 192)
        best = _native.linear(matrix.packed, x)
        np.testing.assert_array_equal(best, _native.linear(matrix.packed, x, ISAS[-1]))
        np.testing.assert_allclose(best, _native.linear(matrix.packed, x, "portable"), rtol=1e-4, atol=1e-4)


# --- rows as floats ---


@every_isa
@every_type
@pytest.mark.parametrize("rows", ROWS)
def test_dequantize_rows_is_exact(isa: str, weight_type: WeightType, rows: int) -> None:
    matrix = random_matrix(weight_type, rows, 96)
    ids = np.array([rows - 1, 0, rows // 2, rows - 1], np.int64)
    np.testing.assert_array_equal(_native.dequantize_rows(matrix.packed, ids, isa), matrix.values[ids])


@every_isa
def test_every_float16_is_read_right(isa: str) -> None:
    data = np.arange(65536, dtype=np.uint16)
    matrix = pack(WeightType.F16, data.view(np.uint8), 64, 1024)
    out = _native.dequantize_rows(matrix.packed, np.arange(64), isa)
    np.testing.assert_array_equal(out, matrix.values)
    ones = np.eye(1, 1024, 5, dtype=np.float32)
    finite = random_matrix(WeightType.F16, 8, 1024)
    np.testing.assert_array_equal(_native.linear(finite.packed, ones, isa)[0], finite.values[:, 5])


# --- the door ---


def test_packed_bytes_stay_close_to_the_file() -> None:
    for weight_type in TYPES:
        matrix = random_matrix(weight_type, 64, 576)
        file_bytes = 64 * 576 // weight_type.group_size * weight_type.group_bytes
        assert file_bytes <= matrix.packed.num_bytes <= 1.02 * file_bytes


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("type", (np.zeros(34, np.uint8), 3000, 1, 32)),
        ("cols", (np.zeros(34, np.uint8), WeightType.Q8_0.value, 1, 33)),
        ("cols", (np.zeros(0, np.uint8), WeightType.F32.value, 1, 0)),
        ("rows", (np.zeros(0, np.uint8), WeightType.F32.value, 0, 1)),
        ("data", (np.zeros(33, np.uint8), WeightType.Q8_0.value, 1, 32)),
    ],
)
def test_bad_matrices_are_refused(message: str, arguments: tuple[Bytes, int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"^{message}:"):
        _native.PackedMatrix(*arguments)


def test_bad_arguments_are_refused() -> None:
    packed = random_matrix(WeightType.F32, 9, 32).packed
    x = np.zeros((2, 32), np.float32)
    with pytest.raises(ValueError, match=r"^isa"):
        _native.linear(packed, x, "sse9")
    with pytest.raises(ValueError, match=r"^x:"):
        _native.linear(packed, np.zeros((2, 31), np.float32))
    with pytest.raises(ValueError, match=r"^x:"):
        _native.quantize_row(np.zeros((2, 31), np.float32))
    with pytest.raises(ValueError, match=r"^accumulate_into:"):
        _native.linear(packed, x, accumulate_into=np.zeros((2, 8), np.float32))
    with pytest.raises(ValueError, match=r"^tiles:"):
        _native.linear(packed, x, tiles=(0, 3))
    with pytest.raises(ValueError, match=r"^row_ids:"):
        _native.dequantize_rows(packed, np.array([9]))

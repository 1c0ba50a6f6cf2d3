"""Element formats: known bytes, error bounds, and what must survive a round trip."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.kernels.quantization import dequantize, quantize
from octavo.kernels.weights import Weight, WeightType

GROUPED = [WeightType.Q4_0, WeightType.Q4_1, WeightType.Q8_0]
FLOATS = [WeightType.F32, WeightType.F16, WeightType.BF16]


def weight_of(weight_type: WeightType, raw: bytes, rows: int, cols: int) -> Weight:
    return Weight("w", weight_type, rows, cols, np.frombuffer(raw, np.uint8))


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


NIBBLES = bytes(low | (15 - low) << 4 for low in range(16))  # elements 0..15, then 15..0
COUNT_UP_AND_DOWN = np.array([*range(16), *reversed(range(16))], np.float32)


def test_q4_0_is_scale_times_nibble_minus_8() -> None:
    values = dequantize(weight_of(WeightType.Q4_0, half(0.5) + NIBBLES, 1, 32))
    np.testing.assert_array_equal(values, [(COUNT_UP_AND_DOWN - 8) * 0.5])


def test_q4_1_is_scale_times_nibble_plus_minimum() -> None:
    values = dequantize(weight_of(WeightType.Q4_1, half(0.5) + half(-3) + NIBBLES, 1, 32))
    np.testing.assert_array_equal(values, [COUNT_UP_AND_DOWN * 0.5 - 3])


def test_q8_0_is_scale_times_int8() -> None:
    quants = np.arange(-16, 16, dtype=np.int8)
    values = dequantize(weight_of(WeightType.Q8_0, half(0.25) + quants.tobytes(), 1, 32))
    np.testing.assert_array_equal(values, [quants * 0.25])


def test_float_types_are_their_bits() -> None:
    assert dequantize(weight_of(WeightType.F32, np.float32(-1.5).tobytes(), 1, 1)) == -1.5
    assert dequantize(weight_of(WeightType.F16, half(-1.5), 1, 1)) == -1.5
    assert dequantize(weight_of(WeightType.BF16, b"\xc0\xbf", 1, 1)) == -1.5


def test_groups_run_along_rows() -> None:
    raw = b"".join(half(scale) + bytes([0xFF] * 16) for scale in (1, 2, 3, 4))
    values = dequantize(weight_of(WeightType.Q4_0, raw, 2, 64))
    np.testing.assert_array_equal(values[:, [0, 32]], [[7, 14], [21, 28]])


@pytest.mark.parametrize("weight_type", FLOATS)
def test_values_that_a_float_type_holds_come_back(weight_type: WeightType) -> None:
    values = np.array([[0, -0.0, 1, -1, 0.5, 1.5, 2**-10, -(2**10)]], np.float32)
    np.testing.assert_array_equal(dequantize(quantize(values, weight_type)), values)


def test_bf16_rounds_to_nearest_even_and_keeps_nan() -> None:
    bits = np.array([0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0x7F80_0000, 0x7F80_0001], np.uint32)
    kept = quantize(bits.view(np.float32), WeightType.BF16).data.view(np.uint16)
    assert kept[:4].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80]
    assert np.isnan(dequantize(quantize(bits.view(np.float32)[4:], WeightType.BF16)))


@pytest.mark.parametrize(
    ("weight_type", "steps"), [(WeightType.Q4_0, 1.0), (WeightType.Q4_1, 0.5), (WeightType.Q8_0, 0.5)]
)
def test_error_is_within_the_rounding_of_a_group(weight_type: WeightType, steps: float) -> None:
    """Q4_0 clips the far end of a group's range, by up to one step; the others round by up to half a step."""
    values = np.random.default_rng(1).standard_normal((7, 96), np.float32)
    groups = values.reshape(-1, 32)
    largest = np.abs(groups).max(axis=1)
    step = {
        WeightType.Q4_0: largest / 8,
        WeightType.Q4_1: (groups.max(axis=1) - groups.min(axis=1)) / 15,
        WeightType.Q8_0: largest / 127,
    }[weight_type]
    error = np.abs(dequantize(quantize(values, weight_type)).reshape(-1, 32) - groups).max(axis=1)
    half_precision = 2**-10 * largest * 2
    assert np.all(error <= steps * step + half_precision)
    assert np.any(error > 0.2 * step)


@pytest.mark.parametrize("weight_type", GROUPED)
@pytest.mark.parametrize("shift", [-0.4, 0.4])
def test_values_go_to_the_nearest_step(weight_type: WeightType, shift: float) -> None:
    """On whole numbers with a step of 1, all but the ends of the range moved by less than half a step."""
    low, high = {WeightType.Q4_0: (-8, 7), WeightType.Q4_1: (-4, 11), WeightType.Q8_0: (-127, 127)}[
        weight_type
    ]
    whole = np.resize(np.arange(low, high), 32).astype(np.float32)
    whole[-1] = high
    moved = np.where((whole == low) | (whole == high), whole, whole + np.float32(shift))
    np.testing.assert_array_equal(dequantize(quantize(moved, weight_type)), [whole])


@pytest.mark.parametrize("weight_type", GROUPED)
def test_a_group_of_zeros_stays_zero(weight_type: WeightType) -> None:
    values = np.zeros((2, 64), np.float32)
    values[1, 32:] = np.linspace(-1, 1, 32)
    restored = dequantize(quantize(values, weight_type))
    assert not np.any(restored[0])
    assert not np.any(restored[1, :32])
    assert np.all(np.abs(restored[1, 32:] - values[1, 32:]) < 0.15)


@pytest.mark.parametrize("weight_type", [WeightType.Q4_1, WeightType.Q8_0, *FLOATS])
def test_encoding_what_was_decoded_changes_nothing(weight_type: WeightType) -> None:
    weight = quantize(np.random.default_rng(2).standard_normal((5, 64), np.float32), weight_type)
    np.testing.assert_array_equal(quantize(dequantize(weight), weight_type).data, weight.data)


def test_a_vector_gets_one_row() -> None:
    weight = quantize(np.ones(5), WeightType.F32, "norm")
    assert (weight.name, weight.rows, weight.cols) == ("norm", 1, 5)


@pytest.mark.parametrize("shape", [(2, 3, 32), (4, 33), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="w: cannot encode shape"):
        quantize(np.ones(shape), WeightType.Q4_0, "w")

"""Element formats of weights, in numpy: bytes to floats and back.

The group formats follow GGUF: 32 consecutive elements of a row share a float16 scale; byte i of the nibbles
holds element i in its low half and element i + 16 in its high half.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.kernels.weights import Weight, WeightType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def dequantize(weight: Weight) -> Floats:
    """The matrix as float32 [rows, cols]; a new array."""
    groups = weight.data.reshape(-1, weight.type.group_bytes)
    values = _DECODERS[weight.type](groups)
    return values.reshape(weight.rows, weight.cols)


def quantize(array: npt.ArrayLike, weight_type: WeightType, name: str = "") -> Weight:
    """Encode float32 [rows, cols], or a vector [cols] as one row, by the standard rule of the format.

    Raises ValueError for another rank, or a row length that is not a multiple of the group size.
    """
    values = np.asarray(array, dtype=np.float32)
    if values.ndim == 1:
        values = values[np.newaxis]
    if values.ndim != 2 or values.shape[1] % weight_type.group_size:
        raise ValueError(
            f"{name}: cannot encode shape {values.shape} as {weight_type.name}, "
            f"whose rows are multiples of {weight_type.group_size}"
        )
    rows, cols = values.shape
    groups = _ENCODERS[weight_type](values.reshape(-1, weight_type.group_size))
    return Weight(name, weight_type, rows, cols, np.ascontiguousarray(groups).reshape(-1))


# --- Decoders: uint8 [groups, group_bytes] → float32 [groups, group_size] ---


def _decode_f32(groups: Bytes) -> Floats:
    return groups.view(np.float32).copy()


def _decode_f16(groups: Bytes) -> Floats:
    return groups.view(np.float16).astype(np.float32)


def _decode_bf16(groups: Bytes) -> Floats:
    return (groups.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _decode_q8_0(groups: Bytes) -> Floats:
    scale = _half(groups, 0)
    return groups[:, 2:].view(np.int8).astype(np.float32) * scale


def _decode_q4_0(groups: Bytes) -> Floats:
    scale = _half(groups, 0)
    return (_unpack_nibbles(groups[:, 2:]) - np.float32(8)) * scale


def _decode_q4_1(groups: Bytes) -> Floats:
    scale, minimum = _half(groups, 0), _half(groups, 2)
    return _unpack_nibbles(groups[:, 4:]) * scale + minimum


# --- Encoders: float32 [groups, group_size] → uint8 [groups, group_bytes] ---


def _encode_f32(values: Floats) -> Bytes:
    return values.view(np.uint8)


def _encode_f16(values: Floats) -> Bytes:
    return values.astype(np.float16).view(np.uint8)


def _encode_bf16(values: Floats) -> Bytes:
    bits = values.view(np.uint32)
    # Round to nearest even: add just under half of the last kept place, plus one where that place is odd.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40  # rounding could carry a NaN's payload into infinity
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16).view(np.uint8)


def _encode_q8_0(values: Floats) -> Bytes:
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    quants = np.rint(values * _inverse(scale)).astype(np.int8)
    return np.hstack([_half_bytes(scale), quants.view(np.uint8)])


def _encode_q4_0(values: Floats) -> Bytes:
    # The element of largest magnitude becomes -8 times the (signed) scale: -8 is the end without a twin.
    extreme = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, np.newaxis], axis=1)
    scale = extreme / np.float32(-8)
    quants = np.clip(np.floor(values * _inverse(scale) + np.float32(8.5)), 0, 15)
    return np.hstack([_half_bytes(scale), _pack_nibbles(quants)])


def _encode_q4_1(values: Floats) -> Bytes:
    minimum = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - minimum) / np.float32(15)
    quants = np.clip(np.floor((values - minimum) * _inverse(scale) + np.float32(0.5)), 0, 15)
    return np.hstack([_half_bytes(scale), _half_bytes(minimum), _pack_nibbles(quants)])


def _half(groups: Bytes, offset: int) -> Floats:
    """The float16 at a byte offset of every group, as float32 [groups, 1]."""
    return np.ascontiguousarray(groups[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _half_bytes(values: Floats) -> Bytes:
    return values.astype(np.float16).view(np.uint8)


def _inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 for a group of zeros."""
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def _unpack_nibbles(packed: Bytes) -> Floats:
    return np.hstack([packed & 0x0F, packed >> 4]).astype(np.float32)


def _pack_nibbles(quants: Floats) -> Bytes:
    nibbles = quants.astype(np.uint8)
    return np.bitwise_or(nibbles[:, :16], np.left_shift(nibbles[:, 16:], 4), dtype=np.uint8)


_DECODERS: dict[WeightType, Callable[[Bytes], Floats]] = {
    WeightType.F32: _decode_f32,
    WeightType.F16: _decode_f16,
    WeightType.BF16: _decode_bf16,
    WeightType.Q8_0: _decode_q8_0,
    WeightType.Q4_0: _decode_q4_0,
    WeightType.Q4_1: _decode_q4_1,
}
_ENCODERS: dict[WeightType, Callable[[Floats], Bytes]] = {
    WeightType.F32: _encode_f32,
    WeightType.F16: _encode_f16,
    WeightType.BF16: _encode_bf16,
    WeightType.Q8_0: _encode_q8_0,
    WeightType.Q4_0: _encode_q4_0,
    WeightType.Q4_1: _encode_q4_1,
}

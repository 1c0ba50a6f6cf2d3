"""The ops in numpy, one by one: slow, obvious, the definition that fast executors are tested against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.kernels.executor import FloatArray, Int32Array, StepInputs
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.ops import (
    Add,
    Attention,
    Embed,
    KVWrite,
    Linear,
    Op,
    Program,
    RmsNorm,
    Rope,
    SiluMul,
    TakeRows,
)
from octavo.kernels.quantization import dequantize

Array = npt.NDArray[np.floating[Any]]
Buffers = dict[str, Array]


class ReferenceExecutor:
    """Runs a program in float32 or float64. Implements kernels.executor.Executor.

    Weights are expanded to `dtype` once. K and V are rounded to layout.dtype when they are stored and
    widened again when they are read, as in every executor.
    """

    def __init__(
        self, program: Program, layout: KVLayout, *, dtype: type[np.float32] | type[np.float64] = np.float32
    ) -> None:
        """Raises ValueError where the layout is not of the program's layers, kv heads and head_dim."""
        shape = (layout.num_layers, layout.num_kv_heads, layout.head_dim)
        if shape != (program.num_layers, program.num_kv_heads, program.head_dim):
            raise ValueError(f"the layout's layers, kv heads and head_dim {shape} are not the program's")
        self._program = program
        self._layout = layout
        self._dtype = dtype
        self._weights: Buffers = {
            key: dequantize(weight).astype(dtype, copy=False) for key, weight in program.weights.items()
        }
        num_slots = layout.num_blocks * layout.block_size
        cache_shape = (layout.num_layers, num_slots, layout.num_kv_heads, layout.head_dim)
        self._keys = np.zeros(cache_shape, layout.numpy_dtype)
        self._values = np.zeros(cache_shape, layout.numpy_dtype)

    def run(self, inputs: StepInputs) -> FloatArray:
        check_inputs(inputs, self._layout, self._program.vocab_size)
        self._copy_blocks(inputs.copies)
        buffers: Buffers = {}
        for op in self._program.ops:
            self._apply(op, buffers, inputs)
        return buffers["logits"].astype(np.float32)

    def run_best(
        self, inputs: StepInputs, *, num_rounds: int = 1, stop_token_ids: Sequence[int] = ()
    ) -> tuple[Int32Array, FloatArray]:
        check_rounds(inputs, num_rounds, self._layout.block_size)
        ids, best = self._best_of_step(inputs)
        all_ids, all_best = [ids], [best]
        while (
            len(all_ids) < num_rounds and np.isfinite(best).all() and not np.isin(ids, stop_token_ids).any()
        ):
            inputs = next_round(inputs, ids, self._layout.block_size)
            ids, best = self._best_of_step(inputs)
            if np.isfinite(best).all():
                all_ids.append(ids)
                all_best.append(best)
        return np.stack(all_ids), np.stack(all_best)

    def _best_of_step(self, inputs: StepInputs) -> tuple[Int32Array, FloatArray]:
        logits = self.run(inputs)
        ids = logits.argmax(axis=1).astype(np.int32)
        return ids, logits[np.arange(len(ids)), ids]

    def _apply(self, op: Op, buffers: Buffers, inputs: StepInputs) -> None:
        weights = self._weights
        match op:
            case Embed():
                buffers[op.out] = weights[op.weight][inputs.token_ids]
            case RmsNorm():
                buffers[op.out] = rms_norm(buffers[op.x], weights[op.weight], op.eps)
            case Linear():
                out = buffers[op.x] @ weights[op.weight].T
                buffers[op.out] = out if op.bias is None else out + weights[op.bias]
            case Rope():
                factors = None if op.factors is None else weights[op.factors][0]
                buffers[op.x] = rope(op, buffers[op.x], inputs.positions, factors)
            case KVWrite():
                self._write(op, buffers, inputs.slot_mapping)
            case Attention():
                buffers[op.out] = self._attention(op, buffers[op.q], inputs)
            case SiluMul():
                buffers[op.out] = silu(buffers[op.gate]) * buffers[op.up]
            case Add():
                buffers[op.x] = buffers[op.x] + buffers[op.y]
            case TakeRows():
                buffers[op.out] = buffers[op.x][inputs.logits_rows]

    def _copy_blocks(self, copies: Int32Array) -> None:
        """In order, so that a later copy may read what an earlier one wrote."""
        for source, target in copies.tolist():
            for cache in (self._keys, self._values):
                cache[:, self._slots_of(target)] = cache[:, self._slots_of(source)]

    def _slots_of(self, block: int) -> slice:
        return slice(block * self._layout.block_size, (block + 1) * self._layout.block_size)

    def _write(self, op: KVWrite, buffers: Buffers, slots: Int32Array) -> None:
        shape = (len(slots), self._layout.num_kv_heads, self._layout.head_dim)
        self._keys[op.layer, slots] = buffers[op.k].reshape(shape)
        self._values[op.layer, slots] = buffers[op.v].reshape(shape)

    def _attention(self, op: Attention, q: Array, inputs: StepInputs) -> Array:
        out = np.empty_like(q)
        heads = (op.num_heads, self._layout.head_dim)
        for seq in range(len(inputs.context_lens)):
            keys, values = self._context(op.layer, inputs.block_tables[seq], int(inputs.context_lens[seq]))
            for row in range(inputs.query_start[seq], inputs.query_start[seq + 1]):
                num_visible = int(inputs.positions[row]) + 1
                visible = (keys[:, :num_visible], values[:, :num_visible])
                out[row] = attend(q[row].reshape(heads), *visible, op.scale).reshape(-1)
        return out

    def _context(self, layer: int, block_table: Int32Array, context_len: int) -> tuple[Array, Array]:
        """K and V of positions [0, context_len), each [num_kv_heads, context_len, head_dim]."""
        blocks, offsets = np.divmod(np.arange(context_len), self._layout.block_size)
        slots = block_table[blocks] * self._layout.block_size + offsets
        keys, values = self._keys[layer, slots], self._values[layer, slots]
        return (
            np.ascontiguousarray(keys.swapaxes(0, 1), self._dtype),
            np.ascontiguousarray(values.swapaxes(0, 1), self._dtype),
        )


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [T, width] / sqrt(mean(x²) + eps) · weight [1, width]."""
    mean_square = np.mean(x * x, axis=1, keepdims=True)
    out: Array = x / np.sqrt(mean_square + x.dtype.type(eps)) * weight
    return out


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)), without overflow for large negative x."""
    decay = np.exp(-np.abs(x))
    out: Array = x * np.where(x >= 0, 1, decay) / (1 + decay)
    return out


def rope(op: Rope, x: Array, positions: Int32Array, factors: Array | None) -> Array:
    """x [T, num_heads · head_dim] rotated by op at positions [T]; angles are computed in float64.

    Source: Su et al., RoFormer, 2021.
    """
    half = op.rotary_dim // 2
    frequencies = op.base ** (-2.0 * np.arange(half) / op.rotary_dim)
    if factors is not None:
        frequencies = frequencies / factors
    angles = positions[:, np.newaxis, np.newaxis] * frequencies
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    if op.interleaved:
        first, second = slice(0, op.rotary_dim, 2), slice(1, op.rotary_dim, 2)
    else:
        first, second = slice(0, half), slice(half, op.rotary_dim)
    heads = x.reshape(len(x), op.num_heads, op.head_dim)
    out = heads.copy()
    out[..., first] = heads[..., first] * cos - heads[..., second] * sin
    out[..., second] = heads[..., first] * sin + heads[..., second] * cos
    return out.reshape(x.shape)


def attend(q: Array, keys: Array, values: Array, scale: float) -> Array:
    """One query q [num_heads, head_dim] over keys and values [num_kv_heads, context, head_dim]."""
    num_heads, head_dim = q.shape
    grouped = q.reshape(len(keys), num_heads // len(keys), head_dim)
    scores = grouped @ keys.swapaxes(1, 2) * q.dtype.type(scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Array = weights @ values
    return out.reshape(num_heads, head_dim)


def check_inputs(inputs: StepInputs, layout: KVLayout, vocab_size: int) -> None:
    """Raises ValueError, naming the array, where a step's inputs do not fit each other or the cache."""
    _check_shapes(inputs)
    _check_range("token_ids", inputs.token_ids, vocab_size)
    _check_range("slot_mapping", inputs.slot_mapping, layout.num_blocks * layout.block_size)
    _check_range("copies", inputs.copies, layout.num_blocks)
    _check_range("logits_rows", inputs.logits_rows, len(inputs.token_ids))
    if len(np.unique(inputs.slot_mapping)) != len(inputs.slot_mapping):
        raise ValueError("slot_mapping names a slot twice")
    if np.any(np.diff(inputs.logits_rows) <= 0):
        raise ValueError("logits_rows must ascend")
    starts = inputs.query_start
    if starts[0] != 0 or starts[-1] != len(inputs.token_ids) or np.any(np.diff(starts) < 0):
        raise ValueError("query_start must ascend from 0 to the number of tokens")
    for seq in range(len(inputs.context_lens)):
        _check_sequence(seq, inputs, layout)


def check_rounds(inputs: StepInputs, num_rounds: int, block_size: int) -> None:
    """Raises ValueError where no such number of steps can follow from each other."""
    if num_rounds < 1:
        raise ValueError(f"num_rounds must be at least 1, got {num_rounds}")
    if num_rounds == 1:
        return
    each = np.arange(len(inputs.context_lens))
    if not np.array_equal(inputs.query_start, [*each, len(each)]) or not np.array_equal(
        inputs.logits_rows, each
    ):
        raise ValueError(
            "num_rounds may be above 1 only where each sequence has one token and one row of logits"
        )
    if np.any(inputs.context_lens + num_rounds - 1 > inputs.block_tables.shape[1] * block_size):
        raise ValueError(f"block_tables are too short for {num_rounds} rounds")


def next_round(inputs: StepInputs, token_ids: Int32Array, block_size: int) -> StepInputs:
    """The step in which each sequence computes the one token that `inputs` gave it."""
    positions = inputs.context_lens
    blocks = inputs.block_tables[np.arange(len(positions)), positions // block_size]
    return replace(
        inputs,
        token_ids=token_ids,
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        context_lens=positions + 1,
        copies=np.zeros((0, 2), np.int32),
    )


def _check_shapes(inputs: StepInputs) -> None:
    num_tokens, num_seqs = len(inputs.token_ids), len(inputs.query_start) - 1
    shapes: dict[str, tuple[int | None, ...]] = {
        "token_ids": (num_tokens,),
        "positions": (num_tokens,),
        "slot_mapping": (num_tokens,),
        "query_start": (num_seqs + 1,),
        "block_tables": (num_seqs, None),
        "context_lens": (num_seqs,),
        "logits_rows": (None,),
        "copies": (None, 2),
    }
    if num_seqs < 0:
        raise ValueError("query_start must hold at least the 0")
    for name, shape in shapes.items():
        array = getattr(inputs, name)
        fits = array.ndim == len(shape) and all(
            want is None or have == want for have, want in zip(array.shape, shape, strict=True)
        )
        if not fits:
            raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
        if array.dtype != np.int32 or not array.flags.c_contiguous:
            raise ValueError(f"{name} must be int32 and C-contiguous")


def _check_sequence(seq: int, inputs: StepInputs, layout: KVLayout) -> None:
    context_len = int(inputs.context_lens[seq])
    num_blocks = -(-context_len // layout.block_size)
    if context_len < 0 or num_blocks > inputs.block_tables.shape[1]:
        raise ValueError(f"context_lens[{seq}] is {context_len}, beyond its block table")
    _check_range(f"block_tables[{seq}]", inputs.block_tables[seq, :num_blocks], layout.num_blocks)
    rows = slice(inputs.query_start[seq], inputs.query_start[seq + 1])
    positions = inputs.positions[rows]
    expected = np.arange(context_len - len(positions), context_len)
    if context_len < len(positions) or np.any(positions != expected):
        raise ValueError(f"positions of sequence {seq} must be consecutive and end at context_lens - 1")


def _check_range(name: str, ids: Int32Array, limit: int) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= limit):
        raise ValueError(f"{name} must lie in [0, {limit}), got {ids.min()} to {ids.max()}")

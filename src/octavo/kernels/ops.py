"""What a model computes in a step: a list of ops over named float32 buffers, built once at load.

A buffer is [num_tokens, width] during a step; after TakeRows, [num_logits_rows, width]. Every executor runs
the same list; `reference.py` is the definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.kernels.weights import Weight


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = row token_ids[t] of weight [vocab_size, width]."""

    weight: str
    out: str


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / sqrt(mean(x²) + eps) · weight [1, width], row by row."""

    x: str
    weight: str
    out: str
    eps: float


@dataclass(frozen=True, slots=True)
class Linear:
    """out = x · weightᵀ (+ bias [1, rows]). weight [rows, cols]: x has width cols, out has width rows."""

    x: str
    weight: str
    out: str
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates x in place, head by head, by angles position · base^(-2i / rotary_dim) / factors[i].

    interleaved: pairs are (2i, 2i+1), else (i, i + rotary_dim / 2). Beyond rotary_dim a head stays as it is.
    factors: name of a float32 weight [1, rotary_dim / 2], or None for ones.
    """

    x: str
    num_heads: int
    head_dim: int
    rotary_dim: int
    base: float
    interleaved: bool
    factors: str | None = None


@dataclass(frozen=True, slots=True)
class KVWrite:
    """Stores k and v [num_tokens, num_kv_heads · head_dim] at the step's slots of layer `layer`."""

    k: str
    v: str
    layer: int


@dataclass(frozen=True, slots=True)
class Attention:
    """out[t, h] = softmax(scale · q[t, h] · Kᵀ) · V over positions [0, positions[t]] of t's sequence.

    K and V come from the cache, through the block table; query head h reads kv head
    h · num_kv_heads / num_heads.
    """

    q: str
    out: str
    layer: int
    num_heads: int
    scale: float


@dataclass(frozen=True, slots=True)
class SiluMul:
    """out = silu(gate) · up, silu(x) = x / (1 + exp(-x))."""

    gate: str
    up: str
    out: str


@dataclass(frozen=True, slots=True)
class Add:
    """x += y."""

    x: str
    y: str


@dataclass(frozen=True, slots=True)
class TakeRows:
    """out[r] = x[logits_rows[r]]: from here on only rows whose logits are wanted."""

    x: str
    out: str


Op = Embed | RmsNorm | Linear | Rope | KVWrite | Attention | SiluMul | Add | TakeRows


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A model ready to run: ops in order, the width of each buffer, and the weights that the ops name.

    The last op writes buffer "logits", [num_logits_rows, vocab_size].
    """

    ops: tuple[Op, ...]
    buffers: Mapping[str, int]
    weights: Mapping[str, Weight]
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def weight_bytes(self) -> int:
        return sum(weight.num_bytes for weight in self.weights.values())

"""Collects the ops, buffers and weights of a Program, checking each weight's shape as it is named."""

from __future__ import annotations

from collections.abc import Mapping

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
from octavo.kernels.quantization import dequantize, quantize
from octavo.kernels.weights import Weight, WeightType
from octavo.models.config import ModelConfig, ModelError


class ProgramBuilder:
    """Each method appends one op; buffers are named by the caller and get their width from the op.

    Raises ModelError for a weight that is missing or has another shape than the op needs.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight]) -> None:
        self._config = config
        self._given = weights
        self._used: dict[str, Weight] = {}
        self._ops: list[Op] = []
        self._buffers: dict[str, int] = {}

    def has_weight(self, name: str) -> bool:
        return name in self._given

    def embed(self, weight: str, out: str) -> None:
        self._matrix(weight, self._config.vocab_size, self._config.hidden_size)
        self._buffers[out] = self._config.hidden_size
        self._ops.append(Embed(weight, out))

    def rms_norm(self, x: str, weight: str, out: str) -> None:
        width = self._buffers[out] = self._buffers[x]
        self._ops.append(RmsNorm(x, self.vector(weight, width), out, self._config.norm_eps))

    def linear(self, x: str, weight: str, out: str, width: int) -> None:
        """`weight` is a tensor's name; a bias of the same stem, where the file has one, is added."""
        self._matrix(weight, width, self._buffers[x])
        bias = weight.removesuffix(".weight") + ".bias"
        self._buffers[out] = width
        self._ops.append(Linear(x, weight, out, self.vector(bias, width) if bias in self._given else None))

    def rope(self, x: str, num_heads: int, *, interleaved: bool, factors: str | None) -> None:
        config = self._config
        self._ops.append(
            Rope(x, num_heads, config.head_dim, config.rotary_dim, config.rope_base, interleaved, factors)
        )

    def attention(self, q: str, k: str, v: str, out: str, layer: int) -> None:
        """Stores k and v, then attends."""
        config = self._config
        self._buffers[out] = self._buffers[q]
        self._ops.append(KVWrite(k, v, layer))
        self._ops.append(Attention(q, out, layer, config.num_heads, config.head_dim**-0.5))

    def silu_mul(self, gate: str, up: str, out: str) -> None:
        self._buffers[out] = self._buffers[gate]
        self._ops.append(SiluMul(gate, up, out))

    def add(self, x: str, y: str) -> None:
        self._ops.append(Add(x, y))

    def take_rows(self, x: str, out: str) -> None:
        self._buffers[out] = self._buffers[x]
        self._ops.append(TakeRows(x, out))

    def vector(self, name: str, width: int) -> str:
        """Use a weight of one row, as float32 whatever its file format: it is small. Returns its name."""
        weight = self._matrix(name, 1, width)
        if weight.type is not WeightType.F32:
            self._used[name] = quantize(dequantize(weight), WeightType.F32, name)
        return name

    def constant(self, weight: Weight) -> str:
        """Use a float32 weight that the file does not hold. Returns its name."""
        self._used[weight.name] = weight
        return weight.name

    def build(self) -> Program:
        config = self._config
        return Program(
            ops=tuple(self._ops),
            buffers=dict(self._buffers),
            weights=dict(self._used),
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
        )

    def _matrix(self, name: str, rows: int, cols: int) -> Weight:
        weight = self._given.get(name)
        if weight is None:
            raise ModelError(f"tensor {name!r} is missing")
        if (weight.rows, weight.cols) != (rows, cols):
            raise ModelError(
                f"tensor {name!r} is {weight.rows} x {weight.cols}, but the model's sizes say {rows} x {cols}"
            )
        self._used.setdefault(name, weight)
        return weight

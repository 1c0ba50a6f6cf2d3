"""The llama family: pre-norm blocks, rotary positions, grouped-query attention, a gated SiLU MLP.

Source: Touvron et al., LLaMA, 2023; tensor names are GGUF's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.kernels.ops import Program
from octavo.kernels.quantization import dequantize, quantize
from octavo.kernels.weights import Weight, WeightType
from octavo.models.builder import ProgramBuilder
from octavo.models.config import ModelConfig

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"


def build_llama(config: ModelConfig, weights: Mapping[str, Weight]) -> Program:
    """Raises ModelError for a tensor that is missing or has the wrong shape.

    Biases are used where the file has them; without an output matrix the embedding serves as one.
    """
    builder = ProgramBuilder(config, weights)
    factors = _rope_factors(builder, config, weights)
    builder.embed(EMBEDDING, "x")
    x, attended = "x", "attended"
    for layer in range(config.num_layers):
        _attention(builder, config, layer, factors)
        if layer == config.num_layers - 1:
            # Of the other rows nothing is read any more: only those go on whose logits are wanted.
            builder.take_rows("attended", "last_attended")
            builder.take_rows("x", "last")
            x, attended = "last", "last_attended"
        _output(builder, config, layer, attended, x)
        _mlp(builder, config, layer, x)
    builder.rms_norm(x, "output_norm.weight", "normed")
    head = HEAD if builder.has_weight(HEAD) else EMBEDDING
    builder.linear("normed", head, "logits", config.vocab_size)
    return builder.build()


def _attention(builder: ProgramBuilder, config: ModelConfig, layer: int, factors: str | None) -> None:
    prefix = f"blk.{layer}"
    kv_width = config.num_kv_heads * config.head_dim
    builder.rms_norm("x", f"{prefix}.attn_norm.weight", "normed")
    builder.linear("normed", f"{prefix}.attn_q.weight", "q", config.num_heads * config.head_dim)
    builder.linear("normed", f"{prefix}.attn_k.weight", "k", kv_width)
    builder.linear("normed", f"{prefix}.attn_v.weight", "v", kv_width)
    for buffer, num_heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
        builder.rope(buffer, num_heads, interleaved=config.rope_interleaved, factors=factors)
    builder.attention("q", "k", "v", "attended", layer)


def _output(builder: ProgramBuilder, config: ModelConfig, layer: int, attended: str, x: str) -> None:
    builder.linear(attended, f"blk.{layer}.attn_output.weight", "projected", config.hidden_size)
    builder.add(x, "projected")


def _mlp(builder: ProgramBuilder, config: ModelConfig, layer: int, x: str) -> None:
    prefix = f"blk.{layer}"
    builder.rms_norm(x, f"{prefix}.ffn_norm.weight", "normed")
    builder.linear("normed", f"{prefix}.ffn_gate.weight", "gate", config.intermediate_size)
    builder.linear("normed", f"{prefix}.ffn_up.weight", "up", config.intermediate_size)
    builder.silu_mul("gate", "up", "gated")
    builder.linear("gated", f"{prefix}.ffn_down.weight", "projected", config.hidden_size)
    builder.add(x, "projected")


def _rope_factors(builder: ProgramBuilder, config: ModelConfig, weights: Mapping[str, Weight]) -> str | None:
    """Divisors of the rotary frequencies: the file's own, times the linear scale; None for ones."""
    if ROPE_FACTORS in weights:
        builder.vector(ROPE_FACTORS, config.rotary_dim // 2)
        factors = dequantize(weights[ROPE_FACTORS]) * config.rope_linear_factor
    elif config.rope_linear_factor != 1.0:
        factors = np.full((1, config.rotary_dim // 2), config.rope_linear_factor, np.float32)
    else:
        return None
    return builder.constant(quantize(factors, WeightType.F32, ROPE_FACTORS))

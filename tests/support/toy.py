"""A random llama-shaped model small enough to run in milliseconds, and steps to feed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.batch import BlockCopy, ScheduledSequence
from octavo.kernels.executor import StepInputs
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.ops import Program
from octavo.kernels.quantization import quantize
from octavo.kernels.weights import Weight, WeightType
from octavo.models.config import ModelConfig
from octavo.models.llama import build_llama
from support.gguf_writer import write_gguf
from support.toy_tokenizer import tokenizer_metadata

Floats = npt.NDArray[np.float32]


def toy_config(
    *,
    num_layers: int = 2,
    hidden_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    rotary_dim: int | None = None,
    intermediate_size: int = 128,
    vocab_size: int = 512,
    context_len: int = 512,
    rope_interleaved: bool = True,
) -> ModelConfig:
    """The sizes of the toy; any of them may be another."""
    return ModelConfig(
        architecture="llama",
        name="toy",
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary_dim=head_dim if rotary_dim is None else rotary_dim,
        rope_base=10_000.0,
        rope_interleaved=rope_interleaved,
        norm_eps=1e-5,
        vocab_size=vocab_size,
        context_len=context_len,
    )


def toy_weights(
    config: ModelConfig,
    *,
    seed: int = 0,
    weight_type: WeightType = WeightType.F32,
    tied: bool = True,
    biases: bool = False,
    head_scale: float = 20.0,
) -> dict[str, Weight]:
    """Weights by GGUF name: matrices in weight_type, vectors in float32. The same seed gives the same bytes.

    Queries and keys are large enough for attention to choose, and embeddings small enough not to drown what
    the layers add: a token depends on what was before it. head_scale spreads the logits, so that the two
    best are normally far apart.
    """
    rng = np.random.default_rng(seed)
    arrays = _embeddings(rng, config, tied, head_scale)
    for layer in range(config.num_layers):
        arrays |= {f"blk.{layer}.{name}": array for name, array in _layer(rng, config, biases).items()}
    return {
        name: quantize(array, weight_type if array.ndim == 2 else WeightType.F32, name)
        for name, array in arrays.items()
    }


def toy_program(
    *,
    seed: int = 0,
    weight_type: WeightType = WeightType.F32,
    tied: bool = True,
    biases: bool = False,
    head_scale: float = 20.0,
    **shape: Any,
) -> Program:
    """The toy as a program. `shape`: what toy_config takes."""
    config = toy_config(**shape)
    weights = toy_weights(
        config, seed=seed, weight_type=weight_type, tied=tied, biases=biases, head_scale=head_scale
    )
    return build_llama(config, weights)


def write_toy_gguf(
    path: Path,
    *,
    seed: int = 0,
    weight_type: WeightType = WeightType.F32,
    tied: bool = True,
    biases: bool = False,
    head_scale: float = 20.0,
    **shape: Any,
) -> Path:
    """The toy as a file with a tokenizer (see toy_tokenizer): the same arguments give the same bytes."""
    config = toy_config(**shape)
    weights = toy_weights(
        config, seed=seed, weight_type=weight_type, tied=tied, biases=biases, head_scale=head_scale
    )
    metadata = model_metadata(config) | tokenizer_metadata(config.vocab_size)
    return write_gguf(path, metadata, weights.values())


def model_metadata(config: ModelConfig) -> dict[str, object]:
    """The GGUF metadata that ModelConfig.from_gguf reads."""
    prefix = config.architecture
    return {
        "general.architecture": config.architecture,
        "general.name": config.name,
        f"{prefix}.block_count": config.num_layers,
        f"{prefix}.context_length": config.context_len,
        f"{prefix}.embedding_length": config.hidden_size,
        f"{prefix}.feed_forward_length": config.intermediate_size,
        f"{prefix}.attention.head_count": config.num_heads,
        f"{prefix}.attention.head_count_kv": config.num_kv_heads,
        f"{prefix}.attention.key_length": config.head_dim,
        f"{prefix}.attention.value_length": config.head_dim,
        f"{prefix}.attention.layer_norm_rms_epsilon": config.norm_eps,
        f"{prefix}.rope.dimension_count": config.rotary_dim,
        f"{prefix}.rope.freq_base": config.rope_base,
        f"{prefix}.vocab_size": config.vocab_size,
    }


def toy_layout(
    program: Program, *, block_size: int = 16, num_blocks: int = 32, dtype: str = "float32"
) -> KVLayout:
    return KVLayout(
        num_layers=program.num_layers,
        num_kv_heads=program.num_kv_heads,
        head_dim=program.head_dim,
        block_size=block_size,
        num_blocks=num_blocks,
        dtype=dtype,
    )


def toy_sequence(
    token_ids: Sequence[int], block_table: Sequence[int], *, start: int = 0, seq_id: int = 0
) -> ScheduledSequence:
    """Compute token_ids at positions [start, start + len(token_ids)) of a sequence that has these blocks."""
    return ScheduledSequence(seq_id, tuple(token_ids), start, tuple(block_table))


def step_inputs(
    sequences: Iterable[ScheduledSequence],
    *,
    block_size: int = 16,
    all_rows: bool = False,
    copies: Iterable[BlockCopy] = (),
) -> StepInputs:
    """The arrays of a step. Logits are wanted for each sequence's last token, or for every token."""
    sequences = list(sequences)
    counts = [len(sequence.token_ids) for sequence in sequences]
    query_start = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    tables = np.zeros((len(sequences), max((len(s.block_table) for s in sequences), default=0)), np.int32)
    for row, sequence in enumerate(sequences):
        tables[row, : len(sequence.block_table)] = sequence.block_table
    positions = [range(sequence.start, sequence.context_len) for sequence in sequences]
    slots = [
        sequence.block_table[position // block_size] * block_size + position % block_size
        for sequence, own in zip(sequences, positions, strict=True)
        for position in own
    ]
    return StepInputs(
        token_ids=_int32(token for sequence in sequences for token in sequence.token_ids),
        positions=_int32(position for own in positions for position in own),
        slot_mapping=_int32(slots),
        block_tables=tables,
        query_start=_int32(query_start),
        context_lens=_int32(sequence.context_len for sequence in sequences),
        logits_rows=_int32(range(len(slots)) if all_rows else query_start[1:] - 1),
        copies=_int32(number for copy in copies for number in (copy.source, copy.target)).reshape(-1, 2),
    )


def _int32(values: Iterable[int]) -> npt.NDArray[np.int32]:
    return np.fromiter(values, np.int32)


def _embeddings(
    rng: np.random.Generator, config: ModelConfig, tied: bool, head_scale: float
) -> dict[str, Floats]:
    vocab = (config.vocab_size, config.hidden_size)
    arrays = {
        "token_embd.weight": _normal(rng, vocab, 0.1),
        "output_norm.weight": _normal(rng, vocab[1:], 0.1) + np.float32(1),
    }
    if not tied:
        arrays["output.weight"] = _normal(rng, vocab, 0.1)
    # Scaling the norm rather than the head spreads the logits of a tied model without touching its embedding.
    arrays["output_norm.weight"] *= np.float32(head_scale)
    return arrays


def _layer(rng: np.random.Generator, config: ModelConfig, biases: bool) -> dict[str, Floats]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    gains = {  # name: (rows, cols, how much larger than a matrix that keeps the variance)
        "attn_q": (q_width, hidden, 1.5),
        "attn_k": (kv_width, hidden, 1.5),
        "attn_v": (kv_width, hidden, 1.0),
        "attn_output": (hidden, q_width, 1.5),
        "ffn_gate": (inner, hidden, 1.0),
        "ffn_up": (inner, hidden, 1.0),
        "ffn_down": (hidden, inner, 1.0),
    }
    arrays = {
        f"{name}.weight": _normal(rng, (rows, cols), gain / cols**0.5)
        for name, (rows, cols, gain) in gains.items()
    }
    for name in ("attn_norm", "ffn_norm"):
        arrays[f"{name}.weight"] = _normal(rng, (hidden,), 0.1) + np.float32(1)
    if biases:
        arrays |= {
            f"{name}.bias": _normal(rng, (rows,), 0.3)
            for name, (rows, _, _) in gains.items()
            if name.startswith("attn")
        }
    return arrays


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Floats:
    return rng.standard_normal(shape, np.float32) * np.float32(scale)

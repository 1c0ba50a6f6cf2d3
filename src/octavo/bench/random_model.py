"""Models with random weights: the shape, and so the speed, of a real one, written in seconds.

Bytes are drawn at random and only the scales are set, so nothing is quantised. Such a model says nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from octavo.formats.gguf_writer import padding, preamble, tensor_entry
from octavo.formats.sources import models_folder
from octavo.kernels.weights import WeightType
from octavo.text.tokenizer import byte_alphabet

_POOL_GROUPS = 1 << 16
_NORMAL, _CONTROL = 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A llama's sizes."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_len: int = 2048


SHAPES = {
    "1.1b": Shape(
        num_layers=22,
        hidden_size=2048,
        intermediate_size=5632,
        num_heads=32,
        num_kv_heads=4,
        head_dim=64,
        vocab_size=32000,
    )
}


def random_model(name: str = "1.1b", weight_type: WeightType = WeightType.Q4_0) -> Path:
    """The path of a model in the cache folder, written now if it is not there. Raises KeyError for a name
    that SHAPES lacks."""
    path = models_folder() / f"random-{name}" / f"random-{name}.{weight_type.name}.gguf"
    if not path.exists():
        write_random_model(path, SHAPES[name], weight_type)
    return path


def write_random_model(path: Path, shape: Shape, weight_type: WeightType, seed: int = 0) -> None:
    """Write the model as a GGUF file, whole or not at all. The same arguments give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _write(file, shape, weight_type, seed)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def random_matrix(
    rows: int, cols: int, weight_type: WeightType, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Bytes of a matrix in its file format, of finite values with about 1 / sqrt(cols) deviation.

    The content repeats after some megabytes, which no kernel can tell.
    """
    num_groups = rows * (cols // weight_type.group_size)
    pool = _groups(min(num_groups, _POOL_GROUPS), cols, weight_type, rng).reshape(-1)
    return np.resize(pool, num_groups * weight_type.group_bytes)


def _groups(
    num_groups: int, cols: int, weight_type: WeightType, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    deviation = cols**-0.5
    if weight_type.group_size == 1:
        values = (rng.standard_normal((num_groups, 1)) * deviation).astype(np.float32)
        if weight_type is WeightType.F16:
            return np.asarray(values.astype(np.float16).view(np.uint8))
        first_byte = 2 if weight_type is WeightType.BF16 else 0  # the upper half of a float32
        return np.asarray(values.view(np.uint8)[:, first_byte:].copy())
    groups = rng.integers(0, 256, (num_groups, weight_type.group_bytes), dtype=np.uint8)
    quant_deviation = 74.0 if weight_type is WeightType.Q8_0 else 4.6  # of uniform bytes and nibbles
    scale = deviation / quant_deviation
    scales = np.array([scale, -7.5 * scale], np.float16).view(np.uint8)  # a minimum centres what has one
    num_scale_bytes = 4 if weight_type is WeightType.Q4_1 else 2
    groups[:, :num_scale_bytes] = scales[:num_scale_bytes]
    return groups


def _tensors(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Name, rows and cols of every tensor; vectors have one row."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_width, kv_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield "token_embd.weight", shape.vocab_size, hidden
    yield "output_norm.weight", 1, hidden
    yield "output.weight", shape.vocab_size, hidden
    for layer in range(shape.num_layers):
        for name, rows, cols in (
            ("attn_norm", 1, hidden),
            ("attn_q", q_width, hidden),
            ("attn_k", kv_width, hidden),
            ("attn_v", kv_width, hidden),
            ("attn_output", hidden, q_width),
            ("ffn_norm", 1, hidden),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            yield f"blk.{layer}.{name}.weight", rows, cols


def _write(file: IO[bytes], shape: Shape, weight_type: WeightType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = list(_tensors(shape))
    header = preamble(_metadata(shape), len(tensors))
    offset = 0
    for name, rows, cols in tensors:
        kind = WeightType.F32 if rows == 1 else weight_type
        header += tensor_entry(name, [cols] if rows == 1 else [cols, rows], kind.value, offset)
        num_bytes = rows * (cols // kind.group_size) * kind.group_bytes
        offset += num_bytes + len(padding(num_bytes))
    file.write(header + padding(len(header)))
    for _, rows, cols in tensors:
        if rows == 1:
            data = np.ones(cols, np.float32).view(np.uint8)
        else:
            data = random_matrix(rows, cols, weight_type, rng)
        file.write(data.tobytes())
        file.write(padding(data.size))


def _metadata(shape: Shape) -> dict[str, object]:
    return {
        "general.architecture": "llama",
        "general.name": "random",
        "llama.block_count": shape.num_layers,
        "llama.context_length": shape.context_len,
        "llama.embedding_length": shape.hidden_size,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.vocab_size": shape.vocab_size,
        **_byte_tokenizer(shape.vocab_size),
    }


def _byte_tokenizer(vocab_size: int) -> Mapping[str, Any]:
    """A byte-level vocabulary: the 256 bytes, one merge (there must be some), an end token, and fillers."""
    alphabet = byte_alphabet()
    tokens = [*(alphabet[byte] for byte in range(256)), "th", "<|endoftext|>"]
    end_id = len(tokens) - 1
    tokens += [f"Ġw{token_id}" for token_id in range(len(tokens), vocab_size)]
    types = np.full(vocab_size, _NORMAL, np.int32)
    types[end_id] = _CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.bos_token_id": end_id,
        "tokenizer.ggml.eos_token_id": end_id,
        "tokenizer.ggml.add_bos_token": False,
    }

"""From a file to a program: weights are views, what is missing or unsupported is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from octavo.formats.gguf import GGUFError
from octavo.formats.gguf_writer import string, tensor_entry
from octavo.kernels import ops
from octavo.kernels.quantization import dequantize, quantize
from octavo.kernels.reference import ReferenceExecutor
from octavo.kernels.weights import Weight, WeightType
from octavo.models.config import ModelError
from octavo.models.llama import ROPE_FACTORS
from octavo.models.loader import load_model
from support.gguf_writer import gguf_bytes, padded, write_gguf
from support.toy import (
    model_metadata,
    step_inputs,
    toy_config,
    toy_layout,
    toy_program,
    toy_sequence,
    toy_weights,
    write_toy_gguf,
)

CONFIG = toy_config()
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_it(weights: dict[str, Weight], **metadata: object) -> Path:
        return write_gguf(tmp_path / "model.gguf", model_metadata(CONFIG) | metadata, weights.values())

    return write_it


def logits(program: ops.Program) -> np.ndarray:
    inputs = step_inputs([toy_sequence([3, 1, 4, 1, 5, 9, 2, 6], [0])])
    return ReferenceExecutor(program, toy_layout(program, num_blocks=1)).run(inputs)


@pytest.mark.parametrize("weight_type", WeightType)
def test_a_loaded_model_computes_what_its_weights_do(tmp_path: Path, weight_type: WeightType) -> None:
    path = write_toy_gguf(tmp_path / "toy.gguf", weight_type=weight_type, tied=False, biases=True)
    model = load_model(path)
    expected = toy_program(weight_type=weight_type, tied=False, biases=True)
    assert model.config.name == "toy"
    assert model.program.ops == tuple(
        dataclasses.replace(op, eps=float(np.float32(op.eps))) if isinstance(op, ops.RmsNorm) else op
        for op in expected.ops
    )
    np.testing.assert_allclose(logits(model.program), logits(expected), rtol=1e-4, atol=1e-4)


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    program = load_model(write_toy_gguf(tmp_path / "toy.gguf")).program
    assert len(program.weights) == 1 + 9 * CONFIG.num_layers + 1
    assert not any(weight.data.flags.owndata for weight in program.weights.values())


def test_every_op_names_a_buffer_that_was_written_before() -> None:
    program = toy_program()
    written: set[str] = set()
    for op in program.ops:
        reads = [getattr(op, name) for name in ("x", "y", "q", "k", "v", "gate", "up") if hasattr(op, name)]
        assert written.issuperset(reads)
        written |= {op.out} if hasattr(op, "out") else set()
    assert written == set(program.buffers)
    assert program.buffers["logits"] == CONFIG.vocab_size
    assert program.ops[-1].out == "logits"  # type: ignore[union-attr]


def test_vectors_of_another_type_are_widened(write: Write) -> None:
    weights = toy_weights(CONFIG)
    norm = weights["output_norm.weight"]
    weights[norm.name] = quantize(dequantize(norm), WeightType.F16, norm.name)
    assert load_model(write(weights)).program.weights[norm.name].type is WeightType.F32


@pytest.mark.parametrize("with_tensor", [False, True])
def test_rope_factors_join_the_tensor_and_the_linear_scale(write: Write, with_tensor: bool) -> None:
    weights = toy_weights(CONFIG)
    own = np.arange(1, 9) if with_tensor else np.ones(8)
    if with_tensor:
        weights[ROPE_FACTORS] = quantize(own, WeightType.F32, ROPE_FACTORS)
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    program = load_model(write(weights, **scaling)).program
    assert all(op.factors == ROPE_FACTORS for op in program.ops if isinstance(op, ops.Rope))
    np.testing.assert_array_equal(dequantize(program.weights[ROPE_FACTORS]), [own * 4])


def test_without_scaling_there_are_no_factors() -> None:
    assert all(op.factors is None for op in toy_program().ops if isinstance(op, ops.Rope))


# --- refusals ---


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_down.weight"]
)
def test_a_missing_tensor_is_named(write: Write, name: str) -> None:
    weights = toy_weights(CONFIG)
    del weights[name]
    with pytest.raises(ModelError, match=f"tensor '{name}' is missing"):
        load_model(write(weights))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("blk.0.attn_q.weight", (64, 32)), ("blk.1.ffn_norm.weight", (63,)), ("token_embd.weight", (500, 64))],
)
def test_a_wrong_shape_is_refused_with_both_shapes(write: Write, name: str, shape: tuple[int, ...]) -> None:
    weights = toy_weights(CONFIG)
    right = weights[name]
    weights[name] = quantize(np.zeros(shape), WeightType.F32, name)
    rows, cols = weights[name].rows, weights[name].cols
    message = f"'{name}' is {rows} x {cols}, but the model's sizes say {right.rows} x {right.cols}"
    with pytest.raises(ModelError, match=message):
        load_model(write(weights))


def test_a_tensor_that_nothing_uses_is_refused(write: Write) -> None:
    weights = toy_weights(CONFIG)
    weights["extra"] = quantize(np.ones(4), WeightType.F32, "blk.0.attn_q_norm.weight")
    with pytest.raises(ModelError, match=r"no use for 1 tensors, such as 'blk\.0\.attn_q_norm\.weight'"):
        load_model(write(weights))


def with_tensor(entry: bytes, data: bytes) -> bytes:
    """A model file of one tensor."""
    raw = gguf_bytes(model_metadata(CONFIG))
    metadata = raw[: raw.rindex(string("llama.vocab_size")) + len(string("llama.vocab_size")) + 8]
    return padded(metadata[:8] + (1).to_bytes(8, "little") + metadata[16:] + entry) + data


def test_an_unsupported_type_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(with_tensor(tensor_entry("token_embd.weight", [256], 12, 0), bytes(144)))
    message = (
        r"weight type Q4_K \(of 'token_embd.weight'\) is not supported; "
        "supported types: F32, F16, Q4_0, Q4_1, Q8_0, BF16"
    )
    with pytest.raises(ModelError, match=message):
        load_model(path)


def test_a_tensor_of_three_dimensions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(with_tensor(tensor_entry("experts", [2, 2, 2], 0, 0), bytes(32)))
    with pytest.raises(ModelError, match=r"'experts' has shape \(2, 2, 2\)"):
        load_model(path)


def test_an_unknown_architecture_is_refused_with_the_known_ones(write: Write) -> None:
    path = write(toy_weights(CONFIG), **{"general.architecture": "mamba"})
    with pytest.raises(ModelError, match="architecture 'mamba' is not supported; known: llama"):
        load_model(path)


def small_file() -> tuple[bytes, int]:
    """A model of a few kilobytes, and where its tensor data starts."""
    config = toy_config(
        num_layers=1, hidden_size=32, num_heads=2, head_dim=16, intermediate_size=32, vocab_size=4
    )
    weights = toy_weights(config)
    raw = gguf_bytes(model_metadata(config), weights.values())
    return raw, len(raw) - sum(weight.num_bytes for weight in weights.values())


SMALL, SMALL_HEADER = small_file()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, SMALL_HEADER - 1), st.integers(0, 255)), max_size=3))
@example([])
def test_a_damaged_header_is_a_model_or_a_clear_error(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    raw = bytearray(SMALL)
    for offset, value in flips:
        raw[offset] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    try:
        load_model(path)
    except (GGUFError, ModelError):
        assert flips


# --- identity ---


def test_the_toy_file_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one, two, other = (
        write_toy_gguf(tmp_path / f"{name}.gguf", seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert one.read_bytes() == two.read_bytes()
    prints = [load_model(path).fingerprint for path in (one, two, other)]
    assert prints[0] == prints[1] != prints[2]


def test_the_fingerprint_sees_metadata(write: Write) -> None:
    weights = toy_weights(CONFIG)
    plain = load_model(write(weights)).fingerprint
    assert load_model(write(weights, **{"llama.rope.freq_base": 20_000.0})).fingerprint != plain

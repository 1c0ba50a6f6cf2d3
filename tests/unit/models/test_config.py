"""ModelConfig: read from GGUF metadata, defaults only where the format has them, the rest refused by key."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from octavo.models.config import ModelConfig, ModelError
from support.toy import model_metadata, toy_config

METADATA = model_metadata(toy_config())


def config_with(**changes: object) -> ModelConfig:
    """Keys without the prefix, with __ for a dot; None takes a key away."""
    metadata = dict(METADATA)
    for key, value in changes.items():
        metadata["llama." + key.replace("__", ".")] = value
    return ModelConfig.from_gguf({key: value for key, value in metadata.items() if value is not None})


def test_every_field_is_read() -> None:
    config = toy_config(num_layers=3, hidden_size=96, num_heads=6, num_kv_heads=3, head_dim=24, rotary_dim=8)
    config = dataclasses.replace(config, rope_base=5e5, norm_eps=0.25, name="Small One")
    assert ModelConfig.from_gguf(model_metadata(config)) == config


def test_head_dim_is_read_and_not_derived() -> None:
    assert config_with(attention__key_length=32, attention__value_length=32).head_dim == 32


def test_defaults_are_those_of_the_format() -> None:
    config = config_with(
        attention__key_length=None,
        attention__value_length=None,
        attention__head_count_kv=None,
        rope__dimension_count=None,
        rope__freq_base=None,
    )
    assert (config.head_dim, config.rotary_dim, config.num_kv_heads, config.rope_base) == (16, 16, 4, 10_000)


def test_vocab_size_defaults_to_the_number_of_tokens() -> None:
    metadata = {key: value for key, value in METADATA.items() if key != "llama.vocab_size"}
    assert ModelConfig.from_gguf(metadata | {"tokenizer.ggml.tokens": ["a", "b"]}).vocab_size == 2
    with pytest.raises(ModelError, match=r"'llama\.vocab_size' is missing"):
        ModelConfig.from_gguf(metadata)


def test_there_may_be_more_rows_than_tokens_but_not_fewer() -> None:
    tokens = ["a"] * 512
    assert ModelConfig.from_gguf(METADATA | {"tokenizer.ggml.tokens": tokens}).vocab_size == 512
    with pytest.raises(ModelError, match=r"vocab_size' is 512, fewer than the 513 tokens"):
        ModelConfig.from_gguf(METADATA | {"tokenizer.ggml.tokens": [*tokens, "b"]})


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    metadata = {name: value for name, value in METADATA.items() if name != f"llama.{key}"}
    with pytest.raises(ModelError, match=rf"'llama\.{key}' is missing"):
        ModelConfig.from_gguf(metadata)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention__head_count": 0}, r"llama\.attention\.head_count' must be at least 1, got 0"),
        ({"block_count": "two"}, r"llama\.block_count' must be one whole number, got 'two'"),
        ({"block_count": True}, r"llama\.block_count' must be one whole number"),
        ({"feed_forward_length": np.array([1, 2])}, r"llama\.feed_forward_length' .* got an array"),
        ({"attention__head_count_kv": 3}, "num_heads is 4, not a multiple of num_kv_heads, 3"),
        ({"attention__head_count_kv": 8}, "num_heads is 4, not a multiple of num_kv_heads, 8"),
        (
            {"attention__key_length": 20, "attention__value_length": 20},
            "head_dim is 20; it must be divisible by 8",
        ),
        ({"attention__value_length": 8}, r"llama\.attention\.value_length' must equal the key length, 16"),
        ({"attention__key_length": None, "embedding_length": 66}, "66 / 4, is no whole number"),
        ({"rope__dimension_count": 24}, "rotary_dim is 24; it must be even and at most head_dim, 16"),
        ({"rope__dimension_count": 7}, "rotary_dim is 7"),
        ({"rope__freq_base": float("inf")}, r"llama\.rope\.freq_base' must be a number above 0, got inf"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "must be a number above 0, got nan"),
        ({"rope__scaling__type": "yarn"}, "rope scaling 'yarn'"),
        ({"rope__scaling__type": "longrope"}, "rope scaling 'longrope'"),
        ({"rope__scaling__type": 3}, "must be a string, got 3"),
        ({"rope__scaling__type": "linear"}, r"llama\.rope\.scaling\.factor' is missing"),
        ({"expert_count": 8}, r"llama\.expert_count"),
        ({"attention__sliding_window": 4096}, r"llama\.attention\.sliding_window"),
    ],
)
def test_what_cannot_be_run_is_refused_by_key(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config_with(**changes)


@pytest.mark.parametrize("field", ["num_layers", "num_heads", "num_kv_heads", "head_dim", "rotary_dim"])
def test_sizes_are_positive_wherever_a_config_comes_from(field: str) -> None:
    with pytest.raises(ModelError, match=f"{field} must be at least 1, got 0"):
        dataclasses.replace(toy_config(), **{field: 0})  # type: ignore[arg-type]


def test_linear_rope_scaling_divides_positions() -> None:
    assert config_with(rope__scaling__type="linear", rope__scaling__factor=4.0).rope_linear_factor == 4.0
    assert config_with(rope__scaling__factor=4.0).rope_linear_factor == 4.0
    assert config_with(rope__scale_linear=4.0).rope_linear_factor == 4.0
    assert config_with(rope__scaling__type="none", rope__scaling__factor=4.0).rope_linear_factor == 1.0


@pytest.mark.parametrize("metadata", [{}, {"general.architecture": 7}, {"general.architecture": ""}])
def test_a_file_must_name_its_architecture(metadata: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=r"general\.architecture"):
        ModelConfig.from_gguf(metadata)

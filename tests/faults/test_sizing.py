"""Faults that users of other engines met: pools and heads of the wrong size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.config import ConfigError
from octavo.models.config import ModelConfig, ModelError
from support.harness import Cold, Harness
from support.toy import model_metadata, toy_config, write_toy_gguf


def test_lengths_that_fit_are_all_below_those_that_do_not(toy_path: Path) -> None:
    """vllm-project/vllm 10517: 20k and 35k tokens were accepted, 29k refused."""
    for length in range(32, 321, 32):
        assert Harness(toy_path, num_blocks=20, max_model_len=length).assembly.plan.max_model_len == length
    for length in range(321, 513, 32):
        with pytest.raises(ConfigError, match=f"{length} needs .* largest that works is 320") as refused:
            Harness(toy_path, num_blocks=20, max_model_len=length)
        assert refused.value.field == "max_model_len"


def test_the_command_says_it_in_one_line(toy_path: Path) -> None:
    command = [sys.executable, "-m", "octavo", "serve", str(toy_path), "--num-blocks", "4"]
    refused = subprocess.run(
        [*command, "--max-model-len", "100"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    (line,) = refused.stderr.strip().splitlines()
    assert line.startswith("octavo: max_model_len 100 needs")
    assert "largest that works is 64" in line


def test_a_model_shorter_than_the_wish_is_named(toy_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most 512"):
        Harness(toy_path, max_model_len=513)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(4, 2, 32), (4, 2, 24), (4, 1, 16), (6, 2, 8), (3, 3, 40)]
)
def test_head_dim_is_read_and_never_derived(
    tmp_path: Path, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    """vllm-project/vllm 2622: a derived head_dim made writes land outside the cache."""
    path = tmp_path / "toy.gguf"
    write_toy_gguf(path, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    harness = Harness(path, block_size=8, num_blocks=32, kv_cache_dtype="float32")
    plan = harness.assembly.plan
    assert plan.bytes_per_token == 2 * 2 * num_kv_heads * head_dim * 4
    assert plan.kv_bytes == plan.bytes_per_token * 32 * 8
    executor = harness.engine.core.runner._executor  # type: ignore[attr-defined]
    assert executor.kv.nbytes == plan.kv_bytes
    tokens = list(range(40))
    native = harness.answer(tokens)
    reference = Cold(path, executor="reference", kv_cache_dtype="float32").answer(tokens)
    assert native.token_ids == reference.token_ids
    assert np.allclose(
        [entry[0][1] for entry in native.logprobs], [entry[0][1] for entry in reference.logprobs], atol=1e-3
    )


def test_a_run_writes_only_into_its_own_blocks(toy_path: Path) -> None:
    """deepspeedai/DeepSpeed 8389: writes of the wrong width landed in memory that was not theirs."""
    harness = Harness(toy_path, block_size=8, num_blocks=64)
    kv = harness.engine.core.runner._executor.kv  # type: ignore[attr-defined]
    canary = np.float16(1234.0)
    kv[:] = canary
    harness.add("only", list(range(30)))
    written: set[int] = set()
    while harness.engine.has_unfinished:
        harness.step()
        written.update(*(part.block_table for part in harness.engine.core.last_batch.sequences))
    untouched = [block for block in range(64) if block not in written]
    assert len(written) == 6
    assert (kv[:, untouched] == canary).all()
    assert (kv[:, sorted(written)[0]] != canary).all()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"llama.attention.head_count": 0}, "head_count"),
        ({"llama.attention.head_count_kv": 0}, "head_count_kv"),
        ({"llama.attention.head_count_kv": 3}, "head"),
        ({"llama.attention.key_length": 5, "llama.attention.value_length": 5}, "key_length|head_dim"),
    ],
)
def test_impossible_heads_are_a_clear_error(changes: dict[str, int], named: str) -> None:
    metadata = model_metadata(toy_config()) | changes
    with pytest.raises(ModelError, match=named):
        ModelConfig.from_gguf(metadata)

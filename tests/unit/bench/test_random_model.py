"""Random models: files that load and run, with values of a sane size, and nothing half-written."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.bench import random_model
from octavo.bench.random_model import SHAPES, Shape, random_matrix, write_random_model
from octavo.kernels.quantization import dequantize
from octavo.kernels.weights import Weight, WeightType

TINY = Shape(
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=300,
    context_len=64,
)


@pytest.mark.parametrize("weight_type", list(WeightType))
def test_values_keep_the_size_of_what_they_multiply(weight_type: WeightType) -> None:
    data = random_matrix(100, 256, weight_type, np.random.default_rng(0))
    values = dequantize(Weight("w", weight_type, 100, 256, data))
    assert np.isfinite(values).all()
    assert float(values.std()) == pytest.approx(256**-0.5, rel=0.1)
    assert abs(float(values.mean())) < 0.15 * 256**-0.5


@pytest.mark.parametrize("weight_type", [WeightType.Q4_0, WeightType.F16])
def test_the_model_answers(tmp_path: Path, weight_type: WeightType) -> None:
    path = tmp_path / "folder" / "tiny.gguf"
    write_random_model(path, TINY, weight_type)
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]
    with LLM(str(path), num_blocks=8) as llm:
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 5


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    one, other, third = (tmp_path / name for name in "abc")
    write_random_model(one, TINY, WeightType.Q8_0)
    write_random_model(other, TINY, WeightType.Q8_0)
    write_random_model(third, TINY, WeightType.Q8_0, seed=1)
    assert one.read_bytes() == other.read_bytes() != third.read_bytes()


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(random_model, "random_matrix", fail)
    with pytest.raises(OSError, match="disk full"):
        write_random_model(tmp_path / "a.gguf", TINY, WeightType.Q4_0)
    assert not list(tmp_path.iterdir())


def test_the_large_shape_has_its_parameters() -> None:
    num_parameters = sum(math.prod(size) for _, *size in random_model._tensors(SHAPES["1.1b"]))
    assert num_parameters == pytest.approx(1.1e9, rel=0.01)


def test_it_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(SHAPES, "1.1b", TINY)
    path = random_model.random_model()
    written = path.stat().st_mtime_ns
    assert path.is_relative_to(tmp_path)
    assert random_model.random_model() == path
    assert path.stat().st_mtime_ns == written

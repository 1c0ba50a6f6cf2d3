"""The native executor on the real weights, against float32 answers of an independent engine.

Quantised weights meet int8 activations, so log-probabilities differ a little; the bounds are what an accurate
4-bit engine keeps.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.native import NativeExecutor
from octavo.models.loader import LoadedModel, load_model
from support.forward import forward_chunks, token_logprobs

pytestmark = pytest.mark.model
GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "smollm2_float32.json").read_text())


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LoadedModel:
    return load_model(smollm2_path)


@pytest.fixture(scope="module")
def executor(model: LoadedModel) -> NativeExecutor:
    program = model.program
    layout = KVLayout(
        num_layers=program.num_layers,
        num_kv_heads=program.num_kv_heads,
        head_dim=program.head_dim,
        block_size=16,
        num_blocks=128,
        dtype="float16",
    )
    return NativeExecutor(program, layout, num_threads=2, max_num_tokens=256)


def test_wiki_text(executor: NativeExecutor) -> None:
    ids = GOLDEN["perplexity"]["ids"]
    assert len(ids) == 1805
    logprobs = token_logprobs(executor, ids)
    assert math.exp(-logprobs.mean()) == pytest.approx(21.4245, rel=0.01)
    assert np.abs(logprobs - GOLDEN["perplexity"]["token_logprobs"]).mean() < 0.06


def test_greedy_continuations(executor: NativeExecutor) -> None:
    differences, num_agreed = [], 0
    for case in GOLDEN["greedy"]:
        ids, steps = case["ids"], case["steps"]
        ((_, rows),) = forward_chunks(executor, ids)
        first = len(ids) - len(steps) - 1
        for row, step in zip(rows[first:], steps, strict=False):
            differences.append(abs(row[step["forced_next_id"]] - step["logprob"]))
            num_agreed += int(np.argmax(row)) == step["top"][0][0]
    assert len(differences) == 192
    assert np.mean(differences) < 0.06
    assert num_agreed / len(differences) >= 0.94

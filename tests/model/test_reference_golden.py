"""The numpy executor on the real weights, against float32 answers of an independent engine: almost equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.kernels.reference import ReferenceExecutor
from octavo.models.loader import load_model
from support.forward import forward_chunks, token_logprobs
from support.toy import toy_layout

pytestmark = pytest.mark.model

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "smollm2_float32.json").read_text())
TOLERANCE = 1e-3
NUM_TEXT_TOKENS = 272
"""Of 1,805, which take numpy a minute; more than one chunk, so that K and V are read from the cache."""


@pytest.fixture(scope="module")
def executor(smollm2_path: Path) -> ReferenceExecutor:
    program = load_model(smollm2_path).program
    return ReferenceExecutor(program, toy_layout(program, num_blocks=128, dtype="float32"))


@pytest.mark.parametrize("case", GOLDEN["greedy"], ids=lambda case: case["prompt"][:24])
def test_forced_continuations_have_the_golden_logprobs(
    executor: ReferenceExecutor, case: dict[str, Any]
) -> None:
    """The last ids of a case are the forced tokens; the row before each one predicts it."""
    steps = case["steps"]
    ((_, rows),) = forward_chunks(executor, case["ids"][:-1])
    for step, row in zip(steps, rows[-len(steps) :], strict=True):
        ids, expected = zip(*step["top"], strict=True)
        np.testing.assert_allclose(row[list(ids)], expected, rtol=0, atol=TOLERANCE)
        assert row[step["forced_next_id"]] == pytest.approx(step["logprob"], abs=TOLERANCE)
        assert row.argmax() == ids[0]


def test_tokens_of_wiki_text_have_the_golden_logprobs(executor: ReferenceExecutor) -> None:
    found = token_logprobs(executor, GOLDEN["perplexity"]["ids"][:NUM_TEXT_TOKENS])
    expected = GOLDEN["perplexity"]["token_logprobs"][: NUM_TEXT_TOKENS - 1]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)

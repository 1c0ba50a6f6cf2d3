"""Batches of sample rows, without the parts of a step that the sampler does not look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.batch import SampledTokens, SampleRow, ScheduledBatch
from octavo.params import SamplingParams
from octavo.sampling.sampler import Sampler

Sample = Callable[..., SampledTokens]
EOS_ID = 1


@pytest.fixture(scope="session")
def sample_row() -> Callable[..., SampleRow]:
    def make(row: int = 0, *, seq_id: int = 0, seed: int = 0, index: int = 0, **options: Any) -> SampleRow:
        prompt, output = options.pop("prompt", ()), options.pop("output", ())
        return SampleRow(seq_id, row, SamplingParams(**options), seed, index, prompt, output)

    return make


@pytest.fixture(scope="session")
def sample() -> Sample:
    """sample(logits, *rows) → SampledTokens, with EOS_ID as the only end token."""

    def run(logits: Any, *rows: SampleRow) -> SampledTokens:
        logits = np.atleast_2d(np.asarray(logits, np.float32))
        batch = ScheduledBatch(0, (), tuple(range(len(logits))), rows, (), 0)
        return Sampler(logits.shape[1], frozenset({EOS_ID})).sample(logits, batch)

    return run

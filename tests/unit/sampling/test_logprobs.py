"""Log-probabilities and ranks against a full sort."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.batch import TokenLogprob
from octavo.sampling.logprobs import logprob_entries


@given(
    st.lists(st.sampled_from([-3.0, 0.0, 0.5, 2.0, 1e4, -1e4]), min_size=1, max_size=30),
    st.integers(0, 20),
    st.data(),
)
def test_logprobs_are_those_of_a_full_softmax(logits: list[float], num_top: int, data: st.DataObject) -> None:
    token_id = data.draw(st.integers(0, len(logits) - 1))
    entries = logprob_entries(np.array(logits, np.float32), token_id, num_top)
    first, *top = [TokenLogprob(*entry) for entry in entries]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    norm = max(logits) + math.log(sum(math.exp(x - max(logits)) for x in logits))
    assert first.token_id == token_id
    assert [entry.token_id for entry in top] == order[:num_top]
    for entry in (first, *top):
        assert entry.logprob == pytest.approx(logits[entry.token_id] - norm, abs=1e-9)
        assert entry.rank == 1 + sum(x > logits[entry.token_id] for x in logits)


def test_values_are_plain_numbers_that_json_can_write() -> None:
    for entry in logprob_entries(np.zeros(4, np.float32), 2, 2):
        assert tuple(map(type, entry)) == (int, float, int)

"""Penalties, bias and masks against their definitions, one token at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.params import SamplingParams
from octavo.sampling.penalties import add_bias, apply_penalties, mask_tokens

IDS = st.lists(st.integers(0, 9), max_size=20)


def naive(scores: list[float], params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    result = []
    for token_id, score in enumerate(scores):
        if token_id in prompt or token_id in output:
            factor = params.repetition_penalty
            score = score / factor if score > 0 else score * factor
        score -= params.frequency_penalty * output.count(token_id)
        if token_id in output:
            score -= params.presence_penalty
        result.append(score)
    return result


@given(
    st.lists(st.floats(-20, 20), min_size=10, max_size=10),
    IDS,
    IDS,
    st.sampled_from([0.5, 1.0, 1.3]),
    st.sampled_from([0.0, 0.5, -1.0]),
    st.sampled_from([0.0, 0.25, -2.0]),
)
def test_penalties_are_what_they_are_defined_to_be(
    scores: list[float],
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    changed = np.array(scores)
    apply_penalties(changed, params, tuple(prompt), output)
    np.testing.assert_allclose(changed, naive(scores, params, prompt, output), rtol=1e-12, atol=1e-12)
    assert params.has_penalties == ((repetition, presence, frequency) != (1.0, 0.0, 0.0))


def test_a_masked_token_stays_masked() -> None:
    scores = np.array([1.0, 2.0, 3.0])
    mask_tokens(scores, {1})
    add_bias(scores, {1: 100.0, 2: -0.5})
    apply_penalties(scores, SamplingParams(repetition_penalty=0.5, presence_penalty=-2.0), [1], [1])
    assert scores.tolist() == [1.0, -np.inf, 2.5]

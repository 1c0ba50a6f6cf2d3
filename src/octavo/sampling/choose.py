"""The choice of a token from its row of logits, in numpy: what a native one has to agree with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.batch import SampleRow
from octavo.sampling.filters import Scores, kept_tokens
from octavo.sampling.logprobs import LogprobEntry, logprob_entries
from octavo.sampling.penalties import add_bias, apply_penalties, mask_tokens

Logits = NDArray[np.float32]

Choice = tuple[int, float, list[LogprobEntry] | None]
"""A token, the best score of its row (not finite where nothing can be chosen), and log-probabilities."""


class Chooser(Protocol):
    """One Choice a sample, from `logits` [R, V], which stay as they are.

    uniforms: a number in [0, 1) for each sample, which decides among the tokens that pass the filters.
    masked: for each sample the tokens that it must not get. The order is vLLM's: mask, logit_bias, penalties
    (repetition, frequency, presence), temperature, top_k, min_p, top_p.
    """

    def __call__(
        self,
        logits: Logits,
        samples: Sequence[SampleRow],
        uniforms: Sequence[float],
        masked: Sequence[Collection[int]],
    ) -> list[Choice]: ...


def choose_tokens(
    logits: Logits, samples: Sequence[SampleRow], uniforms: Sequence[float], masked: Sequence[Collection[int]]
) -> list[Choice]:
    """A Chooser."""
    return [_choose(logits[s.row], s, u, mask) for s, u, mask in zip(samples, uniforms, masked, strict=True)]


def _choose(row: Logits, sample: SampleRow, uniform: float, masked: Collection[int]) -> Choice:
    params = sample.params
    scores = row.astype(np.float64)
    mask_tokens(scores, masked)
    add_bias(scores, params.logit_bias)
    if params.has_penalties:
        apply_penalties(scores, params, sample.prompt_token_ids, sample.output_token_ids)
    token_id = int(scores.argmax())  # stops at a NaN
    best = float(scores[token_id])
    if not np.isfinite(best):
        return token_id, best, None
    if not params.is_greedy:
        ids, weights = kept_tokens(scores, params)
        token_id = int(ids[draw(weights, uniform)])
    entries = None if params.logprobs is None else logprob_entries(row, token_id, params.logprobs)
    return token_id, best, entries


def draw(weights: Scores, uniform: float) -> int:
    """The index that `uniform` in [0, 1) falls on when the weights are laid side by side."""
    ends = np.cumsum(weights)
    return int(np.searchsorted(ends, uniform * ends[-1], side="right"))

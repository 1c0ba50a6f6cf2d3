"""Chooses the next token of every sequence of a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.batch import SampledToken, SampledTokens, SampleRow, ScheduledBatch
from octavo.sampling.filters import Scores, kept_tokens
from octavo.sampling.generator import uniform
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.penalties import add_bias, apply_penalties, has_penalties, mask_tokens

Logits = NDArray[np.float32]


class SamplingError(RuntimeError):
    """Logits of one sequence from which nothing can be chosen. The other sequences are not concerned."""

    def __init__(self, message: str, seq_id: int) -> None:
        super().__init__(f"sequence {seq_id}: {message}")
        self.seq_id = seq_id


class Sampler:
    """Keeps no state: a token depends on its row of logits, its SampleRow and nothing else.

    The order is vLLM's: stop tokens masked before min_tokens, logit_bias, penalties (repetition, frequency,
    presence), temperature, min_p, top_k, top_p.
    """

    def __init__(self, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: Logits, batch: ScheduledBatch) -> SampledTokens:
        """One token for each of batch.samples, from `logits` [R, V] float32, which stay as they are.

        Raises SamplingError for the first sequence whose logits hold NaN or infinity.
        """
        assert logits.ndim == 2, logits.shape
        assert logits.shape[1] == self._vocab_size, logits.shape
        best = logits.argmax(axis=1) if any(map(self._takes_best, batch.samples)) else None
        return SampledTokens(tuple(self._sample_row(logits, sample, best) for sample in batch.samples))

    def _sample_row(self, logits: Logits, sample: SampleRow, best: NDArray[np.intp] | None) -> SampledToken:
        row = logits[sample.row]
        if best is not None and self._takes_best(sample):
            token_id = int(best[sample.row])
            _require_finite(row[token_id], sample)  # argmax stops at a NaN
        else:
            token_id = self._choose(row.astype(np.float64), sample)
        if sample.params.logprobs is None:
            return SampledToken(sample.seq_id, token_id)
        return SampledToken(sample.seq_id, token_id, token_logprobs(row, token_id, sample.params.logprobs))

    def _choose(self, scores: Scores, sample: SampleRow) -> int:
        params = sample.params
        if self._masks_stops(sample):
            mask_tokens(scores, self._eos_token_ids.union(params.stop_token_ids))
        add_bias(scores, params.logit_bias)
        if has_penalties(params):
            apply_penalties(scores, params, sample.prompt_token_ids, sample.output_token_ids)
        token_id = int(scores.argmax())
        _require_finite(scores[token_id], sample)
        if params.is_greedy:
            return token_id
        ids, weights = kept_tokens(scores, params)
        return int(ids[_draw(weights, uniform(sample.seed, sample.index, len(sample.output_token_ids)))])

    def _takes_best(self, sample: SampleRow) -> bool:
        """Whether the token is the best one of the untouched logits."""
        params = sample.params
        changes = params.logit_bias or has_penalties(params) or self._masks_stops(sample)
        return params.is_greedy and not changes

    def _masks_stops(self, sample: SampleRow) -> bool:
        return len(sample.output_token_ids) < sample.params.min_tokens


def _draw(weights: Scores, u: float) -> int:
    """The index that `u` in [0, 1) falls on when the weights are laid side by side."""
    ends = np.cumsum(weights)
    return int(np.searchsorted(ends, u * ends[-1], side="right"))


def _require_finite(best_score: np.floating, sample: SampleRow) -> None:
    if not np.isfinite(best_score):
        raise SamplingError(f"the best logit is {best_score}", sample.seq_id)

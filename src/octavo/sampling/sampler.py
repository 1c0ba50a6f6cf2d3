"""Chooses the next token of every sequence of a step."""

from __future__ import annotations

import math
from collections.abc import Collection

from octavo.batch import BestTokens, SampledToken, SampledTokens, SampleRow, ScheduledBatch, TokenLogprob
from octavo.sampling.choose import Chooser, Logits, choose_tokens
from octavo.sampling.generator import uniform
from octavo.sampling.logprobs import LogprobEntry


class SamplingError(RuntimeError):
    """Logits of one sequence from which nothing can be chosen. The other sequences are not concerned."""

    def __init__(self, message: str, seq_id: int) -> None:
        super().__init__(f"sequence {seq_id}: {message}")
        self.seq_id = seq_id


class Sampler:
    """Keeps no state: a token depends on its row of logits, its SampleRow and nothing else."""

    def __init__(
        self, vocab_size: int, eos_token_ids: frozenset[int], choose: Chooser = choose_tokens
    ) -> None:
        """`choose` does the work that grows with the vocabulary."""
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._choose = choose

    def sample(self, logits: Logits | BestTokens, batch: ScheduledBatch) -> SampledTokens:
        """One token for each of batch.samples, and in each round.

        logits: [R, V] float32, which stay as they are; or the best tokens alone, if that is all that the
        batch takes. Raises SamplingError for the first sequence whose logits hold NaN or infinity.
        """
        if isinstance(logits, BestTokens):
            rounds = zip(logits.token_ids, logits.logits, strict=True)
            return SampledTokens(
                tuple(
                    _token(sample, ids[sample.row], best[sample.row], None)
                    for ids, best in rounds
                    for sample in batch.samples
                )
            )
        assert logits.ndim == 2, logits.shape
        assert logits.shape[1] == self._vocab_size, logits.shape
        uniforms = [_uniform(sample) for sample in batch.samples]
        masked = [self._masked(sample) for sample in batch.samples]
        choices = self._choose(logits, batch.samples, uniforms, masked)
        return SampledTokens(
            tuple(
                _token(sample, token_id, best, entries)
                for sample, (token_id, best, entries) in zip(batch.samples, choices, strict=True)
            )
        )

    def _masked(self, sample: SampleRow) -> Collection[int]:
        return self._eos_token_ids.union(sample.params.stop_token_ids) if sample.masks_stops else ()


def _uniform(sample: SampleRow) -> float:
    if sample.params.is_greedy:
        return 0.0
    return uniform(sample.seed, sample.index, len(sample.output_token_ids))


def _token(sample: SampleRow, token_id: int, best: float, entries: list[LogprobEntry] | None) -> SampledToken:
    if not math.isfinite(best):
        raise SamplingError(f"the best logit is {best}", sample.seq_id)
    if entries is None:
        return SampledToken(sample.seq_id, token_id)
    return SampledToken(sample.seq_id, token_id, tuple(TokenLogprob(*entry) for entry in entries))

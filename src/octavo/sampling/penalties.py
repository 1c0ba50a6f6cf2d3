"""Changes to single logits that a request asks for, before temperature and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from octavo.params import SamplingParams
from octavo.sampling.filters import Scores


def mask_tokens(scores: Scores, token_ids: Iterable[int]) -> None:
    """Make these tokens impossible. Changes `scores` [V]."""
    scores[list(token_ids)] = -np.inf


def add_bias(scores: Scores, logit_bias: Mapping[int, float]) -> None:
    """Add each token's bias. Changes `scores` [V]."""
    if logit_bias:
        scores[list(logit_bias)] += list(logit_bias.values())


def apply_penalties(
    scores: Scores, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> None:
    """Make tokens that were there before less likely. Changes `scores` [V].

    The repetition penalty looks at prompt and output and scales (Keskar et al., CTRL, 2019); presence and
    frequency penalties look at the output alone and subtract, as the OpenAI API defines them.
    """
    outputs, counts = np.unique(np.asarray(output_ids, dtype=np.int64), return_counts=True)
    if params.repetition_penalty != 1.0:
        seen = np.union1d(np.asarray(prompt_ids, dtype=np.int64), outputs)
        old = scores[seen]
        scores[seen] = np.where(old > 0, old / params.repetition_penalty, old * params.repetition_penalty)
    scores[outputs] -= params.frequency_penalty * counts + params.presence_penalty

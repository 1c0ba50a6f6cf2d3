"""What the model itself thought of the tokens, before any sampling parameter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.filters import best

LogprobEntry = tuple[int, float, int]
"""Token id, log-probability, rank."""


def logprob_entries(logits: NDArray[np.float32], token_id: int, num_top: int) -> list[LogprobEntry]:
    """The log-probability of `token_id`, then those of the `num_top` most likely tokens, under `logits` [V].

    A rank is 1 + the number of tokens that are more likely, so equals share one. Among equals the lower id
    comes first. `token_id` is there twice if it is one of the most likely.
    """
    scores = logits.astype(np.float64)
    peak = scores.max()
    norm = peak + np.log(np.exp(scores - peak).sum())
    top = best(logits, min(num_top, len(logits))) if num_top else np.empty(0, dtype=np.int64)
    top = top[np.argsort(-scores[top], kind="stable")]
    ranks = 1 + np.searchsorted(-scores[top], -scores[top])
    rank = 1 + int(np.count_nonzero(scores > scores[token_id]))
    return [
        (token_id, float(scores[token_id] - norm), rank),
        *zip(top.tolist(), (scores[top] - norm).tolist(), ranks.tolist(), strict=True),
    ]

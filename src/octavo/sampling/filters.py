"""Which tokens may be chosen, and with what weights.

Each filter keeps the most likely tokens down to some point of one order: by falling score, by rising id among
equals. So at least the best token is always kept, and equal scores never make a result depend on chance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.params import SamplingParams

Scores = NDArray[np.float64]
Ids = NDArray[np.int64]

TOP_P_SLACK = 1e-6
"""A set whose probability falls short of top_p by this little has reached it: float32 logits say no more."""


def kept_tokens(scores: Scores, params: SamplingParams) -> tuple[Ids, Scores]:
    """The ids that pass all filters, rising, and their probabilities, with 1 for the best token.

    `scores` [V] are finite or -inf, params.temperature is above 0. top_k counts tokens; min_p compares with
    the best token; top_p is a share of what those two leave.
    """
    ids = best(scores, params.top_k) if 0 < params.top_k < len(scores) else np.arange(len(scores))
    # A tiny temperature overflows to -inf here and leaves weight to the best token alone, as it should.
    with np.errstate(over="ignore"):
        weights = np.exp((scores[ids] - scores.max()) / params.temperature)
    if params.min_p > 0.0:
        kept = np.flatnonzero(weights >= params.min_p)
        ids, weights = ids[kept], weights[kept]
    if params.top_p < 1.0:
        kept = _nucleus(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def best(scores: NDArray[np.floating], count: int) -> Ids:
    """The indices of the `count` largest scores, rising; 0 < count <= len(scores)."""
    cut = np.partition(scores, len(scores) - count)[len(scores) - count]
    return _down_to(scores, cut, count)


def _nucleus(weights: Scores, top_p: float) -> Ids:
    """Indices of the smallest set of largest weights that holds the share `top_p` of their sum
    (Holtzman et al., The Curious Case of Neural Text Degeneration, 2020).
    """
    target = (top_p - TOP_P_SLACK) * weights.sum()
    ordered = _largest_reaching(weights, target)
    count = int(np.searchsorted(np.cumsum(ordered), target)) + 1
    count = min(count, len(ordered))
    return _down_to(weights, ordered[count - 1], count)


def _largest_reaching(weights: Scores, target: float) -> Scores:
    """The largest weights, falling, so many that their sum reaches `target`. Sorts as few as it can."""
    for threshold in (1e-2, 1e-4, 1e-6):
        largest = weights[weights >= threshold]
        if largest.sum() >= target:
            break
    else:
        largest = weights
    return np.sort(largest)[::-1]


def _down_to(values: NDArray[np.floating], cut: float, count: int) -> Ids:
    """Indices, rising, of the `count` largest values, the smallest of which is `cut`; of equals the first."""
    larger = values > cut
    ties = np.flatnonzero(values == cut)
    larger[ties[: count - int(np.count_nonzero(larger))]] = True
    return np.flatnonzero(larger)

"""The filters against naive twins that sort everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.params import SamplingParams
from octavo.sampling.filters import TOP_P_SLACK, best, kept_tokens

THREE = np.log([0.6, 0.3, 0.1])


def naive(scores: np.ndarray, params: SamplingParams) -> list[int]:
    """The kept ids, by one full sort and one loop a filter."""
    with np.errstate(over="ignore"):
        weights = np.exp((scores - scores.max()) / params.temperature)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if params.top_k > 0:
        order = order[: params.top_k]
    order = [i for i in order if weights[i] >= params.min_p]
    if params.top_p < 1.0:
        total, mass, kept = sum(weights[i] for i in order), 0.0, []
        for i in order:
            if kept and mass >= (params.top_p - TOP_P_SLACK) * total:
                break
            kept.append(i)
            mass += weights[i]
        order = kept
    return sorted(order)


def kept(scores: Any, **options: Any) -> list[int]:
    return kept_tokens(np.asarray(scores, np.float64), SamplingParams(**options))[0].tolist()


# Few distinct values, so that equals are common; scores in eighths, so that sums are exact.
SCORES = st.lists(
    st.sampled_from([0.0, 0.125, 0.5, 1.0, 2.0, -1.0, -30.0, 7.0, -np.inf]), min_size=1, max_size=40
).filter(lambda scores: max(scores) > -np.inf)


@given(
    SCORES,
    st.integers(-1, 45),
    st.floats(0.01, 1.0),
    st.sampled_from([0.0, 0.001, 0.2, 0.5, 1.0]),
    st.sampled_from([1e-30, 0.01, 0.5, 1.0, 2.0, 100.0]),
)
def test_filters_keep_what_the_naive_twin_keeps(
    scores: list[float], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    ids, weights = kept_tokens(np.array(scores), params)
    assert ids.tolist() == naive(np.array(scores), params)
    assert int(np.argmax(scores)) in ids
    with np.errstate(over="ignore"):
        expected = np.exp((np.array(scores) - max(scores)) / temperature)
    np.testing.assert_array_equal(weights, expected[ids])


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [1e-4, 0.5, 0.9, 0.999, 0.9999999])
def test_top_p_on_a_large_vocabulary(scale: float, top_p: float) -> None:
    scores = np.random.default_rng(3).standard_normal(2000).astype(np.float32).astype(np.float64) * scale
    params = SamplingParams(top_p=top_p)
    assert kept_tokens(scores, params)[0].tolist() == naive(scores, params)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.6}, [0]),
        ({"top_p": 0.61}, [0, 1]),
        ({"top_p": 0.9}, [0, 1]),
        ({"top_p": 0.91}, [0, 1, 2]),
        ({"top_p": 1.0}, [0, 1, 2]),
        ({"top_p": 1e-9}, [0]),
        ({"top_k": 1, "top_p": 0.8}, [0]),
        ({"top_k": 2, "top_p": 0.66}, [0]),
        ({"top_k": 2, "top_p": 0.67}, [0, 1]),
        ({"top_k": 0}, [0, 1, 2]),
        ({"top_k": -1}, [0, 1, 2]),
        ({"top_k": 99}, [0, 1, 2]),
        ({"min_p": 0.49}, [0, 1]),
        ({"min_p": 0.51}, [0]),
        ({"min_p": 1.0}, [0]),
        ({"temperature": 0.1, "min_p": 0.1}, [0]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sixty_thirty_ten(options: dict[str, Any], expected: list[int], dtype: type) -> None:
    assert kept(THREE.astype(dtype), **options) == expected


def test_equals_are_kept_by_id_except_that_min_p_keeps_all() -> None:
    equal = [1.0, 5.0, 5.0, 5.0]
    assert kept(equal, top_k=2) == [1, 2]
    assert kept(equal, top_p=0.5) == [1, 2]
    assert kept(equal, min_p=1.0) == [1, 2, 3]


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 5e-324])
def test_a_tiny_temperature_leaves_the_best_token(temperature: float) -> None:
    ids, weights = kept_tokens(np.array([-1e4, 1e4, 0.0]), SamplingParams(temperature=temperature))
    assert weights.tolist() == [0.0, 1.0, 0.0]
    assert ids.tolist() == [0, 1, 2]
    assert kept([2.0, 2.0], temperature=temperature) == [0, 1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_best_takes_the_largest_and_the_first_of_equals(values: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    expected = sorted(sorted(range(len(values)), key=lambda i: (-values[i], i))[:count])
    assert best(np.array(values, np.float32), count).tolist() == expected

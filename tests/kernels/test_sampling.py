"""The native choice of tokens against the numpy one, which is the definition."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import _native, kernels
from octavo.batch import SampleRow
from octavo.kernels.native import NativeExecutor
from octavo.params import SamplingParams
from octavo.sampling.choose import choose_tokens
from support.toy import toy_layout, toy_program

Floats = npt.NDArray[np.float32]

Choose = Callable[..., Any]

OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-30, 0.01, 0.7, 1.0, 2.0, 100.0]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 5, 40, 10**6]),
        "top_p": st.sampled_from([1e-4, 0.1, 0.5, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 0.9, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 0.7, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.5, -2.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.25, -1.0]),
        "logprobs": st.sampled_from([None, 0, 1, 20]),
    }
)


@pytest.fixture(scope="module", params=kernels.info()["available_isas"])
def choose(request: pytest.FixtureRequest) -> Choose:
    """choose(logits, samples, uniforms, masked) on two threads, with each table."""
    toy = toy_program()
    executor = NativeExecutor(toy, toy_layout(toy), num_threads=2, max_num_tokens=16, isa=request.param)

    def run(logits: Floats, *arguments: Any, vocab_size: int | None = None) -> Any:
        sampler = _native.TokenSampler(executor._executor, vocab_size or logits.shape[1])
        return sampler.choose(logits, *arguments)

    return run


def random_logits(num_rows: int, vocab_size: int, seed: int, levels: int) -> Floats:
    """Normal numbers; with `levels` above 0 on a coarse grid, so that many are equal."""
    logits = np.random.default_rng(seed).standard_normal((num_rows, vocab_size)) * 3
    return (np.round(logits * levels) / levels if levels else logits).astype(np.float32)


def assert_same(native: Any, expected: Any) -> None:
    assert [choice[:2] for choice in native] == [choice[:2] for choice in expected]
    for (_, _, entries), (_, _, others) in zip(native, expected, strict=True):
        assert (entries is None) == (others is None)
        for entry, other in zip(entries or (), others or (), strict=True):
            assert (entry[0], entry[2]) == (other[0], other[2])
            assert entry[1] == pytest.approx(other[1], rel=1e-12, abs=1e-12)


@given(
    st.integers(0, 2**32), st.sampled_from([1, 2, 7, 64, 65, 200, 1003]), st.sampled_from([0, 1, 4]), OPTIONS
)
def test_tokens_are_those_of_the_numpy_twin(
    choose: Choose, seed: int, vocab_size: int, levels: int, options: dict[str, Any]
) -> None:
    source = random.Random(seed)
    logits = random_logits(3, vocab_size, seed, levels)
    some_ids = [source.choices(range(vocab_size), k=source.randrange(20)) for _ in range(4)]
    bias = {token_id: source.uniform(-5, 5) for token_id in some_ids[0][:3]}
    params = SamplingParams(**options, logit_bias=bias)
    samples = [
        SampleRow(number, source.randrange(3), params, seed, 0, some_ids[1], some_ids[2])
        for number in range(5)
    ]
    uniforms = [1e-9, 1.0 - 1e-9, *(source.random() for _ in range(3))]
    masked = [(), set(some_ids[3]), (), some_ids[3], frozenset(some_ids[3])]
    arguments = (samples, uniforms, masked)
    assert_same(choose(logits, *arguments), choose_tokens(logits, *arguments))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 40},
        {"top_k": 3000},
        {"top_p": 0.9},
        {"top_p": 0.999999, "temperature": 2.0},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "temperature": 0.7},
        {"logprobs": 20, "temperature": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("levels", [0, 1])
def test_a_whole_vocabulary(choose: Choose, options: dict[str, Any], levels: int) -> None:
    logits = random_logits(4, 49_152, 7, levels)
    samples = [SampleRow(row, row % 4, SamplingParams(**options), row, 0, (), ()) for row in range(16)]
    uniforms = [random.Random(number).random() for number in range(16)]
    arguments = (samples, uniforms, [()] * 16)
    assert_same(choose(logits, *arguments), choose_tokens(logits, *arguments))


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_k": 3, "top_p": 0.5}], ids=str)
@pytest.mark.parametrize(
    "bad",
    [{5: np.nan}, {5: np.nan, 9: np.nan, 2: np.inf}, {5: np.inf, 7: np.inf}, {100: np.nan}, {5: -np.inf}],
    ids=str,
)
def test_values_that_are_no_numbers(choose: Choose, options: dict[str, Any], bad: dict[int, float]) -> None:
    logits = random_logits(1, 101, 3, 1)
    for token_id, value in bad.items():
        logits[0, token_id] = value
    samples = [SampleRow(0, 0, SamplingParams(**options), 0, 0, (), ())]
    arguments = (samples, [0.5], [()])
    (found,), (expected,) = choose(logits, *arguments), choose_tokens(logits, *arguments)
    assert found[0] == expected[0]
    np.testing.assert_equal(found[1], expected[1])


@pytest.mark.parametrize("size", [1, 3, 64, 130])
def test_the_ends_of_the_range_of_numbers(choose: Choose, size: int) -> None:
    samples = [SampleRow(0, 0, SamplingParams(), 0, 0, (), ())] * 3
    uniforms = [0.0, 0.5, 1.0 - 2.0**-53]
    drawn = [choice[0] for choice in choose(np.zeros((1, size), np.float32), samples, uniforms, [()] * 3)]
    assert drawn == [0, size // 2, size - 1]


def test_a_mask_over_all_tokens_leaves_no_score(choose: Choose) -> None:
    samples = [SampleRow(0, 0, SamplingParams(), 0, 0, (), ())]
    ((_, best, _),) = choose(np.ones((1, 9), np.float32), samples, [0.5], [range(9)])
    assert best == -np.inf


def test_a_choice_does_not_depend_on_its_neighbours(choose: Choose) -> None:
    logits = random_logits(5, 1003, 1, 0)
    params = SamplingParams(temperature=0.8, top_p=0.9, logprobs=5, presence_penalty=0.5)
    samples = [SampleRow(row, row, params, row, 0, (), [1, 2, 2]) for row in range(5)]
    together = choose(logits, samples, [0.3] * 5, [()] * 5)
    for row, sample in enumerate(samples):
        assert choose(logits, [sample], [0.3], [()]) == [together[row]]


def test_what_is_out_of_range_is_refused(choose: Choose) -> None:
    logits = np.zeros((2, 8), np.float32)

    def one(row: int = 0, masked: Any = (), **options: Any) -> Any:
        output = options.pop("output", ())
        sample = SampleRow(0, row, SamplingParams(**options), 0, 0, (), output)
        return choose(logits, [sample], [0.5], [masked])

    assert len(one()) == 1
    with pytest.raises(ValueError, match="row 2"):
        one(row=2)
    with pytest.raises(ValueError, match="token id 8"):
        one(masked=(8,))
    with pytest.raises(ValueError, match="token id 8"):
        one(logit_bias={8: 1.0})
    with pytest.raises(ValueError, match="token id -1"):
        one(output=[-1], presence_penalty=1.0)
    with pytest.raises(ValueError, match="column"):
        choose(logits, [], [], [], vocab_size=9)
    with pytest.raises(ValueError, match="mask"):
        choose(logits, [], [0.5], [])

"""The sampler: order of its steps, distribution, independence of the batch, errors."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from octavo.batch import BestTokens, SampledToken, SampledTokens, ScheduledBatch
from octavo.params import ParameterError, SamplingParams
from octavo.sampling.choose import draw
from octavo.sampling.filters import kept_tokens
from octavo.sampling.sampler import Sampler, SamplingError
from octavo.sampling.validate import validate

EOS_ID = 1
VOCAB_SIZE = 64
LOGITS = (np.random.default_rng(5).standard_normal((8, VOCAB_SIZE)) * 2).astype(np.float32)


def ids(tokens: SampledTokens) -> list[int]:
    return [token.token_id for token in tokens.tokens]


def test_greedy_takes_the_best_token_and_the_lowest_id_among_equals(sample: Any, sample_row: Any) -> None:
    rows = [sample_row(row, seq_id=row + 10, temperature=0.0) for row in range(8)]
    tokens = sample(LOGITS, *rows)
    assert ids(tokens) == LOGITS.argmax(axis=1).tolist()
    assert [token.seq_id for token in tokens.tokens] == list(range(10, 18))
    assert ids(sample([0.0, 3.0, 3.0, 3.0], sample_row(temperature=0.0))) == [1]
    assert ids(sample([0.0, 3.0, 3.0, 3.0], sample_row(temperature=0.0, presence_penalty=0.1))) == [1]


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 1e-4}, {"min_p": 1.0}, {"temperature": 1e-30}, {"temperature": 1e-4}]
)
def test_settings_that_leave_one_token_are_greedy(
    sample: Any, sample_row: Any, options: dict[str, Any]
) -> None:
    rows = [sample_row(row, seed=row, **options) for row in range(8)]
    assert ids(sample(LOGITS, *rows)) == LOGITS.argmax(axis=1).tolist()


def test_only_a_temperature_is_not_greedy(sample: Any, sample_row: Any) -> None:
    drawn = {ids(sample(LOGITS, sample_row(seed=seed, temperature=1.5)))[0] for seed in range(40)}
    assert len(drawn) > 10


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"top_k": 4, "top_p": 0.8},
    {"top_k": 5, "min_p": 0.1, "top_p": 0.9, "temperature": 0.8},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "prompt": (0, 1), "output": [2, 2, 3]},
    {"repetition_penalty": 1.5, "prompt": (0, 1, 2), "output": [4]},
    {"logit_bias": {5: 2.0, 0: -1.0}},
    {"min_tokens": 9, "stop_token_ids": (3,)},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_tokens_are_drawn_from_the_exact_distribution(
    sample: Any, sample_row: Any, options: dict[str, Any]
) -> None:
    logits = np.array([1.0, 0.5, 0.2, 0.0, -0.5, -1.0, -2.0, 1.0], np.float32)
    num_draws = 4000
    counts = Counter(ids(sample(logits, *(sample_row(seed=seed, **options) for seed in range(num_draws)))))
    expected = exact_distribution(logits, options)
    assert set(counts) <= set(np.flatnonzero(expected))
    chi_square = sum((counts[i] - num_draws * p) ** 2 / (num_draws * p) for i, p in enumerate(expected) if p)
    assert chi_square < 30  # 7 degrees of freedom at most; p = 1e-4


def exact_distribution(logits: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    options = dict(options)
    prompt, output = options.pop("prompt", ()), options.pop("output", [])
    params = SamplingParams(**options)
    scores = logits.astype(np.float64)
    if params.min_tokens:
        scores[[EOS_ID, *params.stop_token_ids]] = -np.inf
    for token_id in range(len(scores)):
        scores[token_id] += params.logit_bias.get(token_id, 0.0)
        if token_id in (*prompt, *output):
            score = scores[token_id]
            scores[token_id] *= params.repetition_penalty ** (-1 if score > 0 else 1)
        times = output.count(token_id)
        scores[token_id] -= params.frequency_penalty * times + params.presence_penalty * (times > 0)
    kept, weights = kept_tokens(scores, params)
    result = np.zeros(len(scores))
    result[kept] = weights / weights.sum()
    return result


def test_bias_comes_before_penalties_and_penalties_before_the_filters(sample: Any, sample_row: Any) -> None:
    # Token 2 has score 2; the bias makes it 4, the penalty halves that to 2, below token 3's 2.5.
    row = sample_row(logit_bias={2: 2.0}, repetition_penalty=2.0, prompt=(2,), top_k=1)
    assert ids(sample([0.0, 0.0, 2.0, 2.5], row)) == [3]
    # The other way round it would be 2 / 2 + 2 = 3.
    assert ids(sample([0.0, 0.0, 2.0, 1.9], row)) == [2]


def test_a_large_bias_forces_or_forbids(sample: Any, sample_row: Any) -> None:
    assert ids(sample(LOGITS[0], sample_row(logit_bias={9: 100.0}))) == [9]
    best = int(LOGITS[0].argmax())
    assert ids(sample(LOGITS[0], sample_row(logit_bias={best: -100.0}, temperature=0.0))) != [best]


def test_stop_tokens_are_impossible_before_min_tokens(sample: Any, sample_row: Any) -> None:
    logits = [0.0, 9.0, 8.0, 1.0]
    options: dict[str, Any] = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": (2,)}
    chosen = [ids(sample(logits, sample_row(output=[3] * done, **options)))[0] for done in range(4)]
    assert chosen == [3, 3, EOS_ID, EOS_ID]


def mixed_rows(sample_row: Any) -> list[Any]:
    return [
        sample_row(row, seq_id=number, seed=number, output=[5] * number, **options)
        for number, (row, options) in enumerate(
            [
                (0, {"temperature": 0.0}),
                (1, {}),
                (2, {"top_k": 3, "logprobs": 2}),
                (3, {"logit_bias": {4: 3.0}}),
                (4, {"repetition_penalty": 1.5, "prompt": (1, 2)}),
                (4, {"top_p": 0.5, "min_tokens": 9}),
                (4, {"temperature": 0.0, "frequency_penalty": 2.0}),
            ]
        )
    ]


def test_a_token_does_not_depend_on_its_neighbours(sample: Any, sample_row: Any) -> None:
    rows = mixed_rows(sample_row)
    alone = {row.seq_id: sample(LOGITS, row).tokens[0] for row in rows}
    for seed in range(20):
        some = random.Random(seed).sample(rows, k=1 + seed % len(rows))
        tokens = sample(LOGITS, *some).tokens
        assert [token.seq_id for token in tokens] == [row.seq_id for row in some]
        assert all(token == alone[token.seq_id] for token in tokens)


def test_the_place_in_the_logits_does_not_matter(sample: Any, sample_row: Any) -> None:
    options: dict[str, Any] = {"seed": 3, "top_p": 0.9, "temperature": 1.2}
    for row in range(8):
        here = ids(sample(LOGITS, sample_row(row, **options)))
        assert here == ids(sample(LOGITS[row], sample_row(0, **options)))


def test_logits_stay_as_they_are(sample: Any, sample_row: Any) -> None:
    logits = LOGITS.copy()
    logits.flags.writeable = False
    sample(logits, *mixed_rows(sample_row))
    np.testing.assert_array_equal(logits, LOGITS)


def test_choices_of_one_prompt_share_a_row_and_differ(sample: Any, sample_row: Any) -> None:
    def choices(n: int) -> list[int]:
        return ids(
            sample(LOGITS, *(sample_row(0, seed=7, index=index, temperature=1.5) for index in range(n)))
        )

    five = choices(5)
    assert len(set(five)) > 1
    assert choices(5) == five
    assert choices(3) == five[:3]


def test_each_position_has_its_own_number(sample: Any, sample_row: Any) -> None:
    def at(position: int) -> int:
        return ids(sample(np.zeros(1000), sample_row(seed=7, output=[0] * position)))[0]

    assert len({at(position) for position in range(20)}) > 15
    assert at(3) == at(3)


def test_equal_logits_use_the_whole_vocabulary(sample: Any, sample_row: Any) -> None:
    drawn = ids(sample(np.zeros(8), *(sample_row(seed=seed) for seed in range(200))))
    assert set(drawn) == set(range(8))


def test_logprobs_are_those_of_the_untouched_logits(sample: Any, sample_row: Any) -> None:
    logits = np.log([0.6, 0.3, 0.1])
    row = sample_row(logprobs=2, logit_bias={2: 100.0}, min_p=1.0, temperature=0.5)
    (token,) = sample(logits, row).tokens
    assert token.token_id == 2
    assert [(entry.token_id, entry.rank) for entry in token.logprobs] == [(2, 3), (0, 1), (1, 2)]
    np.testing.assert_allclose(
        np.exp([entry.logprob for entry in token.logprobs]), [0.1, 0.6, 0.3], rtol=1e-6
    )


def test_logprobs_zero_reports_the_sampled_token_alone(sample: Any, sample_row: Any) -> None:
    for temperature in (0.0, 1.0):
        (token,) = sample(LOGITS[0], sample_row(logprobs=0, temperature=temperature)).tokens
        assert [entry.token_id for entry in token.logprobs] == [token.token_id]
    assert sample(LOGITS[0], sample_row()).tokens[0].logprobs is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {}, {"top_k": 2}, {"temperature": 0.0, "logprobs": 1}]
)
def test_logits_that_are_no_numbers_are_an_error_of_their_sequence(
    sample: Any, sample_row: Any, bad: float, options: dict[str, Any]
) -> None:
    logits = LOGITS.copy()
    logits[2, 40] = bad
    with pytest.raises(SamplingError, match="sequence 12") as error:
        sample(logits, sample_row(0, seq_id=10, **options), sample_row(2, seq_id=12, **options))
    assert error.value.seq_id == 12
    sample(logits, sample_row(0, seq_id=10, **options), sample_row(3, seq_id=13, **options))


def test_a_mask_that_leaves_nothing_is_an_error_of_its_sequence(sample: Any, sample_row: Any) -> None:
    with pytest.raises(SamplingError, match="sequence 5"):
        sample([1.0, 2.0], sample_row(seq_id=5, min_tokens=1, stop_token_ids=(0,)))


@pytest.mark.parametrize("scale", [1e4, 1e38])
def test_extreme_logits_give_a_token(sample: Any, sample_row: Any, scale: float) -> None:
    logits = np.array([-scale, scale, 0.0, scale])
    for options in ({}, {"top_p": 0.3}, {"temperature": 1e-30}, {"temperature": 100.0}, {"logprobs": 2}):
        assert ids(sample(logits, sample_row(**options)))[0] in (1, 3)


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_ids_outside_the_vocabulary_are_refused_at_the_door(field: str) -> None:
    def params(token_id: int) -> SamplingParams:
        return SamplingParams(**{field: {token_id: 1.0} if field == "logit_bias" else [token_id]})

    validate(params(63), VOCAB_SIZE)
    with pytest.raises(ParameterError, match="64") as error:
        validate(params(64), VOCAB_SIZE)
    assert error.value.param == field


def test_a_token_without_weight_is_never_drawn() -> None:
    weights = np.array([0.0, 1.0, 0.0, 1.0, 0.0])
    assert [draw(weights, u) for u in (0.0, 0.499, 0.5, 1.0 - 2.0**-53)] == [1, 1, 3, 3]


BEST_OR_NOT: list[tuple[dict[str, Any], bool]] = [
    ({"temperature": 0.0}, True),
    ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.5}, True),
    ({"temperature": 0.0, "min_tokens": 3, "output": [1, 2, 3]}, True),
    ({"temperature": 0.0, "min_tokens": 3, "output": [1, 2]}, False),
    ({"temperature": 0.0, "logit_bias": {1: 1.0}}, False),
    ({"temperature": 0.0, "repetition_penalty": 1.1}, False),
    ({"temperature": 0.0, "presence_penalty": 0.1}, False),
    ({"temperature": 0.0, "frequency_penalty": 0.1}, False),
    ({"temperature": 0.0, "logprobs": 0}, False),
    ({"temperature": 0.1}, False),
]


@pytest.mark.parametrize(("options", "expected"), BEST_OR_NOT, ids=str)
def test_who_takes_the_best_token_and_needs_no_logits(
    sample: Any, sample_row: Any, options: dict[str, Any], expected: bool
) -> None:
    row = sample_row(2, seq_id=5, **options)
    greedy = sample_row(temperature=0.0)
    assert row.takes_best == expected
    assert ScheduledBatch(0, (), (0, 1, 2), (greedy, row), (), 0).takes_best == expected
    if expected:
        assert ids(sample(LOGITS, row)) == [int(LOGITS[2].argmax())]


def test_best_tokens_are_taken_by_row(sample_row: Any) -> None:
    rows = (sample_row(1, seq_id=10, temperature=0.0), sample_row(0, seq_id=11, temperature=0.0))
    batch = ScheduledBatch(0, (), (0, 1), rows, (), 0)
    tokens = Sampler(VOCAB_SIZE, frozenset()).sample(BestTokens([[7, 9]], [[1.0, 2.0]]), batch).tokens
    assert tokens == (SampledToken(10, 9), SampledToken(11, 7))


def test_best_tokens_of_several_rounds(sample_row: Any) -> None:
    rows = (sample_row(1, seq_id=10, temperature=0.0), sample_row(0, seq_id=11, temperature=0.0))
    batch = ScheduledBatch(0, (), (0, 1), rows, (), 0, num_rounds=3)
    best = BestTokens([[7, 9], [5, 6]], [[1.0, 2.0], [3.0, 4.0]])
    tokens = Sampler(VOCAB_SIZE, frozenset()).sample(best, batch).tokens
    assert tokens == (SampledToken(10, 9), SampledToken(11, 7), SampledToken(10, 6), SampledToken(11, 5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_best_logit_that_is_no_number_is_an_error_of_its_sequence(sample_row: Any, bad: float) -> None:
    rows = (sample_row(0, seq_id=10, temperature=0.0), sample_row(1, seq_id=11, temperature=0.0))
    batch = ScheduledBatch(0, (), (0, 1), rows, (), 0)
    with pytest.raises(SamplingError, match="sequence 11"):
        Sampler(VOCAB_SIZE, frozenset()).sample(BestTokens([[7, 9]], [[1.0, bad]]), batch)

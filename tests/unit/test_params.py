"""SamplingParams refuses what makes no sense, and names the field."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.params import ParameterError, SamplingParams

WRONG: list[tuple[str, Any]] = [
    ("n", 0), ("n", 129), ("n", True), ("n", 1.0), ("n", "1"), ("n", None),
    ("temperature", -0.1), ("temperature", 101), ("temperature", float("nan")), ("temperature", float("inf")),
    ("temperature", 10**400), ("temperature", True), ("temperature", "1"), ("temperature", None),
    ("top_k", -2), ("top_k", 0.01), ("top_k", None),
    ("top_p", 0.0), ("top_p", 1.01), ("top_p", True),
    ("min_p", -0.1), ("min_p", 1.1),
    ("repetition_penalty", 0.0), ("presence_penalty", 2.1), ("frequency_penalty", -2.1),
    ("logit_bias", {-1: 1.0}), ("logit_bias", {"1": 1.0}), ("logit_bias", {1: 101}),
    ("logit_bias", {1: None}), ("logit_bias", [1]), ("logit_bias", 5),
    ("seed", 1.5), ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", True),
    ("stop", ""), ("stop", ["a", ""]), ("stop", [1]), ("stop", 5), ("stop", {"a": 1}),
    ("stop_token_ids", [-1]), ("stop_token_ids", ["1"]), ("stop_token_ids", 5), ("stop_token_ids", "12"),
    ("min_tokens", -1), ("min_tokens", 17), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", "5"),
    ("logprobs", -1), ("logprobs", 21), ("logprobs", 10**5000), ("logprobs", True),
    ("ignore_eos", 1), ("skip_special_tokens", "no"), ("include_stop_str_in_output", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: str(type(value).__name__))
def test_a_wrong_value_is_refused_by_the_name_of_its_field(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name) as error:
        SamplingParams(**{name: value})
    assert error.value.param == name


def test_the_ends_of_the_ranges_are_allowed() -> None:
    SamplingParams(
        n=128, temperature=0, top_k=-1, top_p=1, min_p=1, seed=2**64 - 1, max_tokens=None, logprobs=0
    )
    SamplingParams(seed=-(2**63), min_tokens=16, logprobs=20, logit_bias={0: -100, 5: 100}, top_p=1e-9)


def test_lists_are_taken_in_the_forms_that_people_write() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop=None, stop_token_ids=None, logit_bias=None) == SamplingParams()  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[3]).stop_token_ids == (3,)  # type: ignore[arg-type]


def test_parameters_keep_their_own_copy() -> None:
    bias = {1: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[2] = 1.0
    assert params.logit_bias == {1: 1.0}


def test_only_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=1e-9).is_greedy

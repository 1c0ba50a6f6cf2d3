"""When a token ends its sequence."""

from __future__ import annotations

import pytest

from octavo.params import SamplingParams
from octavo.request import FinishReason
from octavo.scheduler.stop import EOS, Stop, end_len, stop_by_token

EOS_IDS = frozenset({2, 3})


@pytest.mark.parametrize(
    ("token_id", "num_output", "params", "expected"),
    [
        (2, 1, SamplingParams(), EOS),
        (3, 1, SamplingParams(), EOS),
        (4, 1, SamplingParams(), None),
        (2, 1, SamplingParams(ignore_eos=True), None),
        (2, 1, SamplingParams(ignore_eos=True, stop_token_ids=(2,)), Stop(FinishReason.STOP, 2)),
        (2, 1, SamplingParams(stop_token_ids=(2,)), EOS),
        (7, 1, SamplingParams(stop_token_ids=(6, 7)), Stop(FinishReason.STOP, 7)),
        (2, 2, SamplingParams(min_tokens=3), None),
        (2, 3, SamplingParams(min_tokens=3), EOS),
        (7, 2, SamplingParams(min_tokens=3, stop_token_ids=(7,)), None),
    ],
)
def test_stop_by_token(token_id: int, num_output: int, params: SamplingParams, expected: Stop | None) -> None:
    assert stop_by_token(token_id, num_output, params, EOS_IDS) == expected


@pytest.mark.parametrize(("max_tokens", "expected"), [(5, 15), (None, 100), (10**6, 100), (90, 100)])
def test_end_len(max_tokens: int | None, expected: int) -> None:
    assert end_len(10, max_tokens, 100) == expected

"""Rounds that fit into a reader's patience."""

from __future__ import annotations

import math

import pytest

from octavo.engine.pace import MAX_ROUNDS, Pace


def test_one_round_as_long_as_nothing_is_known() -> None:
    assert Pace().max_rounds(0.016) == 1
    assert Pace().max_rounds(math.inf) == MAX_ROUNDS


@pytest.mark.parametrize(
    ("seconds", "num_rounds", "expected"),
    [
        (0.004, 1, 4),
        (0.016, 4, 4),
        (0.0165, 4, 3),
        (0.009, 1, 1),
        (0.05, 1, 1),
        (0.001, 1, MAX_ROUNDS),
        (0.0, 1, MAX_ROUNDS),
    ],
)
def test_as_many_as_fit_at_the_pace_of_the_last_step(seconds: float, num_rounds: int, expected: int) -> None:
    pace = Pace()
    pace.on_step(seconds, num_rounds)
    assert pace.max_rounds(0.016) == expected
    assert pace.max_rounds(0.0) == 1
    assert pace.max_rounds(math.inf) == MAX_ROUNDS

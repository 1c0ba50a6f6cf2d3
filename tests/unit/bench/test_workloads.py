"""Workloads: lengths, what prompts share and do not share, and when sessions arrive."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from octavo.bench.prompts import WORDS, words
from octavo.bench.traces import TraceRow
from octavo.bench.workloads import chats, from_trace, random_prompts, with_poisson_arrivals


def prompts_of(sessions: list) -> list[list[str]]:  # type: ignore[type-arg]
    return [session.turns[0].prompt.split() for session in sessions]


def test_words_are_a_function_of_the_seed() -> None:
    assert words((1, "a"), 50) == words((1, "a"), 50) != words((1, "b"), 50)
    assert words(0, 0) == ""
    assert len(set(WORDS)) == len(WORDS)


def test_prompts_differ_from_their_first_words() -> None:
    sessions = random_prompts(20, 30, 7, seed=3)
    prompts = prompts_of(sessions)
    assert {len(prompt) for prompt in prompts} == {30}
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 20
    assert {session.turns[0].output_len for session in sessions} == {7}
    assert random_prompts(20, 30, 7, seed=3) == sessions != random_prompts(20, 30, 7, seed=4)


def test_a_shared_prefix_stands_before_words_of_their_own() -> None:
    prompts = prompts_of(random_prompts(5, 10, 1, shared_prefix_len=40))
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 1
    assert len({tuple(prompt[40:48]) for prompt in prompts}) == 5
    assert {len(prompt) for prompt in prompts} == {50}


def test_chats_share_the_system_text_in_their_first_turn_only() -> None:
    one, other = chats(2, 3, 10, 4, system_len=20)
    assert one.is_chat
    assert [len(turn.prompt.split()) for turn in one.turns] == [30, 10, 10]
    assert one.turns[0].prompt.split()[:20] == other.turns[0].prompt.split()[:20]
    assert len({turn.prompt for session in (one, other) for turn in session.turns}) == 6


def test_a_trace_is_scaled_and_keeps_its_shared_blocks() -> None:
    rows = [
        TraceRow(0.0, 1100, 10, (0, 1, 2)),  # two whole blocks, and a part that the third id stands for
        TraceRow(2.0, 1100, 10, (0, 1, 3)),
        TraceRow(3.0, 600, 1, (0, 4)),
    ]
    sessions = from_trace(rows, time_scale=0.5, length_scale=0.25)
    assert [session.arrival for session in sessions] == [0.0, 1.0, 1.5]
    assert [session.turns[0].output_len for session in sessions] == [2, 2, 1]
    one, other, short = prompts_of(sessions)
    assert [len(one), len(other), len(short)] == [275, 275, 150]
    assert one[:256] == other[:256]
    assert one[256:264] != other[256:264]
    assert one[:128] == short[:128]
    assert one[128:136] != short[128:136]


def test_rows_without_blocks_share_nothing() -> None:
    one, other = prompts_of(from_trace([TraceRow(0.0, 20, 1), TraceRow(0.0, 20, 1)]))
    assert one != other


def test_poisson_arrivals_have_the_rate_and_its_spread() -> None:
    sessions = with_poisson_arrivals(random_prompts(4000, 1, 1), 10.0, seed=1)
    arrivals = [session.arrival for session in sessions]
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert arrivals[0] == 0.0
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.1, rel=0.1)  # exponential: deviation equals mean
    with pytest.raises(ValueError, match="request_rate"):
        with_poisson_arrivals(sessions, 0.0)

"""Figures, from answers whose figures can be told by hand."""

from __future__ import annotations

import pytest

from octavo.bench.client import Answer
from octavo.bench.load import LoadResult
from octavo.bench.report import percentile, summarize


def answer(ttft: float, gaps: tuple[float, ...], num_tokens: int) -> Answer:
    return Answer(0.0, ttft, gaps, ttft + sum(gaps), 10, num_tokens)


ANSWERS = (
    answer(0.1, (0.2, 0.4), 3),
    answer(0.3, (0.1, 0.1, 0.1), 7),  # two tokens in every later piece
    Answer(0.0, 0.0, (), 0.0, 0, 0, error="refused"),
)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([5], 0.99, 5), ([1, 2], 0.5, 1.5), ([3, 1, 2], 0.5, 2), ([0, 10], 0.99, 9.9), ([4, 8], 1.0, 8)],
)
def test_percentiles(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_the_summary() -> None:
    report = summarize(LoadResult(ANSWERS, 2.0), {"ttft": 200, "e2el": 1000})
    expected = {
        "duration": 2.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 20,
        "total_output_tokens": 10,
        "request_throughput": 1.0,
        "output_throughput": 5.0,
        "total_token_throughput": 15.0,
        "request_goodput": 0.5,
        "mean_ttft_ms": 200.0,
        "median_ttft_ms": 200.0,
        "std_ttft_ms": 100.0,
        "p99_ttft_ms": 298.0,
        "mean_tpot_ms": (300 + 50) / 2,
        "mean_itl_ms": 900 / 5,
        "median_itl_ms": 100.0,
        "mean_e2el_ms": 650.0,
    }
    assert {name: report[name] for name in expected} == pytest.approx(expected)
    assert report["errors"] == ["refused"]


def test_a_load_that_failed_as_a_whole_has_no_latencies() -> None:
    report = summarize(LoadResult(ANSWERS[2:], 1.0))
    assert report["completed"] == 0
    assert not [name for name in report if name.endswith("_ms")]

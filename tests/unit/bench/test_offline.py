"""Offline runs, on the toy: what is counted, and that the clock is taken off again."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from octavo import LLM
from octavo.bench.offline import Measurement, Workload, executor_clock, measure, measure_stream, median
from octavo.kernels.native import NativeExecutor
from support.toy import write_toy_gguf


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    return LLM(str(write_toy_gguf(tmp_path / "toy.gguf")), num_blocks=64, block_size=4, max_num_seqs=4)


def test_a_shared_prefix_is_found_by_those_who_come_later(llm: LLM) -> None:
    workload = Workload(num_prompts=8, input_len=4, output_len=3, shared_prefix_len=16)
    run = measure(llm, workload, 1, use_bar=False)
    # Four run at once, and the first computes the prefix for all: it is given 7 times.
    assert run.num_cached_tokens >= 7 * 16
    assert run.total_tokens_per_second == pytest.approx(8 * 23 / run.seconds)
    assert run.output_tokens_per_second == pytest.approx(24 / run.seconds)
    assert 0 < run.host_share < 1
    assert (
        measure(llm, Workload(num_prompts=2, input_len=16, output_len=1), 2, use_bar=False).num_cached_tokens
        == 0
    )


def test_answers_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    llm = LLM(str(write_toy_gguf(tmp_path / "toy.gguf")), num_blocks=64, max_model_len=8)
    with pytest.raises(ValueError, match="9 tokens an answer"):
        measure(llm, Workload(num_prompts=1, input_len=4, output_len=9), 0, use_bar=False)


def test_the_run_in_the_middle_counts() -> None:
    runs = [
        Measurement(seconds=s, num_steps=1, output_tokens_per_second=1, total_tokens_per_second=1)
        for s in (9, 1, 5)
    ]
    assert median(runs).seconds == 5
    assert median(runs[:2]).seconds == 9


def test_a_stream(llm: LLM) -> None:
    result = measure_stream(llm, 5, 6, repeats=3)
    assert len(result.itls) == 3 * 5
    assert result.ttft > 0
    assert result.tokens_per_second == pytest.approx(1 / result.tpot)


def test_the_clock_counts_steps_and_is_taken_off(llm: LLM) -> None:
    before = NativeExecutor.run
    with executor_clock() as clock:
        assert NativeExecutor.run is not before
        llm.generate([[1, 2, 3]])
    assert 0 < clock.num_calls == llm.num_steps
    assert clock.seconds > 0
    assert NativeExecutor.run is before


def test_the_clock_is_taken_off_after_a_failure() -> None:
    before = NativeExecutor.run
    with contextlib.suppress(KeyError), executor_clock():
        raise KeyError
    assert NativeExecutor.run is before

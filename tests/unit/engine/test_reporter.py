"""What the engine tells its metrics, on a toy."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from octavo.batch import ScheduledBatch
from octavo.engine.stats import RequestStats, StepStats
from octavo.scheduler.stats import SchedulerStats
from support.harness import GREEDY, Harness


class Notebook:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []
        self.changes: list[SchedulerStats] = []

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request_finished(self, stats: RequestStats) -> None:
        self.requests.append(stats)

    def on_scheduler(self, stats: SchedulerStats) -> None:
        self.changes.append(stats)


def test_tokens_and_times_add_up(toy_path: Path) -> None:
    harness = Harness(toy_path, block_size=4, max_num_batched_tokens=16)
    notebook = harness.engine.reporter.sink = Notebook()
    harness.add("forked", list(range(30)), dataclasses.replace(GREEDY, n=3, max_tokens=5))
    harness.add("alone", list(range(100, 109)), dataclasses.replace(GREEDY, max_tokens=4))
    harness.run()
    harness.add("warm", list(range(30)), dataclasses.replace(GREEDY, max_tokens=2))
    harness.run()
    assert sum(step.num_prompt_tokens for step in notebook.steps) == 30 + 9 + 1
    assert sum(step.num_generated_tokens for step in notebook.steps) == 3 * 5 + 4 + 2
    assert sum(len(step.first_token_seconds) for step in notebook.steps) == 3
    assert sum(len(step.inter_token_seconds) for step in notebook.steps) == 3 * 4 + 3 + 1
    for stats in notebook.requests:
        assert stats.finish_reason == "length"
        assert min(stats.queue_seconds, stats.prefill_seconds, stats.decode_seconds) >= 0
        parts = stats.queue_seconds + stats.prefill_seconds + stats.decode_seconds
        assert abs(parts - stats.e2e_seconds) < 1e-3
    assert sorted(
        (r.num_prompt_tokens, r.num_cached_tokens, r.num_output_tokens) for r in notebook.requests
    ) == [(9, 0, 4), (30, 0, 15), (30, 29, 2)]


def test_all_rounds_of_a_step_are_counted(toy_path: Path) -> None:
    harness = Harness(toy_path, patience=math.inf)
    notebook = harness.engine.reporter.sink = Notebook()
    harness.add("alone", list(range(30)), dataclasses.replace(GREEDY, logprobs=None, max_tokens=12))
    harness.run()
    assert [step.num_tokens for step in notebook.steps] == [30, 8, 3], "the last token is never computed"
    assert [step.num_generated_tokens for step in notebook.steps] == [1, 8, 3]
    assert [len(step.inter_token_seconds) for step in notebook.steps] == [0, 8, 3]


def test_an_end_that_the_text_shows_is_told_at_once(toy_path: Path) -> None:
    harness = Harness(toy_path)
    text = harness.answer(list(range(30))).text
    notebook = harness.engine.reporter.sink = Notebook()
    harness.answer(list(range(30)), dataclasses.replace(GREEDY, stop=(text[3:6],)))
    assert harness.answers["solo-1"][0].finish_reason == "stop"
    assert notebook.steps[-1].scheduler.num_running == 1, "as the step left it"
    assert [change.num_running for change in notebook.changes] == [0, 0], "at the arrival and at the end"


def test_a_failing_sink_harms_nobody(toy_path: Path) -> None:
    class Broken(Notebook):
        def on_step(self, stats: StepStats) -> None:
            raise RuntimeError("no")

        def on_scheduler(self, stats: SchedulerStats) -> None:
            raise RuntimeError("no")

    harness = Harness(toy_path)
    harness.engine.reporter.sink = Broken()
    assert len(harness.answer([1, 2, 3]).token_ids) == GREEDY.max_tokens


def test_tokens_of_a_failed_step_are_not_counted(toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(toy_path, block_size=4)
    notebook = harness.engine.reporter.sink = Notebook()
    runner = harness.engine.core.runner
    run, batches = runner.run, []

    def fail_once(batch: ScheduledBatch) -> object:
        batches.append(batch)
        if len(batches) == 1:
            raise RuntimeError("once")
        return run(batch)

    monkeypatch.setattr(runner, "run", fail_once)
    for request_id, prompt in (("a", range(9)), ("b", range(50, 55))):
        harness.add(request_id, list(prompt), dataclasses.replace(GREEDY, max_tokens=3))
    num_changes = len(notebook.changes)
    harness.step()
    assert notebook.steps == []
    assert [change.num_waiting for change in notebook.changes[num_changes:]] == [2]
    harness.run()
    assert [len(batch.sequences) for batch in batches[:3]] == [2, 1, 1], "each is tried again alone"
    assert sum(step.num_prompt_tokens for step in notebook.steps) == 9 + 5
    assert sum(step.num_tokens for step in notebook.steps) == sum(batch.num_tokens for batch in batches[1:])
    assert sum(step.num_generated_tokens for step in notebook.steps) == 2 * 3
    assert [stats.finish_reason for stats in notebook.requests] == ["length", "length"]


def test_changes_outside_a_step_are_told(toy_path: Path) -> None:
    harness = Harness(toy_path)
    notebook = harness.engine.reporter.sink = Notebook()
    harness.add("a", [1, 2, 3])
    assert notebook.changes[-1].num_waiting == 1
    harness.step()
    harness.abort("a")
    assert notebook.changes[-1].num_running == 0

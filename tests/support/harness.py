"""Drives a whole engine step by step, so that tests can look at, and interfere with, every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.assembly import assemble
from octavo.engine.outputs import RequestDelta
from octavo.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
SEEDED = SamplingParams(temperature=1.0, top_p=0.95, seed=1234, max_tokens=12, ignore_eos=True, logprobs=3)


@dataclass
class Answer:
    """All that a client could see of one choice. Compared exactly, floats included."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[tuple[int, float, int], ...]] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None


class Harness:
    """An engine with integrity checks after every step."""

    def __init__(self, model: Path | str, *, patience: float = 0.0, **options: object) -> None:
        options.setdefault("num_threads", 1)
        options.setdefault("num_blocks", 128)
        self.assembly = assemble(EngineConfig.from_options(str(model), debug_checks=True, **options))
        self.engine = self.assembly.engine
        self.scheduler = self.engine.scheduler
        self.answers: dict[str, list[Answer]] = {}
        self.num_cached: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        self.patience = patience
        self.num_steps = 0
        self.max_running = 0

    def add(
        self, request_id: str, prompt: Sequence[int], params: SamplingParams = GREEDY, **more: str
    ) -> None:
        self.engine.add(request_id, prompt, params, **more)
        self.answers[request_id] = [Answer() for _ in range(params.n)]

    def step(self) -> list[RequestDelta]:
        deltas = self.engine.step(self.patience)
        self.num_steps += 1
        self.max_running = max(self.max_running, self.stats.num_running)
        for delta in deltas:
            self._take(delta)
        return deltas

    def run(self, before_step: Callable[[Harness], None] | None = None, max_steps: int = 20_000) -> None:
        """Step until nothing is left. The step limit is the watchdog: without progress it fails."""
        for _ in range(max_steps):
            if not self.engine.has_unfinished:
                return
            if before_step is not None:
                before_step(self)
            self.step()
        raise AssertionError(f"still unfinished after {max_steps} steps: {self.engine.unfinished_ids}")

    def answer(self, prompt: Sequence[int], params: SamplingParams = GREEDY, request_id: str = "") -> Answer:
        """Run one more request to its end, alone."""
        request_id = request_id or f"solo-{len(self.answers)}"
        self.add(request_id, prompt, params)
        self.run()
        return self.answers[request_id][0]

    def abort(self, request_id: str) -> None:
        for delta in self.engine.abort(request_id):
            self._take(delta)

    @property
    def stats(self):  # type: ignore[no-untyped-def]
        return self.scheduler.stats()

    def assert_drained(self) -> None:
        """Idle: every block is free or cached, nothing runs or waits."""
        stats = self.stats
        assert (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0)
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks
        assert not self.engine.has_unfinished
        self.scheduler.check_integrity()

    def _take(self, delta: RequestDelta) -> None:
        self.num_cached[delta.request_id] = delta.num_cached_tokens
        indices = [choice.index for choice in delta.choices]
        assert len(set(indices)) == len(indices), "a choice has two deltas"
        for choice in delta.choices:
            answer = self.answers[delta.request_id][choice.index]
            answer.token_ids.extend(choice.token_ids)
            answer.text += choice.text
            answer.finish_reason = choice.finish_reason or answer.finish_reason
            for entry in choice.logprobs or ():
                answer.logprobs.append(tuple((c.token_id, c.logprob, c.rank) for c in entry))
            if choice.error is not None:
                self.errors[delta.request_id] = choice.error


class Cold:
    """The reference: a fresh look at each prompt, alone, prefix cache off, prompt in one chunk."""

    def __init__(self, model: Path | str, **options: object) -> None:
        self._harness = Harness(
            model,
            **{"enable_prefix_caching": False, "max_num_batched_tokens": 4096, "num_blocks": 128, **options},
        )
        self._known: dict[tuple[object, ...], list[Answer]] = {}

    def answers(self, prompt: Sequence[int], params: SamplingParams = GREEDY) -> list[Answer]:
        key = (tuple(prompt), repr(params))
        if key not in self._known:
            request_id = f"cold-{len(self._known)}"
            self._harness.add(request_id, prompt, params)
            self._harness.run()
            self._known[key] = self._harness.answers[request_id]
        return self._known[key]

    def answer(self, prompt: Sequence[int], params: SamplingParams = GREEDY) -> Answer:
        return self.answers(prompt, params)[0]

"""Offline runs of the engine: batches, one stream, and how much of a step is not the kernels'."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from statistics import median as middle
from typing import TYPE_CHECKING, Any

from octavo.params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.llm import LLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    num_prompts: int
    input_len: int
    """Tokens of each prompt, drawn at random from the vocabulary."""
    output_len: int
    """Tokens of each answer: greedy, the end-of-sequence token ignored."""
    shared_prefix_len: int = 0
    """Tokens that all prompts of a run begin with, before their own."""

    @property
    def num_tokens(self) -> int:
        return self.num_prompts * (self.shared_prefix_len + self.input_len + self.output_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run of a workload."""

    seconds: float
    num_steps: int
    output_tokens_per_second: float
    total_tokens_per_second: float
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache gave."""
    host_share: float = 0.0
    """Share of the run outside the executor: scheduler, inputs, sampling in Python, detokenizer."""


def random_tokens(llm: LLM, count: int, seed: object) -> list[int]:
    """Token ids that a prompt may hold. The same seed gives the same ids."""
    vocabulary = range(llm.tokenizer.vocab_size)
    return random.Random(repr(seed)).choices(vocabulary, k=count)


def measure(llm: LLM, workload: Workload, seed: int, *, use_bar: bool | None) -> Measurement:
    """Run the workload once, on prompts of `seed`: equal prompts would be found in the prefix cache."""
    prefix = random_tokens(llm, workload.shared_prefix_len, (seed, "prefix"))
    prompts = [
        prefix + random_tokens(llm, workload.input_len, (seed, i)) for i in range(workload.num_prompts)
    ]
    params = SamplingParams(temperature=0, max_tokens=workload.output_len, ignore_eos=True)
    with executor_clock() as clock:
        steps_before, started = llm.num_steps, time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=use_bar)
        seconds = time.perf_counter() - started
    num_output_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    if num_output_tokens != workload.num_prompts * workload.output_len:
        raise ValueError(
            f"expected {workload.output_len} tokens an answer; the model's length does not allow them"
        )
    return Measurement(
        seconds=seconds,
        num_steps=llm.num_steps - steps_before,
        output_tokens_per_second=num_output_tokens / seconds,
        total_tokens_per_second=workload.num_tokens / seconds,
        num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
        host_share=1 - clock.seconds / seconds,
    )


def median(runs: Sequence[Measurement]) -> Measurement:
    """The run in the middle by time; of an even number, the slower of the two."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """One stream at one prompt length: medians over the repetitions, in seconds."""

    input_len: int
    output_len: int
    ttft: float
    tpot: float
    itls: tuple[float, ...] = field(repr=False)
    """All gaps between tokens, of all repetitions."""

    @property
    def tokens_per_second(self) -> float:
        """Of decoding."""
        return 1 / self.tpot


def measure_stream(llm: LLM, input_len: int, output_len: int, *, repeats: int, seed: int = 0) -> StreamResult:
    """Answer single prompts, each with tokens of its own, one after the other. output_len: at least 2."""
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    ttfts, tpots, itls = [], [], []
    for index in range(repeats + 1):
        prompt = random_tokens(llm, input_len, (seed, input_len, index))
        started = time.perf_counter()
        times: list[float] = []  # of tokens: several may come at once
        for delta in llm.stream(prompt, params):
            times += [time.perf_counter()] * sum(len(choice.token_ids) for choice in delta.choices)
        if index == 0:
            continue  # warms up
        ttfts.append(times[0] - started)
        tpots.append((times[-1] - times[0]) / (output_len - 1))
        itls += [after - before for before, after in pairwise(times)]
    return StreamResult(
        input_len=input_len, output_len=output_len, ttft=middle(ttfts), tpot=middle(tpots), itls=tuple(itls)
    )


@dataclass(slots=True)
class Clock:
    seconds: float = 0.0
    num_calls: int = 0


@contextmanager
def method_clock(owner: type, *names: str) -> Iterator[Clock]:
    """Adds up the time that this process spends in the methods of a class, while it is open.

    The parts of a step stand in the middle of the engine and nothing should be added to them for this, so
    the class is lent a clock. The methods must not call each other.
    """
    clock = Clock()
    methods = {name: getattr(owner, name) for name in names}
    try:
        for name, method in methods.items():
            setattr(owner, name, _timed(method, clock))
        yield clock
    finally:
        for name, method in methods.items():
            setattr(owner, name, method)


def executor_clock() -> AbstractContextManager[Clock]:
    """A clock on the native executors' steps."""
    from octavo.kernels.native import NativeExecutor

    return method_clock(NativeExecutor, "run", "run_best")


def _timed(method: Any, clock: Clock) -> Any:
    @wraps(method)
    def timed(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*arguments, **options)
        finally:
            clock.seconds += time.perf_counter() - started
            clock.num_calls += 1

    return timed

"""What every engine is asked, and how a figure comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.bench.prompts import words


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Prompts to be answered with output_len tokens each, at most max_concurrency at a time."""

    prompts: tuple[str, ...]
    output_len: int
    max_concurrency: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    title: str
    unit: str
    jobs: Callable[[int], tuple[Job, ...]]
    """From a seed: no prompt of one repetition is found in a cache that another has filled."""
    figure: Callable[[list[float]], float]
    """From the seconds of the jobs. More is better."""
    repeats: int
    """Repetitions of a full run; the long scenarios have few."""


def _one_stream(seed: int) -> tuple[Job, ...]:
    """The prompt's time is taken off the answer's. The first job takes the price of a resumed process."""
    return tuple(
        Job(prompts=(words((seed, index), 100),), output_len=output_len)
        for index, output_len in enumerate((32, 1, 129))
    )


def _streams(seed: int) -> tuple[Job, ...]:
    prompts = tuple(words((seed, index), 100) for index in range(32))
    return (Job(prompts=prompts, output_len=64, max_concurrency=32),)


def _prefill(seed: int) -> tuple[Job, ...]:
    return (Job(prompts=(words((seed, "long"), 1000),), output_len=1),)


def _shared(seed: int) -> tuple[Job, ...]:
    prefix = words((seed, "prefix"), 800)
    prompts = tuple(f"{prefix} {words((seed, index), 32)}" for index in range(64))
    return (Job(prompts=prompts, output_len=64, max_concurrency=16),)


SCENARIOS = {
    "one-stream": Scenario(
        title="one stream, decoding",
        unit="tok/s",
        jobs=_one_stream,
        figure=lambda seconds: 128 / (seconds[2] - seconds[1]),
        repeats=3,
    ),
    "32-streams": Scenario(
        title="32 streams, 100 in, 64 out",
        unit="output tok/s",
        jobs=_streams,
        figure=lambda seconds: 32 * 64 / seconds[0],
        repeats=2,
    ),
    "prefill": Scenario(
        title="prefill of 1,000 tokens",
        unit="prompt tok/s",
        jobs=_prefill,
        figure=lambda seconds: 1000 / seconds[0],
        repeats=3,
    ),
    "shared-prefix": Scenario(
        title="64 requests after a common 800 tokens, 16 at a time",
        unit="output tok/s",
        jobs=_shared,
        figure=lambda seconds: 64 * 64 / seconds[0],
        repeats=1,
    ),
}

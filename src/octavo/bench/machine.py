"""What this machine can do at most: the denominators of every share that is reported."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeVar

from octavo.kernels import info

STREAM_BYTES = 256 << 20
"""Well beyond the caches."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The best of several repetitions each: a limit is what was reached once."""

    isa: str
    num_threads: int
    stream_bytes_per_second_1: float
    """Reading memory, huge pages, one thread."""
    stream_bytes_per_second: float
    """The same on all threads."""
    fma_ops_per_second: float | None
    """float32 multiply-adds from registers, on all threads, two operations each; None where not measured."""
    int8_ops_per_second: float | None
    """int8 multiply-adds into 16 bits from registers, on all threads; None where the ISA has none."""
    group_ops_per_second: float | None
    """The same of a bare loop of 4-bit groups over the L1 cache: scales, minima and sums take the rest."""
    phase_seconds: float
    """What a phase of the thread team costs beyond its work; the median."""


ROUNDS = 3
LOOPS = ("fma", "int8", "groups")


def measure_limits(num_threads: int | None = None, *, isa: str = "", repeats: int = 3) -> Limits:
    """Takes about two seconds, in rounds, so that a neighbour's burst of work does not spoil one figure.

    isa: a kernel table, by default the one in use.
    """
    from octavo import _native

    threads = num_threads or info()["threads"]
    rates: dict[str, list[float]] = {name: [] for name in ("stream_1", "stream", *LOOPS, "phase")}
    for _ in range(ROUNDS):
        rates["stream_1"] += _native.stream_rates(STREAM_BYTES, 1, repeats, isa)
        rates["stream"] += _native.stream_rates(STREAM_BYTES, threads, repeats, isa)
        for loop in LOOPS:
            rates[loop] += _native.loop_rates(loop, threads, repeats, isa) or []
        rates["phase"] += _native.phase_seconds(threads, repeats)
    return Limits(
        isa=isa or info()["isa"],
        num_threads=threads,
        stream_bytes_per_second_1=max(rates["stream_1"]),
        stream_bytes_per_second=max(rates["stream"]),
        fma_ops_per_second=max(rates["fma"], default=None),
        int8_ops_per_second=max(rates["int8"], default=None),
        group_ops_per_second=max(rates["groups"], default=None),
        phase_seconds=median(rates["phase"]),
    )


def measure_beside(limits: Limits, figures: Iterable[Callable[[], T]]) -> Iterator[tuple[T, Limits]]:
    """What each figure gives, and the mean of the limits right before and after it.

    Memory and clock of a virtual machine move within seconds: a share of what was measured a minute ago says
    little. A look at the limits takes a fifth of a second.
    """
    before = look_again(limits)
    for figure in figures:
        result = figure()
        after = look_again(limits)
        yield result, mean_of(before, after)
        before = after


def look_again(limits: Limits) -> Limits:
    """The rates of all threads as they are now; the others as they were."""
    from octavo import _native

    threads, isa = limits.num_threads, limits.isa
    stream = _native.stream_rates(STREAM_BYTES, threads, 3, isa)
    fma, int8, groups = (_native.loop_rates(loop, threads, 3, isa) or [] for loop in LOOPS)
    return replace(
        limits,
        stream_bytes_per_second=max(stream),
        fma_ops_per_second=max(fma, default=None),
        int8_ops_per_second=max(int8, default=None),
        group_ops_per_second=max(groups, default=None),
    )


def mean_of(before: Limits, after: Limits) -> Limits:
    def mean(one: float | None, other: float | None) -> float | None:
        return None if one is None or other is None else fmean((one, other))

    return replace(
        after,
        stream_bytes_per_second=fmean((before.stream_bytes_per_second, after.stream_bytes_per_second)),
        fma_ops_per_second=mean(before.fma_ops_per_second, after.fma_ops_per_second),
        int8_ops_per_second=mean(before.int8_ops_per_second, after.int8_ops_per_second),
        group_ops_per_second=mean(before.group_ops_per_second, after.group_ops_per_second),
    )


def describe_machine() -> dict[str, object]:
    """What a reader of figures wants to know of the machine."""
    return {
        "cpu": _cpu_name(),
        "threads": info()["threads"],
        "isa": info()["isa"],
        "system": platform.platform(),
    }


def _cpu_name() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

"""The figures that octavo promises, measured in one run: a line each, with the target beside it.

    python benchmarks/report.py                              everything but the peers, about three minutes
    python benchmarks/report.py --peers peers.json           with the ratios of a run of peers/run.py --json
    python benchmarks/report.py --only one-stream,host       some of it

docs/performance.md says what each figure means and what bounds it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import resident_memory

from octavo import LLM, SamplingParams
from octavo.bench.kernels import (
    AttentionResult,
    HeadShape,
    MatmulResult,
    measure_attention,
    measure_matmul,
)
from octavo.bench.machine import Limits, describe_machine, measure_beside, measure_limits
from octavo.bench.offline import executor_clock, measure_stream, method_clock
from octavo.bench.random_model import random_model
from octavo.cli.bench.tables import print_table
from octavo.config import EngineConfig
from octavo.engine.assembly import assemble
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.engine import Engine
from octavo.formats.sources import resolve
from octavo.kernels.ops import Linear
from octavo.kernels.weights import WeightType
from octavo.models.loader import load_model
from octavo.scheduler.scheduler import Scheduler

MODEL = "smollm2-135m"
STREAM_ROUNDS = 12
MATMUL_ROUNDS = 2
ATTENTION_ROUNDS = 7
CACHE_ROUNDS = 16
PROMPT_IDS = range(1000, 40_000)
WEIGHTS = {"Q4_0": WeightType.Q4_0, "Q4_1": WeightType.Q4_1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    figure: str
    value: str
    target: str
    is_met: bool


def share(figure: str, value: float, target: float, note: str = "") -> Row:
    return Row(figure=figure, value=f"{value:.1%}{note}", target=f"≥ {target:.0%}", is_met=value >= target)


def most(figure: str, value: float, target: float, note: str = "") -> Row:
    return Row(figure=figure, value=f"{value:.1%}{note}", target=f"≤ {target:.0%}", is_met=value <= target)


def share_of(figure: str, pairs: Sequence[tuple[float, float]], target: float, unit: str) -> Row:
    """The median share over pairs of what was reached and the limit beside it, with the medians of both."""
    reached, limit = (statistics.median(values) for values in zip(*pairs, strict=True))
    value = statistics.median(one / other for one, other in pairs)
    return share(figure, value, target, f" ({reached:.1f} of {limit:.1f} {unit})")


def likely_range(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, whatever the distribution: the signs of a fair coin."""
    ordered = sorted(values)
    low = max(0, math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))) - 1)
    return ordered[low], ordered[-1 - low]


def bytes_a_token(path: Path) -> int:
    """Weight bytes that decoding one token reads: every matrix of a linear op once."""
    program = load_model(path).program
    names = {op.weight for op in program.ops if isinstance(op, Linear)}
    return sum(program.weights[name].num_bytes for name in names)


def one_stream(limits: Limits, path: Path, figure: str) -> Iterator[Row]:
    num_bytes = bytes_a_token(path)
    with LLM(str(path), max_num_seqs=1, kv_cache_memory=256 << 20) as llm:
        seeds = iter(range(STREAM_ROUNDS))

        def rate() -> float:
            return measure_stream(llm, 16, 32, repeats=2, seed=next(seeds)).tokens_per_second

        pairs = [
            (reached, now.stream_bytes_per_second / num_bytes)
            for reached, now in measure_beside(limits, [rate] * STREAM_ROUNDS)
        ]
    yield share_of(figure, pairs, 0.85, "tok/s")


def matmul(limits: Limits) -> Iterator[Row]:
    """The median over rounds and the shapes of SmolLM2's layers."""
    for name, weight_type in WEIGHTS.items():
        results: dict[int, list[MatmulResult]] = {}
        for rows, cols in ((576, 576), (1536, 576), (576, 1536)) * MATMUL_ROUNDS:
            for result in measure_matmul(weight_type, rows, cols, (16, 32, 128), limits, repeats=5):
                results.setdefault(result.num_tokens, []).append(result)
        for num_tokens, own in results.items():
            rates = [2 * r.rows * r.cols * num_tokens / r.warm_seconds / 1e9 for r in own]
            pairs = [
                (rate, rate / (r.arithmetic_share or math.inf)) for rate, r in zip(rates, own, strict=True)
            ]
            of_bare_loop = statistics.median(r.group_share or math.nan for r in own)
            unit = f"GOP/s; {of_bare_loop:.0%} of the bare loop"
            yield share_of(f"{name} matmul at M = {num_tokens}, of the int8 rate", pairs, 0.75, unit)


def attention(limits: Limits) -> Iterator[Row]:
    def decode() -> AttentionResult:
        return measure_attention(limits, context_len=8192, num_seqs=8, repeats=3)

    num_bytes = 8 * 8192 * HeadShape().bytes_per_token
    measured = list(measure_beside(limits, [decode] * ATTENTION_ROUNDS))
    pairs = [
        (num_bytes / result.in_order_seconds / 1e9, now.stream_bytes_per_second / 1e9)
        for result, now in measured
    ]
    yield share_of("decode attention, 8 x 8k, of the stream", pairs, 0.70, "GB/s")
    # Anew each time: where memory happens to lie moves the cost by some per cent either way.
    prefill = [
        measure_attention(limits, context_len=8192, num_queries=128, repeats=5)
        for _ in range(ATTENTION_ROUNDS)
    ]
    for what, results in (("decode", [result for result, _ in measured]), ("prefill", prefill)):
        scatter = statistics.median(result.scatter_cost for result in results)
        yield most(
            f"paged against contiguous, {what}",
            statistics.median(result.paging_cost for result in results),
            0.02,
            f" (blocks in random order: {scatter:+.1%} more)",
        )


@dataclass(frozen=True, slots=True)
class StepTime:
    seconds: float
    scheduler_seconds: float
    """Of schedule and commit, in which all work of the prefix cache lies."""


def prefix_cache(limits: Limits) -> Iterator[Row]:
    """With and without, a step of each in turn, on the same prompts, which have nothing in common.

    Both have schedulers of their own and one executor: two would differ by where their memory lies. They
    overwrite each other's K and V, but nobody reads these answers. The pool is full of cached blocks after
    the first rounds, so that each new block evicts an old one. Steps are short, so that what the machine does
    meanwhile hits both alike.
    """
    options: dict[str, Any] = {"max_num_seqs": 8, "num_blocks": 128, "max_num_batched_tokens": 32}
    engines = {
        on: assemble(EngineConfig.from_options(MODEL, enable_prefix_caching=on, **options)).engine
        for on in (True, False)
    }
    engines[False].core.runner = engines[True].core.runner
    rounds = [list(_steps_in_turn(engines, seed)) for seed in range(CACHE_ROUNDS + 3)][3:]
    stats = engines[True].scheduler.stats()
    assert stats.num_evictions > CACHE_ROUNDS
    assert stats.num_prefix_hits < 0.01 * stats.num_prefix_queries
    own = [
        sum(on.scheduler_seconds - off.scheduler_seconds for on, off in steps)
        / sum(on.seconds for on, _ in steps)
        for steps in rounds
    ]
    ratios = [on.seconds / off.seconds - 1 for steps in rounds for on, off in steps]
    for figure, values in {
        "prefix cache, no hits: its own work, of the steps": own,
        "prefix cache, no hits: a step with it against one without": ratios,
    }.items():
        low, high = likely_range(values)
        yield most(figure, statistics.median(values), 0.01, f" ({low:+.2%} to {high:+.2%})")


def _steps_in_turn(engines: Mapping[bool, Engine], seed: int) -> Iterator[tuple[StepTime, StepTime]]:
    """Of eight answers with the prefix cache and without."""
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    source = random.Random(seed)
    for index in range(8):
        prompt = source.choices(PROMPT_IDS, k=32)
        for engine in engines.values():
            engine.add(f"{seed}-{index}", prompt, params)
    turn = [True, False]
    while engines[True].has_unfinished:
        times = {on: _time_step(engines[on]) for on in turn}
        yield times[True], times[False]
        turn.reverse()
    assert not engines[False].has_unfinished


def _time_step(engine: Engine) -> StepTime:
    with method_clock(Scheduler, "schedule", "commit") as clock:
        started = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - started
    return StepTime(seconds, clock.seconds)


async def _stream_all(engine: AsyncLLM, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
    async def read(index: int, prompt: Sequence[int]) -> None:
        stream = await engine.submit(prompt, params, request_id=f"{time.monotonic_ns()}-{index}")
        async for _ in stream:
            pass

    await asyncio.gather(*(read(index, prompt) for index, prompt in enumerate(prompts)))


def host(limits: Limits) -> Iterator[Row]:
    """Streams of the server's engine, without HTTP: scheduler, inputs, sampling, detokenizer, delivery."""
    engine = AsyncLLM(EngineConfig.from_options(MODEL, max_num_seqs=32, kv_cache_memory=512 << 20))
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    shares = []
    for seed in range(4):
        prompts = [[(seed * 977 + row * 31 + i * 7) % 40000 for i in range(100)] for row in range(32)]
        with executor_clock() as clock:
            started = time.perf_counter()
            asyncio.run(_stream_all(engine, prompts, params))
            seconds = time.perf_counter() - started
        shares.append(1 - clock.seconds / seconds)
    engine.close()
    yield most("host time, 32 streams, of the step", statistics.median(shares[1:]), 0.05)


def start(limits: Limits) -> Iterator[Row]:
    command = [
        sys.executable,
        "-m",
        "octavo",
        "run",
        "Hi",
        "--raw",
        "--max-tokens",
        "1",
        "--temperature",
        "0",
    ]
    times = []
    for _ in range(6):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    value = statistics.median(times[1:])
    yield Row(
        figure="process start to first token", value=f"{value:.2f} s", target="≤ 1.5 s", is_met=value <= 1.5
    )


def memory(limits: Limits) -> Iterator[Row]:
    beyond = resident_memory.measure(MODEL).beyond
    yield Row(
        figure="server, 32 streams: resident beyond weights and KV pool",
        value=f"{beyond / 2**20:.0f} MiB",
        target="≤ 150 MB",
        is_met=beyond <= 150e6,
    )


PEER_TARGETS = {"one-stream": 1.6, "32-streams": 3.5, "prefill": 3.0, "shared-prefix": 5.0}


def peers(paths: Sequence[Path]) -> Iterator[Row]:
    figures: dict[str, Any] = {}
    for path in paths:
        figures |= json.loads(path.read_text(encoding="utf-8"))["figures"]
    for name, target in PEER_TARGETS.items():
        medians = dict(figures.get(name, {}).get("medians", {}))
        ours, served = medians.pop("octavo", None), medians.pop("octavo-serve", None)
        if ours is None or not medians:
            continue  # not run, or it failed
        best = max(medians, key=lambda peer: medians[peer])
        value = f"{ours / medians[best]:.2f} x {best} ({ours:.0f} against {medians[best]:.0f})"
        if served is not None:
            value += f"; served {served / medians[best]:.2f} x"
        yield Row(
            figure=figures[name]["title"],
            value=value,
            target=f"≥ {target} x",
            is_met=ours >= target * medians[best],
        )


MEASURES: dict[str, Callable[[Limits], Iterator[Row]]] = {
    "one-stream": lambda limits: one_stream(limits, resolve(MODEL), "one stream, of the bandwidth"),
    "large": lambda limits: one_stream(limits, random_model(), "1.1B Q4_0, one stream, of the bandwidth"),
    "matmul": matmul,
    "attention": attention,
    "prefix-cache": prefix_cache,
    "host": host,
    "start": start,
    "memory": memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(MEASURES), help="of " + ", ".join(MEASURES))
    parser.add_argument(
        "--peers",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="what peers/run.py --json wrote; again for each run",
    )
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - set(MEASURES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    limits = measure_limits()
    machine = describe_machine()
    print(
        f"{time.strftime('%Y-%m-%d')}, {machine['cpu']}, {limits.num_threads} threads, {limits.isa}: ", end=""
    )
    print(f"stream {limits.stream_bytes_per_second / 1e9:.1f} GB/s, ", end="")
    print(f"int8 {(limits.int8_ops_per_second or 0) / 1e9:.0f} GOP/s, ", end="")
    print(f"fma {(limits.fma_ops_per_second or 0) / 1e9:.0f} GFLOP/s", flush=True)
    rows = list(peers(options.peers))
    for name in names:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        rows += MEASURES[name](limits)
    cells = [[row.figure, row.value, row.target, "met" if row.is_met else "not met"] for row in rows]
    print_table("figures", ["figure", "measured", "target", ""], cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())

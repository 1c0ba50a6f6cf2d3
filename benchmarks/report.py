"""The figures that octavo promises, measured in one run: a line each, with the target beside it.

    python benchmarks/report.py                              everything but the peers, about three minutes
    python benchmarks/report.py --peers peers.json           with the ratios of a run of peers/run.py --json
    python benchmarks/report.py --only one-stream,host       some of it

docs/performance.md says what each figure means and what bounds it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import LLM, SamplingParams
from octavo.bench.kernels import measure_attention, measure_matmul
from octavo.bench.machine import Limits, describe_machine, measure_limits
from octavo.bench.offline import Workload, executor_clock, measure, measure_stream
from octavo.bench.random_model import random_model
from octavo.cli.bench.tables import print_table
from octavo.config import EngineConfig
from octavo.engine.async_llm import AsyncLLM
from octavo.formats.sources import resolve
from octavo.kernels.native import NativeExecutor
from octavo.kernels.ops import Linear
from octavo.kernels.weights import WeightType
from octavo.models.loader import load_model

MODEL = "smollm2-135m"
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


def bytes_a_token(path: Path) -> int:
    """Weight bytes that decoding one token reads: every matrix of a linear op once."""
    program = load_model(path).program
    names = {op.weight for op in program.ops if isinstance(op, Linear)}
    return sum(program.weights[name].num_bytes for name in names)


def one_stream(limits: Limits, path: Path, figure: str) -> Iterator[Row]:
    with LLM(str(path), max_num_seqs=1, kv_cache_memory=256 << 20) as llm:
        stream = measure_stream(llm, 16, 128, repeats=5)
    limit = limits.stream_bytes_per_second / bytes_a_token(path)
    note = f" ({stream.tokens_per_second:.1f} of {limit:.1f} tok/s)"
    yield share(figure, stream.tokens_per_second / limit, 0.85, note)


def matmul(limits: Limits) -> Iterator[Row]:
    """The median over the shapes of SmolLM2's layers."""
    for name, weight_type in WEIGHTS.items():
        for num_tokens in (16, 32, 128):
            shares = [
                result.arithmetic_share or 0.0
                for rows, cols in ((576, 576), (1536, 576), (576, 1536))
                for result in measure_matmul(weight_type, rows, cols, (num_tokens,), limits, repeats=5)
            ]
            yield share(
                f"{name} matmul at M = {num_tokens}, of the int8 rate", statistics.median(shares), 0.75
            )


def attention(limits: Limits) -> Iterator[Row]:
    result = measure_attention(limits, context_len=8192, num_seqs=8, repeats=9)
    yield share("decode attention, 8 x 8k, of the stream", result.bandwidth_share, 0.70)
    yield most("paged against contiguous, decode", result.paging_cost, 0.02)
    prefill = measure_attention(limits, context_len=8192, num_queries=128, repeats=9)
    yield most("paged against contiguous, prefill", prefill.paging_cost, 0.02)


def prefix_cache(limits: Limits) -> Iterator[Row]:
    """Rounds of both, in turn, on prompts that have at most a first token in common with earlier ones."""
    workload = Workload(num_prompts=16, input_len=64, output_len=16)
    options: dict[str, Any] = {"max_num_seqs": 16, "kv_cache_memory": 256 << 20}
    llms = {on: LLM(MODEL, enable_prefix_caching=on, **options) for on in (True, False)}
    ratios = []
    for seed in range(16):
        runs = {on: measure(llm, workload, seed, use_bar=False) for on, llm in llms.items()}
        assert runs[True].num_cached_tokens < 0.01 * workload.num_tokens
        ratios.append(runs[True].seconds / runs[False].seconds)
    yield most("prefix cache on against off, no hits", statistics.median(ratios[1:]) - 1, 0.01)


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
    """In a process of its own, after 32 streams: what is resident, less the weights and the pool's pages."""
    folder = str(Path(__file__).parent)
    code = f"import sys; sys.path.append({folder!r}); import report; print(report.resident_bytes_beyond())"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    beyond = int(done.stdout) / 2**20
    yield Row(
        figure="resident beyond weights and KV pool",
        value=f"{beyond:.0f} MiB",
        target="≤ 150 MB",
        is_met=beyond * 2**20 <= 150e6,
    )


def resident_bytes_beyond() -> int:
    with LLM(MODEL, max_num_seqs=32, kv_cache_memory=256 << 20) as llm:
        measure(llm, Workload(num_prompts=32, input_len=100, output_len=64), 0, use_bar=False)
        executor = next(item for item in gc.get_objects() if isinstance(item, NativeExecutor))
        kv = executor.kv.ctypes.data
        status = Path("/proc/self/status").read_text(encoding="ascii")
        resident = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
        return resident - _mapping_rss(kv) - llm.plan.weight_bytes


def _mapping_rss(address: int) -> int:
    """Resident bytes of the mapping that holds an address."""
    is_found = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_found = int(match[1], 16) <= address < int(match[2], 16)
        elif is_found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise LookupError(hex(address))


PEER_TARGETS = {"one-stream": 1.6, "32-streams": 3.5, "prefill": 3.0, "shared-prefix": 5.0}


def peers(path: Path) -> Iterator[Row]:
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    for name, target in PEER_TARGETS.items():
        if name not in figures:
            continue
        medians = dict(figures[name]["medians"])
        ours, served = medians.pop("octavo"), medians.pop("octavo-serve", None)
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
    parser.add_argument("--peers", type=Path, metavar="FILE", help="what peers/run.py --json wrote")
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
    rows = list(peers(options.peers)) if options.peers else []
    for name in names:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        rows += MEASURES[name](limits)
    cells = [[row.figure, row.value, row.target, "met" if row.is_met else "not met"] for row in rows]
    print_table("figures", ["figure", "measured", "target", ""], cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())

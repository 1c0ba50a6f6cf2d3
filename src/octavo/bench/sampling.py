"""The sampler that is served, with the native chooser, under a clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from octavo.batch import SampleRow, ScheduledBatch
from octavo.kernels import info
from octavo.kernels.kv_layout import KVLayout
from octavo.kernels.native import NativeExecutor
from octavo.kernels.ops import Embed, Linear, Program, TakeRows
from octavo.kernels.weights import Weight, WeightType
from octavo.params import SamplingParams
from octavo.sampling.sampler import Sampler

SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.8, seed=1),
    "top_k 40, top_p 0.95": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1),
    "top_p 0.95": SamplingParams(temperature=0.8, top_p=0.95, seed=1),
    "penalties, greedy": SamplingParams(temperature=0, repetition_penalty=1.1, presence_penalty=0.1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingResult:
    setting: str
    vocab_size: int
    num_rows: int
    seconds_per_row: float


def measure_sampling(vocab_size: int = 49152, num_rows: int = 32, repeats: int = 5) -> list[SamplingResult]:
    """Choosing the tokens of one step, from logits that lie in memory, for every setting."""
    logits = np.random.default_rng(0).standard_normal((num_rows, vocab_size)).astype(np.float32) * 3
    sampler = Sampler(vocab_size, frozenset({0}), _smallest_executor(vocab_size).choose_tokens)
    results = []
    for name, params in SETTINGS.items():
        batch = _batch(params, num_rows)
        sampler.sample(logits, batch)  # warms up
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            sampler.sample(logits, batch)
            times.append(time.perf_counter() - started)
        seconds = median(times) / num_rows
        results.append(
            SamplingResult(setting=name, vocab_size=vocab_size, num_rows=num_rows, seconds_per_row=seconds)
        )
    return results


def _smallest_executor(vocab_size: int) -> NativeExecutor:
    """Native sampling runs on an executor's threads; this one has next to no model."""
    width = 8
    table = Weight("table", WeightType.F32, vocab_size, width, np.zeros(vocab_size * width * 4, np.uint8))
    program = Program(
        ops=(Embed("table", "x"), TakeRows("x", "row"), Linear("row", "table", "logits")),
        buffers={"x": width, "row": width, "logits": vocab_size},
        weights={"table": table},
        num_layers=1,
        num_kv_heads=1,
        head_dim=width,
        vocab_size=vocab_size,
    )
    layout = KVLayout(
        num_layers=1, num_kv_heads=1, head_dim=width, block_size=4, num_blocks=1, dtype="float16"
    )
    return NativeExecutor(program, layout, num_threads=info()["threads"], max_num_tokens=1)


def _batch(params: SamplingParams, num_rows: int) -> ScheduledBatch:
    rows = tuple(
        SampleRow(
            seq_id=row,
            row=row,
            params=params,
            seed=row,
            index=0,
            prompt_token_ids=range(1, 101),
            output_token_ids=range(200, 232),
        )
        for row in range(num_rows)
    )
    return ScheduledBatch(0, (), tuple(range(num_rows)), rows, (), num_rows)

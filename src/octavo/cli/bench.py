"""`octavo bench`: speed, measured in a way that others can repeat."""

from __future__ import annotations

import dataclasses
import random
import time
from dataclasses import dataclass
from typing import Any

import click

from octavo.cli.options import engine_options, given, json_option, model_option
from octavo.cli.terminal import fetch, print_fields, print_json
from octavo.params import SamplingParams

COUNT = click.IntRange(1)


@click.group()
def bench() -> None:
    """Measure speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    num_prompts: int
    input_len: int
    """Tokens of each prompt, drawn at random from the vocabulary."""
    output_len: int
    """Tokens of each answer: greedy, the end-of-sequence token ignored."""

    @property
    def num_tokens(self) -> int:
        return self.num_prompts * (self.input_len + self.output_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run of a workload."""

    seconds: float
    num_steps: int
    output_tokens_per_second: float
    total_tokens_per_second: float


@bench.command()
@model_option
@click.option("--num-prompts", type=COUNT, default=32, show_default=True, help="Prompts in a run.")
@click.option("--input-len", type=COUNT, default=100, show_default=True, help="Tokens of a prompt.")
@click.option("--output-len", type=COUNT, default=64, show_default=True, help="Tokens of an answer.")
@click.option("--max-concurrency", type=COUNT, help="Answers at a time; the same as --max-num-seqs.")
@click.option("--repeat", type=COUNT, default=3, show_default=True, help="Measured runs; the median counts.")
@json_option
@engine_options
def throughput(
    model: str,
    num_prompts: int,
    input_len: int,
    output_len: int,
    max_concurrency: int | None,
    repeat: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer a batch of random prompts offline. One run warms up, then --repeat runs are measured."""
    if max_concurrency is not None:
        if options["max_num_seqs"] is not None:
            raise click.UsageError("--max-concurrency and --max-num-seqs are the same; give one")
        options["max_num_seqs"] = max_concurrency
    workload = Workload(num_prompts=num_prompts, input_len=input_len, output_len=output_len)
    fetch(model)
    from octavo import LLM

    llm = LLM(model, **given(options))
    seed = options["seed"] or 0
    use_bar = False if as_json else None
    measure(llm, workload, seed, use_bar=use_bar)
    runs = [measure(llm, workload, seed + index, use_bar=use_bar) for index in range(1, repeat + 1)]
    llm.close()
    report = {
        "model": model,
        **dataclasses.asdict(workload),
        **dataclasses.asdict(median(runs)),
        "runs": [dataclasses.asdict(run) for run in runs],
        "memory": llm.plan.as_dict(),
    }
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def measure(llm: Any, workload: Workload, seed: int, *, use_bar: bool | None) -> Measurement:
    """Run the workload once, on prompts of `seed`: equal prompts would be found in the prefix cache."""
    source = random.Random(seed)
    vocabulary = range(llm.tokenizer.vocab_size)
    prompts = [source.choices(vocabulary, k=workload.input_len) for _ in range(workload.num_prompts)]
    params = SamplingParams(temperature=0, max_tokens=workload.output_len, ignore_eos=True)
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
    )


def median(runs: list[Measurement]) -> Measurement:
    """The run in the middle by time; of an even number, the slower of the two."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def _print_report(report: dict[str, Any]) -> None:
    rates = [run["output_tokens_per_second"] for run in report["runs"]]
    print_fields(
        {
            "model": report["model"],
            "prompts": f"{report['num_prompts']} of {report['input_len']} tokens, {report['output_len']} out",
            "wall": f"{report['seconds']:.2f} s",
            "steps": f"{report['num_steps']:,}",
            "output": f"{report['output_tokens_per_second']:.1f} tok/s",
            "total": f"{report['total_tokens_per_second']:.1f} tok/s",
            "runs": f"{len(rates)}, from {min(rates):.1f} to {max(rates):.1f} output tok/s",
        }
    )

"""`octavo bench throughput`: batches, offline."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from octavo.cli.options import COUNT, engine_options, given, json_option, model_option
from octavo.cli.terminal import fetch, print_fields, print_json


@click.command()
@model_option
@click.option("--num-prompts", type=COUNT, default=32, show_default=True, help="Prompts in a run.")
@click.option(
    "--input-len", type=COUNT, default=100, show_default=True, help="Tokens of a prompt of its own."
)
@click.option("--output-len", type=COUNT, default=64, show_default=True, help="Tokens of an answer.")
@click.option(
    "--shared-prefix-len",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Tokens that all prompts of a run begin with.",
)
@click.option("--max-concurrency", type=COUNT, help="Answers at a time; the same as --max-num-seqs.")
@click.option("--repeat", type=COUNT, default=3, show_default=True, help="Measured runs; the median counts.")
@json_option
@engine_options
def throughput(
    model: str,
    num_prompts: int,
    input_len: int,
    output_len: int,
    shared_prefix_len: int,
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
    fetch(model)
    from octavo import LLM
    from octavo.bench.offline import Workload, measure, median

    workload = Workload(
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        shared_prefix_len=shared_prefix_len,
    )
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


def _print_report(report: dict[str, Any]) -> None:
    from octavo.bench.report import percentile

    rates = [run["output_tokens_per_second"] for run in report["runs"]]
    quartiles = [percentile(rates, share) for share in (0.25, 0.75)]
    prompts = f"{report['num_prompts']} of {report['input_len']} tokens, {report['output_len']} out"
    if report["shared_prefix_len"]:
        prompts += f", after a common prefix of {report['shared_prefix_len']}"
    print_fields(
        {
            "model": report["model"],
            "prompts": prompts,
            "wall": f"{report['seconds']:.2f} s",
            "steps": f"{report['num_steps']:,}",
            "output": f"{report['output_tokens_per_second']:.1f} tok/s",
            "total": f"{report['total_tokens_per_second']:.1f} tok/s",
            "cached": f"{report['num_cached_tokens']:,} prompt tokens",
            "host": f"{report['host_share']:.1%} of the time is spent outside the executor",
            "runs": f"{len(rates)}, from {min(rates):.1f} to {max(rates):.1f} output tok/s, "
            f"half of them from {quartiles[0]:.1f} to {quartiles[1]:.1f}",
        }
    )

"""`octavo bench latency`: one stream, offline."""

from __future__ import annotations

from typing import Any

import click

from octavo.cli.bench.tables import print_table
from octavo.cli.options import COUNT, engine_options, given, int_list, json_option, model_option
from octavo.cli.terminal import fetch, print_json


@click.command()
@model_option
@click.option(
    "--input-lens",
    type=int_list,
    default="16,100,500,1000",
    show_default=True,
    help="Tokens of the prompts, with commas.",
)
@click.option(
    "--output-len", type=click.IntRange(2), default=64, show_default=True, help="Tokens of an answer."
)
@click.option("--repeat", type=COUNT, default=5, show_default=True, help="Measured prompts of each length.")
@json_option
@engine_options
def latency(
    model: str, input_lens: list[int], output_len: int, repeat: int, as_json: bool, **options: Any
) -> None:
    """Answer single prompts of each length, one after the other, after one that warms up."""
    fetch(model)
    from octavo import LLM
    from octavo.bench.offline import measure_stream
    from octavo.bench.report import spread_ms

    seed = options["seed"] or 0
    with LLM(model, **given(options)) as llm:
        results = [
            measure_stream(llm, length, output_len, repeats=repeat, seed=seed) for length in input_lens
        ]
    rows = [
        {
            "input_len": result.input_len,
            "output_len": result.output_len,
            "median_ttft_ms": result.ttft * 1e3,
            "median_tpot_ms": result.tpot * 1e3,
            **spread_ms("itl", result.itls),
            "prompt_tokens_per_second": result.input_len / result.ttft,
            "output_tokens_per_second": result.tokens_per_second,
        }
        for result in results
    ]
    if as_json:
        print_json({"model": model, "results": rows})
        return
    print_table(
        f"one stream, {output_len} tokens out, medians of {repeat}",
        ["prompt", "TTFT, ms", "prompt tok/s", "TPOT, ms", "output tok/s", "p99 ITL, ms"],
        [
            [
                str(row["input_len"]),
                f"{row['median_ttft_ms']:.1f}",
                f"{row['prompt_tokens_per_second']:.0f}",
                f"{row['median_tpot_ms']:.2f}",
                f"{row['output_tokens_per_second']:.1f}",
                f"{row['p99_itl_ms']:.2f}",
            ]
            for row in rows
        ],
    )

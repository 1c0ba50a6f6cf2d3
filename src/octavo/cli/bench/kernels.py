"""`octavo bench kernels`: the limits of this machine, and how near the kernels come."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.bench.tables import print_table
from octavo.cli.options import COUNT, int_list, json_option, name_list
from octavo.cli.terminal import print_fields, print_json, progress_bar

if TYPE_CHECKING:
    from octavo.bench.machine import Limits

PARTS = ("matmul", "attention", "sampling", "host")
WEIGHT_TYPES = ("Q4_0", "Q4_1", "Q8_0", "F16", "BF16", "F32")
DECODE_SEQS = 8
PREFILL_QUERIES = 128


@click.command()
@click.option(
    "--only",
    type=name_list(PARTS),
    default=",".join(PARTS),
    show_default=True,
    help="What to measure besides the limits, with commas.",
)
@click.option(
    "--types", type=name_list(WEIGHT_TYPES), default=",".join(WEIGHT_TYPES), help="Weight types of matmul."
)
@click.option(
    "--contexts", type=int_list, default="128,512,2048,8192,16384", show_default=True, help="Of attention."
)
@click.option("--block-size", type=COUNT, default=16, show_default=True, help="Tokens in a block.")
@click.option("--num-threads", type=COUNT, help="By default the cores that this process may use.")
@click.option("--isa", default="", help="Kernel table; by default the widest that this CPU has.")
@click.option("--repeat", type=COUNT, default=5, show_default=True, help="Repetitions; the median counts.")
@click.option("--model", default="smollm2-135m", show_default=True, help="For the host time of a step.")
@json_option
def kernels(
    only: list[str],
    types: list[str],
    contexts: list[int],
    block_size: int,
    num_threads: int | None,
    isa: str,
    repeat: int,
    model: str,
    as_json: bool,
) -> None:
    """Measure memory, arithmetic and barriers, then each kernel as a share of them."""
    from octavo.bench.machine import describe_machine, measure_limits

    limits = measure_limits(num_threads, isa=isa)
    report: dict[str, Any] = {"machine": describe_machine(), "limits": dataclasses.asdict(limits)}
    if "matmul" in only:
        report["matmul"] = _matmul(limits, types, repeat, show=not as_json)
    if "attention" in only:
        report["attention"] = _attention(limits, contexts, block_size, repeat, show=not as_json)
    if "sampling" in only:
        report["sampling"] = _sampling(repeat)
    if "host" in only:
        report["host"] = _host(model)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _matmul(limits: Limits, types: list[str], repeat: int, *, show: bool) -> list[dict[str, Any]]:
    from octavo.bench.kernels import MATMUL_ROWS, MATMUL_SHAPES, measure_matmul
    from octavo.kernels.weights import WeightType

    results = []
    with progress_bar("matmul", len(types) * len(MATMUL_SHAPES) * len(MATMUL_ROWS), show=show) as advance:
        for name in types:
            for rows, cols in MATMUL_SHAPES:
                measured = measure_matmul(WeightType[name], rows, cols, MATMUL_ROWS, limits, repeats=repeat)
                for result in measured:
                    results.append(dataclasses.asdict(result))
                    advance()
    return results


def _attention(
    limits: Limits, contexts: list[int], block_size: int, repeat: int, *, show: bool
) -> list[dict[str, Any]]:
    from octavo.bench.kernels import measure_attention

    results = []
    with progress_bar("attention", 2 * len(contexts), show=show) as advance:
        for num_seqs, num_queries in ((DECODE_SEQS, 1), (1, PREFILL_QUERIES)):
            for context_len in contexts:
                result = measure_attention(
                    limits,
                    context_len=context_len,
                    num_seqs=num_seqs,
                    num_queries=min(num_queries, context_len),
                    block_size=block_size,
                    repeats=repeat,
                )
                results.append(dataclasses.asdict(result))
                advance()
    return results


def _sampling(repeat: int) -> list[dict[str, Any]]:
    from octavo.bench.sampling import measure_sampling

    return [dataclasses.asdict(result) for result in measure_sampling(repeats=repeat)]


def _host(model: str) -> dict[str, Any]:
    """Of decoding with 32 streams."""
    from octavo import LLM
    from octavo.bench.offline import Workload, measure, median

    workload = Workload(num_prompts=32, input_len=16, output_len=64)
    with LLM(model, max_num_seqs=32) as llm:
        runs = [measure(llm, workload, seed, use_bar=False) for seed in range(4)][1:]
    run = median(runs)
    step = run.seconds / run.num_steps
    return {
        "model": model,
        "num_streams": workload.num_prompts,
        "step_seconds": step,
        "host_seconds": run.host_share * step,
        "host_share": run.host_share,
    }


def _print_report(report: dict[str, Any]) -> None:
    _print_limits(report["machine"], report["limits"])
    if "matmul" in report:
        _print_matmul(report["matmul"])
    if "attention" in report:
        _print_attention(report["attention"])
    if "sampling" in report:
        rows = [[r["setting"], f"{r['seconds_per_row'] * 1e6:.0f}"] for r in report["sampling"]]
        print_table("sampling, 32 rows of 49,152 logits", ["setting", "µs a row"], rows)
    if "host" in report:
        host = report["host"]
        click.echo(
            f"host time  {host['host_share']:.1%} of a step of {host['step_seconds'] * 1e3:.1f} ms "
            f"with {host['num_streams']} streams"
        )


def _print_limits(machine: dict[str, Any], limits: dict[str, Any]) -> None:
    def giga(value: float | None, unit: str) -> str:
        return "not measured on this instruction set" if value is None else f"{value / 1e9:.1f} {unit}"

    print_fields(
        {
            "machine": f"{machine['cpu']}, {limits['num_threads']} threads, {limits['isa']}",
            "memory, 1 thread": giga(limits["stream_bytes_per_second_1"], "GB/s"),
            "memory, all": giga(limits["stream_bytes_per_second"], "GB/s"),
            "float32 multiply-add": giga(limits["fma_ops_per_second"], "GFLOP/s"),
            "int8 multiply-add": giga(limits["int8_ops_per_second"], "GOP/s"),
            "4-bit groups, bare loop": giga(limits["group_ops_per_second"], "GOP/s"),
            "phase of the team": f"{limits['phase_seconds'] * 1e9:.0f} ns",
        }
    )


def _print_matmul(results: list[dict[str, Any]]) -> None:
    _print_shares("what memory and arithmetic allow, weights from memory", "limit_share", results)
    _print_shares("the multiply-add rate, weights in the cache", "arithmetic_share", results)
    of_groups = [result for result in results if result["group_share"] is not None]
    if of_groups:
        _print_shares("the bare loop of 4-bit groups, weights in the cache", "group_share", of_groups)


def _print_shares(of_what: str, key: str, results: list[dict[str, Any]]) -> None:
    """A line a type and shape, a column a number of tokens."""
    tokens = sorted({result["num_tokens"] for result in results})
    lines: dict[str, list[str]] = {}
    for result in results:
        line = f"{result['weight_type']} {result['rows']}x{result['cols']}"
        share = result[key]
        lines.setdefault(line, []).append("–" if share is None else f"{share:.0%}")
    rows = [[name, *cells] for name, cells in lines.items()]
    print_table(f"matmul: share of {of_what}", ["tokens", *map(str, tokens)], rows)


def _print_attention(results: list[dict[str, Any]]) -> None:
    rows = [
        [
            result["phase"],
            f"{result['context_len']:,}",
            str(result["num_seqs"]),
            str(result["num_queries"]),
            f"{result['scattered_seconds'] * 1e6:,.0f}",
            f"{result['bandwidth_share']:.0%}",
            "–" if result["arithmetic_share"] is None else f"{result['arithmetic_share']:.0%}",
            f"{result['paging_cost']:+.1%}",
            f"{result['scatter_cost']:+.1%}",
        ]
        for result in results
    ]
    columns = [
        "phase",
        "context",
        "sequences",
        "queries",
        "µs a layer",
        "of bandwidth",
        "of fma",
        "paging",
        "scatter",
    ]
    title = "attention: scattered blocks; paging: blocks in order over contiguous; scatter: over in order"
    print_table(title, columns, rows)

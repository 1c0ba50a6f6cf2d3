"""`octavo bench serve`: a server under load."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import COUNT, json_option, model_option
from octavo.cli.terminal import fetch, print_fields, print_json, progress_bar

if TYPE_CHECKING:
    from octavo.bench.load import LoadResult
    from octavo.bench.workloads import Session

POSITIVE = click.FloatRange(min=0, min_open=True)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
FLAGS: dict[str, dict[str, Any]] = {
    "--url": {"help": "A running server; without it, octavo serve MODEL is started and stopped."},
    "--served-model-name": {"help": "The model's name there; by default the first that it lists."},
    "--api-key": {"envvar": "OCTAVO_API_KEY", "help": "Key that the server asks for."},
    "--server-flags": {"default": "", "help": "Flags for the server that is started, as one text."},
    "--num-prompts": {
        "type": COUNT,
        "default": 64,
        "show_default": True,
        "help": "Requests (conversations, rows of a trace).",
    },
    "--input-len": {
        "type": COUNT,
        "default": 100,
        "show_default": True,
        "help": "Words of a prompt, about a token each.",
    },
    "--output-len": {
        "type": COUNT,
        "default": 64,
        "show_default": True,
        "help": "Tokens of an answer; the end-of-sequence token is ignored.",
    },
    "--shared-prefix-len": {
        "type": click.IntRange(0),
        "default": 0,
        "show_default": True,
        "help": "Words that all prompts begin with.",
    },
    "--num-turns": {
        "type": COUNT,
        "default": 1,
        "show_default": True,
        "help": "More than 1: conversations of so many turns.",
    },
    "--concurrency": {"type": COUNT, "help": "Closed loop: so many at a time. By default no limit."},
    "--request-rate": {"type": POSITIVE, "help": "Poisson arrivals, a second. By default all come at once."},
    "--trace": {
        "type": EXISTING,
        "help": "Arrivals and lengths from an Azure (.csv) or Mooncake (.jsonl) trace.",
    },
    "--time-scale": {
        "type": POSITIVE,
        "default": 1.0,
        "show_default": True,
        "help": "Stretches the arrivals of a trace.",
    },
    "--length-scale": {
        "type": POSITIVE,
        "default": 1.0,
        "show_default": True,
        "help": "Stretches the lengths of a trace.",
    },
    "--goodput": {
        "multiple": True,
        "metavar": "NAME:MS",
        "help": "Count requests within this bound (ttft, tpot, e2el); may be repeated.",
    },
    "--seed": {"type": int, "default": 0, "show_default": True, "help": "Of prompts and arrivals."},
    "--plot": {
        "type": click.Path(dir_okay=False, path_type=Path),
        "help": "Draw the latencies into this PNG file.",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The flags, as given."""

    url: str | None
    served_model_name: str | None
    api_key: str | None
    server_flags: str
    num_prompts: int
    input_len: int
    output_len: int
    shared_prefix_len: int
    num_turns: int
    concurrency: int | None
    request_rate: float | None
    trace: Path | None
    time_scale: float
    length_scale: float
    goodput: tuple[str, ...]
    seed: int
    plot: Path | None


def _flags(command: Any) -> Any:
    for flag, settings in reversed(FLAGS.items()):
        command = click.option(flag, **settings)(command)
    return command


@click.command()
@model_option
@json_option
@_flags
def serve(model: str, as_json: bool, **flags: Any) -> None:
    """Send requests to a server as clients would, and report latencies and throughput.

    Closed loop (--concurrency), Poisson (--request-rate), or as a trace says (--trace).
    """
    options = ServeOptions(**flags)
    from octavo.bench.report import summarize

    goodput_ms = _goodput(options.goodput)
    sessions = make_sessions(options)
    if options.plot is not None:
        from octavo.bench.plots import require_plots

        require_plots()  # now, and not after minutes of measuring
    result, name = _run(options, model, sessions, show=not as_json)
    report: dict[str, object] = {
        "model": name,
        "num_prompts": len(sessions),
        "max_concurrency": options.concurrency,
        "request_rate": options.request_rate,
        **summarize(result, goodput_ms),
    }
    if options.plot is not None:
        from octavo.bench.plots import plot_load

        plot_load(result, options.plot, f"{name}: {len(result.answers)} answers in {result.seconds:.1f} s")
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if report["failed"]:
        raise click.exceptions.Exit(1)


def make_sessions(options: ServeOptions) -> list[Session]:
    """What will be asked. Raises UsageError for flags that exclude each other."""
    from octavo.bench import workloads
    from octavo.bench.traces import read_trace

    if options.trace is not None:
        if options.request_rate is not None or options.num_turns > 1:
            raise click.UsageError("--trace excludes --request-rate and --num-turns")
        return workloads.from_trace(
            read_trace(options.trace, options.num_prompts),
            time_scale=options.time_scale,
            length_scale=options.length_scale,
            seed=options.seed,
        )
    if options.num_turns > 1:
        sessions = workloads.chats(
            options.num_prompts,
            options.num_turns,
            options.input_len,
            options.output_len,
            system_len=options.shared_prefix_len,
            seed=options.seed,
        )
    else:
        sessions = workloads.random_prompts(
            options.num_prompts,
            options.input_len,
            options.output_len,
            shared_prefix_len=options.shared_prefix_len,
            seed=options.seed,
        )
    if options.request_rate is None:
        return sessions
    return workloads.with_poisson_arrivals(sessions, options.request_rate, options.seed)


def _run(options: ServeOptions, model: str, sessions: list[Session], *, show: bool) -> tuple[LoadResult, str]:
    """Run the load against the server that there is, or one of our own. The model's name comes with it."""
    import shlex

    from octavo.bench.client import Client, first_model
    from octavo.bench.load import run_load
    from octavo.bench.own_server import own_server

    async def drive(url: str) -> tuple[LoadResult, str]:
        name = options.served_model_name or await first_model(url, options.api_key)
        client = Client(url, name, options.api_key)
        await client.complete("Warm up.", 2)
        num_answers = sum(len(session.turns) for session in sessions)
        with progress_bar("answers", num_answers, show=show) as advance:
            result = await run_load(
                client, sessions, max_concurrency=options.concurrency, on_answer=lambda answer: advance()
            )
        return result, name

    if options.url is not None:
        return asyncio.run(drive(options.url))
    fetch(model)
    with own_server(model, shlex.split(options.server_flags)) as server:
        return asyncio.run(drive(server.url))


def _goodput(bounds: tuple[str, ...]) -> dict[str, float] | None:
    parsed = {}
    for bound in bounds:
        name, _, milliseconds = bound.partition(":")
        try:
            parsed[name] = float(milliseconds)
        except ValueError:
            parsed[""] = 0.0
        if name not in ("ttft", "tpot", "e2el") or "" in parsed:
            raise click.UsageError(f"--goodput {bound}: not of the form ttft:200, tpot:50 or e2el:3000")
    return parsed or None


def _print_report(report: dict[str, Any]) -> None:
    from octavo.bench.report import LATENCIES
    from octavo.cli.bench.tables import print_table

    fields = {
        "model": report["model"],
        "requests": f"{report['completed']} answered, {report['failed']} failed, {report['duration']:.2f} s",
        "tokens": f"{report['total_input_tokens']:,} in, {report['total_output_tokens']:,} out",
        "throughput": f"{report['request_throughput']:.2f} requests/s, "
        f"{report['output_throughput']:.1f} output tok/s, {report['total_token_throughput']:.1f} total tok/s",
    }
    if "request_goodput" in report:
        fields["goodput"] = f"{report['request_goodput']:.2f} requests/s"
    print_fields(fields)
    for error in report.get("errors", ()):
        click.echo(f"error: {error}", err=True)
    rows = [
        [label, *(f"{report[f'{kind}_{name}_ms']:.2f}" for kind in ("mean", "median", "p99"))]
        for name, label in LATENCIES.items()
        if f"mean_{name}_ms" in report
    ]
    print_table("latencies, ms", ["", "mean", "median", "p99"], rows)

"""octavo and its peers on the same prompts, in turn, in one run: a table of medians and ratios.

    python benchmarks/peers/run.py                           octavo and every peer that is installed
    python benchmarks/peers/run.py --scenario one-stream     one scenario only
    python benchmarks/peers/run.py --venv llama.cpp=DIR --file llama.cpp=Q4_0.gguf --file llama.cpp=Q8_0.gguf

An engine with several --file is run with each, and the best counts. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from engines import KINDS, Engine, EngineError, python_of
from scenarios import SCENARIOS, Job, Scenario

from octavo.bench.machine import describe_machine
from octavo.cli.bench.tables import print_table
from octavo.formats.sources import resolve

OURS = ("octavo", "octavo-serve")


def main() -> int:
    options = _parse()
    names = options.scenario or list(SCENARIOS)
    engines, missing = _start(options, Path(tempfile.mkdtemp(prefix="octavo-peers-")))
    failed: dict[str, str] = {}
    try:
        figures = {name: _measure(SCENARIOS[name], engines, options.repeat, failed) for name in names}
    finally:
        for engine in engines:
            engine.close()
    report = {
        "machine": describe_machine(),
        "missing": missing,
        "start_seconds": {engine.name: engine.start_seconds for engine in engines},
        "failed": failed,
        "figures": figures,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    _print(report)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--engine", action="append", choices=list(KINDS), help="by default all; may be repeated"
    )
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="by default all")
    parser.add_argument("--repeat", type=int, help="repetitions; by default what each scenario has")
    parser.add_argument(
        "--model", default="smollm2-135m", help="octavo's model, and the peers' without --file"
    )
    parser.add_argument("--venv", action="append", default=[], metavar="ENGINE=DIR", help="its environment")
    parser.add_argument("--file", action="append", default=[], metavar="ENGINE=FILE", help="its model file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there as well")
    options = parser.parse_args()
    options.venv = {kind: Path(folders[-1]) for kind, folders in _pairs(parser, options.venv).items()}
    options.file = _pairs(parser, options.file)
    return options


def _pairs(parser: argparse.ArgumentParser, values: list[str]) -> dict[str, list[str]]:
    pairs: dict[str, list[str]] = {}
    for value in values:
        kind, _, rest = value.partition("=")
        if kind not in KINDS or not rest:
            parser.error(f"{value!r} is not ENGINE=PATH with an engine of {', '.join(KINDS)}")
        pairs.setdefault(kind, []).append(rest)
    return pairs


def _start(options: argparse.Namespace, logs: Path) -> tuple[list[Engine], dict[str, str]]:
    """Engines that run, and why the others do not."""
    engines: list[Engine] = []
    missing: dict[str, str] = {}
    path = str(resolve(options.model))
    for kind in options.engine or KINDS:
        python = python_of(kind, options.venv)
        if python is None:
            missing[kind] = f"no environment with {KINDS[kind].package}"
            continue
        files = options.file.get(kind, [] if kind == "vllm" else [path])
        if not files:
            missing[kind] = "needs --file vllm=FOLDER, which hf_folder.py makes"
        for file in files:
            name = f"{kind} {Path(file).stem}" if len(files) > 1 else kind
            print(f"starting {name}", file=sys.stderr)
            try:
                engines.append(Engine(name, kind, python, file, logs / f"{name}.log"))
            except EngineError as error:
                missing[name] = str(error)
    return engines, missing


def _measure(
    scenario: Scenario, engines: list[Engine], repeat: int | None, failed: dict[str, str]
) -> dict[str, Any]:
    """Every engine once a repetition, after one short job that warms it up.

    One that fails is added to `failed` with the reason, and rests from then on.
    """
    values: dict[str, list[float]] = {engine.name: [] for engine in engines}
    seconds = dict.fromkeys(values, 0.0)
    for repetition in range(1 + (repeat or scenario.repeats)):
        jobs = scenario.jobs(repetition) if repetition else (Job(prompts=("Warm up.",), output_len=8),)
        for engine in engines:
            if engine.name in failed:
                continue
            print(f"{scenario.title}: {engine.name}", file=sys.stderr)
            try:
                times = [engine.run(job) for job in jobs]
            except EngineError as error:
                failed[engine.name] = str(error)
                continue
            seconds[engine.name] += sum(times)
            if repetition:
                values[engine.name].append(scenario.figure(times))
    return {
        "title": scenario.title,
        "unit": scenario.unit,
        "values": values,
        "medians": {name: statistics.median(own) for name, own in values.items() if own},
        "seconds": seconds,
        "failed": dict(failed),
    }


def _print(report: dict[str, Any]) -> None:
    rows = []
    for figure in report["figures"].values():
        medians = figure["medians"]
        peers = {name: value for name, value in medians.items() if name not in OURS}
        best = max(peers, key=lambda name: peers[name], default=None)
        for name, value in medians.items():
            ratio = "" if best is None or name not in OURS else f"{value / peers[best]:.2f} x {best}"
            rows.append([f"{figure['title']}: {name}", f"{value:.1f} {figure['unit']}", ratio])
        rows += [[f"{figure['title']}: {name}", "failed", ""] for name in figure["failed"]]
    print_table("medians, and octavo against the best peer", ["", "", ""], rows)
    for name, start in report["start_seconds"].items():
        busy = sum(figure["seconds"][name] for figure in report["figures"].values())
        print(f"{name}: started in {start:.1f} s, measured in {busy:.0f} s")
    for name, reason in report["missing"].items():
        print(f"missing: {name}: {reason}")
    for name, reason in report["failed"].items():
        print(f"failed: {name}: {reason}")


if __name__ == "__main__":
    sys.exit(main())

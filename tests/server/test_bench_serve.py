"""`octavo bench serve` against live servers: a scripted engine, and one that it starts itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from octavo.cli import main
from octavo.params import ParameterError
from server.fake_engine import FakeEngine, say
from server.live_server import live_server
from support.toy import write_toy_gguf

SMALL = ("--num-prompts", "5", "--input-len", "4", "--output-len", "5")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "serve", *arguments])


def report_of(*arguments: str) -> Any:
    result = bench(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(script=lambda prompt, params: say("Hello"), max_model_len=10_000)


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with live_server(engine) as address:
        yield address


def test_a_closed_loop(url: str) -> None:
    report = report_of("--url", url, *SMALL, "--concurrency", "2", "--goodput", "e2el:60000")
    assert (report["completed"], report["failed"]) == (5, 0)
    assert report["total_output_tokens"] == 25
    assert report["max_concurrency"] == 2
    assert report["request_goodput"] == report["request_throughput"]
    for name in ("ttft", "tpot", "itl", "e2el"):
        for kind in ("mean", "median", "p99"):
            assert report[f"{kind}_{name}_ms"] > 0


def test_poisson_arrivals_and_conversations(url: str) -> None:
    assert report_of("--url", f"{url}/v1", *SMALL, "--request-rate", "200")["completed"] == 5
    report = report_of("--url", url, *SMALL, "--num-turns", "3", "--shared-prefix-len", "6")
    assert report["completed"] == 15


def test_a_trace(url: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": t, "input_length": 100, "output_length": 5, "hash_ids": []} for t in (0, 4000)]
    path.write_text("\n".join(map(json.dumps, rows)))
    report = report_of("--url", url, "--trace", str(path), "--time-scale", "0.01", "--length-scale", "0.1")
    assert report["completed"] == 2
    assert report["duration"] >= 0.04
    assert bench("--url", url, "--trace", str(path), "--num-turns", "2").exit_code == 2


def test_for_people(url: str) -> None:
    out = bench("--url", url, *SMALL).stdout
    assert "5 answered, 0 failed" in out
    assert "time to first token" in out


def test_failures_are_reported_and_are_the_exit_code(url: str, engine: FakeEngine) -> None:
    engine.refusal = ParameterError("too long", "prompt")
    result = bench("--url", url, *SMALL)
    assert result.exit_code == 1
    assert "0 answered, 5 failed" in result.stdout
    assert "error: status 400" in result.stderr


def test_no_server_is_one_line() -> None:
    result = bench("--url", "http://127.0.0.1:1", *SMALL)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("bound", ["ttft", "ttft:fast", "speed:3"])
def test_bounds_that_say_nothing(bound: str) -> None:
    assert bench("--url", "http://127.0.0.1:1", "--goodput", bound).exit_code == 2


def test_a_server_of_its_own(tmp_path: Path) -> None:
    model = str(write_toy_gguf(tmp_path / "toy.gguf"))
    report = report_of("--model", model, "--server-flags", "--num-blocks 64", *SMALL)
    assert (report["completed"], report["total_output_tokens"]) == (5, 25)


def test_a_server_that_does_not_come_up(tmp_path: Path) -> None:
    model = str(write_toy_gguf(tmp_path / "toy.gguf"))
    result = bench("--model", model, "--server-flags", "--block-size 7", *SMALL)
    assert result.exit_code == 1
    assert "exit code" in result.stderr


def test_a_plot(url: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    report_of("--url", url, *SMALL, "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")

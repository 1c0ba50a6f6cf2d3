"""The verbs of bench: what they ask for, and what they report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from octavo.bench.machine import Limits

Octavo = Callable[..., Result]
FAST = ("--num-prompts", "3", "--input-len", "4", "--output-len", "3")


def test_bench_measures_fresh_prompts_after_a_warm_up(call: Octavo, llm_class: type) -> None:
    arguments = ["--num-prompts", "2", "--input-len", "5", "--output-len", "3", "--repeat", "2"]
    report = json.loads(call("bench", "throughput", *arguments, "--max-concurrency", "4", "--json").stdout)
    (llm,) = llm_class.made
    assert llm.options == {"max_num_seqs": 4}
    assert len(llm.prompts) == 6
    assert len({tuple(prompt) for prompt in llm.prompts}) == 6
    assert {len(prompt) for prompt in llm.prompts} == {5}
    assert {(p.temperature, p.max_tokens, p.ignore_eos) for p in llm.params} == {(0, 3, True)}
    assert len(report["runs"]) == 2
    assert report["num_steps"] == 10
    assert report["output_tokens_per_second"] == pytest.approx(6 / report["seconds"])
    assert report["total_tokens_per_second"] == pytest.approx(16 / report["seconds"])


def test_bench_takes_one_name_for_one_limit(call: Octavo, llm_class: type) -> None:
    assert call("bench", "throughput", "--max-concurrency", "4", "--max-num-seqs", "4").exit_code == 2


def test_bench_for_people(call: Octavo, llm_class: type) -> None:
    out = call("bench", "throughput", *FAST, "--repeat", "1", "--shared-prefix-len", "2").stdout
    assert "3 of 4 tokens, 3 out, after a common prefix of 2\n" in out
    (llm,) = llm_class.made
    assert {len(prompt) for prompt in llm.prompts} == {6}
    measured = llm.prompts[3:]
    assert len({tuple(prompt[:2]) for prompt in measured}) == 1


def test_the_help_lists_the_verbs(call: Octavo) -> None:
    out = call("bench", "--help").stdout
    for verb in ("throughput", "latency", "serve", "kernels", "random-model"):
        assert f"  {verb} " in out
        assert call("bench", verb, "--help").exit_code == 0
    assert call("bench", "nothing").exit_code == 2


def test_latency(call: Octavo, toy_path: Path) -> None:
    arguments = ["--model", str(toy_path), "--input-lens", "3,20", "--output-len", "4", "--repeat", "2"]
    report = json.loads(call("bench", "latency", *arguments, "--num-blocks", "8", "--json").stdout)
    assert [row["input_len"] for row in report["results"]] == [3, 20]
    for row in report["results"]:
        assert row["output_tokens_per_second"] == pytest.approx(1000 / row["median_tpot_ms"])
        assert row["prompt_tokens_per_second"] == pytest.approx(
            row["input_len"] * 1000 / row["median_ttft_ms"]
        )
        assert row["p99_itl_ms"] > 0
    assert "TPOT, ms" in call("bench", "latency", *arguments, "--num-blocks", "8").stdout
    assert call("bench", "latency", "--input-lens", "3,x").exit_code == 2


def test_kernels_report_limits_and_shares(
    call: Octavo, toy_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.bench.machine.STREAM_BYTES", 1 << 20)
    monkeypatch.setattr("octavo.bench.kernels.COLD_BYTES", 1 << 16)
    monkeypatch.setattr("octavo.bench.kernels.MATMUL_SHAPES", ((64, 32),))
    monkeypatch.setattr("octavo.bench.kernels.MATMUL_ROWS", (1, 2))
    arguments = ["--types", "Q4_0,F32", "--contexts", "16", "--repeat", "1", "--only", "matmul,attention"]
    report = json.loads(call("bench", "kernels", *arguments, "--json").stdout)
    assert Limits(**report["limits"]).stream_bytes_per_second > 0
    assert [(r["weight_type"], r["num_tokens"]) for r in report["matmul"]] == [
        ("Q4_0", 1),
        ("Q4_0", 2),
        ("F32", 1),
        ("F32", 2),
    ]
    assert [r["phase"] for r in report["attention"]] == ["decode", "prefill"]
    assert "sampling" not in report
    out = call("bench", "kernels", *arguments).stdout
    assert "memory, all" in out
    assert "Q4_0 64x32" in out
    assert call("bench", "kernels", "--only", "dreams").exit_code == 2


def test_kernels_report_the_host(call: Octavo, toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.machine.STREAM_BYTES", 1 << 20)
    arguments = ["--only", "host", "--model", str(toy_path), "--json"]
    host = json.loads(call("bench", "kernels", *arguments).stdout)["host"]
    assert host["num_streams"] == 32
    assert host["host_seconds"] == pytest.approx(host["host_share"] * host["step_seconds"])


def test_random_model_prints_its_path(call: Octavo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def write(shape: str, weight_type: object) -> Path:
        asked.append((shape, getattr(weight_type, "name", None)))
        (tmp_path / "a.gguf").write_bytes(b"123")
        return tmp_path / "a.gguf"

    monkeypatch.setattr("octavo.bench.random_model.random_model", write)
    assert call("bench", "random-model", "--type", "Q8_0").stdout == f"{tmp_path / 'a.gguf'}\n"
    assert json.loads(call("bench", "random-model", "--json").stdout)["num_bytes"] == 3
    assert asked == [("1.1b", "Q8_0"), ("1.1b", "Q4_0")]
    assert call("bench", "random-model", "70b").exit_code == 2

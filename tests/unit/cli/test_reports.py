"""inspect, pull and serve: what they report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from octavo.cli.terminal import size_text

Octavo = Callable[..., Result]


def test_pull_prints_the_path(call: Octavo, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"12345")
    assert call("pull", str(path)).stdout == f"{path}\n"
    report = json.loads(call("pull", str(path), "--json").stdout)
    assert report == {"model": str(path), "path": str(path), "num_bytes": 5}


def test_inspect_shows_what_a_cache_costs(call: Octavo, toy_path: Path) -> None:
    report = json.loads(call("inspect", str(toy_path), "--json", "--block-size", "8").stdout)
    shapes, costs = report["shapes"], report["kv_cache"]["float16"]
    assert costs["bytes_per_token"] == 4 * shapes["num_layers"] * shapes["num_kv_heads"] * shapes["head_dim"]
    assert costs["bytes_per_block"] == 8 * costs["bytes_per_token"]
    assert report["kv_cache"]["float32"]["bytes_per_token"] == 2 * costs["bytes_per_token"]
    assert report["problem"] is None
    assert sum(entry["num_bytes"] for entry in report["types"].values()) < report["file_bytes"]
    assert all(entry["is_supported"] for entry in report["types"].values())


def test_inspect_for_people(call: Octavo, toy_path: Path) -> None:
    out = call("inspect", str(toy_path)).stdout
    assert "architecture  llama\n" in out
    assert "KV cache, blocks of 16 tokens\n" in out
    assert out.endswith("octavo can run it\n")


def test_inspect_works_on_what_cannot_run(call: Octavo, toy_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(toy_path.read_bytes().replace(b"llama", b"other"))
    report = json.loads(call("inspect", str(path), "--json").stdout)
    assert report["architecture"] == "other"
    assert report["shapes"]["architecture"] == "other"
    assert "other" in report["problem"]
    assert "octavo cannot run it: " in call("inspect", str(path)).stdout


def test_inspect_refuses_what_is_no_model(call: Octavo, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04")
    result = call("inspect", str(path))
    assert result.exit_code == 1
    assert result.stderr.startswith("octavo: a.gguf: not a GGUF file")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (98_362_432, "93.8 MiB"), (2**41, "2048.0 GiB")],
)
def test_sizes_for_people(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text


def test_serve_prints_the_plan_and_the_address(
    call: Octavo, llm_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    import octavo.engine.async_llm
    import octavo.server.serve

    seen: dict[str, Any] = {}

    def make_engine(config: Any, served_model_name: str | None) -> Any:
        seen["config"] = config
        return SimpleNamespace(model_name=served_model_name, plan=llm_class("m").plan)

    def serve(
        engine: Any,
        host: str,
        port: int,
        *,
        api_key: str,
        drain_seconds: float,
        on_ready: Callable[[str], None],
    ) -> int:
        seen["served"] = (host, port, api_key)
        seen["drain_seconds"] = drain_seconds
        on_ready(f"http://{host}:{port}")
        return 0

    monkeypatch.setattr(octavo.engine.async_llm, "AsyncLLM", make_engine)
    monkeypatch.setattr(octavo.server.serve, "serve", serve)
    result = call(
        *("serve", "m", "--port", "9", "--api-key", "k", "--served-model-name", "n", "--num-blocks", "4"),
        *("--drain-seconds", "7"),
        env={"OCTAVO_BLOCK_SIZE": "8"},
    )
    assert result.exit_code == 0, result.output
    assert seen["served"] == ("127.0.0.1", 9, "k")
    assert (seen["config"].model, seen["config"].cache.num_blocks, seen["config"].cache.block_size) == (
        "m",
        4,
        8,
    )
    assert seen["drain_seconds"] == 7
    assert result.stdout == "octavo serves n\n  4 blocks\nlistening on http://127.0.0.1:9/v1\n"

"""The scripts of benchmarks/: how figures are computed, and how an engine's process is driven."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3] / "benchmarks"
pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="the scripts are not part of a source archive")

ENGINE = """
import sys
sys.path.insert(0, {folder!r})
from worker import protocol, serve_jobs
messages = protocol()
print("a library greets")
if sys.argv[1] == "broken":
    sys.exit("no such model")
def generate(prompts, output_len):
    print("a library talks")
    print(len(prompts), output_len, file=sys.stderr, flush=True)
    if "die" in prompts:
        sys.exit("it died")
serve_jobs(messages, generate)
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """load(name) imports a script; all are forgotten afterwards, for their names are plain ones."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "peers"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if not name.startswith(("octavo", "matplotlib", "numpy")):
            del sys.modules[name]


@pytest.fixture
def engines(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """With one more kind of engine: a script that answers at once."""
    module: ModuleType = load("engines")
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0)
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.format(folder=str(ROOT / "peers")))
    monkeypatch.setitem(module.KINDS, "fake", module.Kind(script=str(script), package="json", venv=None))
    return module


def is_stopped(engine: Any) -> bool:
    return Path(f"/proc/{engine._process.pid}/stat").read_text().rsplit(") ", 1)[1].startswith("T")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_an_engine_works_only_when_asked(engines: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    engine = engines.Engine("fake", "fake", Path(sys.executable), "model", log)
    try:
        assert is_stopped(engine)
        job = engines.Job(prompts=("a", "b", "c"), output_len=5, max_concurrency=2)
        assert 0 <= engine.run(job) < 10
        assert is_stopped(engine)
    finally:
        engine.close()
    lines = [line for line in log.read_text().splitlines() if line[0].isdigit()]
    assert lines == ["2 5", "1 5"]  # at most two at a time
    assert engine._process.returncode == 0


def test_an_engine_that_fails_says_where_to_look(engines: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(engines.EngineError, match=r"fake ended; see .*log"):
        engines.Engine("fake", "fake", Path(sys.executable), "broken", log)
    assert "no such model" in log.read_text()
    engine = engines.Engine("fake", "fake", Path(sys.executable), "model", log)
    with pytest.raises(engines.EngineError, match="fake ended"):
        engine.run(engines.Job(prompts=("die",), output_len=1))
    engine.close()


def test_an_engine_that_fails_in_the_middle_rests_and_the_others_go_on(
    engines: ModuleType, load: Any, tmp_path: Path
) -> None:
    run, scenarios = load("run"), load("scenarios")
    names = ("good", "bad")
    running = [engines.Engine(name, "fake", Path(sys.executable), "model", tmp_path / name) for name in names]

    def jobs(seed: int) -> tuple[Any, ...]:
        return tuple(engines.Job(prompts=(text,), output_len=1) for text in (["die"] if seed == 2 else ["a"]))

    scenario = scenarios.Scenario(title="t", unit="u", jobs=jobs, figure=lambda seconds: 1.0, repeats=2)
    failed: dict[str, str] = {}
    try:
        running[0].run = lambda job: 0.5  # what kills the other does nothing to it
        first = run._measure(scenario, running, None, failed)
        second = run._measure(scenario, running, None, failed)
    finally:
        for engine in running:
            engine.close()
    assert list(failed) == ["bad"]
    assert "bad ended; see" in failed["bad"]
    assert first["values"] == {"good": [1.0, 1.0], "bad": [1.0]}
    assert first["seconds"]["good"] == 1.5
    assert second["values"] == {"good": [1.0, 1.0], "bad": []}
    assert second["medians"] == {"good": 1.0}


def test_missing_environments_are_none(engines: ModuleType, tmp_path: Path) -> None:
    assert engines.python_of("octavo", {}) == Path(sys.executable)
    assert engines.python_of("vllm", {"vllm": tmp_path}) is None


def test_figures_of_scenarios(load: Any) -> None:
    scenarios = load("scenarios").SCENARIOS
    assert scenarios["one-stream"].figure([9.0, 0.5, 1.5]) == 128.0
    assert scenarios["32-streams"].figure([2.0]) == 1024.0
    assert scenarios["prefill"].figure([0.5]) == 2000.0
    assert scenarios["shared-prefix"].figure([4.0]) == 1024.0
    for scenario in scenarios.values():
        assert scenario.jobs(1) == scenario.jobs(1) != scenario.jobs(2)
    (shared,) = scenarios["shared-prefix"].jobs(1)
    own = [prompt.split() for prompt in shared.prompts]
    assert len(own) == 64
    assert {len(words) for words in own} == {832}
    assert len({tuple(words[:800]) for words in own}) == 1
    assert len({tuple(words[800:]) for words in own}) == 64


def test_padding_and_tables(load: Any) -> None:
    study = load("block_size")
    requests = [study.Request(tuple(range(10)), 7), study.Request(tuple(range(30)), 3)]  # 16 and 32 slots
    assert study.padding_share(requests, 16) == 0.0
    assert study.padding_share(requests, 64) == pytest.approx(1 - 48 / 128)
    assert study.table_bytes(requests, 16) == 4 * (1 + 2) / 2


def test_the_study_is_written_between_its_marks(load: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study = load("block_size")
    row = {
        "output_tokens_per_second": 10.0,
        "cached_share": 0.5,
        "padding_share": 0.25,
        "table_bytes": 8.0,
        "attention_us": 3.0,
    }
    rows = [
        {"workload": name, "block_size": size, **row}
        for name in study.WORKLOADS
        for size in study.BLOCK_SIZES
    ]
    path = tmp_path / "block-size.md"
    path.write_text("before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n")
    for _ in range(2):
        study.write_docs(rows, tmp_path)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- end of table -->\nafter\n")
    assert "old" not in text
    assert text.count("| short chats | 16 | 10.0 | 50.0% | 25.0% | 8 | 3 |") == 1
    assert (tmp_path / "block-size.png").read_bytes().startswith(b"\x89PNG")


def test_rows_of_the_report(load: Any, tmp_path: Path) -> None:
    report = load("report")
    assert report.share("f", 0.9, 0.85).is_met
    assert not report.share("f", 0.8, 0.85).is_met
    assert report.most("f", 0.01, 0.02).is_met
    row = report.share_of("f", [(8.0, 10.0), (30.0, 40.0), (9.0, 10.0)], 0.85, "GB/s")
    assert (row.value, row.is_met) == ("80.0% (9.0 of 10.0 GB/s)", False)
    path = tmp_path / "peers.json"
    path.write_text(
        '{"figures": {"prefill": {"title": "t", "medians": '
        '{"octavo": 30.0, "octavo-serve": 20.0, "a": 9.0, "b": 10.0}}}}'
    )
    other = tmp_path / "other.json"
    other.write_text('{"figures": {"one-stream": {"title": "u", "medians": {"a": 9.0}}}}')
    (row,) = report.peers([path, other])  # octavo failed in the other run
    assert row.is_met
    assert row.value == "3.00 x b (30 against 10); served 2.00 x"


def test_the_range_of_a_median(load: Any) -> None:
    likely_range = load("report").likely_range
    assert likely_range([5.0, 1.0, 3.0]) == (1.0, 5.0)
    assert likely_range(list(range(100))) == (39, 60)  # ranks 40 and 61, as tables of the sign test have it


def test_steps_with_and_without_the_prefix_cache(
    load: Any, monkeypatch: pytest.MonkeyPatch, toy_path: Path
) -> None:
    report = load("report")
    monkeypatch.setattr(report, "MODEL", str(toy_path))
    monkeypatch.setattr(report, "CACHE_ROUNDS", 1)
    monkeypatch.setattr(report, "PROMPT_IDS", range(100, 256))
    rows = list(report.prefix_cache(None))  # asserts that blocks were evicted, and none found
    assert [row.target for row in rows] == ["≤ 1%", "≤ 1%"]

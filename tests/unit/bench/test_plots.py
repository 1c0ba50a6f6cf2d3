"""Plots: drawn where matplotlib is there, and a clear error where it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from octavo.bench.client import Answer
from octavo.bench.load import LoadResult
from octavo.bench.plots import PlotError, plot_lines, plot_load, require_plots

RESULT = LoadResult(
    (Answer(0.0, 0.1, (0.1, 0.2), 0.4, 5, 3), Answer(0.0, 0.0, (), 0.0, 0, 0, error="refused")), 1.0
)


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"octavo\[plot\]"):
        require_plots()
    with pytest.raises(PlotError):
        plot_load(RESULT, tmp_path / "a.png", "title")


def test_files_are_pngs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_load(RESULT, tmp_path / "load.png", "title")
    plot_lines(tmp_path / "lines.png", [8, 16], {"speed": {"a": [1.0, 2.0], "b": [2.0, 1.0]}}, "block size")
    for name in ("load.png", "lines.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")

"""Plots, for those who installed the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.bench.load import LoadResult
from octavo.bench.report import LATENCIES, latencies


class PlotError(ValueError):
    """Plots cannot be drawn here."""


def require_plots() -> Any:
    """matplotlib's pyplot, set up to draw into files. Raises PlotError where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise PlotError("plots need matplotlib: pip install 'octavo[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot_load(result: LoadResult, path: Path, title: str) -> None:
    """The four latencies as cumulative distributions, one panel each."""
    pyplot = require_plots()
    done = [answer for answer in result.answers if answer.error is None]
    figure, axes = pyplot.subplots(1, len(LATENCIES), figsize=(14, 3.5), sharey=True, layout="constrained")
    for axis, (name, label) in zip(axes, LATENCIES.items(), strict=True):
        values = sorted(latencies(done, name))
        shares = [(index + 1) / len(values) for index in range(len(values))]
        axis.step([value * 1e3 for value in values], shares, where="post")
        axis.set_xlabel(f"{label}, ms")
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of all")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plot_lines(
    path: Path, xs: Sequence[int], panels: Mapping[str, Mapping[str, Sequence[float]]], x_label: str
) -> None:
    """A panel for each measure, a line for each series, over a logarithmic axis of powers of two."""
    pyplot = require_plots()
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.4 * len(panels), 3.2), squeeze=False, layout="constrained"
    )
    for axis, (label, series) in zip(axes[0], panels.items(), strict=True):
        for name, values in series.items():
            axis.plot(xs, values, marker="o", label=name)
        axis.set_xscale("log", base=2)
        axis.set_xticks(xs, [str(x) for x in xs])
        axis.set_ylim(bottom=0)
        axis.set_xlabel(x_label)
        axis.set_title(label, fontsize="medium")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)

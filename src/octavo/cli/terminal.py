"""What verbs print. Answers and reports (lines or JSON) go to stdout; the bar of a download to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from octavo.formats.sources import ProgressCallback, resolve


def print_json(report: Mapping[str, Any]) -> None:
    click.echo(json.dumps(report, ensure_ascii=False, indent=2))


def print_fields(fields: Mapping[str, object], *, err: bool = False) -> None:
    """Name and value a line, the values in one column."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name:<{width}}  {value}", err=err)


def size_text(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"


@contextmanager
def progress_bar(label: str, total: int, *, show: bool = True) -> Iterator[Callable[[], None]]:
    """Yields what moves the bar on by one. It stands on stderr, and only on a terminal."""
    if not show or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda: progress.advance(task)


def fetch(model: str) -> Path:
    """The path of a model's file; a download shows a bar on a terminal. Raises SourceError."""
    with _download_bar(model) as progress:
        return resolve(model, progress=progress)


@contextmanager
def _download_bar(model: str) -> Iterator[ProgressCallback | None]:
    """Yields what moves the bar. It appears, and rich is imported, with the first report."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = _DownloadBar(model)
    try:
        yield bar.update
    finally:
        bar.close()


class _DownloadBar:
    def __init__(self, model: str) -> None:
        self._model = model
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}

    def update(self, stage: str, done: int, total: int | None) -> None:
        if self._progress is None:
            self._open()
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(f"{stage} {self._model}", total=total)
        self._progress.update(self._tasks[stage], completed=done)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.start()

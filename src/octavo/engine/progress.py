"""The progress bar of offline runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class ProgressBar:
    """Counts finished prompts and shows the output rate."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._started = time.monotonic()
        self._num_tokens = 0

    def advance(self, num_tokens: int, num_finished: int) -> None:
        self._num_tokens += num_tokens
        rate = self._num_tokens / max(time.monotonic() - self._started, 1e-9)
        self._progress.update(self._task, advance=num_finished, rate=f"{rate:.0f} tok/s")


@contextmanager
def progress_bar(total: int) -> Iterator[ProgressBar]:
    columns = (
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield ProgressBar(progress, progress.add_task("prompts", total=total, rate=""))

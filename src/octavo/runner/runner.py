"""One step through the executor."""

from __future__ import annotations

from octavo.batch import ScheduledBatch
from octavo.kernels.executor import Executor, FloatArray
from octavo.runner.inputs import build_inputs


class Runner:
    """Turns a batch into logits."""

    def __init__(self, executor: Executor, block_size: int) -> None:
        self._executor = executor
        self._block_size = block_size

    def run(self, batch: ScheduledBatch) -> FloatArray:
        """Logits [len(batch.logits_for), vocab_size], valid until the next call."""
        return self._executor.run(build_inputs(batch, self._block_size))

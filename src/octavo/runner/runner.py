"""One step through the executor."""

from __future__ import annotations

from octavo.batch import BestTokens, ScheduledBatch
from octavo.kernels.executor import Executor, FloatArray
from octavo.runner.inputs import build_inputs


class Runner:
    """Turns a batch into logits, or straight into tokens where only the likeliest are wanted."""

    def __init__(self, executor: Executor, block_size: int) -> None:
        self._executor = executor
        self._block_size = block_size

    def run(self, batch: ScheduledBatch) -> FloatArray | BestTokens:
        """Logits [len(batch.logits_for), vocab_size], valid until the next call."""
        inputs = build_inputs(batch, self._block_size)
        if not batch.takes_best:
            return self._executor.run(inputs)
        token_ids, logits = self._executor.run_best(
            inputs, num_rounds=batch.num_rounds, stop_token_ids=batch.stop_token_ids
        )
        return BestTokens(token_ids.tolist(), logits.tolist())

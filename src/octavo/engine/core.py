"""One step of the engine: the architecture in a few lines."""

from __future__ import annotations

import logging
from typing import Protocol

from octavo.batch import SampledTokens, ScheduledBatch, SequenceUpdate
from octavo.kernels.executor import FloatArray
from octavo.scheduler.scheduler import Scheduler

logger = logging.getLogger("octavo")

STEP_ERROR = "the engine failed while it computed this request"
"""What a client is told; the log has the rest."""


class RunnerLike(Protocol):
    def run(self, batch: ScheduledBatch) -> FloatArray: ...


class SamplerLike(Protocol):
    def sample(self, logits: FloatArray, batch: ScheduledBatch) -> SampledTokens: ...


class EngineCore:
    """Moves every running sequence on by one step."""

    def __init__(
        self, scheduler: Scheduler, runner: RunnerLike, sampler: SamplerLike, *, debug_checks: bool = False
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.sampler = sampler
        self._debug_checks = debug_checks
        self.last_batch: ScheduledBatch | None = None

    def step(self) -> list[SequenceUpdate]:
        """Schedule, run, sample, commit. A step that raises is undone, and the culprit is found."""
        updates = self._step()
        if self._debug_checks:
            self.scheduler.check_integrity()
        return updates

    def _step(self) -> list[SequenceUpdate]:
        batch = self.last_batch = self.scheduler.schedule()
        if batch.is_empty:
            return []
        try:
            logits = self.runner.run(batch)
            tokens = self.sampler.sample(logits, batch)
        except Exception:
            logger.exception("step %d failed; its sequences are tried again one by one", batch.step_id)
            return self.scheduler.fail(batch, STEP_ERROR)
        return self.scheduler.commit(batch, tokens)

"""One step of the engine: the architecture in a few lines."""

from __future__ import annotations

import logging
from typing import Protocol

from octavo.batch import BestTokens, SampledTokens, ScheduledBatch, SequenceUpdate
from octavo.kernels.executor import FloatArray
from octavo.scheduler.scheduler import Scheduler

logger = logging.getLogger("octavo")

STEP_ERROR = "the engine failed while it computed this request"
"""What a client is told; the log has the rest."""


class RunnerLike(Protocol):
    def run(self, batch: ScheduledBatch) -> FloatArray | BestTokens: ...


class SamplerLike(Protocol):
    def sample(self, logits: FloatArray | BestTokens, batch: ScheduledBatch) -> SampledTokens: ...


class EngineCore:
    """Moves every running sequence on by one step."""

    def __init__(
        self, scheduler: Scheduler, runner: RunnerLike, sampler: SamplerLike, *, debug_checks: bool = False
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.sampler = sampler
        self._debug_checks = debug_checks
        self._has_schedule_failed = False
        self.last_batch: ScheduledBatch | None = None
        """What the last step computed; None if it failed or had nothing to do."""

    def step(self, max_rounds: int = 1) -> list[SequenceUpdate]:
        """Schedule, run, sample, commit. A step that raises is undone, and the culprit is found.

        max_rounds: see Scheduler.schedule.
        """
        updates = self._step(max_rounds)
        if self._debug_checks:
            self.scheduler.check_integrity()
        return updates

    def _step(self, max_rounds: int) -> list[SequenceUpdate]:
        self.last_batch = None
        batch = self._schedule(max_rounds)
        if batch is None or batch.is_empty:
            return []
        try:
            logits = self.runner.run(batch)
            tokens = self.sampler.sample(logits, batch)
        except Exception:
            logger.exception("step %d failed; its sequences are tried again one by one", batch.step_id)
            return self.scheduler.fail(batch, STEP_ERROR)
        self.last_batch = batch
        return self.scheduler.commit(batch, tokens)

    def _schedule(self, max_rounds: int) -> ScheduledBatch | None:
        """The next batch. A failure leaves the scheduler as it was; it is tried once more, a step later."""
        try:
            batch = self.scheduler.schedule(max_rounds)
        except Exception:
            if self._has_schedule_failed:
                raise
            self._has_schedule_failed = True
            logger.exception("scheduling failed; it is tried again")
            return None
        self._has_schedule_failed = False
        return batch

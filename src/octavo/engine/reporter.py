"""What happened, told to the metrics. A metric that fails never harms a request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from octavo.batch import ScheduledBatch, SequenceUpdate
from octavo.engine.live_request import LiveRequest
from octavo.engine.stats import RequestStats, StepStats
from octavo.scheduler.stats import SchedulerStats

logger = logging.getLogger("octavo")


class MetricsSink(Protocol):
    def on_step(self, stats: StepStats) -> None: ...
    def on_request_finished(self, stats: RequestStats) -> None: ...
    def on_scheduler(self, stats: SchedulerStats) -> None: ...


class Reporter:
    """Stamps the times of requests and passes figures on to a sink, if there is one."""

    def __init__(self) -> None:
        self.sink: MetricsSink | None = None

    def on_step(
        self,
        batch: ScheduledBatch,
        num_rounds: int,
        updates: Sequence[SequenceUpdate],
        live: Mapping[str, LiveRequest],
        scheduler: Callable[[], SchedulerStats],
        started: float,
    ) -> None:
        """A step of so many rounds that began at `started`, on time.monotonic(), has been committed."""
        now = time.monotonic()
        for request_id in batch.admitted:
            if request_id in live:
                live[request_id].scheduled_at = started
        first: list[float] = []
        between: list[float] = []
        num_generated = 0
        for update in updates:
            if update.token_id is None or update.request_id not in live:
                continue
            num_generated += 1
            request = live[update.request_id]
            choice = request.choices[update.index]
            if choice.last_token_at is not None:
                between.append(now - choice.last_token_at)
            elif request.first_token_at is None:
                request.first_token_at = now
                first.append(now - request.request.arrival_time)
            choice.last_token_at = now
        if self.sink is None:
            return
        stats = StepStats(
            scheduler=scheduler(),
            num_tokens=batch.num_tokens * num_rounds,
            num_prompt_tokens=_num_prompt_tokens(batch),
            num_generated_tokens=num_generated,
            first_token_seconds=tuple(first),
            inter_token_seconds=tuple(between),
        )
        self._tell(self.sink.on_step, stats)

    def on_finished(self, request: LiveRequest, now: float) -> None:
        if self.sink is not None:
            self._tell(self.sink.on_request_finished, request.stats(now))

    def on_change(self, scheduler: Callable[[], SchedulerStats]) -> None:
        """Something changed without a token computed: an arrival, a refusal, an abort, a step that failed."""
        if self.sink is not None:
            self._tell(self.sink.on_scheduler, scheduler())

    def _tell(self, call: Callable[[Any], None], stats: object) -> None:
        try:
            call(stats)
        except Exception:
            logger.exception("the metrics failed")


def _num_prompt_tokens(batch: ScheduledBatch) -> int:
    """Tokens of the step that clients wrote, the others being recomputed or new tokens of answers."""
    return sum(max(0, min(part.context_len, part.num_prompt_tokens) - part.start) for part in batch.sequences)

"""The engine as one thread sees it: requests in, pieces of answers out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Protocol

from octavo.batch import SequenceUpdate
from octavo.engine.core import EngineCore
from octavo.engine.live_request import LiveRequest
from octavo.engine.outputs import ChoiceDelta, RequestDelta
from octavo.engine.stats import RequestStats, StepStats
from octavo.params import ParameterError, SamplingParams
from octavo.request import FinishReason, Request
from octavo.sampling.validate import validate
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger("octavo")


class MetricsSink(Protocol):
    def on_step(self, stats: StepStats) -> None: ...
    def on_request_finished(self, stats: RequestStats) -> None: ...


class Engine:
    """Text in, text out, around EngineCore. Not safe for two threads at once."""

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, vocab_size: int, seed: int) -> None:
        self.core = core
        self.scheduler = core.scheduler
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.metrics: MetricsSink | None = None
        self._seed = seed
        self._num_added = 0
        self._live: dict[str, LiveRequest] = {}

    @property
    def has_unfinished(self) -> bool:
        return bool(self._live)

    def is_unfinished(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def unfinished_ids(self) -> list[str]:
        return list(self._live)

    def add(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        *,
        cache_salt: str = "",
        arrival_time: float | None = None,
    ) -> None:
        """Take a request in. Raises ParameterError at the door and changes nothing then."""
        prompt = tuple(prompt_token_ids)
        validate(params, self.vocab_size)
        for token_id in prompt:
            if not 0 <= token_id < self.vocab_size:
                raise ParameterError(
                    f"token id {token_id} is not in the vocabulary of {self.vocab_size}", "prompt"
                )
        request = Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params,
            arrival_time=time.monotonic() if arrival_time is None else arrival_time,
            seed=self._seed_of(params),
            cache_salt=cache_salt,
        )
        self.scheduler.add(request)
        self._num_added += 1
        self._live[request_id] = LiveRequest(request, self.tokenizer)

    def abort(self, request_id: str) -> list[RequestDelta]:
        """End a request at any moment and free what it holds. An unknown id is a request that has ended."""
        if request_id not in self._live:
            return []
        deltas = self._deltas_of(self.scheduler.abort(request_id), time.monotonic())
        self._live.pop(request_id, None)
        return deltas

    def step(self) -> list[RequestDelta]:
        """One step; at most one delta a request."""
        updates = self.core.step()
        now = time.monotonic()
        self._note_times(updates, now)
        return self._deltas_of(updates, now)

    def _seed_of(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed % 2**64
        return (self._seed * 0x9E3779B97F4A7C15 + self._num_added) % 2**64

    def _deltas_of(self, updates: list[SequenceUpdate], now: float) -> list[RequestDelta]:
        choices: dict[str, list[ChoiceDelta]] = {}
        for update in updates:
            live = self._live.get(update.request_id)
            if live is not None and not live.choices[update.index].is_finished:
                live.num_cached_tokens = update.num_cached_tokens
                choices.setdefault(update.request_id, []).append(self._advance(live, update))
        return [self._delta(self._live[request_id], parts, now) for request_id, parts in choices.items()]

    def _advance(self, live: LiveRequest, update: SequenceUpdate) -> ChoiceDelta:
        choice = live.choices[update.index]
        try:
            advance = choice.advance(update)
        except Exception:
            logger.exception("request %s: the text of a token failed", update.request_id)
            if update.finish_reason is None:
                self.scheduler.finish(update.seq_id, FinishReason.ERROR)
            return choice.fail()
        if advance.ended_by_text is not None:
            self.scheduler.finish(update.seq_id, advance.ended_by_text)
        return advance.delta

    def _delta(self, live: LiveRequest, choices: list[ChoiceDelta], now: float) -> RequestDelta:
        request_id = live.request.request_id
        for choice in choices:
            live.finish_reason = choice.finish_reason or live.finish_reason
        if live.is_finished:
            del self._live[request_id]
            if self.metrics is not None:
                self.metrics.on_request_finished(live.stats(now))
        return RequestDelta(request_id, tuple(choices), live.num_cached_tokens, live.is_finished)

    def _note_times(self, updates: list[SequenceUpdate], now: float) -> None:
        """Time stamps of this step's requests, and one report to the metrics."""
        for request_id in self.core.last_batch.admitted if self.core.last_batch else ():
            if request_id in self._live:
                self._live[request_id].scheduled_at = now
        first: list[float] = []
        between: list[float] = []
        num_generated = 0
        for update in updates:
            live = self._live.get(update.request_id)
            if live is None or update.token_id is None:
                continue
            num_generated += 1
            if live.first_token_at is None:
                live.first_token_at = now
                first.append(now - live.request.arrival_time)
            elif live.last_token_at is not None and live.last_token_at != now:
                between.append(now - live.last_token_at)
            live.last_token_at = now
        if self.metrics is not None:
            self.metrics.on_step(self._step_stats(num_generated, tuple(first), tuple(between)))

    def _step_stats(
        self, num_generated: int, first: tuple[float, ...], between: tuple[float, ...]
    ) -> StepStats:
        batch = self.core.last_batch
        num_tokens = 0 if batch is None else batch.num_tokens
        num_prompt = 0
        for part in () if batch is None else batch.sequences:
            num_prompt += max(0, min(part.context_len, part.num_prompt_tokens) - part.start)
        return StepStats(
            scheduler=self.scheduler.stats(),
            num_tokens=num_tokens,
            num_prompt_tokens=num_prompt,
            num_generated_tokens=num_generated,
            first_token_seconds=first,
            inter_token_seconds=between,
        )

"""The engine as one thread sees it: requests in, pieces of answers out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from octavo.batch import SequenceUpdate
from octavo.engine.core import EngineCore
from octavo.engine.live_request import LiveRequest
from octavo.engine.merge import join_each
from octavo.engine.outputs import ChoiceDelta, RequestDelta
from octavo.engine.pace import Pace
from octavo.engine.reporter import Reporter
from octavo.params import ParameterError, SamplingParams
from octavo.request import FinishReason, Request
from octavo.sampling.validate import validate
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger("octavo")


class Engine:
    """Text in, text out, around EngineCore. Not safe for two threads at once."""

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, vocab_size: int, seed: int) -> None:
        self.core = core
        self.scheduler = core.scheduler
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.reporter = Reporter()
        self._pace = Pace()
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
        try:
            self.scheduler.add(request)
        finally:
            self.reporter.on_change(self.scheduler.stats)
        self._num_added += 1
        self._live[request_id] = LiveRequest(request, self.tokenizer)

    def abort(self, request_id: str) -> list[RequestDelta]:
        """End a request at any moment and free what it holds. An unknown id is a request that has ended."""
        if request_id not in self._live:
            return []
        deltas = self._deltas_of(self.scheduler.abort(request_id), time.monotonic())
        self._live.pop(request_id, None)
        self.reporter.on_change(self.scheduler.stats)
        return deltas

    def step(self, patience: float = 0.0) -> list[RequestDelta]:
        """One step; at most one delta a request.

        patience: seconds that a token may wait for those after it. Several in one step need less time.
        """
        started = time.monotonic()
        updates = self.core.step(self._pace.max_rounds(patience))
        now = time.monotonic()
        batch, stats = self.core.last_batch, self.scheduler.stats
        if batch is None:
            self.reporter.on_change(stats)
        else:
            num_rounds = max(len(updates) // max(len(batch.samples), 1), 1)
            self._pace.on_step(now - started, num_rounds)
            self.reporter.on_step(batch, num_rounds, updates, self._live, stats, started)
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
        return [
            self._delta(self._live[request_id], join_each(parts), now)
            for request_id, parts in choices.items()
        ]

    def _advance(self, live: LiveRequest, update: SequenceUpdate) -> ChoiceDelta:
        choice = live.choices[update.index]
        try:
            advance = choice.advance(update)
        except Exception:
            logger.exception("request %s: the text of a token failed", update.request_id)
            if update.finish_reason is None:
                self._finish(update.seq_id, FinishReason.ERROR)
            return choice.fail()
        if advance.ended_by_text is not None:
            self._finish(update.seq_id, advance.ended_by_text)
        return advance.delta

    def _finish(self, seq_id: int, reason: FinishReason) -> None:
        """End a sequence after its step, of which the metrics have heard already."""
        self.scheduler.finish(seq_id, reason)
        self.reporter.on_change(self.scheduler.stats)

    def _delta(self, live: LiveRequest, choices: list[ChoiceDelta], now: float) -> RequestDelta:
        request_id = live.request.request_id
        for choice in choices:
            live.finish_reason = choice.finish_reason or live.finish_reason
        is_finished = live.is_finished
        if is_finished:
            del self._live[request_id]
            self.reporter.on_finished(live, now)
        return RequestDelta(request_id, tuple(choices), live.num_cached_tokens, is_finished)

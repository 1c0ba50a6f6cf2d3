"""A request from its arrival to its last token: its choices and its times."""

from __future__ import annotations

from octavo.engine.choice import Choice
from octavo.engine.stats import RequestStats
from octavo.request import Request
from octavo.text.tokenizer import Tokenizer


class LiveRequest:
    """What the engine keeps of a request that has not ended. Times on time.monotonic()."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self.choices = [Choice(tokenizer, request.params, index) for index in range(request.params.n)]
        self.num_cached_tokens = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.finish_reason = ""

    @property
    def is_finished(self) -> bool:
        return all(choice.is_finished for choice in self.choices)

    def stats(self, now: float) -> RequestStats:
        arrival = self.request.arrival_time
        scheduled = self.scheduled_at if self.scheduled_at is not None else now
        first = self.first_token_at if self.first_token_at is not None else now
        last = max((choice.last_token_at or first for choice in self.choices), default=first)
        return RequestStats(
            finish_reason=self.finish_reason,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=sum(choice.num_tokens for choice in self.choices),
            n=self.request.params.n,
            max_tokens=self.request.params.max_tokens,
            e2e_seconds=now - arrival,
            queue_seconds=scheduled - arrival,
            prefill_seconds=first - scheduled,
            decode_seconds=last - first,
        )

"""Deltas → whole answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.engine.outputs import ChoiceDelta, CompletionOutput, Logprob, RequestDelta, RequestOutput
from octavo.params import SamplingParams
from octavo.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _Parts:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class OutputBuilder:
    """Gathers one request's deltas until they make a RequestOutput."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._has_logprobs = params.logprobs is not None
        self._tokenizer = tokenizer
        self._parts = [_Parts() for _ in range(params.n)]
        self._finished = False
        self._num_cached_tokens = 0

    def add(self, delta: RequestDelta) -> None:
        self._num_cached_tokens = delta.num_cached_tokens
        self._finished = delta.finished
        for choice in delta.choices:
            self._add_choice(self._parts[choice.index], choice)

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[self._completion(index, parts) for index, parts in enumerate(self._parts)],
            finished=self._finished,
            num_cached_tokens=self._num_cached_tokens,
        )

    def _add_choice(self, parts: _Parts, choice: ChoiceDelta) -> None:
        parts.texts.append(choice.text)
        parts.token_ids.extend(choice.token_ids)
        parts.finish_reason = choice.finish_reason or parts.finish_reason
        parts.stop_reason = choice.stop_reason if choice.stop_reason is not None else parts.stop_reason
        for candidates in choice.logprobs or ():
            parts.cumulative_logprob += candidates[0].logprob
            parts.logprobs.append(
                {
                    c.token_id: Logprob(c.logprob, c.rank, self._tokenizer.token_text(c.token_id))
                    for c in candidates
                }
            )

    def _completion(self, index: int, parts: _Parts) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text="".join(parts.texts),
            token_ids=parts.token_ids,
            cumulative_logprob=parts.cumulative_logprob if self._has_logprobs else None,
            logprobs=parts.logprobs if self._has_logprobs else None,
            finish_reason=parts.finish_reason,
            stop_reason=parts.stop_reason,
        )

"""One request's way from the engine thread to a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from octavo.engine.outputs import ChoiceDelta, RequestDelta


class RequestStream:
    """Async iterator of RequestDelta; ends after the delta with finished=True.

    Deltas that a slow reader has not fetched are merged, so a reader never holds more than its own answer.
    All methods run on the event loop.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._pending: list[RequestDelta] = []
        self._arrived = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestDelta:
        if self._closed and not self._pending:
            raise StopAsyncIteration
        while not self._pending:
            self._arrived.clear()
            await self._arrived.wait()
            if self._closed and not self._pending:
                raise StopAsyncIteration
        merged = merge(self._pending)
        self._pending = []
        self._closed = self._closed or merged.finished
        return merged

    def abort(self) -> None:
        """End the request; what it holds is free within a step. Idempotent."""
        if not self._closed:
            self._closed = True
            self._abort(self.request_id)
        self._arrived.set()

    def deliver(self, delta: RequestDelta) -> None:
        if not self._closed:
            self._pending.append(delta)
            self._arrived.set()


def merge(deltas: list[RequestDelta]) -> RequestDelta:
    """Several deltas of one request as one: texts and tokens joined choice by choice."""
    if len(deltas) == 1:
        return deltas[0]
    parts: dict[int, list[ChoiceDelta]] = {}
    for delta in deltas:
        for choice in delta.choices:
            parts.setdefault(choice.index, []).append(choice)
    last = deltas[-1]
    choices = tuple(join(index, parts[index]) for index in sorted(parts))
    return RequestDelta(last.request_id, choices, last.num_cached_tokens, last.finished)


def join(index: int, parts: Sequence[ChoiceDelta]) -> ChoiceDelta:
    """Consecutive deltas of one choice as one, under this index."""
    last = parts[-1]
    has_logprobs = any(part.logprobs is not None for part in parts)
    return ChoiceDelta(
        index=index,
        text="".join(part.text for part in parts),
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        logprobs=tuple(entry for part in parts for entry in part.logprobs or ()) if has_logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        error=last.error,
    )

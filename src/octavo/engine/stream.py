"""One request's way from the engine thread to a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.engine.merge import merge
from octavo.engine.outputs import RequestDelta


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

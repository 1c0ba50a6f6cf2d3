"""A request's way through the engine: prompts in, the deltas of all its choices out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType

from octavo.engine.errors import EngineError
from octavo.engine.merge import join, join_each
from octavo.engine.outputs import ChoiceDelta, RequestDelta
from octavo.params import SamplingParams
from octavo.server.engine_protocol import Engine, RequestStream
from octavo.server.errors import from_engine, internal, unavailable
from octavo.server.responses import PromptTokensDetails, Usage

logger = logging.getLogger("octavo")


class Generation:
    """The engine's streams of one API request, read as one. Choice index = prompt index * n + choice.

    A context manager: leaving it aborts what has not ended, whatever the reason.
    """

    def __init__(self, request_id: str, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        self.request_id = request_id
        self.prompts = prompts
        self.params = params
        self._streams: list[RequestStream] = []
        self._held: dict[int, list[ChoiceDelta]] = {}
        self._num_cached_tokens = [0] * len(prompts)
        self._num_output_tokens = 0

    @property
    def usage(self) -> Usage:
        """So far. A prompt counts once, however many choices it has."""
        num_prompt_tokens = sum(map(len, self.prompts))
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=self._num_output_tokens,
            total_tokens=num_prompt_tokens + self._num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(self._num_cached_tokens)),
        )

    async def submit(self, engine: Engine, cache_salt: str) -> None:
        """Hand every prompt to the engine, or none. Raises what engine.submit raises."""
        try:
            for number, prompt in enumerate(self.prompts):
                stream = await engine.submit(
                    prompt, self.params, request_id=f"{self.request_id}-{number}", cache_salt=cache_salt
                )
                self._streams.append(stream)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """End what runs. Idempotent."""
        for stream in self._streams:
            stream.abort()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.abort()

    async def batches(self, idle_seconds: float | None = None) -> AsyncGenerator[list[ChoiceDelta], None]:
        """What has come since the last batch, one delta a choice; empty after `idle_seconds` of nothing.

        Tokens that show no text yet wait for the next that do. Raises ApiError if a choice ends in an error.
        """
        waiting = {_next_delta(stream): number for number, stream in enumerate(self._streams)}
        try:
            while waiting:
                done, _ = await asyncio.wait(
                    waiting, timeout=idle_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    number = waiting.pop(task)
                    delta = self._result(task)
                    self._hold(number, delta)
                    if not delta.finished:
                        waiting[_next_delta(self._streams[number])] = number
                ready = self._take_ready()
                if ready or not done:
                    yield ready
        finally:
            for task in waiting:
                task.cancel()

    def _result(self, task: asyncio.Task[RequestDelta]) -> RequestDelta:
        try:
            return task.result()
        except EngineError as error:
            raise from_engine(error) from None
        except StopAsyncIteration:
            logger.error("request %s: the stream ended before its answer", self.request_id)
            raise internal(self.request_id) from None

    def _hold(self, number: int, delta: RequestDelta) -> None:
        self._num_cached_tokens[number] = delta.num_cached_tokens
        for choice in delta.choices:
            if choice.finish_reason == "error":
                logger.error("request %s: %s", self.request_id, choice.error)
                raise internal(self.request_id)
            if choice.finish_reason == "abort":  # not by this client, who would not be reading
                raise unavailable("the server ended the request because it is shutting down")
            self._num_output_tokens += len(choice.token_ids)
            self._held.setdefault(number * self.params.n + choice.index, []).append(choice)

    def _take_ready(self) -> list[ChoiceDelta]:
        ready = sorted(index for index, parts in self._held.items() if _shows(parts[-1]))
        return [join(index, self._held.pop(index)) for index in ready]


async def gather(generation: Generation) -> list[ChoiceDelta]:
    """The whole answers, in index order."""
    deltas: list[ChoiceDelta] = []
    async with contextlib.aclosing(generation.batches()) as batches:
        async for batch in batches:
            deltas += batch
    return join_each(sorted(deltas, key=lambda delta: delta.index))


def _shows(delta: ChoiceDelta) -> bool:
    return bool(delta.text) or delta.finish_reason is not None


def _next_delta(stream: RequestStream) -> asyncio.Task[RequestDelta]:
    async def read() -> RequestDelta:
        return await stream.__anext__()

    return asyncio.ensure_future(read())

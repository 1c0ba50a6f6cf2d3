"""Server-sent events: how a streamed answer goes over the wire."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.engine.outputs import ChoiceDelta
from octavo.server.body import run_until_disconnect
from octavo.server.errors import ApiError
from octavo.server.generation import Generation
from octavo.server.responses import Reply

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ChunkRenderer(Protocol):
    """Turns deltas into the chunks of one API."""

    def chunks(self, delta: ChoiceDelta) -> Iterable[Reply]: ...

    def usage_chunk(self) -> Reply | None:
        """The chunk before the last line, if the client asked for it."""
        ...


def event(value: Any) -> bytes:
    """One event: JSON on one line."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def events(
    generation: Generation, renderer: ChunkRenderer, ping_seconds: float
) -> AsyncGenerator[bytes, None]:
    """The events of a whole stream. An error becomes an event too, because the status has long been sent."""
    try:
        async with contextlib.aclosing(generation.batches(ping_seconds)) as batches:
            async for batch in batches:
                chunks = [event(chunk) for delta in batch for chunk in renderer.chunks(delta)]
                yield b"".join(chunks) if batch else PING
        usage = renderer.usage_chunk()
        if usage is not None:
            yield event(usage)
    except ApiError as error:
        yield event(error.body)
    yield DONE


class EventStream(Response):
    """Sends a generation as events, and aborts it when the client leaves.

    A slow client blocks the sending; what the engine adds meanwhile comes as one chunk.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, renderer: ChunkRenderer, ping_seconds: float) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._generation = generation
        self._renderer = renderer
        self._ping_seconds = ping_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._generation, contextlib.suppress(ClientDisconnect):
            await run_until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(events(self._generation, self._renderer, self._ping_seconds)) as parts:
            async for data in parts:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

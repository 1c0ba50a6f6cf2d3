"""What chat and completions do alike once a request is understood: submit, then stream or gather."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.errors import EngineError
from octavo.engine.outputs import ChoiceDelta
from octavo.params import ParameterError
from octavo.server.body import run_until_disconnect
from octavo.server.context import ServerContext
from octavo.server.errors import from_engine, from_parameter
from octavo.server.generation import Generation, gather
from octavo.server.protocol import GenerationRequest
from octavo.server.responses import (
    ChatChoice,
    ChatChunkChoice,
    CompletionChoice,
    Reply,
    Usage,
)
from octavo.server.sse import EventStream

Choice = CompletionChoice | ChatChoice | ChatChunkChoice


class ChoiceRenderer(Protocol):
    """How one API writes a choice. One object serves one request."""

    whole_object: str
    chunk_object: str

    def whole(self, answer: ChoiceDelta) -> Choice: ...

    def parts(self, delta: ChoiceDelta) -> Iterable[Choice]:
        """The streamed choices that a delta makes: usually one."""
        ...


@dataclass(slots=True)
class ReplyWriter:
    """Puts choices into replies, with or without usage; a ChunkRenderer for streams."""

    context: ServerContext
    generation: Generation
    choices: ChoiceRenderer
    includes_usage: bool = False
    has_continuous_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[ChoiceDelta]) -> Reply:
        choices = [self.choices.whole(answer) for answer in answers]
        return self._reply(self.choices.whole_object, choices, self.generation.usage)

    def chunks(self, delta: ChoiceDelta) -> Iterable[Reply]:
        usage = self.generation.usage if self.has_continuous_usage else None
        for choice in self.choices.parts(delta):
            yield self._reply(self.choices.chunk_object, [choice], usage)

    def usage_chunk(self) -> Reply | None:
        if not self.includes_usage:
            return None
        return self._reply(self.choices.chunk_object, [], self.generation.usage)

    def _reply(self, kind: str, choices: Sequence[Choice], usage: Usage | None) -> Reply:
        return Reply(
            id=self.generation.request_id,
            object=kind,
            created=self.created,
            model=self.context.engine.model_name,
            choices=list(choices),
            system_fingerprint=self.context.system_fingerprint,
            usage=UNSET if usage is None else usage,
        )


async def answer(
    http_request: Request,
    context: ServerContext,
    request: GenerationRequest,
    generation: Generation,
    choices: ChoiceRenderer,
    names: dict[str, str],
) -> Response:
    """Submit the generation and answer with its text. Raises ApiError; `names`: as in from_parameter."""
    try:
        await generation.submit(context.engine, request.cache_salt or "")
    except ParameterError as error:
        raise from_parameter(error, names) from None
    except EngineError as error:
        raise from_engine(error) from None
    options = request.stream_options
    writer = ReplyWriter(
        context,
        generation,
        choices,
        includes_usage=bool(options and options.include_usage),
        has_continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
    )
    if request.stream:
        return EventStream(generation, writer, context.ping_seconds)
    with generation:
        answers = await run_until_disconnect(http_request.receive, gather(generation))
    return Response(msgspec.json.encode(writer.whole(answers)), media_type="application/json")

"""POST /v1/chat/completions: messages in, the assistant's message out."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import ChoiceDelta
from octavo.params import ParameterError
from octavo.server.answer import answer
from octavo.server.body import read_json
from octavo.server.context import ServerContext, context_of
from octavo.server.engine_protocol import Engine
from octavo.server.errors import from_parameter, invalid, unsupported
from octavo.server.generation import Generation
from octavo.server.logprobs import chat_logprobs
from octavo.server.protocol import ChatCompletionRequest, ChatMessage
from octavo.server.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
)
from octavo.server.sampling import check_logprobs, fit_to_context, sampling_params
from octavo.text.chat_template import ChatTemplateError

# A closed list, because templates copy the role into the scaffolding, where control tokens are read as such.
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Variables that the engine gives a template itself, and names of its own arguments.
_TEMPLATE_NAMES = frozenset(
    {"messages", "add_generation_prompt", "tools", "documents", "tokenizer", "template", "self"}
)


async def create_chat_completion(http_request: Request) -> Response:
    context = context_of(http_request)
    engine = context.engine
    request = await read_json(http_request, ChatCompletionRequest)
    context.require_model(request.model)
    asked_by = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    max_tokens: int | None = getattr(request, asked_by)
    names = {"max_tokens": asked_by, "prompt": "messages", "prompt_token_ids": "messages"}
    params = sampling_params(
        request,
        max_tokens=max_tokens,
        logprobs=_num_logprobs(request),
        vocab_size=engine.tokenizer.vocab_size,
        names=names,
    )
    token_ids = await encode_messages(
        context, request.messages, request.add_generation_prompt, request.chat_template_kwargs
    )
    fit_to_context(engine, [token_ids], max_tokens, prompt="messages", asked_by=asked_by)
    generation = Generation(f"chatcmpl-{uuid.uuid4().hex}", [token_ids], params)
    return await answer(http_request, context, request, generation, ChatRenderer(engine), names)


async def encode_messages(
    context: ServerContext,
    messages: Sequence[ChatMessage],
    add_generation_prompt: bool | None,
    variables: dict[str, Any] | None,
) -> list[int]:
    """The conversation's token ids. Raises ApiError naming the message, or with the template's complaint."""
    if not messages:
        raise invalid("messages must not be empty", "messages")
    clash = _TEMPLATE_NAMES & (variables or {}).keys()
    if clash:
        param = f"chat_template_kwargs.{min(clash)}"
        raise invalid(f"{param} cannot be set this way", param)
    plain = [plain_message(message, f"messages[{number}]") for number, message in enumerate(messages)]
    context.require_short(sum(len(message["content"]) for message in plain), "messages")
    try:
        token_ids = await context.engine.encode_chat(
            plain, add_generation_prompt=add_generation_prompt is not False, **(variables or {})
        )
    except ChatTemplateError as error:
        raise invalid(str(error), "messages") from None
    except ParameterError as error:
        raise from_parameter(error, {}) from None
    if not token_ids:
        raise invalid("the chat template made an empty prompt of the messages", "messages")
    return token_ids


def plain_message(message: ChatMessage, path: str) -> dict[str, Any]:
    """A message as templates read it. `path` names it in errors."""
    if message.role not in ROLES:
        raise invalid(f"{path}.role must be one of {', '.join(ROLES)}", f"{path}.role")
    if message.tool_calls:
        raise unsupported(f"{path}.tool_calls")
    # Templates know the older name for what OpenAI now calls developer.
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _content(message, f"{path}.content")}
    if message.name is not None:
        if not _NAME.fullmatch(message.name):
            raise invalid(f"{path}.name must be 1 to 64 letters, digits, _, . or -", f"{path}.name")
        plain["name"] = message.name
    return plain


def _content(message: ChatMessage, path: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        if message.role != "assistant":
            raise invalid(f"{path} is required", path)
        return ""
    texts = []
    for part in message.content:
        if part.type != "text":
            raise unsupported(path, f" with parts of type {part.type[:32]!r}; this model reads text")
        if part.text is None:
            raise invalid(f"{path} has a text part without text", path)
        texts.append(part.text)
    return "\n".join(texts)


def _num_logprobs(request: ChatCompletionRequest) -> int | None:
    top = request.top_logprobs
    if not request.logprobs:
        if top:
            raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
        return None
    if top is not None:
        check_logprobs(top, "top_logprobs")
    return top or 0


class ChatRenderer:
    """Writes choices of chat completions; remembers which have been given their role."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, engine: Engine) -> None:
        self._tokenizer = engine.tokenizer
        self._begun: set[int] = set()

    def whole(self, answer: ChoiceDelta) -> ChatChoice:
        return ChatChoice(
            index=answer.index,
            message=AssistantMessage(answer.text),
            logprobs=self._logprobs(answer),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
        )

    def parts(self, delta: ChoiceDelta) -> Iterable[ChatChunkChoice]:
        """The first time, a chunk with the role; then text and finish reason."""
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            yield ChatChunkChoice(delta.index, ChatDelta("assistant", ""), None, None)
        yield ChatChunkChoice(
            index=delta.index,
            delta=ChatDelta(content=delta.text or None),
            logprobs=self._logprobs(delta),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
        )

    def _logprobs(self, delta: ChoiceDelta) -> ChatLogprobs | None:
        return None if delta.logprobs is None else chat_logprobs(self._tokenizer, delta.logprobs)

"""POST /tokenize and /detokenize, in vLLM's shape (`prompt` or `messages`) and llama.cpp's (`content`)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.body import read_json
from octavo.server.chat import encode_messages
from octavo.server.context import ServerContext, context_of
from octavo.server.engine_protocol import Engine, Tokenizer
from octavo.server.errors import invalid
from octavo.server.logprobs import token_label
from octavo.server.protocol import DetokenizeRequest, TokenizeRequest


async def tokenize(http_request: Request) -> Response:
    context = context_of(http_request)
    request = await read_json(http_request, TokenizeRequest)
    context.require_model(request.model)
    given = [name for name in ("prompt", "messages", "content") if getattr(request, name) is not None]
    if len(given) != 1:
        raise invalid("give one of prompt, messages and content", given[1] if given else "prompt")
    if request.content is not None:
        return _json(await _like_llama_cpp(context.engine, request, request.content))
    return _json(await _like_vllm(context, request))


async def detokenize(http_request: Request) -> Response:
    """Both peers send `tokens`; the answer has the text under the names of both."""
    context = context_of(http_request)
    request = await read_json(http_request, DetokenizeRequest)
    context.require_model(request.model)
    tokenizer = context.engine.tokenizer
    for number, token_id in enumerate(request.tokens):
        if not 0 <= token_id < tokenizer.vocab_size:
            param = f"tokens[{number}]"
            raise invalid(f"{param} is not a token id below {tokenizer.vocab_size}", param)
    text = await asyncio.to_thread(tokenizer.decode, request.tokens, skip_special_tokens=False)
    return _json({"prompt": text, "content": text})


async def _like_vllm(context: ServerContext, request: TokenizeRequest) -> dict[str, Any]:
    engine = context.engine
    if request.messages is not None:
        tokens = await encode_messages(
            context, request.messages, request.add_generation_prompt, request.chat_template_kwargs
        )
    else:
        add_special = request.add_special_tokens is not False
        tokens = await engine.encode(request.prompt or "", add_special=add_special, parse_special=True)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": engine.max_model_len,
        "tokens": tokens,
    }
    if request.return_token_strs:
        answer["token_strs"] = [token_label(engine.tokenizer, token_id) for token_id in tokens]
    return answer


async def _like_llama_cpp(engine: Engine, request: TokenizeRequest, content: str) -> dict[str, Any]:
    tokens = await engine.encode(
        content,
        add_special=bool(request.add_special),
        parse_special=request.parse_special is not False,
    )
    if not request.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token_id, "piece": _piece(engine.tokenizer, token_id)} for token_id in tokens]}


def _piece(tokenizer: Tokenizer, token_id: int) -> str | list[int]:
    """A token's text, or its bytes where they are only a part of a character."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode() or tokenizer.token_text(token_id)
    except UnicodeDecodeError:
        return list(raw)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

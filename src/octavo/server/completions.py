"""POST /v1/completions: text or token ids in, text out; several prompts at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import ChoiceDelta
from octavo.params import SamplingParams
from octavo.server.answer import answer
from octavo.server.body import read_json
from octavo.server.context import context_of
from octavo.server.engine_protocol import Engine
from octavo.server.errors import invalid, unsupported
from octavo.server.generation import Generation
from octavo.server.logprobs import CompletionLogprobWriter
from octavo.server.protocol import CompletionRequest
from octavo.server.responses import CompletionChoice, CompletionLogprobs
from octavo.server.sampling import check_logprobs, fit_to_context, sampling_params

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 256
MAX_PROMPT_CHOICES = 1024
"""Prompts times n."""

NAMES = {"prompt_token_ids": "prompt"}


async def create_completion(http_request: Request) -> Response:
    context = context_of(http_request)
    engine = context.engine
    request = await read_json(http_request, CompletionRequest)
    context.require_model(request.model)
    _check(request)
    prompts = as_prompts(request.prompt)
    n = 1 if request.n is None else request.n
    if len(prompts) * n > MAX_PROMPT_CHOICES:
        raise invalid(f"{len(prompts)} prompts times n, {n}, are more than {MAX_PROMPT_CHOICES} choices", "n")
    params = sampling_params(
        request,
        max_tokens=DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens,
        logprobs=request.logprobs,
        vocab_size=engine.tokenizer.vocab_size,
        names=NAMES,
    )
    add_special = request.add_special_tokens is not False
    for prompt in prompts:
        context.require_short(len(prompt) if isinstance(prompt, str) else 0, "prompt")
    token_ids = [await _encode(engine, prompt, add_special) for prompt in prompts]
    _check_token_ids(token_ids, engine.tokenizer.vocab_size, is_batch=_is_batch(request.prompt))
    fit_to_context(engine, token_ids, request.max_tokens, prompt="prompt", asked_by="max_tokens")
    if request.max_tokens is None:
        params = _within(params, engine.max_model_len - max(map(len, token_ids)))
    echoes = [_text(engine, prompt) for prompt in prompts] if request.echo else None
    generation = Generation(f"cmpl-{uuid.uuid4().hex}", token_ids, params)
    renderer = CompletionRenderer(engine, generation, echoes)
    return await answer(http_request, context, request, generation, renderer, NAMES)


class CompletionRenderer:
    """Writes choices of text completions; remembers where each one's text stands."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, engine: Engine, generation: Generation, echoes: Sequence[str] | None) -> None:
        self._tokenizer = engine.tokenizer
        self._params = generation.params
        self._echoes = echoes
        self._writers: dict[int, CompletionLogprobWriter] = {}
        self._text_lens: dict[int, int] = {}

    def whole(self, answer: ChoiceDelta) -> CompletionChoice:
        return self._choice(answer)

    def parts(self, delta: ChoiceDelta) -> Iterable[CompletionChoice]:
        return (self._choice(delta),)

    def _choice(self, delta: ChoiceDelta) -> CompletionChoice:
        is_first = delta.index not in self._text_lens
        text_len = self._text_lens.get(delta.index, 0) + len(delta.text)
        self._text_lens[delta.index] = text_len
        echo = self._echoes[delta.index // self._params.n] if self._echoes and is_first else ""
        has_ended = delta.finish_reason is not None
        return CompletionChoice(
            index=delta.index,
            text=echo + delta.text,
            logprobs=self._logprobs(delta, text_len if has_ended else None),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
        )

    def _logprobs(self, delta: ChoiceDelta, text_len: int | None) -> CompletionLogprobs | None:
        if delta.logprobs is None:
            return None
        writer = self._writers.get(delta.index)
        if writer is None:
            writer = CompletionLogprobWriter(self._tokenizer, self._params.skip_special_tokens)
            self._writers[delta.index] = writer
        return writer.write(delta.logprobs, text_len)


def as_prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """One of the four shapes (text, texts, ids, lists of ids) as a list of prompts. Raises ApiError."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt must not be empty", "prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise invalid("prompt must not mix texts, token ids and lists of token ids", "prompt")
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    if len(prompt) > MAX_PROMPTS:
        raise invalid(f"prompt has {len(prompt)} prompts; at most {MAX_PROMPTS} are taken", "prompt")
    return [item for item in prompt if not isinstance(item, int)]


def _check(request: CompletionRequest) -> None:
    if request.best_of is not None and request.best_of != (1 if request.n is None else request.n):
        raise unsupported("best_of", " unless it equals n")
    if request.logprobs is not None:
        check_logprobs(request.logprobs, "logprobs")
        if request.echo:
            raise unsupported("echo", " together with logprobs")


def _within(params: SamplingParams, room: int) -> SamplingParams:
    """The default of max_tokens, which nobody asked for, gives way to the model's length."""
    limit = min(DEFAULT_MAX_TOKENS, room)
    return replace(params, max_tokens=limit, min_tokens=min(params.min_tokens, limit))


def _is_batch(prompt: str | list[str | int | list[int]]) -> bool:
    return not isinstance(prompt, str) and not isinstance(prompt[0], int)


def _check_token_ids(prompts: Sequence[Sequence[int]], vocab_size: int, *, is_batch: bool) -> None:
    for number, ids in enumerate(prompts):
        param = f"prompt[{number}]" if is_batch else "prompt"
        if not ids:
            raise invalid(f"{param} is empty, and this model's tokenizer adds no token to it", param)
        if min(ids) < 0 or max(ids) >= vocab_size:
            raise invalid(f"{param} holds a token id outside 0 to {vocab_size - 1}", param)


async def _encode(engine: Engine, prompt: str | list[int], add_special: bool) -> list[int]:
    """A raw prompt may spell control tokens: this endpoint is for callers who lay out their own."""
    if isinstance(prompt, str):
        return await engine.encode(prompt, add_special=add_special, parse_special=True)
    return prompt


def _text(engine: Engine, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else engine.tokenizer.decode(prompt, skip_special_tokens=False)

"""An engine that answers from a script: what to say, how fast, and how to fail. Tokens are bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.batch import TokenLogprob
from octavo.engine.errors import EngineDrainingError
from octavo.engine.metrics import EngineMetrics
from octavo.engine.outputs import ChoiceDelta, RequestDelta
from octavo.params import ParameterError, SamplingParams
from octavo.text.chat_template import ChatTemplateError

END = 256
"""The end-of-sequence token: special, without text."""


class ByteTokenizer:
    vocab_size = 257
    special_token_ids = frozenset({END})

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text = bytes(i for i in ids if i != END).decode(errors="replace")
        return text if skip_special_tokens else text + "<end>" * list(ids).count(END)

    def token_text(self, token_id: int) -> str:
        return "<end>" if token_id == END else bytes([token_id]).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == END else bytes([token_id])


@dataclass(frozen=True)
class Step:
    """One delta of one choice."""

    text: str
    token_ids: tuple[int, ...] = ()
    index: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None


def say(text: str, *, index: int = 0, finish_reason: str = "stop", top: int | None = None) -> list[Step]:
    """A step a byte, as a real detokenizer gives it: text comes when its character is complete."""
    raw = text.encode()
    steps = []
    for end in range(1, len(raw) + 1):
        token_id = raw[end - 1]
        before = raw[: end - 1].decode(errors="ignore")
        after = raw[:end].decode(errors="ignore")
        is_last = end == len(raw)
        steps.append(
            Step(
                after[len(before) :],
                (token_id,),
                index,
                finish_reason if is_last else None,
                logprobs=None if top is None else (_entries(token_id, top),),
            )
        )
    return steps


def _entries(token_id: int, top: int) -> tuple[TokenLogprob, ...]:
    likeliest = [TokenLogprob(token_id if k == 0 else k, -0.5 - k, k + 1) for k in range(top)]
    return (TokenLogprob(token_id, -0.5, 1), *likeliest)


class FakeStream:
    def __init__(self, request_id: str, deltas: AsyncIterator[RequestDelta]) -> None:
        self.request_id = request_id
        self.is_aborted = False
        self.num_read = 0
        self._deltas = deltas

    async def __anext__(self) -> RequestDelta:
        delta = await self._deltas.__anext__()
        self.num_read += 1
        return delta

    def abort(self) -> None:
        self.is_aborted = True


Script = Callable[[list[int], SamplingParams], list[Step]]


@dataclass
class FakeEngine:
    """`script` says what a prompt is answered with; `pause` is the seconds before each step."""

    script: Script = lambda prompt, params: say("Hello")
    pause: float = 0.0
    num_cached_tokens: int = 0
    model_name: str = "toy"
    max_model_len: int = 100
    is_healthy: bool = True
    refusal: Exception | None = None
    """Raised by submit."""
    streams: list[FakeStream] = field(default_factory=list)
    submitted: list[tuple[list[int], SamplingParams, str]] = field(default_factory=list)
    """Prompt, params and cache salt of each."""
    chats: list[tuple[list[dict[str, Any]], dict[str, Any]]] = field(default_factory=list)
    num_running: int = 0
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.metrics = EngineMetrics(self.model_name, self.max_model_len, {"block_size": "16"})
        self._is_draining = False
        self._draining_over = asyncio.Event()

    async def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return self.tokenizer.encode(text)

    async def encode_chat(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        variables["add_generation_prompt"] = add_generation_prompt
        self.chats.append((list(messages), variables))
        if messages[0]["role"] == "assistant":
            raise ChatTemplateError("a conversation must begin with the user")
        return self.tokenizer.encode("".join(str(message["content"]) for message in messages) + ">")

    async def submit(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        cache_salt: str = "",
    ) -> FakeStream:
        if self._is_draining:
            raise EngineDrainingError("draining")
        if self.refusal is not None:
            raise self.refusal
        if list(prompt_token_ids) == list(b"refuse me"):
            raise ParameterError("prompt_token_ids can never fit", "prompt_token_ids")
        prompt = list(prompt_token_ids)
        self.submitted.append((prompt, params, cache_salt))
        stream = FakeStream(request_id, self._run(request_id, self.script(prompt, params)))
        self.streams.append(stream)
        return stream

    async def drain(self, timeout: float) -> bool:
        self._is_draining = True
        deadline = asyncio.get_running_loop().time() + timeout
        while self.num_running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        is_idle = self.num_running == 0
        self._draining_over.set()
        await asyncio.sleep(0.05)  # the aborts are delivered
        return is_idle

    def close(self) -> None:
        self.is_closed = True

    async def _run(self, request_id: str, steps: list[Step]) -> AsyncIterator[RequestDelta]:
        self.num_running += 1
        open_choices = {step.index for step in steps}
        for step in steps:
            await self._pause()
            if self._draining_over.is_set():
                step = Step("", index=step.index, finish_reason="abort")
                open_choices = {step.index}
            if step.finish_reason is not None:
                open_choices.discard(step.index)
            choice = ChoiceDelta(
                step.index,
                step.text,
                step.token_ids,
                step.logprobs,
                step.finish_reason,
                step.stop_reason,
                step.error,
            )
            if not open_choices:
                self.num_running -= 1
            yield RequestDelta(request_id, (choice,), self.num_cached_tokens, not open_choices)
            if not open_choices:
                return

    async def _pause(self) -> None:
        if not self.pause:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._draining_over.wait(), self.pause)


def strict_json(text: str) -> Any:
    """Refuses NaN and Infinity, which JSON does not have."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)

"""Offline inference: `LLM(model).generate(prompts, params)`, with the names of vLLM's offline API."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, Self

from octavo.config import DEFAULT_MODEL, EngineConfig
from octavo.engine.assembly import assemble
from octavo.engine.collect import OutputBuilder
from octavo.engine.outputs import RequestDelta, RequestOutput
from octavo.engine.pace import PATIENCE
from octavo.engine.plan import MemoryPlan
from octavo.params import ParameterError, SamplingParams
from octavo.text.chat_template import encode_chat
from octavo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model, its KV cache and a scheduler, driven by the calling thread.

    Options are the fields of octavo.config (max_model_len, max_num_seqs, block_size, num_blocks, …).
    Raises ConfigError, naming the field, for settings that cannot work.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self._assembly = assemble(EngineConfig.from_options(model, **options))
        self._engine = self._assembly.engine
        self._ids = count()
        self._inboxes: dict[str, list[RequestDelta]] = {}
        self.num_steps = 0
        """Steps since start. A step may give several tokens a sequence."""

    @property
    def plan(self) -> MemoryPlan:
        return self._assembly.plan

    @property
    def tokenizer(self) -> Tokenizer:
        return self._assembly.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self._assembly.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer every prompt (a text or a list of token ids), in order.

        sampling_params: one for all, or one a prompt. use_tqdm: show progress; None shows it on a terminal.
        Raises ParameterError for a prompt or parameter that cannot be served; nothing has run then.
        """
        listed = _as_prompts(prompts)
        params = _as_params(sampling_params, len(listed))
        token_ids = [self._encode(prompt) for prompt in listed]
        texts = [prompt if isinstance(prompt, str) else None for prompt in listed]
        return self._run(token_ids, params, texts, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        **template_variables: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several. Messages are {"role": …, "content": …}."""
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        token_ids = [self.encode_chat(list(c), **template_variables) for c in conversations]  # type: ignore[arg-type]
        params = _as_params(sampling_params, len(token_ids))
        return self._run(token_ids, params, [None] * len(token_ids), use_tqdm)

    def stream(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> Generator[RequestDelta]:
        """Answer one prompt, piece by piece. Closing the iterator ends the request."""
        request_id = self._next_id()
        self._engine.add(request_id, prompt_token_ids, params)
        inbox = self._inboxes[request_id] = []
        try:
            while inbox or self._engine.is_unfinished(request_id):
                if not inbox:
                    self._step(PATIENCE)
                yield from inbox
                inbox.clear()
        finally:
            del self._inboxes[request_id]
            self._engine.abort(request_id)

    def encode_chat(self, messages: Sequence[Message], **template_variables: Any) -> list[int]:
        """The token ids of a conversation under the model's chat template."""
        return encode_chat(self.tokenizer, self._assembly.chat_template, messages, **template_variables)

    def close(self) -> None:
        """End what runs. The memory goes with the object."""
        for request_id in self._engine.unfinished_ids:
            self._engine.abort(request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_id(self) -> str:
        return str(next(self._ids))

    def _encode(self, prompt: Prompt) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _run(
        self,
        token_ids: list[list[int]],
        params: list[SamplingParams],
        texts: list[str | None],
        use_tqdm: bool | None,
    ) -> list[RequestOutput]:
        builders: dict[str, OutputBuilder] = {}
        inbox: list[RequestDelta] = []
        try:
            for ids, param, text in zip(token_ids, params, texts, strict=True):
                request_id = self._next_id()
                self._engine.add(request_id, ids, param)
                self._inboxes[request_id] = inbox
                builders[request_id] = OutputBuilder(request_id, text, ids, param, self.tokenizer)
            with _progress(len(builders), use_tqdm) as progress:
                self._finish(builders, inbox, progress)
        finally:
            for request_id in builders:
                self._engine.abort(request_id)
                del self._inboxes[request_id]
        return [builder.output() for builder in builders.values()]

    def _finish(
        self, builders: Mapping[str, OutputBuilder], inbox: list[RequestDelta], progress: _Progress
    ) -> None:
        num_unfinished = len(builders)
        while num_unfinished:
            is_watched = len(self._inboxes) > len(builders)
            self._step(PATIENCE if is_watched else math.inf)
            for delta in inbox:
                builders[delta.request_id].add(delta)
                num_unfinished -= delta.finished
                progress.advance(sum(len(c.token_ids) for c in delta.choices), int(delta.finished))
            inbox.clear()

    def _step(self, patience: float) -> None:
        """One step for all: each request's delta goes to its own reader, with several streams open too."""
        self.num_steps += 1
        for delta in self._engine.step(patience):
            if delta.request_id in self._inboxes:
                self._inboxes[delta.request_id].append(delta)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise ParameterError("prompts must be a text, a list of token ids, or a list of those", "prompts")
    listed = list(prompts)
    if listed and all(isinstance(item, int) for item in listed):
        return [[int(item) for item in listed]]  # type: ignore[arg-type]
    for index, item in enumerate(listed):
        is_ids = isinstance(item, Sequence) and all(isinstance(token, int) for token in item)
        if not isinstance(item, str) and not is_ids:
            raise ParameterError(f"prompts[{index}] must be a text or a list of token ids", "prompts")
    return listed  # type: ignore[return-value]


def _as_params(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise ParameterError(f"{num_prompts} prompts, but {len(params)} sampling params", "sampling_params")
    return list(params)


class _Progress(Protocol):
    def advance(self, num_tokens: int, num_finished: int) -> None: ...


class _NoProgress:
    def advance(self, num_tokens: int, num_finished: int) -> None:
        pass


@contextmanager
def _progress(total: int, wanted: bool | None) -> Iterator[_Progress]:
    """A bar on stderr: prompts done, and tokens a second."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield _NoProgress()
        return
    from octavo.engine.progress import progress_bar

    with progress_bar(total) as bar:
        yield bar

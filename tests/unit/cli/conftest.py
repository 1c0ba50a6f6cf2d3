"""A runner that calls `octavo` as a shell would, and an engine that says what it is told to."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import octavo
from octavo.cli import main, terminal
from octavo.engine.outputs import ChoiceDelta, CompletionOutput, RequestDelta, RequestOutput
from octavo.params import SamplingParams

Octavo = Callable[..., Result]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Octavo:
    """call(*arguments, input=…) runs the command line; settings in the environment are taken away first."""
    for name in [name for name in os.environ if name.startswith("OCTAVO_")]:
        monkeypatch.delenv(name)

    def invoke(*arguments: str, **settings: Any) -> Result:
        return CliRunner().invoke(main, list(arguments), **settings)

    return invoke


class FakeTokenizer:
    vocab_size = 100

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class FakePlan:
    def as_dict(self) -> dict[str, int]:
        return {"num_blocks": 4}

    def lines(self) -> list[str]:
        return ["4 blocks"]


class FakeLLM:
    """Records what it is asked. Streams `pieces`; a callable among them is called when its turn comes."""

    pieces: tuple[Any, ...] = ("Hel", "lo")
    made: list[FakeLLM] = []  # noqa: RUF012

    def __init__(self, model: str, **options: Any) -> None:
        self.model, self.options = model, options
        self.conversations: list[list[dict[str, str]]] = []
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.tokenizer, self.plan = FakeTokenizer(), FakePlan()
        self.num_steps = 0
        self.streams: list[Generator[RequestDelta]] = []
        self.num_ended_streams = 0
        self.made.append(self)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        self.conversations.append([dict(message) for message in messages])
        return [7] * len(messages)

    def stream(self, prompt_token_ids: list[int], params: SamplingParams) -> Generator[RequestDelta]:
        self.prompts.append(prompt_token_ids)
        self.params.append(params)
        self.streams.append(self._stream())  # kept, so that nobody but the caller closes it
        return self.streams[-1]

    def _stream(self) -> Generator[RequestDelta]:
        try:
            for index, piece in enumerate(self.pieces):
                last = index == len(self.pieces) - 1
                if callable(piece):
                    piece()
                    piece = ""
                choice = ChoiceDelta(0, piece, (index,), finish_reason="stop" if last else None)
                yield RequestDelta("0", (choice,), 3, last)
        finally:
            self.num_ended_streams += 1

    def generate(
        self, prompts: list[list[int]], params: SamplingParams, *, use_tqdm: bool | None
    ) -> list[RequestOutput]:
        self.prompts += prompts
        self.params.append(params)
        self.num_steps += 10
        ids = [1] * (params.max_tokens or 0)
        answer = CompletionOutput(0, "", ids, None, None, "length")
        return [RequestOutput("0", None, prompt, [answer], True, 0) for prompt in prompts]

    def close(self) -> None:
        pass


@pytest.fixture
def llm_class(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    """Takes the place of octavo.LLM; `made` holds what was built."""

    class ThisLLM(FakeLLM):
        made: list[FakeLLM] = []  # noqa: RUF012

    monkeypatch.setattr(octavo, "LLM", ThisLLM, raising=False)
    monkeypatch.setattr(terminal, "resolve", lambda model, progress: Path(model))
    return ThisLLM

"""One answer on a terminal: streamed, counted, and stopped by Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from octavo.engine.outputs import RequestDelta
from octavo.params import SamplingParams


class Streams(Protocol):
    """What an answer needs of octavo.LLM."""

    def stream(self, prompt_token_ids: list[int], params: SamplingParams) -> Generator[RequestDelta]: ...


class AnswerError(ValueError):
    """The engine ended the answer with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    num_tokens: int
    num_cached_tokens: int
    finish_reason: str
    """`abort` when it was interrupted."""
    seconds: float


def stream_answer(
    llm: Streams, prompt_token_ids: list[int], params: SamplingParams, write: Callable[[str], None]
) -> Answer:
    """Write the answer piece by piece. Ctrl-C ends it, and what there is so far is the answer.

    Raises ParameterError for a prompt that cannot be served, AnswerError when the engine fails.
    """
    pieces: list[str] = []
    num_tokens, num_cached, reason, started = 0, 0, "abort", time.perf_counter()
    with _until_interrupted() as interrupted, closing(llm.stream(prompt_token_ids, params)) as deltas:
        for delta in deltas:
            choice = delta.choices[0]
            if choice.error is not None:
                raise AnswerError(choice.error)
            num_cached = delta.num_cached_tokens
            num_tokens += len(choice.token_ids)
            reason = choice.finish_reason or reason
            pieces.append(choice.text)
            write(choice.text)
            if interrupted.is_set():
                break
    seconds = time.perf_counter() - started
    return Answer(
        text="".join(pieces),
        num_tokens=num_tokens,
        num_cached_tokens=num_cached,
        finish_reason=reason,
        seconds=seconds,
    )


@contextmanager
def _until_interrupted() -> Iterator[Event]:
    """The event that Ctrl-C sets: a KeyboardInterrupt could hit the engine in the middle of a step.

    A second Ctrl-C interrupts as usual.
    """
    interrupted = Event()

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        interrupted.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)

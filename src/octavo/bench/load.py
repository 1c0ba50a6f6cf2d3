"""Runs sessions against a server: closed loop, or as they arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.bench.client import Answer
from octavo.bench.workloads import Session


class Asker(Protocol):
    """What a load needs of a client."""

    async def complete(self, prompt: str, output_len: int) -> Answer: ...

    async def chat(self, messages: Sequence[dict[str, str]], output_len: int) -> Answer: ...


@dataclass(frozen=True, slots=True)
class LoadResult:
    answers: tuple[Answer, ...]
    """In the order in which they were finished."""
    seconds: float
    """From the first request to the last answer."""


async def run_load(
    client: Asker,
    sessions: Sequence[Session],
    *,
    max_concurrency: int | None = None,
    on_answer: Callable[[Answer], None] | None = None,
) -> LoadResult:
    """Run every session at its arrival, at most max_concurrency of them at a time (None: no limit).

    A session ends early when an answer fails. on_answer is called with each answer, also failed ones.
    """
    gate = asyncio.Semaphore(max_concurrency or max(1, len(sessions)))
    answers: list[Answer] = []
    start = time.perf_counter()

    def take(answer: Answer) -> None:
        answers.append(answer)
        if on_answer is not None:
            on_answer(answer)

    async def run(session: Session) -> None:
        await asyncio.sleep(max(0.0, start + session.arrival - time.perf_counter()))
        async with gate:
            await _run_session(client, session, take)

    await asyncio.gather(*(run(session) for session in sessions))
    return LoadResult(tuple(answers), time.perf_counter() - start)


async def _run_session(client: Asker, session: Session, take: Callable[[Answer], None]) -> None:
    messages: list[dict[str, str]] = []
    for turn in session.turns:
        if session.is_chat:
            messages.append({"role": "user", "content": turn.prompt})
            answer = await client.chat(messages, turn.output_len)
            messages.append({"role": "assistant", "content": answer.text})
        else:
            answer = await client.complete(turn.prompt, turn.output_len)
        take(answer)
        if answer.error is not None:
            return

"""The load: how many at once, when they begin, what a conversation carries. Time is a virtual clock's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.bench.client import Answer
from octavo.bench.load import run_load
from octavo.bench.workloads import Session, Turn, chats, random_prompts


@dataclass
class Recorder:
    """Answers after one turn of the event loop, and keeps what it was asked."""

    fails_on: str = "\0"
    prompts: list[str] = field(default_factory=list)
    conversations: list[list[dict[str, str]]] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0

    async def complete(self, prompt: str, output_len: int) -> Answer:
        self.prompts.append(prompt)
        return await self._answer(prompt, output_len)

    async def chat(self, messages: Sequence[dict[str, str]], output_len: int) -> Answer:
        self.conversations.append([dict(message) for message in messages])
        return await self._answer(messages[-1]["content"], output_len)

    async def _answer(self, prompt: str, output_len: int) -> Answer:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(0.001)
        self.num_running -= 1
        error = "broken" if self.fails_on in prompt else None
        return Answer(0.0, 0.1, (0.1,), 0.2, 5, output_len, text=f"re: {prompt}", error=error)


def test_closed_loop_keeps_so_many_running() -> None:
    recorder, seen = Recorder(), []
    sessions = random_prompts(9, 4, 2)
    result = asyncio.run(run_load(recorder, sessions, max_concurrency=3, on_answer=seen.append))
    assert recorder.most_running == 3
    assert len(result.answers) == len(seen) == 9
    assert sorted(recorder.prompts) == sorted(session.turns[0].prompt for session in sessions)


def test_without_a_limit_all_run() -> None:
    recorder = Recorder()
    asyncio.run(run_load(recorder, random_prompts(9, 4, 2)))
    assert recorder.most_running == 9


def test_sessions_wait_for_their_arrival() -> None:
    recorder = Recorder()
    late, early = Session((Turn("late", 1),), arrival=0.1), Session((Turn("early", 1),))
    result = asyncio.run(run_load(recorder, [late, early]))
    assert recorder.prompts == ["early", "late"]
    assert result.seconds >= 0.1


def test_a_conversation_carries_what_was_said() -> None:
    recorder = Recorder()
    (chat,) = chats(1, 2, 3, 4)
    asyncio.run(run_load(recorder, [chat]))
    first, second = chat.turns
    assert recorder.conversations == [
        [{"role": "user", "content": first.prompt}],
        [
            {"role": "user", "content": first.prompt},
            {"role": "assistant", "content": f"re: {first.prompt}"},
            {"role": "user", "content": second.prompt},
        ],
    ]


def test_a_failed_answer_ends_its_session_alone() -> None:
    recorder = Recorder(fails_on="bad")
    sessions = [Session((Turn("bad", 1), Turn("never", 1))), Session((Turn("a", 1), Turn("b", 1)))]
    result = asyncio.run(run_load(recorder, sessions))
    assert sorted(recorder.prompts) == ["a", "b", "bad"]
    assert [answer.error for answer in result.answers].count("broken") == 1

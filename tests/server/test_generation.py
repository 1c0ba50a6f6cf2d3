"""What a slow reader gets, and how several streams are read as one."""

from __future__ import annotations

import asyncio

import pytest

from octavo.engine.outputs import ChoiceDelta, RequestDelta
from octavo.params import SamplingParams
from octavo.server.answer import ReplyWriter
from octavo.server.completions import CompletionRenderer
from octavo.server.context import ServerContext
from octavo.server.generation import Generation, gather
from octavo.server.sse import EventStream
from server.fake_engine import FakeEngine, FakeStream, say

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def submitted(engine: FakeEngine, *prompts: bytes, n: int = 1) -> Generation:
    generation = Generation("id", [list(prompt) for prompt in prompts], SamplingParams(n=n))
    await generation.submit(engine, "")
    return generation


async def test_idle_batches_are_empty() -> None:
    engine = FakeEngine(script=lambda prompt, params: say("ab"), pause=0.1)
    generation = await submitted(engine, b"p")
    batches = [batch async for batch in generation.batches(idle_seconds=0.02)]
    assert batches[0] == []
    assert "".join(delta.text for batch in batches for delta in batch) == "ab"


async def test_choices_are_numbered_over_prompts() -> None:
    def script(prompt: list[int], params: SamplingParams) -> list:  # type: ignore[type-arg]
        return [step for index in (0, 1) for step in say(f"{bytes(prompt).decode()}{index}", index=index)]

    generation = await submitted(FakeEngine(script=script), b"a", b"b", n=2)
    answers = await gather(generation)
    assert [(answer.index, answer.text) for answer in answers] == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]


async def test_leaving_aborts() -> None:
    engine = FakeEngine()
    with await submitted(engine, b"a", b"b"):
        assert not engine.streams[0].is_aborted
    assert all(stream.is_aborted for stream in engine.streams)


async def test_slow_reader_gets_few_large_chunks() -> None:
    """While the socket takes nothing, the engine's deltas are merged by the stream and sent as one."""
    arrived: asyncio.Queue[RequestDelta] = asyncio.Queue()

    async def deltas():  # type: ignore[no-untyped-def]
        while True:
            texts, finished = "", False
            while not texts or not arrived.empty():
                delta = await arrived.get()
                texts, finished = texts + delta.choices[0].text, finished or delta.finished
            reason = "stop" if finished else None
            yield RequestDelta("id", (ChoiceDelta(0, texts, (1,) * len(texts), None, reason),), 0, finished)
            if finished:
                return

    engine = FakeEngine()
    generation = Generation("id", [[1]], SamplingParams())
    generation._streams.append(FakeStream("id", deltas()))
    context = ServerContext(engine)
    writer = ReplyWriter(context, generation, CompletionRenderer(engine, generation, None))
    bodies: list[bytes] = []

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            bodies.append(bytes(message["body"]))  # type: ignore[arg-type]
            if len(bodies) == 1:  # the socket is full; meanwhile the engine says the rest
                for number, letter in enumerate("bcdefgh"):
                    choice = ChoiceDelta(0, letter, (1,))
                    arrived.put_nowait(RequestDelta("id", (choice,), 0, number == 6))
                await asyncio.sleep(0.01)

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    arrived.put_nowait(RequestDelta("id", (ChoiceDelta(0, "a", (1,)),), 0, False))
    await EventStream(generation, writer, 15.0)({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert [b"data: {" in body for body in bodies] == [True, True, False, False]
    assert b'"text":"bcdefgh"' in bodies[1]
    assert bodies[2:] == [b"data: [DONE]\n\n", b""]

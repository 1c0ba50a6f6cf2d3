"""Deltas on their way to a reader: merged when it is slow, ended when it leaves."""

from __future__ import annotations

import asyncio

from octavo.engine.outputs import ChoiceDelta, RequestDelta
from octavo.engine.stream import RequestStream


def delta(text: str, token_id: int, index: int = 0, finish: str | None = None) -> RequestDelta:
    return RequestDelta("r", (ChoiceDelta(index, text, (token_id,), None, finish),), 3, finish is not None)


def test_a_slow_reader_gets_everything_at_once() -> None:
    async def scenario() -> list[RequestDelta]:
        stream = RequestStream("r", lambda _: None)
        stream.deliver(delta("a", 1))
        stream.deliver(delta("x", 9, index=1))
        stream.deliver(delta("b", 2, finish="stop"))
        return [piece async for piece in stream]

    (merged,) = asyncio.run(scenario())
    assert merged.finished
    assert [(c.index, c.text, c.token_ids, c.finish_reason) for c in merged.choices] == [
        (0, "ab", (1, 2), "stop"),
        (1, "x", (9,), None),
    ]


def test_a_quick_reader_gets_each_delta() -> None:
    async def scenario() -> list[str]:
        stream = RequestStream("r", lambda _: None)
        pieces = []
        for text, finish in (("a", None), ("b", "length")):
            stream.deliver(delta(text, 1, finish=finish))
            pieces.append((await anext(stream)).choices[0].text)
        assert [piece async for piece in stream] == []
        return pieces

    assert asyncio.run(scenario()) == ["a", "b"]


def test_abort_is_idempotent_and_ends_a_waiting_reader() -> None:
    async def scenario() -> list[str]:
        aborted: list[str] = []
        stream = RequestStream("r", aborted.append)
        reader = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0)
        stream.abort()
        stream.abort()
        assert await reader is None
        return aborted

    assert asyncio.run(scenario()) == ["r"]

"""The client against servers that say exactly what a test wants, cut wherever it hurts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from octavo.bench.client import Answer, Client, ClientError, first_model

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def text(piece: str) -> bytes:
    return event({"choices": [{"text": piece}]})


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


class Scripted:
    """Answers one request with `pieces`, a write each, and keeps what it was asked."""

    def __init__(self, *pieces: bytes, pause: float = 0.0) -> None:
        self._pieces, self._pause = pieces, pause
        self.head, self.body = "", b""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in self.head.splitlines() if line.startswith("Content-Length"))
        self.body = await reader.readexactly(int(length.split(":")[1]))
        for piece in self._pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(self._pause)
        writer.close()


def ask(server: Scripted, api_key: str | None = None, *, chat: bool = False, path: str = "") -> Answer:
    async def run() -> Answer:
        async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            client = Client(f"http://127.0.0.1:{port}{path}", "m", api_key)
            if chat:
                return await client.chat([{"role": "user", "content": "hi"}], 3)
            return await client.complete("hi", 3)

    return asyncio.run(run())


def test_a_completion() -> None:
    body = chunked(text("He"), text("l") + text("lo"), event(USAGE), b"data: [DONE]\n\n")
    server = Scripted(OK + b"Transfer-Encoding: chunked\r\n\r\n", body)
    answer = ask(server, "secret")
    assert (answer.text, answer.input_len, answer.output_len, answer.error) == ("Hello", 7, 3, None)
    assert len(answer.itls) == 2
    assert 0 < answer.ttft <= answer.e2el
    assert sum(answer.itls) == pytest.approx(answer.e2el - answer.ttft)
    assert answer.tpot == pytest.approx((answer.e2el - answer.ttft) / 2)
    assert server.head.startswith("POST /v1/completions HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in server.head
    sent = json.loads(server.body)
    assert (sent["model"], sent["prompt"], sent["max_tokens"]) == ("m", "hi", 3)
    assert (sent["stream"], sent["ignore_eos"], sent["temperature"]) == (True, True, 0)
    assert sent["stream_options"] == {"include_usage": True}


def test_a_chat_whose_first_event_has_no_text() -> None:
    deltas = ({"role": "assistant", "content": ""}, {"content": "a"}, {"content": None}, {"content": "b"})
    body = b"".join(event({"choices": [{"delta": delta}]}) for delta in deltas) + b"data: [DONE]\n\n"
    server = Scripted(OK + b"\r\n", body)  # no length, no chunks: the end of the connection is the end
    answer = ask(server, chat=True, path="/v1/")
    assert (answer.text, answer.output_len, len(answer.itls)) == ("ab", 2, 1)
    assert server.head.startswith("POST /v1/chat/completions ")
    assert json.loads(server.body)["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_events_cut_anywhere(size: int) -> None:
    stream = b": ping\n\n" + text("Grüße") + text("!") + event(USAGE) + b"data: [DONE]\n\n"
    pieces: Sequence[bytes] = [stream[at : at + size] for at in range(0, len(stream), size)]
    answer = ask(Scripted(OK + b"Transfer-Encoding: chunked\r\n\r\n", *(chunked(*pieces),)))
    assert (answer.text, answer.output_len, answer.error) == ("Grüße!", 3, None)


def test_the_times_are_those_of_the_pieces() -> None:
    parts = [b"%x\r\n%b\r\n" % (len(text("a")), text("a"))] * 3 + [b"0\r\n\r\n"]
    answer = ask(Scripted(OK + b"Transfer-Encoding: chunked\r\n\r\n", *parts, pause=0.02))
    assert all(gap >= 0.015 for gap in answer.itls)
    assert answer.ttft >= 0.015


def test_one_token_has_no_time_per_token() -> None:
    assert Answer(0.0, 0.1, (), 0.1, 1, 1).tpot is None


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy", "status 429: busy"),
        (b"SSH-2.0\r\n\r\n", "does not speak HTTP"),
        (OK + b"\r\n" + event({"error": {"message": "broken"}}), "broken"),
        (OK + b"\r\ndata: {]\n\n", "Expecting"),
        (OK + b"\r\ndata: 1\n\n", "no object"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\ndata", "bytes read"),
        (b"", "does not speak HTTP"),
    ],
)
def test_failures_are_answers_with_an_error(reply: bytes, message: str) -> None:
    answer = ask(Scripted(reply))
    assert answer.error is not None
    assert message in answer.error


@pytest.mark.parametrize("url", ["https://a", "a:80", "http://"])
def test_addresses_that_it_cannot_use(url: str) -> None:
    answer = asyncio.run(Client(url, "m").complete("hi", 1))
    assert answer.error is not None
    assert "not of the form http://HOST" in answer.error


def test_the_first_model() -> None:
    async def run(reply: bytes) -> str:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply)
        async with await asyncio.start_server(Scripted(head + reply), "127.0.0.1", 0) as listening:
            return await first_model(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")

    assert asyncio.run(run(b'{"data": [{"id": "a"}, {"id": "b"}]}')) == "a"
    for reply in (b'{"data": []}', b"no", b"[]"):
        with pytest.raises(ClientError, match="lists no model"):
            asyncio.run(run(reply))

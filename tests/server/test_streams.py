"""Streams over real sockets: headers, pings, slow readers, and clients that leave."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from server.fake_engine import FakeEngine, say
from server.live_server import events_of, live_server, wait_until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}


def text_of(path: str, events: list[Any]) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    if path == COMPLETIONS:
        return "".join(choice["text"] for choice in choices)
    return "".join(choice["delta"].get("content", "") for choice in choices)


def raw_post(base: str, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which the request has been sent and nothing read."""
    connection = socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])))
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    )
    connection.sendall(head.encode() + b"\r\n\r\n" + content)
    return connection


@pytest.mark.parametrize("path", BODIES)
def test_headers_and_framing(engine: FakeEngine, path: str) -> None:
    with live_server(engine) as base:
        response = httpx.post(base + path, json={**BODIES[path], "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"]
    assert text_of(path, events_of(response.text)) == "Hello"


def test_pings_while_nothing_comes(engine: FakeEngine) -> None:
    engine.pause = 0.2
    engine.script = lambda prompt, params: say("ab")
    with live_server(engine, ping_seconds=0.03) as base:
        text = httpx.post(base + COMPLETIONS, json={"prompt": "hi", "stream": True}).text
    first, _, rest = text.partition("data: ")
    assert first.startswith(": ping\n\n: ping\n\n")
    assert text_of(COMPLETIONS, events_of("data: " + rest)) == "ab"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_client_that_leaves_is_not_answered(engine: FakeEngine, path: str, streams: bool) -> None:
    """Also before the first token, and for several choices."""
    engine.pause = 0.05
    engine.script = lambda prompt, params: say("x" * 1000)
    with live_server(engine) as base:
        connection = raw_post(base, path, {**BODIES[path], "stream": streams, "max_tokens": 90})
        wait_until(lambda: bool(engine.streams))
        if streams:
            wait_until(lambda: engine.streams[0].num_read > 2)
        connection.close()
        wait_until(lambda: engine.streams[0].is_aborted)
        num_read = engine.streams[0].num_read
        assert num_read < 100
        assert httpx.get(base + "/health").status_code == 200


def test_all_prompts_of_a_client_that_leaves_are_aborted(engine: FakeEngine) -> None:
    engine.pause = 0.05
    engine.script = lambda prompt, params: say("x" * 1000)
    with live_server(engine) as base:
        connection = raw_post(base, COMPLETIONS, {"prompt": ["a", "b", "c"]})
        wait_until(lambda: len(engine.streams) == 3)
        connection.close()
        wait_until(lambda: all(stream.is_aborted for stream in engine.streams))


def test_many_aborted_streams_leave_nothing(engine: FakeEngine) -> None:
    engine.pause = 0.01
    with live_server(engine) as base:
        for number in range(100):
            engine.script = lambda prompt, params: say("x" * 1000)
            connection = raw_post(base, COMPLETIONS, {"prompt": "hi", "stream": bool(number % 2)})
            if number % 4 == 1:
                connection.recv(100)
            connection.close()
        wait_until(lambda: len(engine.streams) >= 25 and all(stream.is_aborted for stream in engine.streams))
        engine.script = lambda prompt, params: say("alive")
        answer = httpx.post(base + COMPLETIONS, json={"prompt": "hi"}).json()
        assert answer["choices"][0]["text"] == "alive"


def test_many_streams_at_once(engine: FakeEngine) -> None:
    """Each gets its own text, although one of them is cut."""
    engine.pause = 0.001
    engine.script = lambda prompt, params: say(bytes(prompt).decode() * 5)
    with live_server(engine) as base, ThreadPoolExecutor(20) as pool:

        def run(number: int) -> str:
            if number == 7:
                raw_post(base, COMPLETIONS, {"prompt": "cut", "stream": True}).close()
                return "cut"
            body = {"prompt": f"<{number}>", "stream": True}
            events = events_of(httpx.post(base + COMPLETIONS, json=body, timeout=30).text)
            return text_of(COMPLETIONS, events)

        texts = list(pool.map(run, range(20)))
    assert texts == ["cut" if number == 7 else f"<{number}>" * 5 for number in range(20)]


def test_mistake_in_a_stream_request_is_no_stream(engine: FakeEngine) -> None:
    with live_server(engine) as base:
        response = httpx.post(base + COMPLETIONS, json={"prompt": "hi", "stream": True, "n": 0})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"


def test_connection_is_reused(engine: FakeEngine) -> None:
    with live_server(engine) as base, httpx.Client() as client:
        for streams in (True, False, True):
            body = {"prompt": "hi", "stream": streams}
            assert client.post(base + COMPLETIONS, json=body).status_code == 200
    assert not any(stream.num_read == 0 for stream in engine.streams)

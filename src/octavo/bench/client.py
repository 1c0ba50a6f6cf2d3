"""A client of OpenAI servers that costs little: raw sockets, one connection a request, streamed answers.

It shares the machine with the server that it measures, so it does no more than frames, lines and one JSON
object an event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

MAX_LINE_BYTES = 1 << 22
"""Of a server's event."""


class ClientError(ValueError):
    """The server cannot be reached, refuses, or does not speak the protocol."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as its client saw it. Times in seconds."""

    start: float
    """On the clock of time.perf_counter."""
    ttft: float
    """From sending the request to the first text."""
    itls: tuple[float, ...]
    """Between the pieces of text that followed each other."""
    e2el: float
    """From sending the request to the last text."""
    input_len: int
    output_len: int
    """Tokens, as the server counts them (pieces of text, where it does not)."""
    text: str = ""
    error: str | None = None
    """Why there is no answer; then the other fields mean nothing but start."""

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None for an answer of one token."""
        return (self.e2el - self.ttft) / (self.output_len - 1) if self.output_len > 1 else None


@dataclass(frozen=True, slots=True)
class Client:
    """Where the server is, and what it calls the model."""

    base_url: str
    """Such as http://127.0.0.1:8000; a path is kept, so that /v1 may be given or left out."""
    model: str
    api_key: str | None = None

    async def complete(self, prompt: str | Sequence[int], output_len: int) -> Answer:
        """Stream a completion of exactly output_len tokens."""
        return await self._ask("/v1/completions", {"prompt": prompt}, output_len)

    async def chat(self, messages: Sequence[Mapping[str, str]], output_len: int) -> Answer:
        return await self._ask("/v1/chat/completions", {"messages": messages}, output_len)

    async def _ask(self, path: str, what: Mapping[str, Any], output_len: int) -> Answer:
        body = {
            "model": self.model,
            **what,
            "max_tokens": output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        start = time.perf_counter()
        try:
            return await self._stream(path, body, start)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            return Answer(start, 0.0, (), 0.0, 0, 0, error=str(error) or type(error).__name__)

    async def _stream(self, path: str, body: Mapping[str, Any], start: float) -> Answer:
        times: list[float] = []
        pieces: list[str] = []
        usage: Mapping[str, Any] = {}
        async for event in _events(_request(self.base_url, "POST", path, self.api_key, body)):
            if "error" in event:
                raise ClientError(str(event["error"]))
            usage = event.get("usage") or usage
            if text := _text_of(event):
                times.append(time.perf_counter())
                pieces.append(text)
        if not times:
            times.append(time.perf_counter())
        return Answer(
            start=start,
            ttft=times[0] - start,
            itls=tuple(after - before for before, after in pairwise(times)),
            e2el=times[-1] - start,
            input_len=int(usage.get("prompt_tokens", 0)),
            output_len=int(usage.get("completion_tokens", len(pieces))),
            text="".join(pieces),
        )


async def first_model(base_url: str, api_key: str | None = None) -> str:
    """The name of the first model that a server lists. Raises ClientError, OSError."""
    lines = [line async for line in _request(base_url, "GET", "/v1/models", api_key)]
    try:
        return str(json.loads(b"".join(lines))["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise ClientError(f"{base_url}/v1/models lists no model") from None


def _text_of(event: Mapping[str, Any]) -> str | None:
    """The text that an event adds, of a completion or a chat."""
    choices = event.get("choices")
    if not choices:
        return None
    choice = choices[0]
    text = choice["text"] if "text" in choice else (choice.get("delta") or {}).get("content")
    return text if isinstance(text, str) else None


async def _events(lines: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events with one JSON object each, up to [DONE]."""
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ClientError(f"an event is no object: {data[:80]!r}")
        yield event


async def _request(
    base_url: str, method: str, path: str, api_key: str | None, body: Mapping[str, Any] | None = None
) -> AsyncIterator[bytes]:
    """The lines of the answer's body. Raises ClientError for a status other than 200."""
    url = urlsplit(base_url)
    if url.scheme != "http" or url.hostname is None:
        raise ClientError(f"{base_url!r} is not of the form http://HOST[:PORT]")
    payload = b"" if body is None else json.dumps(body).encode()
    headers = [
        f"{method} {url.path.rstrip('/').removesuffix('/v1')}{path} HTTP/1.1",
        f"Host: {url.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        "Connection: close",
    ]
    if api_key is not None:
        headers.append(f"Authorization: Bearer {api_key}")
    reader, writer = await asyncio.open_connection(url.hostname, url.port or 80, limit=MAX_LINE_BYTES)
    try:
        writer.write("\r\n".join([*headers, "", ""]).encode() + payload)
        await writer.drain()
        status, answer_headers = await _read_head(reader)
        is_chunked = answer_headers.get("transfer-encoding", "").lower() == "chunked"
        lines = _lines(_chunks(reader) if is_chunked else _rest(reader, answer_headers))
        if status != 200:
            text = b"".join([line async for line in lines]).decode(errors="replace")
            raise ClientError(f"status {status}: {text[:300]}")
        async for line in lines:
            yield line
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        status = int((await reader.readline()).split()[1])
    except (IndexError, ValueError):
        raise ClientError("the server does not speak HTTP") from None
    headers = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return status, headers


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of a body in chunked transfer encoding."""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _rest(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The pieces of a body of known length, or one that ends with the connection."""
    if "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
        return
    while piece := await reader.read(1 << 16):
        yield piece


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines, with their ends, however the body was cut."""
    pending = b""
    async for piece in pieces:
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if pending:
        yield pending

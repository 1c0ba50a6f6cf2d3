"""Reading a request: its body within a limit, and its client's leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from octavo.server.errors import ApiError, invalid
from octavo.server.protocol import decode

MAX_BODY_BYTES = 32 * 1024 * 1024

T = TypeVar("T")


async def read_json(request: Request, kind: type[T]) -> T:
    """The body as a `kind`. Raises ApiError: 413 above MAX_BODY_BYTES, else 400 naming the field."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise invalid("the content-type must be application/json", None)
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
    return decode(bytes(body), kind)


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client leaves first; then raises ClientDisconnect."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientDisconnect
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large() -> ApiError:
    return ApiError(f"the request body is larger than {MAX_BODY_BYTES} bytes", status=413)

"""The outermost layer: request ids, the API key, the access log, and the answer to what nobody expected."""

from __future__ import annotations

import hmac
import logging
import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.errors import ApiError, internal

logger = logging.getLogger("octavo")

QUIET_PATHS = frozenset({"/health", "/v1/health", "/metrics"})
"""Asked for every few seconds by machines; not logged."""
GUARDED_PREFIX = "/v1/"

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestGuard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, api_key: str | None = None) -> None:
        self._app = app
        self._api_key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = _Answer(_request_id(headers), send)
        scope.setdefault("state", {})["request_id"] = answer.request_id
        try:
            if self._is_allowed(scope["path"], headers):
                await self._app(scope, receive, answer.send)
            else:
                await _unauthorized().response()(scope, receive, answer.send)
        except ClientDisconnect:
            pass
        except Exception:
            logger.exception("request %s failed", answer.request_id)
            if answer.status is None:
                await internal(answer.request_id).response()(scope, receive, answer.send)
        finally:
            answer.log(scope)

    def _is_allowed(self, path: str, headers: Headers) -> bool:
        if self._api_key is None or not path.startswith(GUARDED_PREFIX) or path in QUIET_PATHS:
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode(), self._api_key)


@dataclass(slots=True)
class _Answer:
    """What goes back for one request: adds its id and remembers how it went."""

    request_id: str
    _send: Send
    status: int | None = None
    started: float = field(default_factory=time.monotonic)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self.request_id
        await self._send(message)

    def log(self, scope: Scope) -> None:
        if scope["path"] not in QUIET_PATHS:
            seconds = time.monotonic() - self.started
            status = "left" if self.status is None else self.status
            path = scope["path"][:200]
            logger.info("%s %r %s %.3f s %s", scope["method"], path, status, seconds, self.request_id)


def _request_id(headers: Headers) -> str:
    """The client's, if it is printable and short; otherwise a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _unauthorized() -> ApiError:
    return ApiError(
        "the API key is missing or wrong",
        status=401,
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )

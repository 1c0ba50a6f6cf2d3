"""Errors as OpenAI clients read them: an HTTP status and {"error": {message, type, param, code}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from octavo.engine.errors import EngineDrainingError, EngineError
from octavo.params import ParameterError

INVALID_REQUEST = "invalid_request_error"
RETRY_SECONDS = 5


class ApiError(Exception):
    """An answer that is an error. Its message is for the client: no names of exceptions, no internals."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": type, "param": param, "code": code}
        }

    def response(self) -> Response:
        content = msgspec.json.encode(self.body)
        return Response(content, self.status, self.headers, media_type="application/json")


def invalid(message: str, param: str | None, code: str | None = None) -> ApiError:
    """A client's mistake in one field."""
    return ApiError(message, param=param, code=code)


def unsupported(param: str, detail: str = "") -> ApiError:
    """A field, or a value of one, that would change the answer and that this server does not have."""
    return ApiError(f"{param} is not supported{detail}", param=param, code="unsupported_value")


def context_length_exceeded(message: str, param: str) -> ApiError:
    return ApiError(message, param=param, code="context_length_exceeded")


def unavailable(message: str) -> ApiError:
    """The server takes no requests now; another replica, or this one later, may."""
    return ApiError(
        message, status=503, type="unavailable_error", headers={"retry-after": str(RETRY_SECONDS)}
    )


def internal(request_id: str) -> ApiError:
    """A fault of ours. What it was is in the log, under the same id."""
    return ApiError(
        f"the server had an error while processing the request; request id {request_id}",
        status=500,
        type="server_error",
        headers={"x-should-retry": "false"},
    )


def from_engine(error: EngineError) -> ApiError:
    if isinstance(error, EngineDrainingError):
        return unavailable("the server is shutting down")
    return unavailable("the engine has stopped after an internal error")


def from_parameter(error: ParameterError, names: Mapping[str, str]) -> ApiError:
    """`names` maps the engine's field names to those that the client used, where they differ."""
    param = names.get(error.param, error.param)
    message = str(error)
    if param != error.param:
        message = message.replace(error.param, param)
    return invalid(message, param)

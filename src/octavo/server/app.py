"""The ASGI application: which path is answered by what."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from octavo.server.chat import create_chat_completion
from octavo.server.completions import create_completion
from octavo.server.context import ServerContext, context_of
from octavo.server.engine_protocol import Engine
from octavo.server.errors import ApiError, unavailable
from octavo.server.guard import RequestGuard
from octavo.server.tokenize import detokenize, tokenize

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(engine: Engine, *, api_key: str | None = None, ping_seconds: float = 15.0) -> Starlette:
    """The OpenAI API over `engine`.

    api_key: what /v1 asks for as a bearer token or x-api-key; None asks for nothing.
    ping_seconds: silence on a stream after which a comment is sent.
    """
    app = Starlette(
        routes=[
            Route("/", home),
            Route("/health", health),
            Route("/v1/health", health),
            Route("/version", version),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", model),
            Route("/v1/completions", create_completion, methods=["POST"]),
            Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/v1/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            Route("/v1/detokenize", detokenize, methods=["POST"]),
        ],
        middleware=[Middleware(RequestGuard, api_key=api_key)],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error},
    )
    app.state.context = ServerContext(engine, ping_seconds)
    return app


async def home(request: Request) -> Response:
    context = context_of(request)
    return PlainTextResponse(
        f"octavo {context.version} serves {context.engine.model_name}.\n\n"
        "An OpenAI-compatible API: point a client's base URL at /v1.\n"
        "Also here: /v1/models, /tokenize, /detokenize, /health, /version, /metrics.\n"
    )


async def health(request: Request) -> Response:
    context = context_of(request)
    if context.is_draining:
        raise unavailable("the server is shutting down")
    if not context.engine.is_healthy:
        raise unavailable("the engine does not run")
    return _json({"status": "ok"})


async def version(request: Request) -> Response:
    return _json({"version": context_of(request).version})


async def metrics(request: Request) -> Response:
    return Response(context_of(request).engine.metrics.render(), media_type=METRICS_TYPE)


async def models(request: Request) -> Response:
    return _json({"object": "list", "data": [_model_card(context_of(request))]})


async def model(request: Request) -> Response:
    context = context_of(request)
    context.require_model(request.path_params["model"])
    return _json(_model_card(context))


def _model_card(context: ServerContext) -> dict[str, Any]:
    name = context.engine.model_name
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "octavo",
        "root": name,
        "parent": None,
        "max_model_len": context.engine.max_model_len,
        "permission": [],
    }


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """Routing's own errors (404, 405, …) in the same shape as all others."""
    assert isinstance(error, HTTPException)
    messages = {
        404: f"there is nothing at {request.url.path[:200]}",
        405: f"{request.method} is not answered at {request.url.path[:200]}",
    }
    message = messages.get(error.status_code, error.detail)
    return ApiError(message, status=error.status_code, headers=error.headers).response()


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")

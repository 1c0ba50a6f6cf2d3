"""What every endpoint needs, made once by create_app."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from starlette.requests import Request

from octavo.server.engine_protocol import Engine
from octavo.server.errors import ApiError


def package_version() -> str:
    try:
        return version("octavo")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


@dataclass(slots=True)
class ServerContext:
    engine: Engine
    ping_seconds: float = 15.0
    """Silence on a stream after which a comment keeps the connection open."""
    created: int = field(default_factory=lambda: int(time.time()))
    version: str = field(default_factory=package_version)
    is_draining: bool = False
    """Set when shutdown begins: /health fails, so that nobody sends more."""

    @property
    def system_fingerprint(self) -> str:
        """Equal for servers that answer alike: the same version and model."""
        key = f"{self.version}\0{self.engine.model_name}"
        return "fp_" + hashlib.sha256(key.encode()).hexdigest()[:10]

    def require_model(self, name: str | None) -> None:
        """An omitted model is the served one; another one is an error."""
        if name and name != self.engine.model_name:
            raise ApiError(
                f"the model {name[:100]!r} does not exist; this server has {self.engine.model_name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )


def context_of(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    return context


def request_id_of(request: Request) -> str:
    request_id: str = request.scope["state"]["request_id"]
    return request_id

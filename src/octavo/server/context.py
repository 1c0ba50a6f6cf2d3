"""What every endpoint needs, made once by create_app."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

from starlette.requests import Request

from octavo.server.engine_protocol import Engine
from octavo.server.errors import ApiError, context_length_exceeded
from octavo.version import __version__


@dataclass(slots=True)
class ServerContext:
    engine: Engine
    ping_seconds: float = 15.0
    """Silence on a stream after which a comment keeps the connection open."""
    created: int = field(default_factory=lambda: int(time.time()))
    version: str = __version__
    is_draining: bool = False
    """Set when shutdown begins: /health fails, so that nobody sends more."""
    _longest_token: int | None = None

    @property
    def system_fingerprint(self) -> str:
        """Equal for servers that answer alike: the same version and model."""
        key = f"{self.version}\0{self.engine.model_name}"
        return "fp_" + hashlib.sha256(key.encode()).hexdigest()[:10]

    @property
    def max_prompt_characters(self) -> int:
        """A longer text has more tokens than the model's length, whatever it says."""
        if self._longest_token is None:
            tokenizer = self.engine.tokenizer
            self._longest_token = max(
                max(len(tokenizer.token_bytes(token_id)), len(tokenizer.token_text(token_id)))
                for token_id in range(tokenizer.vocab_size)
            )
        return self.engine.max_model_len * self._longest_token

    def require_short(self, num_characters: int, param: str) -> None:
        """Refuse a hopeless text before it is tokenized, which takes seconds for megabytes."""
        if num_characters > self.max_prompt_characters:
            raise context_length_exceeded(
                f"the model's context length is {self.engine.max_model_len} tokens; the {num_characters}"
                f" characters of {param} are more than so many tokens can hold",
                param,
            )

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

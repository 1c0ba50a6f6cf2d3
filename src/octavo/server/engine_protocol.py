"""What the server needs of an engine. `octavo.engine.async_llm.AsyncLLM` has it; tests script one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from octavo.engine.outputs import RequestDelta
from octavo.params import SamplingParams


class Tokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class RequestStream(Protocol):
    """Async iterator of what each step added; merges what a slow reader has not fetched."""

    async def __anext__(self) -> RequestDelta:
        """Raises StopAsyncIteration after the delta with finished=True."""
        ...

    def abort(self) -> None:
        """End the request; idempotent. Everything it holds is free within a step."""
        ...


class Metrics(Protocol):
    def render(self) -> bytes: ...


class Engine(Protocol):
    @property
    def model_name(self) -> str: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def is_healthy(self) -> bool: ...

    async def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]: ...

    async def encode_chat(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Raises ChatTemplateError when the template refuses the messages."""
        ...

    async def submit(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        cache_salt: str = "",
    ) -> RequestStream:
        """Raises ParameterError at the door, EngineDrainingError in shutdown, EngineDeadError after it."""
        ...

    async def drain(self, timeout: float) -> bool:
        """Take nothing new and wait for what runs; False if something had to be aborted after `timeout` s."""
        ...

    def close(self) -> None: ...

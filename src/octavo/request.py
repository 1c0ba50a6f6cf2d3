"""What a client asked (Request) and the token streams that answer it (Sequence)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from octavo.params import SamplingParams


class FinishReason(Enum):
    """Why a sequence ended. The value is what the API shows."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and what to do with it. Frozen; the engine makes `params.n` sequences of it."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_time: float = 0.0
    """Seconds on time.monotonic()."""
    seed: int = 0
    """The seed that the sampler uses: params.seed, or one derived by the engine."""
    cache_salt: str = ""
    """Requests share cached blocks only with requests of the same salt."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One token stream with one block table. Only the scheduler changes it."""

    seq_id: int
    request: Request
    index: int
    """Which of the request's n choices this is."""
    token_ids: list[int]
    """Prompt, then output."""
    num_computed: int = 0
    """Tokens whose K and V are in the cache: positions [0, num_computed)."""
    num_cached: int = 0
    """Prompt tokens that a prefix match gave at the first admission."""
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    output_token_ids: list[int] = field(default_factory=list)
    """The output alone; grows with token_ids."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def gap(self) -> int:
        """Tokens known but not computed; a step closes part of it."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)

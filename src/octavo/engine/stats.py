"""What the engine tells its metrics, once a step and once a request."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.stats import SchedulerStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    scheduler: SchedulerStats
    num_tokens: int
    """Tokens computed in the step."""
    num_prompt_tokens: int
    """Of those, tokens of prompts."""
    num_generated_tokens: int
    """Tokens sampled in the step."""
    first_token_seconds: tuple[float, ...] = ()
    """Time to first token of each sequence that got one in this step."""
    inter_token_seconds: tuple[float, ...] = ()
    """Time since its token before, of each other sequence that got one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """One sequence group that ended. Times in seconds."""

    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    """Over all n choices."""
    n: int
    max_tokens: int | None
    e2e_seconds: float
    queue_seconds: float
    """Arrival to first being scheduled."""
    prefill_seconds: float
    """First scheduled to first token."""
    decode_seconds: float
    """First token to last."""
